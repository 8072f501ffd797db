"""All events of one key among many: with filters of a key column and without, near and far."""

import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import SparkSession
from wrapped_storage import LatencyStorage

import segstore_ds as segstore
from benchmarks.report import Ratio, Report, machine
from benchmarks.session import delayable_requests, spark_session
from benchmarks.workload import Settings, Workload, folder_bytes
from segstore_ds.storage import open_storage
from segstore_ds.stream import Stream, open_on

MEANING = (
    "find one key's 100 events in each of 1 % of the segments, of 100,000 events each: with "
    "filters of the key column and without, local and with 30 ms a request, beside Delta, "
    "Parquet's statistics and DuckDB"
)
SPARK_MEANING = (
    "find the key of find_by_key by `segstore.read`: with filters and without, local and with "
    "30 ms a request"
)
KEYS = {"filters": ["user"], "plain": None}
FOUND = "found"
DELAY_S = 0.03
SEGMENT_ROWS = 100_000
USERS, USERS_OF_SEGMENT = 1_000_000, 1_000
WANTED, WANTED_ROWS = "user-00500000", 100
APPEND_SEGMENTS = 10
FORMATS = ("arrow", "parquet")
PEERS = ("delta-rs", "parquet statistics", "duckdb")
SCHEMA = pa.schema(
    [("at", pa.int64()), ("user", pa.string()), ("amount", pa.float64()), ("page", pa.int32())]
)
FLATTERS = (
    "a segment has 1,000 of a million users, fewer in small runs; bounds rule no segment out",
    "the far store is the local disk with a wait before every request, in up to 32 threads",
    "read without the read cache, page cache warm; the stream is opened before the clock starts",
    "against us: 100,000 different users in a frame would take 5 % of it, so it had no filter",
    "filters of segments are made after commits, as part of what appends take here",
    "peers read on a local disk; Delta has one file per append, so of ten segments",
    "DuckDB reads our Parquet segments, with Parquet's own filters; their list costs it nothing",
)
SPARK_FLATTERS = (
    FLATTERS[0],
    "a warm session: `found` holds these events alone, so it shows the time of Spark's job",
    "far: every request of the driver's and workers' Python waits; Arrow segments",
)


def run(settings: Settings) -> Report:
    """Fill a stream with filters and one without, per format, and look the key up in both."""
    segments, each = _sizes(settings)
    rows: list[dict[str, Any]] = []
    ratios: list[Ratio] = []
    with settings.scratch() as scratch:
        for form in FORMATS:
            found = _measure(scratch, form, segments, each, settings)
            rows += [{"format": form, "stream": name, **row} for name, row in found.items()]
            ratios += _ratios(form, found["filters"], found["plain"])
            if form != "parquet":
                shutil.rmtree(scratch / "filters")  # 10^8 events take gigabytes
                shutil.rmtree(scratch / "plain")
        seconds = _peers(scratch, segments, each, settings)
    own = {row["stream"]: row["local s"] for row in rows if row["format"] == "parquet"}
    seconds |= {f"parquet, {name}": value for name, value in own.items()}
    rows += [{"format": name, "local s": round(found, 3)} for name, found in seconds.items()]
    ratios += [Ratio(f"{name} / ours", seconds[name] / own["filters"]) for name in PEERS]
    return Report(
        workload="find_by_key",
        meaning=MEANING,
        setup=machine(settings.folder)
        | {"events": f"{segments} segments of {each}", "rounds": settings.rounds_text},
        rows=rows,
        ratios=ratios,
        flatters=FLATTERS,
    )


def run_spark(settings: Settings) -> Report:
    """Fill both streams of each format, and look the key up by `segstore.read`."""
    segments, each = _sizes(settings)
    expected = _expected(segments, each)
    found: dict[str, dict[str, float]] = {}
    with settings.scratch() as scratch:
        for form in FORMATS:
            (scratch / form).mkdir()
            streams, _ = _fill(scratch / form, form, segments, each)
            _fill_found(scratch / form / FOUND, streams["filters"], form)
        delay = scratch / "delay"
        with delayable_requests(delay), spark_session() as spark:
            reads = {form: _spark_reads(spark, scratch / form) for form in FORMATS}
            for form in FORMATS:
                found[f"{form}, local"] = _race(reads[form], expected, settings)
            # Spark's own reader of Parquet can't be delayed, so what is far is read by ours.
            delay.write_text(str(DELAY_S))
            found["arrow, far"] = _race(reads["arrow"], expected, settings)
    return Report(
        workload="find_by_key_spark",
        meaning=SPARK_MEANING,
        setup=machine(settings.folder)
        | {"events": f"{segments} segments of {each}", "rounds": settings.rounds_text},
        rows=[
            {"stream": f"{place}, {name}", "seconds": round(value, 3)}
            for place, seconds in found.items()
            for name, value in seconds.items()
        ],
        ratios=[
            Ratio(f"{place}: plain / filters", seconds["plain"] / seconds["filters"], 30)
            for place, seconds in found.items()
        ],
        flatters=SPARK_FLATTERS,
    )


def _fill_found(folder: Path, stream: Stream, form: str) -> None:
    """Write a stream of what a lookup finds and nothing else: reading it takes Spark's own time."""
    layout = segstore.Layout(inline_bytes=0, segment_format=form)
    found = stream.read(filters=[["user", "==", WANTED]])
    segstore.create(folder, SCHEMA, upkeep=None).append(found, layout=layout)


def _spark_reads(spark: SparkSession, folder: Path) -> dict[str, Callable[[], int]]:
    """Return what reads the key's events from each of the streams of a folder."""
    filters = [["user", "==", WANTED]]

    def look_up(name: str) -> int:
        return len(segstore.read(spark, folder / name, filters=filters).collect())

    return {name: partial(look_up, name) for name in (*KEYS, FOUND)}


def _sizes(settings: Settings) -> tuple[int, int]:
    """Return how many segments there are, and the events of each."""
    # As many as spill at least once, so that some have filters in the table status.
    each = max(min(SEGMENT_ROWS, settings.rows // 200), 50)
    return max(settings.rows // each, 1), each


def _expected(segments: int, each: int) -> int:
    return len(range(0, segments, 100)) * min(WANTED_ROWS, each)


def _fill(
    scratch: Path, form: str, segments: int, each: int
) -> tuple[dict[str, Stream], dict[str, list[float]]]:
    """Return the two streams, and the seconds of the appends to each."""
    streams = {
        name: segstore.create(scratch / name, SCHEMA, key_columns=columns, upkeep=None)
        for name, columns in KEYS.items()
    }
    layout = segstore.Layout(
        inline_bytes=0, segment_rows=each, frame_rows=min(each, 65_536), segment_format=form
    )
    appends: dict[str, list[float]] = {name: [] for name in KEYS}
    for events in _appended(segments, each):
        for name, stream in streams.items():
            start = time.perf_counter()
            stream.append(events, layout=layout)
            appends[name].append(time.perf_counter() - start)
    return streams, appends


def _appended(segments: int, each: int) -> Iterator[pa.Table]:
    for first in range(0, segments, APPEND_SEGMENTS):
        numbers = range(first, min(first + APPEND_SEGMENTS, segments))
        batches = [_segment(number, each, wanted=number % 100 == 0) for number in numbers]
        yield pa.Table.from_batches(batches)


def _measure(
    scratch: Path, form: str, segments: int, each: int, settings: Settings
) -> dict[str, dict[str, Any]]:
    streams, appends = _fill(scratch, form, segments, each)
    return {
        name: {
            "append s": round(statistics.mean(appends[name]), 3),
            "bytes/row": round(folder_bytes(scratch / name) / (segments * each), 3),
            **dict(_reads(stream, scratch / name, _expected(segments, each), settings)),
        }
        for name, stream in streams.items()
    }


def _segment(number: int, each: int, *, wanted: bool) -> pa.RecordBatch:
    chance = np.random.default_rng(number)
    users = chance.integers(0, USERS, min(USERS_OF_SEGMENT, max(each // 100, 10)))
    names = [f"user-{user:08d}" for user in users if f"user-{user:08d}" != WANTED]
    names[:2] = ["user-00000000", "user-99999999"]
    places = chance.integers(0, len(names), each)
    if wanted:
        places[chance.choice(each, min(WANTED_ROWS, each), replace=False)] = len(names)
    dictionary = pa.DictionaryArray.from_arrays(pa.array(places, pa.int32()), [*names, WANTED])
    columns = [
        pa.array(np.arange(each, dtype=np.int64) * 1000 + number * each * 1000),
        dictionary.cast(pa.string()),
        pa.array(chance.random(each).round(4)),
        pa.array(chance.integers(0, 5000, each, dtype=np.int32)),
    ]
    return pa.record_batch(columns, schema=SCHEMA)


def _reads(
    stream: Stream, url: Path, expected: int, settings: Settings
) -> Iterator[tuple[str, Any]]:
    far = open_on(LatencyStorage(open_storage(url), DELAY_S))
    for name, handle in (("local", stream), ("far", far)):
        look_up = partial(handle.read, filters=[["user", "==", WANTED]], read_cache_bytes=0)
        times = []
        rounds = settings.rounds if name == "local" else 1  # one is enough of what waits
        for _ in range(rounds):
            stats = handle.storage.stats
            requests, nbytes, start = stats.total, stats.bytes_read, time.perf_counter()
            assert look_up().read_all().num_rows == expected
            times.append(time.perf_counter() - start)
        yield f"{name} s", round(statistics.median(times), 3)
    yield "requests", stats.total - requests
    yield "MiB read", round((stats.bytes_read - nbytes) / 2**20, 2)


def _peers(scratch: Path, segments: int, each: int, settings: Settings) -> dict[str, float]:
    """Return the seconds of each lookup by others."""
    from deltalake import write_deltalake

    for events in _appended(segments, each):
        write_deltalake(scratch / "delta", events, mode="append")
    candidates: dict[str, Callable[[], int]] = {
        "delta-rs": partial(_delta, scratch / "delta"),
        "parquet statistics": partial(_statistics, scratch / "delta"),
        "duckdb": partial(_duckdb, segstore.open(scratch / "filters")),
    }
    return _race(candidates, _expected(segments, each), settings)


def _race(
    candidates: dict[str, Callable[[], int]], expected: int, settings: Settings
) -> dict[str, float]:
    """Return the median seconds of each candidate, in interleaved rounds after a warm-up."""
    found: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(1 if settings.tiny else 1 + settings.rounds):
        for name, candidate in candidates.items():
            start = time.perf_counter()
            assert candidate() == expected, name
            if turn or settings.tiny:
                found[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in found.items()}


def _delta(folder: Path) -> int:
    from deltalake import DeltaTable

    dataset = DeltaTable(folder).to_pyarrow_dataset()
    return dataset.to_table(filter=ds.field("user") == WANTED).num_rows


def _statistics(folder: Path) -> int:
    files = [str(path) for path in folder.glob("*.parquet")]
    return ds.dataset(files).to_table(filter=ds.field("user") == WANTED).num_rows


def _duckdb(stream: Stream) -> int:
    import duckdb

    files = [f"{stream.url.removeprefix('file://')}/{file.path}" for file in stream.scan().files()]
    query = "SELECT count(*) FROM (SELECT * FROM read_parquet(?) WHERE user = ?)"
    (count,) = duckdb.execute(query, [files, WANTED]).fetchone() or (0,)
    return int(count)


def _ratios(form: str, keyed: dict[str, Any], plain: dict[str, Any]) -> list[Ratio]:
    return [
        Ratio(f"{form}: local, plain / filters", plain["local s"] / keyed["local s"], 30),
        Ratio(f"{form}: far, plain / filters", plain["far s"] / keyed["far s"], 30),
        Ratio(f"{form}: MiB read, plain / filters", plain["MiB read"] / keyed["MiB read"]),
        Ratio(
            f"{form}: bytes, filters / plain",
            keyed["bytes/row"] / plain["bytes/row"],
            1.03,
            most=True,
        ),
        Ratio(
            f"{form}: append, filters / plain",
            keyed["append s"] / plain["append s"],
            1.05,
            most=True,
        ),
    ]


WORKLOADS = {
    "find_by_key": Workload(MEANING, run, 100_000_000, 4_000),
    "find_by_key_spark": Workload(SPARK_MEANING, run_spark, 100_000_000, 4_000),
}
