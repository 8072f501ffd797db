"""Small appends, one after the other: requests, bytes, what they leave behind, and reading them."""

import statistics
import time
import uuid
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from virtual_time import TimedStorage, VirtualTime

import segstore_ds as segstore
from benchmarks.datasets import events, real_parquet
from benchmarks.report import Ratio, Report, machine
from benchmarks.rival_stores import STORES, installed
from benchmarks.workload import Settings, Workload, quantile
from segstore_ds.format import names
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream import Stream, create_on

MEANING = (
    "append 10 events at a time (rows: how many times), synced: requests, log bytes, time beside "
    "one bare synced object, objects after upkeep, and reading 300 of them beside Lance"
)
BATCH_ROWS = 10
READ_APPENDS = 300
READS = 9
WARM = 20  # appends before the first that is counted
DAY_S = 86_400.0
FLATTERS = (
    "one writer, one long-lived handle: nothing has to be looked up between two appends",
    (
        "log bytes per event byte: what was written to log/, over the bytes of the encoded frames "
        "that were appended; the root's own fields and what a commit repeats of earlier ones count"
    ),
    (
        "the bare object is one put by the same storage code of as many bytes as the median frame, "
        "synced like a commit, in the folder of an otherwise empty store"
    ),
    (
        "objects at rest: on a virtual clock, appended with compact='auto' once a second, then "
        "left alone until the default policy lets go of what was dropped, and maintained"
    ),
    "against us: each append is synced; Lance's are not, and it has no checksum to compare",
)


def run(settings: Settings) -> Report:
    """Measure on events as services log them, and on the wide rows of real flights."""
    with settings.scratch() as scratch:
        sources: dict[str, Callable[[int], list[pa.RecordBatch]]] = {
            "events": _synthetic,
            "flights": partial(_flights, scratch),
        }
        rows = [_measure(name, make, settings, scratch) for name, make in sources.items()]
    return Report(
        workload="small_appends",
        meaning=MEANING,
        setup=machine(settings.folder)
        | {
            "appends": f"{settings.rows} of {BATCH_ROWS} rows, interleaved with the bare object",
            "reads": f"{READ_APPENDS} appends, opened anew each time, median of {READS}",
            "rival": "lance" if "lance" in installed() else "lance is not installed",
        },
        rows=rows,
        ratios=[ratio for row in rows for ratio in _ratios(row)],
        flatters=FLATTERS,
    )


def _measure(
    name: str, make: Callable[[int], list[pa.RecordBatch]], settings: Settings, scratch: Path
) -> dict[str, Any]:
    reads = 5 if settings.tiny else READ_APPENDS
    batches = make(max(settings.rows, reads) + WARM)
    stream = segstore.create(scratch / name, batches[0].schema)
    return {
        "data": name,
        **_append(stream, open_storage(scratch / f"{name}-bare"), batches[: WARM + settings.rows]),
        **_at_rest(batches[: settings.rows]),
        **_read(scratch / f"{name}-read", batches[:reads]),
    }


def _append(stream: Stream, bare: Storage, batches: list[pa.RecordBatch]) -> dict[str, Any]:
    for batch in batches[:WARM]:
        stream.append(batch)
    frame = _frame_bytes(stream) // WARM
    stats = stream.storage.stats
    requests, appends, floors = stats.total, [], []
    for number, batch in enumerate(batches[WARM:]):
        appends.append(_timed_ms(partial(stream.append, batch)))
        path = f"log/{names.build_log_name(number)}"
        floors.append(_timed_ms(partial(bare.create, path, bytes(frame))))
    requests, framed = stats.total - requests, _frame_bytes(stream)
    log = [info.size for info in stream.storage.list("log") if info.path != names.HINT_PATH]
    rest = [info.size for info in stream.storage.list("") if not info.path.startswith("log/")]
    return {
        "frame bytes": framed // len(batches),
        "requests/append": round(requests / len(appends), 3),
        "log bytes/event byte": round(sum(log) / framed, 2),
        "all bytes/event byte": round((sum(log) + sum(rest)) / framed, 2),
        "median ms": round(statistics.median(appends), 2),
        "p99 ms": round(quantile(appends, 0.99), 2),
        "bare ms": round(statistics.median(floors), 2),
        "bare p99 ms": round(quantile(floors, 0.99), 2),
        "objects beside the log": len(rest),
    }


def _at_rest(batches: list[pa.RecordBatch]) -> dict[str, Any]:
    """Count objects when all that upkeep may delete is deleted."""
    virtual = VirtualTime()
    storage = TimedStorage(open_storage(f"memory://{uuid.uuid4().hex}"), virtual)
    stream = create_on(storage, batches[0].schema, clock=virtual.clock)
    for batch in batches:
        virtual.advance(1.0)
        stream.append(batch, compact="auto")
    # Dropped objects go after 7 days, by a round that comes after the purge of their versions.
    for _ in range(2):
        virtual.advance(8 * DAY_S)
        stream.append(batches[0])
        stream.maintain()
    hour_us = virtual.now_us - 3_600_000_000
    found = list(storage.list(""))
    late = [info for info in found if info.path.startswith("log/") and info.modified_us > hour_us]
    return {"objects at rest": len(found) - len(late)}


def _read(folder: Path, batches: list[pa.RecordBatch]) -> dict[str, Any]:
    stores = {"segstore": STORES["segstore"]} | dict(
        item for item in installed().items() if item[0] == "lance"
    )
    made = {
        name: store(folder.with_name(f"{folder.name}-{name}")) for name, store in stores.items()
    }
    times: dict[str, list[float]] = {name: [] for name in stores}
    for store in made.values():
        store.create(batches[0].schema)
        for batch in batches:
            store.append(pa.Table.from_batches([batch]))
    for _ in range(READS):
        for name, store in made.items():
            times[name].append(_timed_ms(partial(store.read, None)))
    return {f"read ms, {name}": round(statistics.median(times[name]), 1) for name in stores}


def _ratios(row: dict[str, Any]) -> list[Ratio]:
    what = row["data"]
    ratios = [
        Ratio(f"{what}: requests per append", row["requests/append"], 1.1, most=True),
        Ratio(f"{what}: log bytes per event byte", row["log bytes/event byte"], 8, most=True),
        Ratio(f"{what}: append / bare, medians", row["median ms"] / row["bare ms"], 2.5, most=True),
        Ratio(f"{what}: append, p99 / median", row["p99 ms"] / row["median ms"], 3, most=True),
        Ratio(f"{what}: objects at rest", row["objects at rest"], 60, most=True),
    ]
    if "read ms, lance" in row:
        faster = row["read ms, lance"] / row["read ms, segstore"]
        ratios.append(Ratio(f"{what}: reading, times faster: segstore / lance", faster, 1))
    return ratios


def _frame_bytes(stream: Stream) -> int:
    """Add up the encoded frames of all commits."""
    return sum(stream.history().read_all()["bytes"].to_pylist())


def _synthetic(count: int) -> list[pa.RecordBatch]:
    return [events(number * BATCH_ROWS, BATCH_ROWS) for number in range(count)]


def _flights(scratch: Path, count: int) -> list[pa.RecordBatch]:
    folder = scratch / "flights-parquet"
    real_parquet(folder, "flights", count * BATCH_ROWS)
    table = pq.read_table(folder)
    return list(islice(table.combine_chunks().to_batches(max_chunksize=BATCH_ROWS), count))


def _timed_ms(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


WORKLOADS = {"small_appends": Workload(MEANING, run, 1_000, 40)}
