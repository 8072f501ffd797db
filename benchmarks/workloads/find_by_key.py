"""All events of one key among many: with filters of a key column and without, near and far."""

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from wrapped_storage import LatencyStorage

import segstore_ds as segstore
from benchmarks.report import Found, Ratio
from benchmarks.workload import (
    Candidate,
    Race,
    Settings,
    folder_bytes,
    race,
    rounded,
    timed,
    workload,
)
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream

KEYS = {"filters": ["user"], "plain": None}
FORMATS = ("arrow", "parquet")
DELAY_S = 0.03
SEGMENT_ROWS = 100_000
USERS, USERS_OF_SEGMENT = 1_000_000, 1_000
WANTED, WANTED_ROWS = "user-00500000", 100
FILTERS = [["user", "==", WANTED]]
APPEND_SEGMENTS = 10
SCHEMA = pa.schema(
    [("at", pa.int64()), ("user", pa.string()), ("amount", pa.float64()), ("page", pa.int32())]
)


@workload(
    "a segment has 1,000 of a million users, fewer in small runs; bounds rule none out",
    "the far store is the local disk with a wait before every request, in up to 32 threads",
    "read without the read cache, page cache warm; the stream is opened before the clock starts",
    "against us: 100,000 different users in a frame would take 5 % of it, so it had no filter",
    "filters of segments are made after commits, as part of what appends take here",
    "peers read on a local disk; Delta has one file per append, so of ten segments",
    "DuckDB reads our Parquet segments, with Parquet's own filters; their list costs it nothing",
    rows=100_000_000,
    tiny_rows=4_000,
)
def find_by_key(settings: Settings) -> Found:
    """Find one key's 100 events in each of 1 % of the segments, of 100,000 events each.

    With filters of the key column and without, local and with 30 ms a request, beside Delta,
    Parquet's statistics and DuckDB.
    """
    segments, each, expected = _sizes(settings)
    rows: list[dict[str, Any]] = []
    ratios: list[Ratio] = []
    with settings.scratch() as scratch:
        for form in FORMATS:
            folder = scratch / form
            streams, appends = _fill(folder, form, segments, each)
            found = _look_up(streams, folder, expected, settings)
            for name, row in found.items():
                row["append s"] = rounded(sum(appends[name]) / len(appends[name]))
                row["bytes/row"] = round(folder_bytes(folder / name) / (segments * each), 3)
                rows.append({"format": form, "stream": name, **row})
            ratios += _ratios(form, found["filters"], found["plain"])
            if form != "parquet":
                shutil.rmtree(folder)  # 10^8 events take gigabytes
        peers = _peers(scratch, streams["filters"], (segments, each, expected), settings)
    own = rows[-2]["local s"]  # of Parquet, with filters
    ratios += [Ratio(f"{name} / ours", timing.median / own) for name, timing in peers.items()]
    rows += [{"format": name, "local s": rounded(timing.median)} for name, timing in peers.items()]
    return Found(rows, ratios, {"events": f"{segments} segments of {each}"}, peers.raw)


def _sizes(settings: Settings) -> tuple[int, int, int]:
    """Return how many segments there are, the events of each, and of those that are looked for."""
    # As many as spill at least once, so that some have filters in the table status.
    each = max(min(SEGMENT_ROWS, settings.rows // 200), 50)
    segments = max(settings.rows // each, 1)
    return segments, each, len(range(0, segments, 100)) * min(WANTED_ROWS, each)


def _fill(
    folder: Path, form: str, segments: int, each: int
) -> tuple[dict[str, Stream], dict[str, list[float]]]:
    """Return the two streams, and the seconds of the appends to each."""
    streams = {
        name: segstore.create(folder / name, SCHEMA, key_columns=columns, upkeep=None)
        for name, columns in KEYS.items()
    }
    layout = segstore.Layout(
        inline_bytes=0, segment_rows=each, frame_rows=min(each, 65_536), segment_format=form
    )
    appends: dict[str, list[float]] = {name: [] for name in KEYS}
    for events in _appended(segments, each):
        for name, stream in streams.items():
            appends[name].append(timed(partial(stream.append, events, layout=layout)))
    return streams, appends


def _appended(segments: int, each: int) -> Iterator[pa.Table]:
    for first in range(0, segments, APPEND_SEGMENTS):
        numbers = range(first, min(first + APPEND_SEGMENTS, segments))
        batches = [_segment(number, each, wanted=number % 100 == 0) for number in numbers]
        yield pa.Table.from_batches(batches)


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


def _expecting(expected: int, look_up: Callable[[], int]) -> Candidate:
    def candidate(_: Path) -> None:
        assert look_up() == expected

    return candidate


def _look_up(
    streams: dict[str, Stream], folder: Path, expected: int, settings: Settings
) -> dict[str, dict[str, Any]]:
    """Look the key up in each stream, in turns where it is near and once where it is far."""

    def candidate(stream: Stream) -> Candidate:
        read = partial(stream.read, filters=FILTERS, read_cache_bytes=0)
        return _expecting(expected, lambda: read().read_all().num_rows)

    near = race({name: candidate(s) for name, s in streams.items()}, settings, folder)
    found: dict[str, dict[str, Any]] = {}
    for name in streams:
        far = open_on(LatencyStorage(open_storage(folder / name), DELAY_S))
        stats = far._log.storage.stats
        requests, nbytes = stats.total, stats.bytes_read
        found[name] = {
            "local s": rounded(near[name].median),
            "far s": rounded(timed(partial(candidate(far), folder))),
            "requests": stats.total - requests,
            "MiB read": round((stats.bytes_read - nbytes) / 2**20, 3),
        }
    return found


def _peers(scratch: Path, stream: Stream, sizes: tuple[int, int, int], settings: Settings) -> Race:
    """Look the key up by others."""
    import duckdb
    from deltalake import DeltaTable, write_deltalake

    segments, each, expected = sizes
    folder, wanted = scratch / "delta", ds.field("user") == WANTED
    for events in _appended(segments, each):
        write_deltalake(folder, events, mode="append")
    files = [str(path) for path in folder.glob("*.parquet")]
    ours = [f"{stream.url.removeprefix('file://')}/{file.path}" for file in stream.scan().files()]
    query = "SELECT count(*) FROM (SELECT * FROM read_parquet(?) WHERE user = ?)"

    def in_duckdb() -> int:
        (count,) = duckdb.execute(query, [ours, WANTED]).fetchone() or (0,)
        return int(count)

    peers: dict[str, Callable[[], int]] = {
        "delta-rs": lambda: (
            DeltaTable(folder).to_pyarrow_dataset().to_table(filter=wanted).num_rows
        ),
        "parquet statistics": lambda: ds.dataset(files).to_table(filter=wanted).num_rows,
        "duckdb": in_duckdb,
    }
    candidates = {name: _expecting(expected, peer) for name, peer in peers.items()}
    return race(candidates, settings, scratch)


def _ratios(form: str, keyed: dict[str, Any], plain: dict[str, Any]) -> list[Ratio]:
    goals = {"local s": 30, "far s": 30, "MiB read": None}
    most = {"bytes/row": 1.03, "append s": 1.05}
    return [
        *(
            Ratio(f"{form}: {what}, plain / filters", plain[what] / keyed[what], goal)
            for what, goal in goals.items()
        ),
        *(
            Ratio(f"{form}: {what}, filters / plain", keyed[what] / plain[what], goal, most=True)
            for what, goal in most.items()
        ),
    ]
