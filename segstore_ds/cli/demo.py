"""`segstore demo`: a month of real flights, told in snippets that are printed and then run."""

import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata, resources, util
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from segstore_ds.cli import snippets
from segstore_ds.cli.java import fetch_java, read_install_command, search_java
from segstore_ds.cli.story import Story, draw_tree, folder_bytes, with_unit
from segstore_ds.errors import InvalidInputError

COPIES = 80  # of the month: 2.2 million rows
_MONTH = "flights-2013-01.parquet"
_LOG_LINES = 15
# Quiet, independent of the machine's host name, and nothing beside the demo's own folder.
_SPARK_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
}


def run_demo(folder: Path | None, *, copies: int, install_jdk: bool) -> int:
    """Tell the story; without a Java that runs Spark the part of it that needs none.

    Args:
        folder: Where the streams are written and stay; None for a temporary one.
        copies: How often the month is repeated for the rates.
        install_jdk: Fetch a Java, where none will do, without asking.

    Returns:
        The exit status, 0.

    Raises:
        InvalidInputError: The folder is not empty.
        SegstoreError: segstore failed.
    """
    started = time.monotonic()
    with _opened(folder) as place:
        story = Story(month=_month(), url=str(place / "flights"))
        with_spark = _prepare_java(story, install_jdk=install_jdk)
        if with_spark:
            with _quiet_spark(place):
                _tell_spark(story, place, copies=copies)
        else:
            _tell_python(story)
        story.step("The folder: no server, no catalog, no lock")
        for line in draw_tree(place / "flights"):
            story.say(line)
        story.say(f"\nDone in {time.monotonic() - started:.0f} s. " + _ending(folder))
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
    """Return the path of the month of flights that the package holds."""
    return str(resources.files("segstore_ds").joinpath("data", _MONTH))


def _prepare_java(story: Story, *, install_jdk: bool) -> bool:
    """Make Spark find a Java that will do; tell what to do where there is none."""
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
    """Let a Spark that starts here be the installed one, and write its log to a file.

    Its JVM and Python workers inherit the error output; a failure shows the end of the log.
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


def _tell_spark(story: Story, place: Path, *, copies: int) -> None:
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
        _tell_rates(story, place, copies=copies)
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


def _tell_rates(story: Story, place: Path, *, copies: int) -> None:
    table = pq.read_table(story.names["month"])
    rows = table.num_rows * copies
    story.step(f"Rows per second beside Spark's Parquet: the month {copies} times, {rows:,} rows")
    with tempfile.TemporaryDirectory(dir=place) as folder:
        source = Path(folder, "source.parquet")
        pq.write_table(pa.concat_tables([table] * copies), source, row_group_size=131_072)
        timer = _Timer(Path(folder), rows)
        story.names.update(source=str(source), timed=timer.time)
        story.run(snippets.RATES)
    for line in timer.table():
        story.say(line)
    story.say(
        "\nOnce each, so this is a demo and no benchmark (those are in benchmarks/). A repeated\n"
        "month flatters the bytes of all four. segstore has synced its files, Parquet has not.\n"
        f"{platform.platform(terse=True)}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, pyspark {metadata.version('pyspark')}, "
        f"pyarrow {pa.__version__}."
    )


class _Timer:
    """Times writes of the same rows, each into a folder of its own.

    Args:
        place: Where the folders are made.
        rows: How many rows each write has.
    """

    def __init__(self, place: Path, rows: int) -> None:
        self._place = place
        self._rows = rows
        self._results: list[tuple[str, float, int]] = []

    def time(self, name: str, write: Callable[[Any, str], None], few: Any, many: Any) -> None:
        """Write a few rows untimed, so that everything is warm, then the many."""
        folder = self._place / f"rates-{len(self._results)}"
        write(few, str(folder / "warm"))
        started = time.monotonic()
        write(many, str(folder / "timed"))
        seconds = time.monotonic() - started
        self._results.append((name, seconds, folder_bytes(folder / "timed")))

    def table(self) -> Iterator[str]:
        """Yield the lines of the results; the last one timed counts as 1."""
        yield f"{'':36}{'seconds':>9}{'rows/s':>12}{'ratio':>8}{'bytes':>11}"
        base = self._results[-1][1]
        for name, seconds, size in self._results:
            rate = f"{self._rows / seconds:,.0f}"
            yield f"{name:36}{seconds:9.2f}{rate:>12}{base / seconds:8.2f}{with_unit(size):>11}"
