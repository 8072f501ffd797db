"""Small appends, one after the other: requests, bytes, what they leave behind, and reading them."""

import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from virtual_time import TimedStorage, VirtualTime

import segstore_ds as segstore
from benchmarks.datasets import events, real_parquet
from benchmarks.report import Found, Ratio
from benchmarks.rival_stores import installed
from benchmarks.workload import Settings, beside_bare, race, workload
from segstore_ds.format import names
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.stream import Stream

BATCH_ROWS = 10
READ_APPENDS = 300
WARM = 20  # appends before the first that is counted
DAY_S = 86_400.0


@workload(
    "one writer, one long-lived handle: nothing has to be looked up between two appends",
    "log bytes per event byte: what was written to log/, over the bytes of the encoded frames "
    "that were appended; the root's own fields and what a commit repeats of earlier ones count",
    "the bare object is one put by the same storage code of as many bytes as the median frame, "
    "synced like a commit, in the folder of an otherwise empty store",
    "objects at rest: on a virtual clock, appended with compact='auto' once a second, then "
    "left alone until the default policy lets go of what was dropped, and maintained",
    "against us: each append is synced; Lance's are not, and it has no checksum to compare",
    rows=1_000,
    tiny_rows=40,
)
def small_appends(settings: Settings) -> Found:
    """Append 10 events at a time (rows: how many times), synced, of made-up and of real events.

    Requests, log bytes, time beside one bare synced object, objects after upkeep, and reading 300
    of them beside Lance.
    """
    rows = []
    with settings.scratch() as scratch:
        sources: dict[str, Callable[[int], list[pa.RecordBatch]]] = {
            "events": lambda count: [events(n * BATCH_ROWS, BATCH_ROWS) for n in range(count)],
            "flights": partial(_flights, scratch / "flights-parquet"),
        }
        for name, make in sources.items():
            reads = 5 if settings.tiny else READ_APPENDS
            batches = make(max(settings.rows, reads) + WARM)
            stream = segstore.create(scratch / name, batches[0].schema)
            bare = open_storage(scratch / f"{name}-bare")
            row = {"data": name, **_append(stream, bare, batches[: WARM + settings.rows])}
            row |= _at_rest(batches[: settings.rows])
            rows.append(row | _read(settings, scratch / f"{name}-read", batches[:reads]))
    setup = {"reads": f"{READ_APPENDS} appends, opened anew each time"}
    return Found(rows, [ratio for row in rows for ratio in _ratios(row)], setup)


def _append(stream: Stream, bare: Storage, batches: list[pa.RecordBatch]) -> dict[str, Any]:
    for batch in batches[:WARM]:
        stream.append(batch)
    frame = _frame_bytes(stream) // WARM
    timed = beside_bare(
        [partial(stream.append, batch) for batch in batches[WARM:]],
        lambda number: bare.create(f"log/{names.build_log_name(number)}", bytes(frame)),
        stream._log.storage.stats,
        "append",
    )
    framed = _frame_bytes(stream)
    log = [info.size for info in stream._log.storage.list("log") if info.path != names.HINT_PATH]
    rest = [info for info in stream._log.storage.list("") if not info.path.startswith("log/")]
    return {
        "frame bytes": framed // len(batches),
        "log bytes/event byte": round(sum(log) / framed, 2),
        **timed,
        "objects beside the log": len(rest),
    }


def _frame_bytes(stream: Stream) -> int:
    """Add up the encoded frames of all commits."""
    return sum(stream.history().read_all()["bytes"].to_pylist())


def _at_rest(batches: list[pa.RecordBatch]) -> dict[str, Any]:
    """Count objects when all that upkeep may delete is deleted."""
    virtual = VirtualTime()
    storage = TimedStorage(open_storage(f"memory://{uuid.uuid4().hex}"), virtual)
    stream = create_on(storage, batches[0].schema, clock=virtual.clock)
    for batch in batches:
        virtual.advance(1.0)
        stream.append(batch, compact="auto")
    # Dropped objects go after 7 days, by a round that comes after their versions are forgotten.
    for _ in range(2):
        virtual.advance(8 * DAY_S)
        stream.append(batches[0])
        stream.maintain()
    hour_us = virtual.now_us - 3_600_000_000
    found = list(storage.list(""))
    late = [info for info in found if info.path.startswith("log/") and info.modified_us > hour_us]
    return {"objects at rest": len(found) - len(late)}


def _read(settings: Settings, folder: Path, batches: list[pa.RecordBatch]) -> dict[str, Any]:
    stores = {
        name: store(folder.with_name(f"{folder.name}-{name}"))
        for name, store in installed().items()
        if name in {"segstore", "lance"}
    }
    for store in stores.values():
        store.create(batches[0].schema)
        for batch in batches:
            store.append(pa.Table.from_batches([batch]))

    def read(_: Path, name: str) -> None:
        stores[name].read(None)

    found = race({name: partial(read, name=name) for name in stores}, settings, folder)
    return {f"read ms, {name}": round(found[name].median * 1e3, 1) for name in stores}


def _ratios(row: dict[str, Any]) -> list[Ratio]:
    bare = row["median ms"] / row["bare median ms"]
    bounds = {
        "requests per append": (row["requests/append"], 1.1),
        "log bytes per event byte": (row["log bytes/event byte"], 8),
        "append / bare, medians": (bare, 2.5),
        "append, p99 / median": (row["p99 ms"] / row["median ms"], 3),
        "objects at rest": (row["objects at rest"], 60),
    }
    what = row["data"]
    found = [Ratio(f"{what}: {name}", *bound, most=True) for name, bound in bounds.items()]
    if "read ms, lance" in row:
        faster = row["read ms, lance"] / row["read ms, segstore"]
        found.append(Ratio(f"{what}: reading, times as fast: segstore / lance", faster, 1))
    return found


def _flights(folder: Path, count: int) -> list[pa.RecordBatch]:
    real_parquet(folder, "flights", count * BATCH_ROWS)
    table = pq.read_table(folder).combine_chunks()
    return list(table.to_batches(max_chunksize=BATCH_ROWS))[:count]
