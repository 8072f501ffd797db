"""What `produced_to_readable` measures in one session: `python -m benchmarks.paced_works GIVEN`.

For each rate and each peer, a query brings in what the paced source produces. A batch is readable
when its commit is: of the others, when the file that commits it was written; of segstore, when the
sink returned, which is a little later.
"""

import ast
import json
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.paced_source import PacedSource
from benchmarks.spark_peers import INSTALLATIONS, Peer, say, start_session
from benchmarks.workload import cpu_seconds

# The files that commit a batch, and the number in their names of the first batch's.
COMMITS = {
    "parquet": ("_spark_metadata", re.compile(r"(\d+)(?:\.compact)?"), 0),
    "delta": ("_delta_log", re.compile(r"(\d+)\.json"), 0),
    "iceberg": ("metadata", re.compile(r"v(\d+)\.metadata\.json"), 2),
}
BEFORE_COMMIT = ("latestOffset", "getBatch", "queryPlanning", "walCommit", "addBatch")
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
KEPT = {"spark.sql.streaming.fileSink.log.cleanupDelay": "1d"}  # the times of all commits
WARM_UP_S = 30  # at most as long as what is measured


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch: its first event, the one after its last, and when all could be read."""

    start: int
    end: int
    readable: float


def main() -> None:
    """Measure each peer at each rate, one after the other."""
    given = json.loads(sys.argv[1])
    installation, folder = INSTALLATIONS[given["installation"]], Path(given["folder"])
    spark = start_session(installation, folder, "tuned")
    for key, value in KEPT.items():
        spark.conf.set(key, value)
    spark.dataSource.register(PacedSource)
    say(setup={"spark": spark.version, "syncs": {p.name: p.syncs for p in installation.peers}})
    for rate in given["rates"]:
        for make in installation.peers:
            peer, seconds = make(folder), given["seconds"]
            peer.prepare(spark, "tuned")
            began, table = time.time(), f"paced_{rate}_{make.name}"
            source = spark.readStream.format("paced").options(rate=rate, began=began)
            query = peer.stream(source.load(), table).start()
            _await_batch(query, 0)
            time.sleep(min(seconds, WARM_UP_S))
            first, spent = time.time(), cpu_seconds()
            time.sleep(seconds)
            spent = (cpu_seconds() - spent) / seconds
            _await_batch(query, int((first - began) * rate))
            if (error := query.exception()) is not None:
                raise RuntimeError("the query failed") from error
            query.stop()  # what this interrupts is no failure
            found = _waits(_batches(query, peer, table), rate, began, first)
            say(peer=peer.name, rate=rate, found={**found, "CPU s a second": round(spent, 3)})
    spark.stop()


def _await_batch(query: StreamingQuery, event: int) -> None:
    """Wait until a batch with an event has ended, however busy the machine is."""
    while query.isActive and not any(_end_of(p) > event for p in query.recentProgress):
        time.sleep(0.05)


def _end_of(progress: Any) -> int:
    if not progress["numInputRows"]:
        return 0
    # Spark 4.1 gives a dict's text, later ones JSON: both are literals of Python.
    return int(ast.literal_eval(progress["sources"][0]["endOffset"])["n"])


def _batches(query: StreamingQuery, peer: Peer, table: str) -> Iterator[Batch]:
    start, commits = 0, _commit_times(peer, table)
    for number, progress in enumerate(p for p in query.recentProgress if p["numInputRows"]):
        end = _end_of(progress)
        begun = datetime.fromisoformat(progress["timestamp"]).timestamp()
        durations = progress["durationMs"]
        done = begun + sum(durations.get(phase, 0) for phase in BEFORE_COMMIT) / 1e3
        yield Batch(start, end, commits[number] if peer.name in COMMITS else done)
        start = end


def _commit_times(peer: Peer, table: str) -> dict[int, float]:
    """Return when each batch was committed, by the modification times of its commit files."""
    if peer.name not in COMMITS:
        return {}
    place, name, first = COMMITS[peer.name]
    found = ((name.fullmatch(path.name), path) for path in (peer.place(table) / place).iterdir())
    return {int(match[1]) - first: path.stat().st_mtime for match, path in found if match}


def _waits(
    batches: Iterator[Batch], rate: float, began: float, measured_from: float
) -> dict[str, Any]:
    """Return the quantiles of seconds from produced to readable, and the ages in each batch."""
    first = int((measured_from - began) * rate)
    waits, moments = list[np.ndarray[Any, Any]](), list[tuple[float, float, float]]()
    for batch in batches:
        if batch.end <= first:
            continue
        produced = began + (np.arange(max(batch.start, first), batch.end) + 1) / rate
        waits.append(batch.readable - produced)
        at, newest, oldest = batch.readable - measured_from, waits[-1][-1], waits[-1][0]
        moments.append((round(at, 3), round(float(newest), 3), round(float(oldest), 3)))
    every = np.concatenate(waits)
    found = {f"{name} s": round(float(np.quantile(every, q)), 3) for name, q in QUANTILES.items()}
    return {**found, "batches a second": round(len(waits) / moments[-1][0], 2), "moments": moments}


if __name__ == "__main__":
    main()
