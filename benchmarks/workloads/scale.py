"""Streams of up to 10^9 segments and 10^13 events, and one commit of 10^5 segments.

Parts of the table status are references: those that a verb reads are written, the others are not
there. So a verb that reads more than it should fails with a missing object.
"""

import datetime as dt
import random
import time
import tracemalloc
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from virtual_time import TimedStorage, VirtualTime

import segstore_ds as segstore
from benchmarks.datasets import EVENTS, START_US, events
from benchmarks.entries import FINAL, columns, commit_entry, commit_staged
from benchmarks.report import Found, Ratio
from benchmarks.workload import Settings, rounded, workload
from segstore_ds.format.bounds import Bounds
from segstore_ds.format.names import build_token
from segstore_ds.format.root import PartRef, Root, SegmentEntry
from segstore_ds.format.statistics import Column, Stats, build_text
from segstore_ds.log.commit import Change
from segstore_ds.status.table import Slot
from segstore_ds.status.table_status import TableStatus
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.connector.reads import open_snapshot
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream

ROWS = 10_000  # events of a segment, on average
LABEL, STEP_US = "timestamp:at", 1000  # an event each millisecond
COMMITS = 200
TASKS, STAGED = 1_000, 100


@workload(
    "storage is this process's memory: requests, bytes and CPU count, not time",
    "a part that is not read is a reference, so 14 GB of parts need not be written",
    "no filters of keys: a lookup by key alone reads those of every part",
    rows=10**9,
    tiny_rows=4 * FINAL,
)
def scale(settings: Settings) -> Found:
    """Requests, bytes and CPU of each verb at 10^6 and 10^9 segments (rows: most of them).

    And a commit of 1,000 tasks that staged 100 segments each.
    """
    rows: list[dict[str, Any]] = []
    sizes = {settings.rows} if settings.tiny else {10**6, settings.rows}
    for size in sorted(sizes):
        rows += [{"segments": size, **row} for row in _verbs(size)]
    rows.append(_commit_of_many(*((20, 10) if settings.tiny else (TASKS, STAGED))))
    most = {row["verb"]: row for row in rows if row.get("segments") == settings.rows}
    ratios = [
        Ratio(f"requests: {verb}", most[verb]["requests"], goal, most=True)
        for verb, goal in {
            "open": 3,
            "append 10 events": 4,
            "plan the tail": 3,
            "plan an offset": 5,
            "plan a second": 6,
        }.items()
    ]
    return Found(rows, ratios)


def _verbs(size: int) -> list[dict[str, Any]]:
    storage = open_storage(f"memory://{uuid.uuid4().hex}/stream")
    segstore.create(storage.url, EVENTS, time_column="at")
    real = _fill(storage, size)
    found: list[dict[str, Any]] = []

    def note(verb: str, call: Callable[[Storage], object], own: Storage, count: int = 1) -> None:
        before, read = own.stats.cost(), own.stats.bytes_read
        began = time.process_time()
        call(own)
        spent = time.process_time() - began
        now = own.stats.cost()
        found.append(
            {
                "verb": verb,
                "requests": rounded((now[0] - before[0]) / count),
                "KiB read": rounded((own.stats.bytes_read - read) / count / 1024),
                "KiB written": rounded((now[1] - before[1]) / count / 1024),
                "CPU ms": rounded(spent * 1e3 / count),
            }
        )

    def fresh() -> Storage:
        return open_storage(storage.url)

    note("open", open_on, fresh())
    stream = open_on(fresh())
    writer, chance = stream._log.storage, random.Random(3)

    def append(_: Storage) -> None:
        for n in range(COMMITS):
            stream.append(events(n, 10))

    def commit(_: Storage) -> None:
        for _n in range(COMMITS):
            commit_entry(stream, chance)

    def plan(own: Storage, start: Any = "head", end: Any = "tail", **how: Any) -> None:
        snapshot = open_snapshot(own)
        assert snapshot.tasks(snapshot.plan(start, end, **how))

    middle = (real.start + real.end) // 2
    second = [START_US + (middle + more) * STEP_US for more in (0, 1000)]
    note("plan an offset", partial(plan, start=middle, end=middle + 1), fresh())
    note("plan a second", partial(plan, event_time=tuple(_times(second))), fresh())
    note("append a segment, with the merges of parts", commit, writer, COMMITS)
    note("append 10 events", append, writer, COMMITS)
    note("plan the tail", partial(plan, start=stream.tail - 1), fresh())
    note("read the newest 10 events", lambda own: _read(open_on(own), 10), fresh())
    note("last 10 versions", lambda own: [*open_on(own).history(stream.version - 9)], fresh())
    note("drop the oldest quarter", lambda own: open_on(own).truncate(real.start), fresh())
    note("an append and a round of upkeep", _keep_up, fresh())
    note("clone", lambda own: _clone(open_on(own)), fresh())
    return found


def _keep_up(storage: Storage) -> None:
    passed = VirtualTime(now_us=time.time_ns() // 1000)
    timed = TimedStorage(storage, passed)
    passed.advance(30 * 86_400)
    stream = open_on(timed, clock=passed.clock)
    stream.append(events(0, 1))
    upkeep = stream._log.refresh().upkeep
    assert upkeep is not None
    assert upkeep.version == stream.version


def _read(stream: Stream, newest: int) -> None:
    assert stream.read(stream.tail - newest).read_all().num_rows == newest


def _clone(stream: Stream) -> None:
    stream.copy_to(f"{stream.url}-clone", mode="clone", copy_id="c")


def _times(us: list[int]) -> Iterator[dt.datetime]:
    for each in us:
        yield dt.datetime.fromtimestamp(each / 1e6, dt.UTC)


def _fill(storage: Storage, size: int) -> PartRef:
    """List so many segments; return a part in the middle that can be read."""
    stream, status = open_on(storage), TableStatus(storage)
    count = max(size // FINAL, 1)
    written = {0, count // 4, count // 2, count - 1}
    found: list[PartRef] = []

    def build(root: Root, slot: Slot) -> Change[None]:
        parts: list[PartRef] = []
        start = 0
        for number in range(count):
            if number in written:
                last = _put(status, root.version, number, start)
                ref = last
            else:
                path = f"status/{number:020d}-segments-{number:032x}"
                ref = replace(last, path=path, start=start, end=start + last.end - last.start)
                ref = replace(ref, stats=_bounds(start, ref.end))
            parts.append(ref)
            start = ref.end
        found.append(parts[count // 2])
        filled = replace(
            root, parts=tuple(parts), tail=start, next_segment=count * FINAL, operation="append"
        )
        return Change(status.tidy(filled, slot))

    stream._log.commit(build, transaction="f" * 32)
    return found[0]


def _put(status: TableStatus, version: int, number: int, start: int) -> PartRef:
    made = columns(number * FINAL, FINAL, rows=ROWS)
    ends = start + np.cumsum(made.rows)
    lows = START_US + (ends - made.rows) * STEP_US
    bounds = [pa.array(lows), pa.array(START_US + ends * STEP_US), pa.array(made.rows * 0)]
    ref = status.table.put(version, start, made, Stats(FINAL, {LABEL: Column(*bounds)}))
    return replace(ref, stats=_bounds(start, ref.end))


def _bounds(start: int, end: int) -> str | None:
    low, high = (START_US + offset * STEP_US for offset in (start, end))
    return build_text({LABEL: Bounds(low, high, 0)})


def _commit_of_many(tasks: int, each: int) -> dict[str, Any]:
    """Commit what a cluster's tasks have staged, as the driver of one write does."""
    text = build_text({"timestamp:at": Bounds(0, 1, 0), "int:id": Bounds(0, 1, 0)})

    def run() -> tuple[int, int]:
        storage = open_storage(f"memory://{uuid.uuid4().hex}/stream")
        stream = segstore.create(storage.url, EVENTS, upkeep=None)
        log = stream._log
        token, before = build_token(log.root.version, "0" * 12), log.storage.stats.cost()
        staged = tuple(
            SegmentEntry(0, f"{token}/{t}-0-{n}.arrow", ROWS, ROWS * 40, 200, 0, "arrow", text)
            for t in range(tasks)
            for n in range(each)
        )
        commit_staged(stream, token, staged)
        after = log.storage.stats.cost()
        return after[0] - before[0], after[1] - before[1]

    began = time.process_time()
    requests, written = run()
    spent = time.process_time() - began
    tracemalloc.start()
    run()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {
        "segments": tasks * each,
        "verb": f"one commit of {tasks} tasks",
        "requests": requests,
        "KiB written": rounded(written / 1024),
        "CPU ms": rounded(spent * 1e3),
        "peak MiB": rounded(peak / 2**20),
    }
