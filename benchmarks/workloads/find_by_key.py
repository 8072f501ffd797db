"""All events of one key among many: with filters of a key column and without, near and far."""

import statistics
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import segstore_ds as segstore
from benchmarks.report import Ratio, Report, machine
from benchmarks.workload import Settings, Workload, folder_bytes
from segstore_ds.storage import open_storage
from segstore_ds.stream import Stream, open_on
from segstore_ds.testing.faults import LatencyStorage

MEANING = (
    "find one key's 100 events in each of 1 % of the segments, of 100,000 events each: with "
    "filters of the key column and without, local and with 30 ms a request"
)
DELAY_S = 0.03
SEGMENT_ROWS = 100_000
USERS, USERS_OF_SEGMENT = 1_000_000, 1_000
WANTED, WANTED_ROWS = "user-00500000", 100
APPEND_SEGMENTS = 10
FORMATS = ("arrow", "parquet")
SCHEMA = pa.schema(
    [("at", pa.int64()), ("user", pa.string()), ("amount", pa.float64()), ("page", pa.int32())]
)
FLATTERS = (
    "each segment has 1,000 of a million users in random order; bounds rule no segment out",
    "the far store is the local disk with a wait before every request, in up to 32 threads",
    "read without the read cache, page cache warm; the stream is opened before the clock starts",
    "against us: 100,000 different users in a frame would take 5 % of it, so it had no filter",
)


def run(settings: Settings) -> Report:
    """Fill a stream with filters and one without, per format, and look the key up in both."""
    each = max(min(SEGMENT_ROWS, settings.rows // 10), 200)
    segments = max(settings.rows // each, 1)
    rows: list[dict[str, Any]] = []
    ratios: list[Ratio] = []
    with settings.scratch() as scratch:
        for form in FORMATS:
            found = _measure(scratch, form, segments, each, settings)
            rows += [{"format": form, "stream": name, **row} for name, row in found.items()]
            ratios += _ratios(form, found["filters"], found["plain"])
    return Report(
        workload="find_by_key",
        meaning=MEANING,
        setup=machine(settings.folder)
        | {"events": f"{segments} segments of {each}", "rounds": settings.rounds_text},
        rows=rows,
        ratios=ratios,
        flatters=FLATTERS,
    )


def _measure(
    scratch: Path, form: str, segments: int, each: int, settings: Settings
) -> dict[str, dict[str, Any]]:
    keys = {"filters": ["user"], "plain": None}
    urls = {name: scratch / f"{form}-{name}" for name in keys}
    streams = {
        name: segstore.create(urls[name], SCHEMA, key_columns=columns, upkeep=None)
        for name, columns in keys.items()
    }
    layout = segstore.Layout(inline_bytes=0, segment_rows=each, segment_format=form)
    appends: dict[str, list[float]] = {name: [] for name in keys}
    wanted = [*range(0, segments, 100)]
    for first in range(0, segments, APPEND_SEGMENTS):
        numbers = range(first, min(first + APPEND_SEGMENTS, segments))
        batches = [_segment(number, each, wanted=number in wanted) for number in numbers]
        for name, stream in streams.items():
            start = time.perf_counter()
            stream.append(pa.Table.from_batches(batches), layout=layout)
            appends[name].append(time.perf_counter() - start)
    found = {}
    for name, stream in streams.items():
        reads = dict(_reads(stream, urls[name], len(wanted) * min(WANTED_ROWS, each), settings))
        found[name] = {
            "append s": round(statistics.median(appends[name]), 3),
            "bytes/row": round(folder_bytes(urls[name] / "segments") / (segments * each), 3),
            **reads,
        }
    return found


def _segment(number: int, each: int, *, wanted: bool) -> pa.RecordBatch:
    chance = np.random.default_rng(number)
    users = chance.integers(0, USERS, USERS_OF_SEGMENT)
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


WORKLOADS = {"find_by_key": Workload(MEANING, run, 100_000_000, 4_000)}
