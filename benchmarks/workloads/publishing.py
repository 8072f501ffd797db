"""Publishing commits of large streams as tables; opening and counting what came of it."""

import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from wrapped_storage import WrappedStorage

import segstore_ds as segstore
from benchmarks.datasets import EVENTS, events
from benchmarks.report import Ratio, Report, machine
from benchmarks.workload import Settings, Workload, folder_bytes
from benchmarks.workloads.table_status import commit_entries, fill
from benchmarks.workloads.table_status_rivals import pyiceberg_table
from segstore_ds.storage import open_storage
from segstore_ds.stream import open_on

T = TypeVar("T")
MEANING = "publish single commits of 10^4 and 10^5 segments; open and count 10^4 files by delta-rs"
PARQUET = "parquet"
FORMATS = ("delta", "iceberg")
RIVAL = "pyiceberg"
COMMITS = 20
FLATTERS = (
    "published segments are entries only, of 40 KB on average and without statistics",
    "the disk is local and the page cache is warm",
    "of single commits the median; checkpoints and clean-up come every tenth time, apart",
    "the handle that committed publishes; one that others commit for asks three times more",
    "pyiceberg appends one file, whose entry it is given, to its own table by a SQLite catalog",
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
            row
            for size in sizes
            if size <= settings.rows
            for row in _publish(scratch / str(size), size, 3 if tiny else COMMITS)
        ]
        counts = _count(scratch / str(sizes[0]), scratch / "own", settings.rounds)
    own = {row["table"]: row for row in rows}  # of the largest
    medians = {name: statistics.median(seconds) for name, seconds in counts.items()}
    return Report(
        workload="publish",
        meaning=MEANING,
        setup=machine(settings.folder)
        | {"counted": "; ".join(f"{name} {s * 1e3:.1f} ms" for name, s in medians.items())},
        rows=rows,
        ratios=[
            *(ratio for name in FORMATS for ratio in _goals(name, own[name])),
            *(
                Ratio(
                    "one commit: pyiceberg's own / published", row["ms"] / own["iceberg"]["ms"], 1
                )
                for name, row in own.items()
                if name == RIVAL
            ),
            Ratio(
                "open and count: delta-rs' table / ours",
                medians["its own"] / medians["published"],
                1,
            ),
        ],
        flatters=FLATTERS,
        raw=counts,
    )


def _goals(name: str, row: dict[str, Any]) -> list[Ratio]:
    return [
        Ratio(f"{name}: requests of one commit", row["requests"], 6, most=True),
        Ratio(f"{name}: ms beside its requests", row["own ms"], 50, most=True),
        Ratio(f"{name}: metadata, % of the data", row["metadata %"], 1, most=True),
    ]


def _publish(folder: Path, size: int, commits: int) -> list[dict[str, Any]]:
    """Publish each commit in both formats, and let pyiceberg append to its own table in turn."""
    segstore.create(folder, EVENTS, upkeep=None)
    fill(open_storage(folder), size, PARQUET)
    timed, chance = _Timed(open_storage(folder)), random.Random(9)
    stream = open_on(timed)
    calls: dict[str, Callable[[], object]] = {
        "delta": lambda: stream.publish("delta"),
        "iceberg": lambda: stream.publish("iceberg"),
    }
    folders = {"delta": folder / "_delta_log", "iceberg": folder / "metadata"}
    first = {name: _timed(call) for name, call in calls.items()}
    rival = pyiceberg_table(folder.with_name(f"{folder.name}-rival"), size)
    if rival is not None:
        folders[RIVAL], first[RIVAL] = rival.folder, _timed(rival.fill)
    found: dict[str, list[tuple[int, float, float]]] = {name: [] for name in first}
    for _ in range(commits):
        commit_entries(stream, 1, chance, PARQUET)
        for name, call in calls.items():
            requests, inside = timed.stats.total, timed.seconds
            took = _timed(call)
            inside = timed.seconds - inside
            found[name].append((timed.stats.total - requests, took * 1e3, (took - inside) * 1e3))
        if rival is not None:
            found[RIVAL].append((0, _timed(rival.append) * 1e3, 0.0))
    segments = sum(part.count for part in stream._status.table.parts(stream.root))  # noqa: SLF001
    data = stream.tail * 40
    return [
        {
            "segments": segments,
            "table": name,
            "first s": round(first[name], 2),
            "requests": statistics.median_low(requests for requests, _, _ in samples) or "-",
            "ms": round(statistics.median(took_ms for _, took_ms, _ in samples), 1),
            "own ms": round(statistics.median(own_ms for _, _, own_ms in samples), 1) or "-",
            "most ms": round(max(took_ms for _, took_ms, _ in samples), 1),
            "metadata bytes": folder_bytes(folders[name]),
            "metadata %": round(100 * folder_bytes(folders[name]) / data, 2),
        }
        for name, samples in found.items()
    ]


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
