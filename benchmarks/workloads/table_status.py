"""The table status from 10^3 to 10^6 segments: commits, plans, bytes, beside the proposal's JSON.

Segments are entries only: nothing is read of them, so none has to be there.
"""

import gzip
import json
import random
import statistics
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import segstore_ds as segstore
from benchmarks.datasets import EVENTS
from benchmarks.report import Ratio, Report, machine
from benchmarks.workload import Settings, Workload, quantile
from segstore_ds.compact.merges import run_due_merge
from segstore_ds.format.batch_fingerprint import BatchFacts
from segstore_ds.format.envelope import encode_envelope
from segstore_ds.format.names import build_token
from segstore_ds.format.parts.columns import SegmentColumns
from segstore_ds.format.parts.stats import StatsColumns
from segstore_ds.format.root import PartRef, Root, StagedSegment, encode_root
from segstore_ds.log.commit import Change
from segstore_ds.status.slot import Slot
from segstore_ds.status.table_status import TableStatus
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream import Stream, open_on
from segstore_ds.write.append import AppendPlan
from segstore_ds.write.job import WriteJob
from segstore_ds.write.layout import Layout
from segstore_ds.write.request import WriteRequest

MEANING = (
    "commits, plans and bytes of the table status at 10^3 to 10^6 segments (rows: most of them)"
)
FINAL = 65_000
FLATTERS = (
    "segments exist as entries only; an append that writes one adds the object's own time",
    "the page cache is warm and the disk is local",
    "the opened stream rests; after a thousand commits within a second it takes 30 more gets",
    "the disk's own stalls are in p99 and max: hold them against those of the bare object",
    "against us: sizes, rows and checksums of the entries are random, tokens too",
    "the root at 10^7 is computed from parts that are not written",
)


def run(settings: Settings) -> Report:
    """Measure every size, largest last."""
    sizes = [size for size in (10**3, 10**4, 10**5, 10**6) if size <= settings.rows]
    commits = 30 if settings.tiny else 2000
    with settings.scratch() as scratch:
        rows = [_measure(scratch / str(size), size, commits) for size in sizes]
        root_bytes = len(encode_envelope(encode_root(_listed(10**7))))
    first, last = rows[0], rows[-1]
    return Report(
        workload="table_status",
        meaning=MEANING,
        setup=machine(settings.folder)
        | {
            "commits": f"{commits} of one entry each, synced; maintenance after it included",
            "bare": "one object of 4 KiB created and synced after each commit",
            "root at 10^7": f"{root_bytes} bytes",
        },
        rows=rows,
        ratios=[
            Ratio("commit ms, median, largest", last["commit ms"], 5, most=True),
            Ratio(
                "commit, largest / smallest", last["commit ms"] / first["commit ms"], 1.2, most=True
            ),
            Ratio("p99 / median, largest", last["p99 ms"] / last["commit ms"], 3, most=True),
            Ratio("the same of a bare synced object", last["bare p99 ms"] / last["bare ms"]),
            Ratio("CPU p99 / median, largest", last["CPU p99 ms"] / last["CPU ms"], 3, most=True),
            Ratio("max ms, all sizes", max(row["max ms"] for row in rows), 50, most=True),
            Ratio("max CPU ms, all sizes", max(row["CPU max ms"] for row in rows), 50, most=True),
            Ratio("max ms of a bare synced object", max(row["bare max ms"] for row in rows)),
            Ratio("bytes per segment, largest", last["bytes/segment"], 16, most=True),
            Ratio("full plan s, largest", last["full plan ms"] / 1e3, 0.5, most=True),
            Ratio("open and plan the tail ms, largest", last["tail ms"], 20, most=True),
            Ratio("requests of that", last["tail requests"], 3, most=True),
            Ratio("root at 10^7, KiB", root_bytes / 1024, 64, most=True),
            Ratio("gzipped JSON / ours", last["gzip B/segment"] / last["bytes/segment"]),
        ],
        flatters=FLATTERS,
    )


def _measure(folder: Path, size: int, commits: int) -> dict[str, Any]:
    segstore.create(folder, EVENTS)
    storage = open_storage(folder)
    fill(storage, size)
    stream = open_on(storage)
    facts = _commit_many(stream, commits, open_storage(folder.with_name(f"{size}-bare")))
    # The hint is written once a second: a stream that rests is opened, not one in a burst.
    time.sleep(1.1)
    commit_entries(stream, 1, random.Random(5))
    opened, requests, read = _open_tail(folder)
    full, tasks, memory = _plan_all(folder)
    root = open_on(storage).root
    status = TableStatus(storage)
    listed = sum(part.bytes for part in status.table.parts(root))
    segments = sum(part.count for part in status.table.parts(root))
    plain, packed = _json_sizes(min(size, 50_000))
    return {
        "segments": size,
        **facts,
        "tail ms": round(opened * 1e3, 1),
        "tail requests": requests,
        "tail bytes": read,
        "full plan ms": round(full * 1e3, 1),
        "tasks": tasks,
        "plan MB": round(memory / 1e6, 1),
        "parts": len(root.parts),
        "bytes/segment": round(listed / segments, 2),
        "JSON B/segment": round(plain, 1),
        "gzip B/segment": round(packed, 1),
        "root bytes": len(encode_envelope(encode_root(root))),
    }


def columns(first: int, count: int, form: str = "arrow") -> SegmentColumns:
    """Return made-up segments: about a thousand rows each, random checksums and tokens."""
    chance = np.random.default_rng(7 + first)
    zeros = np.zeros(count, np.int64)
    rows = chance.integers(900, 1100, count)
    numbers = np.arange(first, first + count)
    return SegmentColumns(
        epochs=zeros,
        numbers=numbers,
        rows=rows,
        bytes=rows * 40 + chance.integers(0, 800, count),
        footer_bytes=chance.integers(160, 260, count),
        crcs=chance.integers(0, 2**32, count),
        versions=numbers + numbers // 64,
        nonces=chance.integers(0, 256, (count, 6)).astype(np.uint8),
        tasks=zeros,
        attempts=zeros,
        places=zeros,
        kinds=zeros,
        frames=zeros + 1,
        frame_raws=-(-rows * 60 // (64 << 10)),
        kind_names=((form, f"{{version}}-{{nonce}}/{{task}}-{{attempt}}-{{place}}.{form}"),),
    )


def part_sizes(size: int) -> Iterator[int]:
    """Yield the sizes of parts that a stream of so many segments would have, oldest first."""
    left = size
    for level in (FINAL, 6500, 650, 65):
        while left >= level:
            yield level
            left -= level


def fill(storage: Storage, size: int, form: str = "arrow") -> None:
    """List about so many made-up segments in parts, as a stream of single commits would."""
    stream, status = open_on(storage), TableStatus(storage)

    def build(root: Root, slot: Slot) -> Change[None]:
        parts: list[PartRef] = []
        first = start = 0
        for count in part_sizes(size):
            made = columns(first, count, form)
            parts.append(status._parts.put(root.version, start, made, StatsColumns(count, {})))  # noqa: SLF001
            first, start = first + count, parts[-1].end
        filled = replace(root, parts=tuple(parts), tail=start, next_segment=first)
        return Change(status.tidy(replace(filled, operation="append"), slot))

    stream._log.commit(build, transaction="f" * 32)  # noqa: SLF001


def _commit_many(stream: Stream, commits: int, bare: Storage) -> dict[str, Any]:
    """Commit made-up segments; after each put an object as large, synced, which nothing plans."""
    stats = stream.storage.stats
    before = stats.total, stats.bytes_written
    chance, filler = random.Random(3), random.Random(4).randbytes(4096)
    seconds, cpu, synced = [], [], []
    for number in range(commits):
        started = time.process_time()
        seconds += commit_entries(stream, 1, chance)
        cpu.append(time.process_time() - started)
        began = time.perf_counter()
        bare.create(f"bare/{number}", filler)
        synced.append(time.perf_counter() - began)
    written = (stats.bytes_written - before[1]) / commits
    return {
        **_spread("", seconds),
        **_spread("CPU ", cpu),
        **_spread("bare ", synced),
        "requests/commit": round((stats.total - before[0]) / commits, 2),
        "bytes/commit": round(written),
        "MB/day at 1/s": round(written * 86_400 / 1e6, 1),
    }


def _spread(what: str, seconds: list[float]) -> dict[str, float]:
    median = statistics.median(seconds)
    return {
        f"{what or 'commit '}ms": round(median * 1e3, 2),
        f"{what}p99 ms": round(quantile(seconds, 0.99) * 1e3, 2),
        f"{what}max ms": round(max(seconds) * 1e3, 1),
    }


def commit_entries(
    stream: Stream, commits: int, chance: random.Random, form: str = "arrow"
) -> list[float]:
    """Commit made-up segments, one each, and return the seconds that each commit took."""
    log, appender = stream._log, stream._commits.appender  # noqa: SLF001
    schema, seconds = stream.schema, []
    for number in range(commits):
        token = build_token(log.root.version, f"{chance.getrandbits(48):012x}")
        rows = chance.randrange(900, 1100)
        path = f"{token}/0-0-0.{form}"
        entry = StagedSegment(path, rows, rows * 40, 200, number, None, form)
        request = WriteRequest(schema, Layout(), "")
        job = WriteJob(stream.storage, token, log.new_transaction(), request)
        plan = AppendPlan(job, (entry,), BatchFacts(rows, {}))
        began = time.perf_counter()
        appender.commit(plan)
        run_due_merge(stream._context)  # noqa: SLF001
        seconds.append(time.perf_counter() - began)
    return seconds


def _open_tail(folder: Path) -> tuple[float, int, int]:
    best, requests, read = float("inf"), 0, 0
    for _ in range(5):
        storage = open_storage(folder)
        began = time.perf_counter()
        stream = open_on(storage)
        root = stream.root
        stream.plan_tasks(stream.plan_read(root.tail - 1, root=root), root=root)
        best = min(best, time.perf_counter() - began)
        requests, read = storage.stats.total, storage.stats.bytes_read
    return best, requests, read


def _plan_all(folder: Path) -> tuple[float, int, int]:
    best, count = float("inf"), 0
    for _ in range(3):
        stream = open_on(open_storage(folder))
        began = time.perf_counter()
        count = len(stream.plan_tasks(stream.plan_read()))
        best = min(best, time.perf_counter() - began)
    stream = open_on(open_storage(folder))
    tracemalloc.start()
    tasks = stream.plan_tasks(stream.plan_read())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(tasks) == count
    return best, count, peak


def _json_sizes(count: int) -> tuple[float, float]:
    """Return bytes per segment of the proposal's JSON, plain and gzipped."""
    made = columns(0, count)
    entries = [
        {
            "timestamp": str(1_600_000_000_000 + 1000 * row),
            "loadStatus": "Success",
            "loadName": str(row),
            "dataSize": str(made.bytes[row]),
            "indexSize": str(made.footer_bytes[row]),
            "loadStartTime": str(1_600_000_000_000 + 1000 * row - 700),
            "segmentFile": f"{row}_{made.path(row)}.segment",
        }
        for row in range(count)
    ]
    text = json.dumps(entries).encode()
    return len(text) / count, len(gzip.compress(text, 6)) / count


def _listed(size: int) -> Root:
    """Return the root of a stream of so many segments, its parts put in lists."""
    storage = open_storage("memory://benchmark-table-status")
    status = TableStatus(storage)
    chance = random.Random(1)
    root = segstore.create("memory://benchmark-root", EVENTS).root
    parts = []
    start = 0
    for count in part_sizes(size):
        digest = f"{chance.getrandbits(128):032x}"
        path = f"status/{start // 1000:020d}-segments-{digest}"
        parts.append(PartRef(path, start, start + 1000 * count, count, 14 * count))
        start = parts[-1].end
    return status.tidy(replace(root, parts=tuple(parts), tail=start), Slot(1, 0, 0))


WORKLOADS = {"table_status": Workload(MEANING, run, 10**6, 1000)}
