"""Streams and tables without Spark: segstore beside what pip brings of its rivals, in one process.

`pip install pypaimon && pip install '.[rivals]'` brings them, into an environment of its own. In
this order: Paimon asks for an older pyarrow than ours, and works with ours.
"""

import statistics
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import segstore_ds as segstore
from benchmarks.datasets import events
from benchmarks.report import Found, Ratio
from benchmarks.rival_stores import Listing, Store, installed, laid_out, versions
from benchmarks.workload import Settings, cpu_timed, folder_bytes, quantile, race, timed, workload
from segstore_ds import Layout

APPENDS, EVENTS_EACH, COLUMN, REPEATS = 300, 10, "value", 4
# The times of a round, and how the report names their median.
TIMES = {
    "bulk append s": "bulk append",
    "first scan s": "first scan",
    "scan s": "repeated scan",
    "first column s": "first scan of one column",
    "column s": "repeated scan of one column",
    "append s": "small append",
    "small scan s": "scan of small appends",
}
FRONTIER = [
    *(("parquet", "zstd", level) for level in (1, 2, 3, 9)),
    ("parquet", "lz4", 1),
    ("arrow", "zstd", 1),
    ("arrow", "lz4", 1),
    ("arrow", "none", 1),
]
Seconds = dict[str, list[float]]


@workload(
    "whole libraries in one process, each with all its threads and its own defaults but for zstd",
    "Iceberg's catalog is a local SQLite file; a catalog service adds a round trip to each commit",
    "against us: every append of ours is synced to disk, and every byte read is checked",
    "one writer, local disk, warm page cache; a table of small appends has 300 commits at most",
    rows=4_000_000,
    tiny_rows=20_000,
)
def python_rivals(settings: Settings) -> Found:
    """Without Spark, beside delta-rs, pyiceberg, Lance and Paimon: appends and scans.

    One append of all events (rows), first and repeated reads of all and of one column of five, 300
    appends of 10 events and reading those. Another store is first in each round. Beside the scans:
    the CPU of pyarrow's reader on the stream's files, which is all but what a scan adds.
    """
    stores, appends = installed(), 5 if settings.tiny else APPENDS
    bulk = pa.Table.from_batches([events(0, settings.rows)])
    seconds: dict[str, Seconds] = {name: {} for name in stores}
    sizes: dict[str, dict[str, Any]] = {}
    for turn in range(0 if settings.tiny else -1, settings.rounds):
        for name in [*stores, *stores][turn % len(stores) :][: len(stores)]:
            with settings.scratch() as scratch:
                found: Seconds = {}
                sizes[name] = _bulk(stores[name](scratch / "bulk"), bulk, found)
                sizes[name] |= _small(stores[name](scratch / "small"), appends, found)
            for what, times in found.items() if turn >= 0 else ():
                seconds[name].setdefault(what, []).extend(times)
    medians = {
        name: {what: statistics.median(times) for what, times in own.items()}
        for name, own in seconds.items()
    }
    rows = [
        {
            "store": name,
            **{what: float(f"{value:.3g}") for what, value in own.items()},
            "append p99 s": float(f"{quantile(seconds[name]['append s'], 0.99):.3g}"),
            **sizes[name],
        }
        for name, own in medians.items()
    ]
    ours = medians.pop("segstore")
    ratios = [
        Ratio(f"{what}, times as fast: segstore / {name}", other[key] / ours[key])
        for key, what in TIMES.items()
        for name, other in medians.items()
    ]
    with settings.scratch() as scratch:
        ratios += _beside_pyarrow(installed()["segstore"](scratch / "bulk"), bulk)
    return Found(rows, ratios, {"libraries": versions()}, seconds)


def _bulk(store: Store, data: pa.Table, found: Seconds) -> dict[str, Any]:
    store.create()
    found["bulk append s"] = [timed(lambda: store.append(data))]
    for what, column in (("scan s", None), ("column s", COLUMN)):
        first, *found[what] = (_read(store, data.num_rows, column) for _ in range(1 + REPEATS))
        found[f"first {what}"] = [first]
    return {"bytes/row": round(folder_bytes(store.folder) / data.num_rows, 2)}


def _beside_pyarrow(store: Store, data: pa.Table) -> list[Ratio]:
    """Compare the CPU of scans of ours to that of pyarrow on the same files, the least of some."""
    store.create()
    store.append(data)
    files = [
        file.url.removeprefix("file://") for file in segstore.open(store.folder).scan().files()
    ]
    ratios = []
    for what, column in (("all columns", None), ("one column", COLUMN)):
        columns = None if column is None else [column]
        spent = [
            (
                cpu_timed(partial(store.read, column)),
                cpu_timed(lambda: [pq.read_table(file, columns=columns) for file in files]),  # noqa: B023
            )
            for _ in range(2 * REPEATS)
        ]
        ours, theirs = (min(times) for times in zip(*spent, strict=True))
        ratios.append(Ratio(f"CPU, {what}: pyarrow on the same files / segstore", theirs / ours))
    return ratios


def _small(store: Store, count: int, found: Seconds) -> dict[str, Any]:
    store.create()
    batches = [pa.Table.from_batches([events(n * EVENTS_EACH, EVENTS_EACH)]) for n in range(count)]
    found["append s"] = [timed(partial(store.append, data)) for data in batches]
    found["small scan s"] = [_read(store, count * EVENTS_EACH, None)]
    files = sum(path.is_file() for path in store.folder.rglob("*"))
    return {"files": files, "small KiB": round(folder_bytes(store.folder) / 1024)}


def _read(store: Store, rows: int, column: str | None) -> float:
    counts: list[int] = []
    seconds = timed(lambda: counts.append(store.read(column)))
    assert counts == [rows], "a store that loses events is not timed"
    return seconds


@workload(
    "against us: every append of ours is synced to disk; the rivals sync nothing",
    rows=4_000_000,
    tiny_rows=20_000,
)
def append_frontier(settings: Settings) -> Found:
    """One append of all events (rows) from memory by format and compression: seconds and bytes."""
    bulk = pa.Table.from_batches([events(0, settings.rows)])
    stores: dict[str, type[Store]] = {
        name: store for name, store in installed().items() if name != "segstore"
    }
    for form, compression, level in FRONTIER:
        layout = Layout(
            segment_format=form, compression=compression, compression_level=level, inline_bytes=0
        )
        stores[f"segstore, {form}, {compression} {level}"] = laid_out(layout)

    def append(kind: type[Store], folder: Path) -> int:
        store = kind(folder)
        store.create()
        store.append(bulk)
        return folder_bytes(folder)

    with settings.scratch() as scratch:
        found = race({n: partial(append, kind) for n, kind in stores.items()}, settings, scratch)
    return Found(found.rows(settings.rows), [], {"libraries": versions()}, found.raw)


@workload(
    "entries have no statistics of columns, which all three usually write with each file",
    "to open means to open anew and to list all files; ours lists them as columns",
    "bytes of delta-rs are those of the commit that filled the table and of its checkpoint",
    "against us: the rivals' tables are filled by one commit, ours has the parts of many",
    "against us: each of our commits is synced to disk",
    "pyiceberg's catalog is a SQLite file on the same disk",
    rows=10**5,
    tiny_rows=1000,
)
def table_status_rivals(settings: Settings) -> Found:
    """The list of files at 10^3 to 10^5 files, beside delta-rs and pyiceberg (rows: most).

    No file is written anywhere: each library commits entries of made-up files by its own API.
    """
    stores = {name: kind for name, kind in installed().items() if issubclass(kind, Listing)}
    sizes = [size for size in (10**3, 10**4, 10**5) if size <= settings.rows]
    commits = 5 if settings.tiny else 40
    rows = []
    with settings.scratch() as scratch:
        for size in sizes:
            for name, kind in stores.items():
                found = _list(kind(scratch / f"{name}-{size}"), size, commits)
                rows.append({"files": size, "library": name, **found})
    ours, *others = rows[-len(stores) :]
    ratios = [
        Ratio(f"{what}, {other['library']} / segstore", other[what] / ours[what])
        for other in others
        for what in ("commit ms", "open and list ms", "bytes/file")
    ]
    return Found(rows, ratios, {"libraries": versions()})


def _list(store: Listing, size: int, commits: int) -> dict[str, Any]:
    store.fill(size)
    filled = folder_bytes(store.folder)
    seconds = [timed(store.add_file) for _ in range(commits)]
    found: list[int] = []
    opened = [timed(lambda: found.append(store.count_files())) for _ in range(3)]
    assert all(abs(count - size - commits) < 100 for count in found), found
    return {
        "commit ms": round(statistics.median(seconds) * 1e3, 2),
        "p99 ms": round(quantile(seconds, 0.99) * 1e3, 2),
        "open and list ms": round(min(opened) * 1e3, 1),
        "bytes/file": round(filled / size, 1),
        "bytes/commit": round((folder_bytes(store.folder) - filled) / commits),
    }
