"""`segstore demo`: a month of real flights, told in snippets that are printed and then run."""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources, util
from pathlib import Path

import segstore_ds as segstore
from segstore_ds.cli import snippets
from segstore_ds.cli.java import fetch_java, find_java, read_install_command
from segstore_ds.cli.story import Story, draw_tree
from segstore_ds.errors import InvalidInputError

_MONTH = "flights-2013-01.parquet"
_PICTURE = "segstore-demo.html"
_LOG_LINES = 15
_NO_SPARK = """\
Spark is not installed here, so this is the part without it.
All of it: pip install 'segstore-ds[demo]'"""
_NO_JAVA = """\
Spark needs Java 17 or newer, and none in JAVA_HOME, on the PATH or in ~/.jdk will do. To get one:

    {command}

or without the system's packages: segstore demo --install-jdk (200 MB, into ~/.jdk).
Until then, this is the part that needs no Spark."""
# Quiet, independent of the machine's host name, and writing only to the demo's folder.
_SPARK_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
}


def run_demo(folder: Path | None, *, install_jdk: bool) -> None:
    """Tell the story; without Spark or Java, the part without them.

    The stream is written to `folder` and stays there; None means a temporary folder. A picture of
    it stays in either case: in `folder`, else in the current one. With `install_jdk` a missing Java
    is fetched.

    Raises:
        InvalidInputError: The folder is not empty.
    """
    started = time.monotonic()
    with _opened(folder) as place:
        story = Story(month=_month(), url=str(place / "flights"))
        if _prepare_spark(story, install_jdk=install_jdk):
            with _quiet_spark(place):
                _tell_spark(story)
        else:
            _tell(story, snippets.APPEND_PYTHON, snippets.CUTS_PYTHON, snippets.REPEAT_PYTHON)
        story.step("The folder: no server, no catalog, no lock")
        for line in draw_tree(place / "flights"):
            story.say(line)
        story.say("\nHow fast it is: `segstore docs benchmarks`, by `python -m benchmarks`.")
        story.say(_draw(place / "flights", (place if folder else Path.cwd()) / _PICTURE))
        story.say(f"Done in {time.monotonic() - started:.0f} s. " + _ending(folder))


def _draw(stream: Path, picture: Path) -> str:
    try:
        picture.write_text(segstore.open(stream).to_html(), "utf-8")
    except OSError as error:
        return f"No picture of the stream: {picture} can't be written: {error.strerror}"
    return f"A picture of the stream, to open in a browser: {picture}"


def _ending(folder: Path | None) -> str:
    if folder is None:
        return "The stream was temporary and is deleted; --folder keeps it."
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


def _prepare_spark(story: Story, *, install_jdk: bool) -> bool:
    """Tell whether Spark can run; say why not."""
    if util.find_spec("pyspark") is None:
        story.say(_NO_SPARK)
        return False
    return _prepare_java(story, install_jdk=install_jdk)


def _prepare_java(story: Story, *, install_jdk: bool) -> bool:
    """Make Spark find a suitable Java; if there is none, say how to get one."""
    java = find_java(os.environ, Path.home())
    if java is None and install_jdk:
        story.say("Fetching a Java into ~/.jdk (200 MB, from Adoptium) ...")
        if problem := fetch_java():
            story.say(f"That did not work: {problem}")
        java = find_java(os.environ, Path.home())
    if java is None:
        story.say(_NO_JAVA.format(command=read_install_command()))
        return False
    os.environ.pop("JAVA_HOME", None)  # Spark would try it before the PATH
    os.environ["PATH"] = f"{java.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return True


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
        _tell(story, snippets.APPEND, snippets.CUTS, snippets.REPEAT)
    finally:
        story.names["spark"].stop()


def _tell(story: Story, append: str, cuts: str, repeat: str) -> None:
    story.step("Append a real month, 27,004 flights from New York: one commit, or nothing")
    story.run(append)
    story.step("Read between two cuts: every event has an offset that never changes")
    story.run(cuts)
    story.step("The same batch again: nothing changes")
    story.run(repeat)
    query = snippets.QUERY_DUCKDB if util.find_spec("duckdb") else snippets.QUERY_ARROW
    story.step("The same stream without Spark")
    story.run(snippets.READ)
    story.run(query)
