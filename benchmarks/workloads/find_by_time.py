"""The events of one minute among many segments, beside Delta and Parquet files with statistics."""

import datetime as dt
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

import segstore_ds as segstore
from benchmarks.report import Ratio, Report, machine
from benchmarks.workload import Settings, Workload
from segstore_ds.stream import Stream

MEANING = (
    "read the events of one minute out of nearly ordered events in 1,000 segments: planning, "
    "requests before the data and the whole read, beside Delta and Parquet's statistics"
)
SEGMENTS = 1_000
PLAN_MS, PLAN_REQUESTS = 20, 3
FIRST_US = 1_763_632_800_000_000
STEP_US, LATE_US = 10_000, 30_000_000  # 100 events a second, which come up to 30 s late
FORMATS = ("arrow", "parquet")
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("user", pa.int32()), ("cents", pa.int16())])
FLATTERS = (
    "nearly ordered: at full size, bounds leave one or two segments for all candidates",
    "every candidate opens its table in each round; page cache warm; ours without the read cache",
    "ours are planned twice in a read, once to count requests; later plans of a handle are faster",
    "the folder of Parquet files is listed and its footers are read, as without any catalogue",
)


def run(settings: Settings) -> Report:
    """Fill all candidates with the same events and read one minute of each."""
    count = min(SEGMENTS, max(settings.rows // 100, 1))
    each = max(settings.rows // count, 1)
    start_us = FIRST_US + count * each * STEP_US // 2
    window = tuple(_moment(start_us + add) for add in (0, 60_000_000))
    with settings.scratch() as scratch:
        _fill(scratch, count, each)
        reads: dict[str, Callable[[], dict[str, Any]]] = {
            form: partial(_ours, scratch / form, window) for form in FORMATS
        }
        reads["delta"] = partial(_peer, _delta, scratch / "delta", window)
        reads["parquet files"] = partial(_peer, _files, scratch / "files", window)
        rounds = [
            {name: read() for name, read in reads.items()} for _ in range(settings.rounds + 1)
        ]
        found = {name: _median([each[name] for each in rounds[1:]]) for name in reads}
    assert len({row["events"] for row in found.values()}) == 1, found
    return Report(
        workload="find_by_time",
        meaning=MEANING,
        setup=machine(settings.folder)
        | {"events": f"{count} segments of {each}", "rounds": settings.rounds_text},
        rows=[{"candidate": name, **row} for name, row in found.items()],
        ratios=[ratio for form in FORMATS for ratio in _ratios(form, found)],
        flatters=FLATTERS,
    )


def _moment(us: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=us)


def _fill(scratch: Path, count: int, each: int) -> None:
    from deltalake import write_deltalake

    streams = {
        form: segstore.create(scratch / form, SCHEMA, time_column="ts", upkeep=None)
        for form in FORMATS
    }
    (scratch / "files").mkdir()
    for number in range(count):
        events = pa.Table.from_batches([_events(number, each)])
        for form, stream in streams.items():
            layout = segstore.Layout(inline_bytes=0, segment_format=form)
            stream.append(events, layout=layout)
        pq.write_table(events, scratch / "files" / f"{number:05}.parquet", compression="zstd")
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


def _ours(url: Path, window: tuple[dt.datetime, ...]) -> dict[str, Any]:
    start = time.perf_counter()
    stream = segstore.open(url)
    asked = stream.storage.stats.total
    opened, spent = time.perf_counter(), time.process_time()
    requests, segments = _plan(stream, window)
    planned, spent = time.perf_counter(), time.process_time() - spent
    rows = stream.read(event_time=window, read_cache_bytes=0).read_all().num_rows
    return {
        "read ms": (time.perf_counter() - start) * 1000,
        "plan ms": (planned - opened) * 1000,
        "plan cpu ms": spent * 1000,
        "open requests": asked,
        "plan requests": requests - asked,
        "segments": segments,
        "events": rows,
    }


def _plan(stream: Stream, window: tuple[dt.datetime, ...]) -> tuple[int, int]:
    """Plan a read; return the handle's requests so far, and the segments that are left."""
    tasks = stream.plan_tasks(stream.plan_read(event_time=window))
    return stream.storage.stats.total, sum(len(task.slices) for task in tasks)


def _peer(
    read: Callable[[Path, tuple[dt.datetime, ...]], pa.Table],
    folder: Path,
    window: tuple[dt.datetime, ...],
) -> dict[str, Any]:
    start = time.perf_counter()
    rows = read(folder, window).num_rows
    return {"read ms": (time.perf_counter() - start) * 1000, "events": rows}


def _median(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    times = {name for name in rounds[0] if name.endswith(" ms")}
    medians = {name: round(statistics.median(each[name] for each in rounds), 1) for name in times}
    return {name: medians.get(name, value) for name, value in rounds[-1].items()}


def _delta(folder: Path, window: tuple[dt.datetime, ...]) -> pa.Table:
    from deltalake import DeltaTable

    return DeltaTable(folder).to_pyarrow_dataset().to_table(filter=_within(window))


def _files(folder: Path, window: tuple[dt.datetime, ...]) -> pa.Table:
    return ds.dataset(folder).to_table(filter=_within(window))


def _within(window: tuple[dt.datetime, ...]) -> ds.Expression:
    start, end = (pa.scalar(moment, SCHEMA.field("ts").type) for moment in window)
    return (ds.field("ts") >= start) & (ds.field("ts") < end)


def _ratios(form: str, found: dict[str, dict[str, Any]]) -> list[Ratio]:
    own = found[form]
    return [
        Ratio(f"{form}: plan ms", own["plan ms"], PLAN_MS, most=True),
        Ratio(f"{form}: requests to plan", own["plan requests"], PLAN_REQUESTS, most=True),
        Ratio(f"delta / {form}", found["delta"]["read ms"] / own["read ms"], 1),
        Ratio(f"parquet files / {form}", found["parquet files"]["read ms"] / own["read ms"], 1),
    ]


WORKLOADS = {"find_by_time": Workload(MEANING, run, 100_000_000, 4_000)}
