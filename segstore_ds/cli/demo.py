"""`segstore demo`: a month of real flights, told in snippets that are printed and then run."""

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources, util
from pathlib import Path

from segstore_ds.cli import snippets
from segstore_ds.cli.java import fetch_java, read_install_command, search_java
from segstore_ds.cli.story import Story, draw_tree
from segstore_ds.errors import InvalidInputError

_MONTH = "flights-2013-01.parquet"
_LOG_LINES = 15
# Quiet, independent of the machine's host name, and writing only to the demo's folder.
_SPARK_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
}


def run_demo(folder: Path | None, *, install_jdk: bool) -> int:
    """Tell the story and return the exit status, 0; without Java, tell the part without Spark.

    The streams are written to `folder` and stay there; None means a temporary folder. With
    `install_jdk` a missing Java is fetched without asking.

    Raises:
        InvalidInputError: The folder is not empty.
    """
    started = time.monotonic()
    with _opened(folder) as place:
        story = Story(month=_month(), url=str(place / "flights"))
        with_spark = _prepare_java(story, install_jdk=install_jdk)
        if with_spark:
            with _quiet_spark(place):
                _tell_spark(story)
        else:
            _tell_python(story)
        story.step("The folder: no server, no catalog, no lock")
        for line in draw_tree(place / "flights"):
            story.say(line)
        story.say("\nHow fast it is: the README's Numbers, measured by `python -m benchmarks`.")
        story.say(f"Done in {time.monotonic() - started:.0f} s. " + _ending(folder))
    return 0


def _ending(folder: Path | None) -> str:
    if folder is None:
        return "The temporary folder is deleted; keep it with --folder."
    return f"Look around: segstore info {folder / 'flights'}"


@contextmanager
def _opened(folder: Path | None) -> Iterator[Path]:
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="segstore-demo-") as made:
            yield Path(made)
        return
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise InvalidInputError(
            "the demo's folder is not empty", remedy="name a new one", folder=str(folder)
        )
    yield folder.resolve()


def _month() -> str:
    """Return the path of the month of flights in the package."""
    return str(resources.files("segstore_ds").joinpath("data", _MONTH))


def _prepare_java(story: Story, *, install_jdk: bool) -> bool:
    """Make Spark find a suitable Java; if there is none, say what to do."""
    search = search_java(os.environ, user_folder=Path.home())
    if search.found:
        search.apply(os.environ)
        return True
    story.say("Spark needs Java 17 or newer, and there is none that will do here:")
    for line in search.looked:
        story.say(f"  - {line}")
    story.say(f"To install one:\n\n    {read_install_command()}\n")
    if install_jdk or _agreed():
        story.say("Fetching a Java into ~/.jdk ...")
        home, problem = fetch_java()
        if home is not None:
            os.environ["JAVA_HOME"] = str(home)
            return True
        story.say(f"That did not work: {problem}")
    story.say("So this is the part that needs no Spark. Run the demo again for the rest.")
    return False


def _agreed() -> bool:
    """Ask whether to fetch a Java; without a terminal say how to have it fetched instead."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        print("Or let the demo fetch one into ~/.jdk (200 MB): segstore demo --install-jdk")
        return False
    try:
        answer = input("Shall the demo fetch one into ~/.jdk (200 MB, from Adoptium)? [y/N] ")
    except EOFError:
        return False
    return answer.strip().lower() in ("y", "yes")


@contextmanager
def _quiet_spark(place: Path) -> Iterator[None]:
    """Make a Spark that starts here use the installed pyspark, and write its log to a file.

    Its JVM and Python workers inherit the error output. A failure prints the end of the log.
    """
    for name in ("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_REMOTE", "PYSPARK_DRIVER_PYTHON"):
        os.environ.pop(name, None)
    settings = {**_SPARK_SETTINGS, "spark.sql.warehouse.dir": str(place / "warehouse")}
    confs = " ".join(f'--conf "{name}={value}"' for name, value in settings.items())
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"{confs} pyspark-shell"
    log = place / "spark.log"
    kept = os.dup(2)
    try:
        with log.open("wb") as sink:
            os.dup2(sink.fileno(), 2)
        yield
    except Exception:
        lines = log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        os.write(kept, ("\n".join(["Spark's log ends with:", *lines]) + "\n").encode())
        raise
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _tell_spark(story: Story) -> None:
    story.step("A Spark session with the format registered")
    story.run(snippets.SESSION)
    try:
        story.step("Append a real month, 27,004 flights from New York: one commit, or nothing")
        story.run(snippets.APPEND)
        story.step("Read between two cuts: every event has an offset that never changes")
        story.run(snippets.CUTS)
        story.step("The same batch again: nothing changes")
        story.run(snippets.REPEAT)
        _tell_query(story)
    finally:
        if "spark" in story.names:
            story.names["spark"].stop()


def _tell_python(story: Story) -> None:
    story.step("Append a real month, 27,004 flights from New York: one commit, or nothing")
    story.run(snippets.APPEND_PYTHON)
    story.step("Read between two cuts: every event has an offset that never changes")
    story.run(snippets.CUTS_PYTHON)
    story.step("The same batch again: nothing changes")
    story.run(snippets.REPEAT_PYTHON)
    _tell_query(story)


def _tell_query(story: Story) -> None:
    for module, name, snippet in snippets.QUERIES:
        if util.find_spec(module) is not None:
            story.step(f"The same stream from {name}, without Spark")
            story.run(snippets.READ)
            story.run(snippet)
            return
