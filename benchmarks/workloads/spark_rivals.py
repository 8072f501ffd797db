"""Every table format that Spark writes, each on the newest Spark that it runs on.

Delta Lake and Iceberg come as jars from Maven Central, their Spark from PyPI into an environment
that is made once and kept beside the data sets. Parquet is measured in every session, in the same
rounds, so that formats of different sessions can be compared by their ratios to it.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import venv
from collections import defaultdict
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pyarrow.parquet as pq
from kafka_broker import CONNECTOR, KAFKA, running_broker

from benchmarks.datasets import events_parquet, real_parquet
from benchmarks.report import Found, Ratio
from benchmarks.spark_peers import DELTA_JAR, ICEBERG_JAR, INSTALLATIONS, MODES, PLAIN
from benchmarks.workload import Settings, workload

YARDSTICK = "parquet"
PIECES, PIECE_ROWS = 10, 1_000
LARGE_BATCHES, LARGE_ROWS = 25, 100_000
GOALS = {  # (session, peer, other, what): the most that satisfies
    ("newest", "segstore", YARDSTICK, "micro-batch, trigger ms"): 0.8,
    ("newest", "segstore", YARDSTICK, "micro-batch, trigger p99 ms"): 1.1,
    ("newest", "segstore", YARDSTICK, "small append"): 0.9,
    ("newest", "segstore", YARDSTICK, "scan of all columns"): 1.3,
    ("newest", "segstore", YARDSTICK, "scan of one column"): 1.2,
    ("newest", "segstore", YARDSTICK, "scan of the last 1 %"): 1.5,
    ("newest", "segstore", YARDSTICK, "streamed bytes a batch, live"): 1.1,
    ("newest", "segstore", YARDSTICK, "streamed bytes a batch, on disk"): 2.0,
    ("delta", "segstore", "delta", "load and count micro-batches"): 1.0,
}
ACROSS = {  # what: the most of segstore's ratio to Parquet over Iceberg's
    "micro-batch, trigger ms": 0.9,
    "AvailableNow in 10 batches": 1.0,
    "200 tasks of 5 rows": 0.7,
}
Samples = dict[tuple[str, str, str, str], list[float]]  # session, peer, mode, what


@workload(
    "against us: segstore syncs every segment, commit and folder to disk; the others sync nothing",
    "sessions differ in Spark and in the minute: compare ratios to the Parquet of the same session",
    "Parquet's compaction is one copy of the whole table, its append and its count keep no log",
    "segstore is read by segstore.spark.read; scans by the plain source are rows of their own",
    "one machine, local disk, warm page cache; Iceberg in a catalog of folders, not a service",
    "Delta and Iceberg do more: updates and deletes, generated columns, branches",
    rows=10_000_000,
    tiny_rows=20_000,
)
def spark_rivals(settings: Settings) -> Found:
    """Spark's sinks and tables beside Parquet, Delta Lake and Iceberg.

    Bulk append (rows), micro-batches, many tasks, writers, compaction, in sessions one after the
    other, each in a process of its own Spark.
    """
    source = events_parquet(settings.datasets, settings.rows)
    setup = {
        "micro-batches": f"{_batches(settings)} a round of one query, after 10 not counted",
        "jars": f"{DELTA_JAR}, {ICEBERG_JAR}",
    }
    samples: Samples = defaultdict(list)
    for session, mode in product(INSTALLATIONS, MODES):
        with settings.scratch() as scratch:
            data = scratch / "data"
            data.mkdir()
            (data / "events").symlink_to(source)
            _pieces(source, data / "pieces")
            count, rows = (2, 1_000) if settings.tiny else (LARGE_BATCHES, LARGE_ROWS)
            real_parquet(data / "large", "flights", count * rows, files=count)
            _run_session(session, mode, settings, scratch, (samples, setup))
    return Found(_rows(samples), _ratios(samples), setup, _raw(samples))


@workload(
    "against us: segstore syncs every segment, commit and folder to disk; the others sync nothing",
    "the broker runs on the same two cores; local disk, warm page cache",
    rows=2_000_000,
    tiny_rows=20_000,
)
def kafka(settings: Settings) -> Found:
    """A topic of Kafka through Spark into a stream, beside Delta Lake and the Parquet sink.

    Events of about 75 bytes in four partitions, in ten batches, tuned.
    """
    samples: Samples = defaultdict(list)
    setup = {"kafka": f"{KAFKA.version}, {CONNECTOR}, {DELTA_JAR}"}
    with settings.scratch() as scratch:
        (scratch / "broker").mkdir()
        with running_broker(scratch / "broker") as broker:
            _run_session("delta", "tuned", settings, scratch, (samples, setup), broker)
    ratios = [
        Ratio(f"time: segstore / {other}", statistics.median(_shares(samples, key, other)))
        for key in samples
        if key[1] == "segstore" and not key[3].endswith(", CPU")
        for other in (YARDSTICK, "delta")
    ]
    return Found(_rows(samples), ratios, setup, _raw(samples))


def _batches(settings: Settings) -> int:
    return max(settings.rows // 50_000, 2)


def _pieces(source: Path, target: Path) -> None:
    head = pyarrow.dataset.dataset(source).head(PIECES * PIECE_ROWS)
    target.mkdir()
    for number in range(PIECES):
        piece = head.slice(number * PIECE_ROWS, PIECE_ROWS)
        pq.write_table(piece, target / f"piece-{number}.parquet")


def _run_session(  # noqa: PLR0917 - one call for each session
    session: str,
    mode: str,
    settings: Settings,
    scratch: Path,
    into: tuple[Samples, dict[str, str]],
    broker: str = "",
) -> None:
    """Run a session, and add its samples and what it says of itself."""
    given = {
        "installation": session,
        "mode": mode,
        "folder": str(scratch / "tables"),
        "data": str(scratch / "data"),
        "rows": settings.rows,
        "rounds": settings.rounds,
        "batches": _batches(settings),
        "broker": broker,
        "warm_up": not settings.tiny,
    }
    samples, setup = into
    for line in run_session("spark_works", given, settings, f"{session}-{mode}"):
        if "setup" in line:
            setup[f"session {session}, {mode}"] = str(line["setup"])
        for what, value in line.get("found", {}).items():
            samples[session, line["peer"], mode, what].append(value)


def run_session(
    module: str, given: Mapping[str, Any], settings: Settings, name: str
) -> list[dict[str, Any]]:
    """Run a module of the benchmarks in a session's own Spark, and return the lines that it says.

    They are kept at once, in the folder of the data sets: what the sessions after it meet, or the
    end of a long run, takes none of them.
    """
    python = str(python_with(settings.folder, INSTALLATIONS[given["installation"]].pyspark))
    command = [python, "-m", f"benchmarks.{module}", json.dumps(given)]
    environment = {**os.environ, "PYSPARK_PYTHON": python}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    lines = [text for text in done.stdout.splitlines() if text.startswith("{")]
    kept = settings.folder / "sessions" / f"{module}-{name}.jsonl"
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("\n".join([*lines, ""]))
    if done.returncode:
        raise RuntimeError(f"the session {name} failed:\n{done.stderr[-5000:]}")
    return [json.loads(text) for text in lines]


def _raw(samples: Samples) -> dict[str, list[float]]:
    return {" / ".join(key): values for key, values in samples.items()}


def python_with(folder: Path, pyspark: str) -> Path:
    """Return the Python of an environment with that Spark and, of the rest, what is here."""
    return environment_with(folder, f"pyspark=={pyspark}") if pyspark else Path(sys.executable)


def environment_with(folder: Path, requirement: str) -> Path:
    """Return the Python of an environment that is made once: a package and, of the rest, ours."""
    target = folder / requirement.replace("==", "-")
    python = target / "bin" / "python"
    if not (target / "made").exists():
        shutil.rmtree(target, ignore_errors=True)
        venv.create(target, with_pip=True)
        install = [str(python), "-m", "pip", "install", "--quiet", requirement]
        subprocess.run(install, check=True)
        (target / "made").touch()
    # Looked at each time: the environment that made it may be another one, or gone.
    packages = sysconfig.get_path("purelib", "venv", {"base": str(target)})
    here = "".join(f"{path}\n" for path in sys.path if Path(path).name == "site-packages")
    link = Path(packages, "here.pth")
    if not link.exists() or link.read_text() != here:
        link.write_text(here)
    return python


def _rows(samples: Samples) -> list[dict[str, Any]]:
    rows = []
    for (session, peer, mode, what), values in samples.items():
        if what.endswith(", CPU"):
            continue
        row: dict[str, Any] = {
            "what": what,
            "session": session,
            "peer": peer,
            "mode": mode,
            "median": _short(statistics.median(values)),
            "CPU s": _median(samples, (session, peer, mode, f"{what}, CPU")),
        }
        shares = _shares(samples, (session, peer, mode, what), YARDSTICK)
        if shares and peer != YARDSTICK:
            row["/ parquet"] = _short(statistics.median(shares))
            row["spread"] = f"{_short(min(shares))}-{_short(max(shares))}"
        rows.append(row)
    return sorted(rows, key=lambda row: str(row["what"]))


def _ratios(samples: Samples) -> list[Ratio]:
    ratios = []
    for (session, peer, other, what), goal in GOALS.items():
        shares = _shares(samples, (session, peer, "tuned", what), other)
        if shares:
            name = f"{what}: {peer} / {other}, both tuned"
            ratios.append(Ratio(name, statistics.median(shares), goal, most=True))
    for what, goal in ACROSS.items():
        ours = _shares(samples, ("newest", "segstore", "tuned", what), YARDSTICK)
        theirs = _shares(samples, ("iceberg", "iceberg", "tuned", what), YARDSTICK)
        if ours and theirs:
            value = statistics.median(ours) / statistics.median(theirs)
            name = f"{what}: segstore / iceberg, by their ratios to Parquet"
            ratios.append(Ratio(name, value, goal, most=True))
    return ratios


def _shares(samples: Samples, key: tuple[str, str, str, str], other: str) -> list[float]:
    """Return a peer's values over another's of the same session and mode, round by round."""
    session, _, mode, what = key
    same = what.replace(PLAIN, "")  # of others there is one way to read
    theirs = samples.get((session, other, mode, same), [])
    return [
        ours / rival for ours, rival in zip(samples.get(key, []), theirs, strict=False) if rival
    ]


def _median(samples: Samples, key: tuple[str, str, str, str]) -> Any:
    values = samples.get(key)
    return _short(statistics.median(values)) if values else None


def _short(value: float) -> float | int:
    return round(value) if value >= 1000 or value == int(value) else float(f"{value:.3g}")
