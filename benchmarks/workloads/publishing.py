"""Publishing commits of large streams as tables; opening and counting what came of it."""

import random
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from wrapped_storage import WrappedStorage

import segstore_ds as segstore
from benchmarks.datasets import EVENTS, events
from benchmarks.entries import commit_entry, fill
from benchmarks.report import Found, Ratio
from benchmarks.rival_stores import Listing, installed
from benchmarks.workload import Race, Settings, folder_bytes, race, timed, workload
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import open as open_on

T = TypeVar("T")
PARQUET = "parquet"
FOLDERS = {"delta": "_delta_log", "iceberg": "metadata"}
RIVAL = "pyiceberg"
COMMITS = 20


class _Timed(WrappedStorage):
    """Adds up the time that requests take."""

    seconds = 0.0

    def around(self, verb: str, path: str, work: Callable[[], T]) -> T:
        done: list[T] = []
        self.seconds += timed(lambda: done.append(super(_Timed, self).around(verb, path, work)))
        return done[0]


@workload(
    "published segments are entries only, of 40 KB on average and without statistics",
    "the disk is local and the page cache is warm",
    "of single commits the median; checkpoints and clean-up come every tenth time, apart",
    "the handle that committed publishes; one that others commit for asks three times more",
    "pyiceberg appends one file, whose entry it is given, to its own table by a SQLite catalog",
    "counting reads no file; delta-rs' own table was made of as many real files of one event",
    "against us: it reads a checkpoint and ten commits of ours, and a single commit of its own",
    rows=10**5,
    tiny_rows=10**3,
)
def publish(settings: Settings) -> Found:
    """Publish single commits of 10^4 and 10^5 segments; open and count 10^4 files by delta-rs."""
    sizes = [size for size in (10**3, 10**4, 10**5) if size <= settings.rows][-2:]
    with settings.scratch() as scratch:
        rows = [
            row
            for size in sizes
            for row in _publish(scratch / str(size), size, 3 if settings.tiny else COMMITS)
        ]
        counts = _count(scratch / str(sizes[0]), scratch, settings)
    own = {row["table"]: row for row in rows}  # of the largest
    goals = {
        "requests of one commit": ("requests", 6),
        "ms beside its requests": ("own ms", 50),
        "metadata, % of the data": ("metadata %", 1),
    }
    ratios = [
        Ratio(f"{name}: {what}", own[name][field], goal, most=True)
        for name in FOLDERS
        for what, (field, goal) in goals.items()
    ]
    if RIVAL in own:
        beside = own[RIVAL]["ms"] / own["iceberg"]["ms"]
        ratios.append(Ratio("one commit: pyiceberg's own / published", beside, 1))
    ratios.append(counts.faster("open and count published", "its own", 1))
    return Found(rows + counts.rows(), ratios, raw=counts.raw)


def _publish(folder: Path, size: int, commits: int) -> list[dict[str, Any]]:
    """Publish each commit in both formats, and let pyiceberg append to its own table in turn."""
    segstore.create(folder, EVENTS, upkeep=None)
    fill(open_storage(folder), size, PARQUET)
    storage, chance = _Timed(open_storage(folder)), random.Random(9)
    stream = open_on(storage)
    calls: dict[str, Callable[[], object]] = {
        name: partial(stream.publish, name)  # type: ignore[arg-type]
        for name in FOLDERS
    }
    folders = {name: folder / path for name, path in FOLDERS.items()}
    first = {name: timed(call) for name, call in calls.items()}
    kind = installed().get(RIVAL)
    if kind is not None and issubclass(kind, Listing):
        rival = kind(folder.with_name(f"{folder.name}-rival"))
        first[RIVAL] = timed(partial(rival.fill, size))
        calls[RIVAL], folders[RIVAL] = rival.add_file, rival.folder
    found: dict[str, list[tuple[int, float, float]]] = {name: [] for name in calls}
    for _ in range(commits):
        commit_entry(stream, chance, PARQUET)
        for name, call in calls.items():
            requests, inside = storage.stats.total, storage.seconds
            took = timed(call)
            own = took - (storage.seconds - inside)
            found[name].append((storage.stats.total - requests, took * 1e3, own * 1e3))
    data = stream.tail * 40
    rows = []
    for name, samples in found.items():
        counts, times, beside = zip(*samples, strict=True)
        metadata = folder_bytes(folders[name])
        rows.append(
            {
                "segments": size,
                "table": name,
                "first s": round(first[name], 2),
                "requests": statistics.median_low(counts) or "-",
                "ms": round(statistics.median(times), 1),
                "own ms": round(statistics.median(beside), 1) if name in FOLDERS else "-",
                "most ms": round(max(times), 1),
                "metadata bytes": metadata,
                "metadata %": round(100 * metadata / data, 2),
            }
        )
    return rows


def _count(published: Path, scratch: Path, settings: Settings) -> Race:
    """Open and count a published table, and one that delta-rs made of as many files."""
    from deltalake import DeltaTable, QueryBuilder, convert_to_deltalake

    files = len(DeltaTable(published).get_add_actions())
    (own := scratch / "own").mkdir()
    event = pa.Table.from_batches([events(0, 1)])
    for number in range(files):
        pq.write_table(event, own / f"{number:06}.parquet")
    convert_to_deltalake(own)

    def count(_: Path, table: Path) -> None:
        engine = QueryBuilder().register("t", DeltaTable(table))
        batches = engine.execute("select count(*) as c from t").read_all()
        assert batches["c"][0].as_py() >= files

    tables = {"open and count published": published, "its own": own}
    candidates = {name: partial(count, table=table) for name, table in tables.items()}
    return race(candidates, settings, scratch)
