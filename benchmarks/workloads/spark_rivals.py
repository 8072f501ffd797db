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
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pyarrow.parquet as pq

from benchmarks.datasets import events_parquet, real_parquet
from benchmarks.report import Ratio, Report, machine
from benchmarks.spark_peers import DELTA_JAR, ICEBERG_JAR, INSTALLATIONS, MODES
from benchmarks.workload import Settings, Workload

MEANING = (
    "Spark's sinks and tables: bulk append (rows), micro-batches, many tasks, writers, compaction; "
    "beside Parquet, Delta Lake and Iceberg"
)
YARDSTICK = "parquet"
PIECES, PIECE_ROWS = 10, 1_000
LARGE_BATCHES, LARGE_ROWS = 25, 100_000
FLATTERS = (
    "against us: segstore syncs every segment, commit and folder to disk; the others sync nothing",
    "sessions differ in Spark and in the minute: compare ratios to the Parquet of the same session",
    "Parquet's compaction is one copy of the whole table, its append and its count keep no log",
    "one machine, local disk, warm page cache; Iceberg in a catalog of folders, not a service",
    "Delta and Iceberg do more: updates and deletes, generated columns, branches",
)
GOALS = {  # (session, peer, other, what): the most that satisfies
    ("newest", "segstore", YARDSTICK, "micro-batch, trigger ms"): 0.8,
    ("newest", "segstore", YARDSTICK, "micro-batch, trigger p99 ms"): 1.1,
    ("newest", "segstore", YARDSTICK, "small append"): 0.9,
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


def run(settings: Settings) -> Report:
    """Run the sessions one after the other, each in a process of its own Spark."""
    source = events_parquet(settings.datasets, settings.rows)
    setup = machine(settings.folder) | {
        "rounds": settings.rounds_text,
        "events": settings.rows,
        "micro-batches": f"{_batches(settings)} a round of one query, after 10 not counted",
        "jars": f"{DELTA_JAR}, {ICEBERG_JAR}",
    }
    samples: Samples = defaultdict(list)
    for session, mode in product(INSTALLATIONS, MODES):
        with settings.scratch() as scratch:
            _pieces(source, scratch / "pieces")
            count, rows = (2, 1_000) if settings.tiny else (LARGE_BATCHES, LARGE_ROWS)
            real_parquet(scratch / "large", "flights", count * rows, files=count)
            for line in _session(session, mode, settings, source, scratch):
                if "setup" in line:
                    setup[f"session {session}, {mode}"] = line["setup"]
                    continue
                for what, value in line["found"].items():
                    samples[session, line["peer"], line["mode"], what].append(value)
    return Report(
        workload="spark_rivals",
        meaning=MEANING,
        setup=setup,
        rows=_rows(samples),
        ratios=_ratios(samples),
        flatters=FLATTERS,
        raw={" / ".join(key): values for key, values in samples.items()},
    )


def _batches(settings: Settings) -> int:
    return max(settings.rows // 50_000, 2)


def _pieces(source: Path, target: Path) -> None:
    head = pyarrow.dataset.dataset(source).head(PIECES * PIECE_ROWS)
    target.mkdir()
    for number in range(PIECES):
        pq.write_table(
            head.slice(number * PIECE_ROWS, PIECE_ROWS), target / f"piece-{number}.parquet"
        )


def _session(
    session: str, mode: str, settings: Settings, source: Path, scratch: Path
) -> list[dict[str, Any]]:
    python = python_with(settings.folder, INSTALLATIONS[session].pyspark)
    command = [str(python), "-m", "benchmarks.spark_works", session, mode]
    command += ["--folder", str(scratch / "tables"), "--source", str(source)]
    command += ["--pieces", str(scratch / "pieces"), "--large", str(scratch / "large")]
    command += ["--rounds", str(settings.rounds)]
    command += ["--first", "0" if settings.tiny else "-1", "--batches", str(_batches(settings))]
    environment = {**os.environ, "PYSPARK_PYTHON": str(python)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(f"the session {session}, {mode}, failed:\n{done.stderr[-5000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


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
    theirs = samples.get((session, other, mode, what), [])
    return [
        ours / rival for ours, rival in zip(samples.get(key, []), theirs, strict=False) if rival
    ]


def _median(samples: Samples, key: tuple[str, str, str, str]) -> Any:
    values = samples.get(key)
    return _short(statistics.median(values)) if values else None


def _short(value: float) -> float | int:
    return round(value) if value >= 1000 or value == int(value) else float(f"{value:.3g}")


WORKLOADS = {"spark_rivals": Workload(MEANING, run, 10_000_000, 20_000)}
