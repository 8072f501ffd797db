"""Publishing commits of large streams as Delta tables; opening and counting what came of it."""

import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

import segstore_ds as segstore
from benchmarks.datasets import EVENTS, events
from benchmarks.report import Ratio, Report, machine
from benchmarks.workload import Settings, Workload, folder_bytes
from benchmarks.workloads.table_status import commit_entries, fill
from segstore_ds.storage import open_storage
from segstore_ds.stream import open_on
from segstore_ds.testing.faults import WrappedStorage

T = TypeVar("T")
MEANING = "publish single commits of 10^4 and 10^5 segments; open and count 10^4 files by delta-rs"
PARQUET = "parquet"
COMMITS = 20
FLATTERS = (
    "published segments are entries only, of 40 KB on average and without statistics",
    "the disk is local and the page cache is warm",
    "of single commits the median; checkpoints and clean-up come every tenth time, apart",
    "counting reads no file; delta-rs' own table was made of as many real files of one event",
    "against us: it reads a checkpoint and ten commits of ours, and a single commit of its own",
)


class _Timed(WrappedStorage):
    """Adds up the time that requests take."""

    seconds = 0.0

    def around(self, verb: str, path: str, work: Callable[[], T]) -> T:
        began = time.perf_counter()
        try:
            return super().around(verb, path, work)
        finally:
            self.seconds += time.perf_counter() - began


def run(settings: Settings) -> Report:
    """Measure every size, then the table of real files."""
    tiny = settings.tiny
    sizes = (10**3,) if tiny else (10**4, 10**5)
    with settings.scratch() as scratch:
        rows = [
            _publish(scratch / str(size), size, 3 if tiny else COMMITS)
            for size in sizes
            if size <= settings.rows
        ]
        counts = _count(scratch / str(sizes[0]) / "delta", scratch / "own", settings.rounds)
    last = rows[-1]
    medians = {name: statistics.median(seconds) for name, seconds in counts.items()}
    return Report(
        workload="publish",
        meaning=MEANING,
        setup=machine(settings.folder)
        | {"counted": "; ".join(f"{name} {s * 1e3:.1f} ms" for name, s in medians.items())},
        rows=rows,
        ratios=[
            Ratio("requests of one commit, largest", last["requests"], 6, most=True),
            Ratio("its ms beside its requests, largest", last["own ms"], 50, most=True),
            Ratio("metadata, % of the data", last["metadata %"], 1, most=True),
            Ratio(
                "open and count: delta-rs' table / ours",
                medians["its own"] / medians["published"],
                1,
            ),
        ],
        flatters=FLATTERS,
        raw=counts,
    )


def _publish(folder: Path, size: int, commits: int) -> dict[str, Any]:
    segstore.create(folder, EVENTS, upkeep=None)
    fill(open_storage(folder), size, PARQUET)
    timed, chance = _Timed(open_storage(folder)), random.Random(9)
    stream = open_on(timed)
    first = _timed(stream.publish_delta)
    found: list[tuple[int, float, float]] = []
    for _ in range(commits):
        commit_entries(stream, 1, chance, PARQUET)
        requests, inside = timed.stats.total, timed.seconds
        took = _timed(stream.publish_delta)
        inside = timed.seconds - inside
        found.append((timed.stats.total - requests, took * 1e3, (took - inside) * 1e3))
    ordered = sorted(found)
    asked, took_ms, own_ms = ordered[len(ordered) // 2]
    segments = sum(part.count for part in stream._status.levels.parts(stream.root))  # noqa: SLF001
    data = stream.tail * 40
    return {
        "segments": segments,
        "first s": round(first, 2),
        "requests": asked,
        "ms": round(took_ms, 1),
        "own ms": round(own_ms, 1),
        "most ms": round(max(ms for _, ms, _ in found), 1),
        "metadata bytes": folder_bytes(folder / "delta"),
        "metadata %": round(100 * folder_bytes(folder / "delta") / data, 2),
    }


def _count(published: Path, own: Path, rounds: int) -> dict[str, list[float]]:
    """Time opening and counting a published table, and one that delta-rs made of as many files."""
    from deltalake import DeltaTable, QueryBuilder, convert_to_deltalake

    counts: dict[str, list[float]] = {"published": [], "its own": []}
    files = len(DeltaTable(published).get_add_actions())
    own.mkdir()
    event = pa.Table.from_batches([events(0, 1)])
    for number in range(files):
        pq.write_table(event, own / f"{number:06}.parquet")
    convert_to_deltalake(own)
    for turn in range(rounds + 1):
        for name, table in (("published", published), ("its own", own)):
            began = time.perf_counter()
            engine = QueryBuilder().register("t", DeltaTable(table))
            batches = engine.execute("select count(*) as c from t").read_all()
            took = time.perf_counter() - began
            assert batches["c"][0].as_py() >= files
            if turn:
                counts[name].append(took)
    return counts


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


WORKLOADS = {"publish": Workload(MEANING, run, 10**5, 10**3)}
