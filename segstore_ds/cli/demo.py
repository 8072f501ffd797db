"""`segstore demo`: prints snippets about a month of real flights, and runs them."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import resources, util
from pathlib import Path
from textwrap import indent
from typing import Any

import typer

import segstore_ds as segstore
from segstore_ds.errors import InvalidInputError
from segstore_ds.options.quantities import with_unit

_LOG_LINES = 15
# Spark opens this module when it starts. Java 8 to 15 and trimmed runtimes lack it.
NEEDED_MODULE = "jdk.incubator.vector"
_START_S = 60
_NO_SPARK = """\
Spark is not installed here, so its part is left out.
All of it: pip install 'pyspark>=4.0,<5'"""
_NO_JAVA = """\
Spark needs Java 17 or newer, and none in JAVA_HOME, on the PATH or in ~/.jdk will do. To get one,
install OpenJDK by your system's packages, or: segstore demo --install-jdk (200 MB, into ~/.jdk).
Until then, Spark's part is left out."""
# Quiet, independent of the machine's host name, and writing only to the demo's folder.
_SPARK_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
}

# Titles and snippets; these use `month`, `url` and the names of earlier ones.
Story = tuple[tuple[str, str], ...]
_IN_PYTHON: Story = (
    (
        "Append a real month, 27,004 flights from New York: one commit, or nothing",
        """\
import pyarrow.parquet as pq
import segstore_ds as segstore

flights = pq.read_table(month)
stream = segstore.create(url, flights.schema)
print(stream.append(flights, writer_id="demo", batch_id=1))""",
    ),
    (
        "Read between two cuts: every event has an offset that never changes",
        """\
columns = ["time_hour", "carrier", "flight", "origin", "dest", "dep_delay"]
few = stream.read(1000, 1005, columns=columns, offset_column="offset")
for event in few.read_all().to_pylist():
    print(event["offset"], *[event[name] for name in columns])""",
    ),
    (
        "The same batch again: nothing changes",
        """\
print(stream.append(flights, writer_id="demo", batch_id=1))    # a retry after a timeout
print(stream)""",
    ),
)
_IN_SPARK: Story = (
    (
        "The same stream in Spark, and the same batch once more",
        """\
import os, sys
os.environ["PYSPARK_PYTHON"] = sys.executable    # Spark's workers would take the PATH's python3

from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[2]").config(map=segstore.spark.recommended_conf())
spark = builder.getOrCreate()
segstore.spark.register(spark)

reader = spark.read.format("segstore").options(startCut=1000, endCut=1005, offsetColumn="offset")
few = reader.load(url)
few.select("offset", "time_hour", "carrier", "flight", "origin", "dest", "dep_delay").show()

flights = spark.read.parquet(month)
append = flights.write.format("segstore").mode("append").options(writerId="demo", batchId=1)
append.save(url)
print(spark.read.format("segstore").load(url).count(), "events")""",
    ),
)
_READ = """\
filters = "origin == 'JFK' and time_hour >= '2013-01-15T00:00:00Z'"
jfk = segstore.open(url).scan(columns=["carrier", "dep_delay"], filters=filters)
"""
_QUERY_DUCKDB = '''
import duckdb

print(duckdb.sql("""
    SELECT carrier, count(*) AS flights, round(avg(dep_delay), 1) AS delay
    FROM jfk GROUP BY carrier ORDER BY flights DESC LIMIT 5
"""))'''
_QUERY_ARROW = """\
delays = jfk.to_arrow().group_by("carrier").aggregate([([], "count_all"), ("dep_delay", "mean")])
for carrier in delays.sort_by([("count_all", "descending")]).slice(0, 5).to_pylist():
    print(carrier)"""
_NEXT = """\
    segstore info {url}
    segstore cat {url} -n 3 --offsets
    segstore cat {url} --where "dep_delay > 600" --json
    segstore export {url} jfk.csv --where "origin == 'JFK'"
    segstore tag {url} before-the-fork
    segstore copy {url} {url}-fork --clone
    segstore history {url}
    segstore verify {url}"""


def run_demo(folder: Path | None, *, install_jdk: bool) -> None:
    """Run the demo; without Spark or Java it leaves out their part.

    The stream is written to `folder` and stays there; None means a temporary folder. A picture of
    it is kept in either case: in `folder`, or in the current folder. `install_jdk` downloads a
    missing Java.
    """
    started = time.monotonic()
    with _opened(folder) as place:
        month = resources.files("segstore_ds").joinpath("data", "flights-2013-01.parquet")
        names = {"month": str(month), "url": str(place / "flights")}
        query = _READ + (_QUERY_DUCKDB if util.find_spec("duckdb") else _QUERY_ARROW)
        _tell((*_IN_PYTHON, ("A question, without Spark", query)), names)
        if _prepare_spark(install_jdk=install_jdk):
            with _quiet_spark(place):
                _tell(_IN_SPARK, names)
        _print_title("The folder: no server, no catalog, no lock")
        for path in sorted(path for path in (place / "flights").rglob("*") if path.is_file()):
            name = path.relative_to(place).as_posix()
            print(f"{name:64} {with_unit(path.stat().st_size):>10}")
        picture = (place if folder else Path.cwd()) / "segstore-demo.html"
        try:
            picture.write_text(segstore.open(names["url"]).picture().to_html(), "utf-8")
            print(f"\nA picture of the stream, to open in a browser: {picture}")
        except OSError as error:
            print(f"\nNo picture of the stream: {picture} can't be written: {error.strerror}")
    print(f"Done in {time.monotonic() - started:.0f} s. Try next (and `segstore docs`):\n")
    if folder is None:
        print("    segstore demo --folder demo    # this stream was temporary and is deleted")
    print(_NEXT.format(url=(folder or Path("demo")) / "flights"))


def _print_title(title: str) -> None:
    typer.secho(f"\n== {title}\n", bold=True)


def _tell(story: Story, names: dict[str, Any]) -> None:
    """Print snippets, and run exactly what was printed; raises what they raise."""
    try:
        for title, code in story:
            _print_title(title)
            typer.secho(indent(code, "    ") + "\n", fg="cyan")
            exec(compile(code, "<demo>", "exec"), names)  # noqa: S102 - our own text, shown as it runs
    finally:
        if "spark" in names:
            names.pop("spark").stop()


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


def _prepare_spark(*, install_jdk: bool) -> bool:
    """Tell whether Spark can run, and put a suitable Java on the PATH; prints why it can't."""
    if util.find_spec("pyspark") is None:
        print(_NO_SPARK)
        return False
    java = find_java(os.environ, Path.home())
    if java is None and install_jdk:
        print("Fetching a Java into ~/.jdk (200 MB, from Adoptium) ...", flush=True)
        if problem := fetch_java():
            print(f"That did not work: {problem}")
        java = find_java(os.environ, Path.home())
    if java is None:
        print(_NO_JAVA)
        return False
    os.environ.pop("JAVA_HOME", None)  # Spark would try it before the PATH
    os.environ["PATH"] = f"{java.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return True


@contextmanager
def _quiet_spark(place: Path) -> Iterator[None]:
    """Let Spark use the installed pyspark, and write its log to a file."""
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


def find_java(environment: Mapping[str, str], user_folder: Path) -> Path | None:
    """Return the first `java` that runs Spark: of JAVA_HOME, of the PATH, or in ~/.jdk."""
    return next(filter(_runs_spark, _places(environment, user_folder)), None)


def fetch_java() -> str | None:
    """Download a Java into ~/.jdk, where `find_java` looks; returns why that failed, or None."""
    try:
        import jdk

        jdk.install("17")
    except ImportError:
        return "the package install-jdk is missing: pip install install-jdk"
    except (jdk.JdkError, OSError) as error:
        return " ".join(str(error).split())
    return None


def _places(environment: Mapping[str, str], user_folder: Path) -> Iterator[Path]:
    command = "java.exe" if os.name == "nt" else "java"
    if home := environment.get("JAVA_HOME"):
        yield Path(home, "bin", command)
    if found := shutil.which("java", path=environment.get("PATH", "")):
        yield Path(found)
    for folder in sorted((user_folder / ".jdk").glob("*")):
        yield folder / "bin" / command
        yield folder / "Contents" / "Home" / "bin" / command


def _runs_spark(command: Path) -> bool:
    line: list[str | Path] = [command, "--add-modules", NEEDED_MODULE, "-version"]
    try:
        done = subprocess.run(line, capture_output=True, check=False, timeout=_START_S)  # noqa: S603 - the user's own java
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
