"""Small appends, one after the other: requests, bytes, and what they leave behind."""

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
from benchmarks.workload import Settings, workload
from segstore_ds.format import names
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.stream import Stream

BATCH_ROWS = 10
WARM = 20  # appends before the first that is counted
DAY_S = 86_400.0


@workload(
    "one writer, one long-lived handle: append_latency has the times of its appends",
    "log bytes per event byte: what was written to log/, over the bytes of the encoded frames "
    "that were appended; the root's own fields and what a commit repeats of earlier ones count",
    "objects at rest: on a virtual clock, appended with compact='auto' once a second, then "
    "left alone until the default policy lets go of what was dropped, and maintained",
    rows=1_000,
    tiny_rows=40,
)
def small_appends(settings: Settings) -> Found:
    """Append 10 events at a time (rows: how many times), synced, of made-up and of real events.

    Requests, log bytes, and objects after upkeep.
    """
    rows = []
    with settings.scratch() as scratch:
        sources: dict[str, Callable[[int], list[pa.RecordBatch]]] = {
            "events": lambda count: [events(n * BATCH_ROWS, BATCH_ROWS) for n in range(count)],
            "flights": partial(_flights, scratch / "flights-parquet"),
        }
        for name, make in sources.items():
            batches = make(settings.rows + WARM)
            stream = segstore.create(scratch / name, batches[0].schema)
            rows.append({"data": name, **_append(stream, batches), **_at_rest(batches[WARM:])})
    return Found(rows, [ratio for row in rows for ratio in _ratios(row)])


def _append(stream: Stream, batches: list[pa.RecordBatch]) -> dict[str, Any]:
    for batch in batches[:WARM]:
        stream.append(batch)
    requests = stream._log.storage.stats.total
    for batch in batches[WARM:]:
        stream.append(batch)
    requests = stream._log.storage.stats.total - requests
    framed = _frame_bytes(stream)
    log = [info.size for info in stream._log.storage.list("log") if info.path != names.HINT_PATH]
    rest = [info for info in stream._log.storage.list("") if not info.path.startswith("log/")]
    return {
        "frame bytes": framed // len(batches),
        "log bytes/event byte": round(sum(log) / framed, 2),
        "requests/append": round(requests / len(batches[WARM:]), 3),
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


def _ratios(row: dict[str, Any]) -> list[Ratio]:
    bounds = {
        "requests per append": (row["requests/append"], 1.1),
        "log bytes per event byte": (row["log bytes/event byte"], 8),
        "objects at rest": (row["objects at rest"], 60),
    }
    what = row["data"]
    return [Ratio(f"{what}: {name}", *bound, most=True) for name, bound in bounds.items()]


def _flights(folder: Path, count: int) -> list[pa.RecordBatch]:
    real_parquet(folder, "flights", count * BATCH_ROWS)
    table = pq.read_table(folder).combine_chunks()
    return list(table.to_batches(max_chunksize=BATCH_ROWS))[:count]
