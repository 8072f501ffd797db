"""The events of one minute among many segments, beside Delta and Parquet files with statistics."""

import datetime as dt
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

import segstore_ds as segstore
from benchmarks.report import Found, Ratio
from benchmarks.workload import Settings, race, rounded, workload
from segstore_ds.stream.connector.reads import open_snapshot, open_storage

SEGMENTS = 1_000
PLAN_MS, PLAN_REQUESTS = 20, 3
FIRST_US = 1_763_632_800_000_000
STEP_US, LATE_US = 10_000, 30_000_000  # 100 events a second, which come up to 30 s late
FORMATS = ("arrow", "parquet")
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("user", pa.int32()), ("cents", pa.int16())])
Window = tuple[dt.datetime, dt.datetime]


@workload(
    "nearly ordered: at full size, bounds leave one or two segments for all candidates",
    "every candidate opens its table in each round; page cache warm; ours without the read cache",
    "ours are planned twice in a read, once to count requests; later plans of a handle are faster",
    "the folder of Parquet files is listed and its footers are read, as without any catalogue",
    rows=100_000_000,
    tiny_rows=4_000,
)
def find_by_time(settings: Settings) -> Found:
    """Read the events of one minute out of nearly ordered events in 1,000 segments.

    Planning, requests before the data and the whole read, beside Delta and Parquet's statistics.
    """
    count = min(SEGMENTS, max(settings.rows // 100, 1))
    each = max(settings.rows // count, 1)
    start = dt.datetime.fromtimestamp((FIRST_US + count * each * STEP_US // 2) / 1e6, dt.UTC)
    window = start, start + dt.timedelta(minutes=1)
    counts: set[int] = set()
    plans: dict[str, list[dict[str, Any]]] = {form: [] for form in FORMATS}
    with settings.scratch() as scratch:
        _fill(scratch, count, each)

        def read(_: Path, name: str) -> None:
            own = partial(_ours, plans=plans[name]) if name in plans else _theirs
            counts.add(own(scratch / name, window))

        names = (*FORMATS, "delta", "parquet files")
        found = race({name: partial(read, name=name) for name in names}, settings, scratch)
    (events,) = counts
    rows = []
    for row in found.rows():
        last = plans.get(row["candidate"], [{}])[-settings.rounds :]
        medians = {what: rounded(median(plan[what] for plan in last)) for what in last[0]}
        rows.append({**row, **medians})
    ratios = []
    for form, row in zip(FORMATS, rows, strict=False):
        ratios += [
            Ratio(f"{form}: plan ms", row["plan ms"], PLAN_MS, most=True),
            Ratio(f"{form}: requests to plan", row["plan requests"], PLAN_REQUESTS, most=True),
            *(found.faster(form, rival, 1) for rival in ("delta", "parquet files")),
        ]
    setup = {"events": f"{count} segments of {each}; {events} within the minute"}
    return Found(rows, ratios, setup, found.raw)


def _fill(scratch: Path, count: int, each: int) -> None:
    from deltalake import write_deltalake

    streams = {
        form: segstore.create(scratch / form, SCHEMA, time_column="ts", upkeep=None)
        for form in FORMATS
    }
    (scratch / "parquet files").mkdir()
    for number in range(count):
        events = pa.Table.from_batches([_events(number, each)])
        for form, stream in streams.items():
            layout = segstore.Layout(inline_bytes=0, segment_format=form)
            stream.append(events, layout=layout)
        path = scratch / "parquet files" / f"{number:05}.parquet"
        pq.write_table(events, path, compression="zstd")
        write_deltalake(scratch / "delta", events, mode="append")


def _events(number: int, each: int) -> pa.RecordBatch:
    chance = np.random.default_rng(number)
    times = FIRST_US + np.arange(number * each, (number + 1) * each, dtype=np.int64) * STEP_US
    times -= chance.integers(0, LATE_US, each)
    columns = [
        pa.array(times).cast(SCHEMA.field("ts").type),
        pa.array(chance.integers(0, 1_000_000, each), pa.int32()),
        pa.array(chance.integers(0, 1_000, each), pa.int16()),
    ]
    return pa.record_batch(columns, schema=SCHEMA)


def _ours(url: Path, window: Window, plans: list[dict[str, Any]]) -> int:
    stream, snapshot = segstore.open(url), open_snapshot(open_storage(url))
    stats = snapshot.storage.stats
    asked, opened, spent = stats.total, time.perf_counter(), time.process_time()
    tasks = snapshot.tasks(snapshot.plan(event_time=window))
    plans.append(
        {
            "plan ms": (time.perf_counter() - opened) * 1000,
            "plan cpu ms": (time.process_time() - spent) * 1000,
            "open requests": asked,
            "plan requests": stats.total - asked,
            "segments": sum(len(task.slices) for task in tasks),
        }
    )
    return stream.read(event_time=window, read_cache_bytes=0).read_all().num_rows


def _theirs(folder: Path, window: Window) -> int:
    from deltalake import DeltaTable

    start, end = (pa.scalar(moment, SCHEMA.field("ts").type) for moment in window)
    within = (ds.field("ts") >= start) & (ds.field("ts") < end)
    own = folder.name == "delta"
    dataset = DeltaTable(folder).to_pyarrow_dataset() if own else ds.dataset(folder)
    return int(dataset.to_table(filter=within).num_rows)
