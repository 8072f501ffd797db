"""The table status from 10^3 to 10^6 segments, beside the proposal's JSON.

Segments are entries only: nothing is read of them, so none has to be there.
"""

import gzip
import json
import random
import statistics
import time
import tracemalloc
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import segstore_ds as segstore
from benchmarks.datasets import EVENTS
from benchmarks.entries import columns, commit_entry, fill
from benchmarks.report import Found, Ratio
from benchmarks.workload import Settings, beside_bare, folder_bytes, rounded, timed, workload
from segstore_ds.format.envelope import encode_envelope
from segstore_ds.format.root import encode_root
from segstore_ds.status.table_status import TableStatus
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.connector.reads import open_snapshot
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream

CLONES = 3
SIZES = (10**3, 10**4, 10**5, 10**6)


@workload(
    "segments exist as entries only; an append that writes one adds the object's own time",
    "the page cache is warm and the disk is local",
    "the opened stream rests; after a thousand commits within a second it takes 30 more gets",
    "the disk's own stalls are in p99 and max: hold them against those of the bare object",
    "against us: sizes, rows and checksums of the entries are random, tokens too",
    "a clone's origin was opened before (3 requests)",
    "a clone also looks for its probe below each folder of its path, which is not counted",
    rows=10**6,
    tiny_rows=1000,
)
def table_status(settings: Settings) -> Found:
    """Commits, plans and bytes of the table status at 10^3 to 10^6 segments (rows: most of them).

    A commit is of one entry, synced, with the maintenance after it; a bare object of 4 KiB follows.
    """
    commits = 30 if settings.tiny else 2000
    with settings.scratch() as scratch:
        rows = [
            _measure(scratch / str(size), size, commits) for size in SIZES if size <= settings.rows
        ]
    first, last = rows[0], rows[-1]

    def most(what: str) -> float:
        return max(row[what] for row in rows)

    bounds = {
        "commit ms, median, largest": (last["median ms"], 5),
        "commit, largest / smallest": (last["median ms"] / first["median ms"], 1.2),
        "p99 / median, largest": (last["p99 ms"] / last["median ms"], 3),
        "the same of a bare synced object": (last["bare p99 ms"] / last["bare median ms"], None),
        "CPU p99 / median, largest": (last["CPU p99 ms"] / last["CPU median ms"], 3),
        "max ms, all sizes": (most("max ms"), 50),
        "max CPU ms, all sizes": (most("CPU max ms"), 50),
        "max ms of a bare synced object": (most("bare max ms"), None),
        "bytes per segment, largest": (last["bytes/segment"], 16),
        "full plan s, largest": (last["full plan ms"] / 1e3, 0.5),
        "open and plan the tail ms, largest": (last["tail ms"], 20),
        "requests of that": (last["tail requests"], 3),
        "clone ms, largest / smallest": (last["clone ms"] / first["clone ms"], 2),
        # A pin, a note that the clone is made, two hints, a probe, and four gets before them.
        "requests of a clone at the origin, largest": (last["clone requests"], 10),
        "bytes of a clone, largest, KiB": (last["clone bytes"] / 1024, 128),
        "gzipped JSON / ours": (last["gzip B/segment"] / last["bytes/segment"], None),
    }
    return Found(rows, [Ratio(name, *bound, most=True) for name, bound in bounds.items()])


def _measure(folder: Path, size: int, commits: int) -> dict[str, Any]:
    segstore.create(folder, EVENTS)
    storage = open_storage(folder)
    fill(storage, size)
    stream = open_on(storage)
    committed = _commit_many(stream, commits, open_storage(folder.with_name(f"{size}-bare")))
    # The hint is written once a second: a stream that rests is opened, not one in a burst.
    time.sleep(1.1)
    commit_entry(stream, random.Random(5))
    root = open_on(storage)._log.root
    parts = [*TableStatus(storage).table.parts(root)]
    return {
        "segments": size,
        **committed,
        **_open_tail(folder),
        **_plan_all(folder),
        **_clone(folder.with_name(f"{size}-clones"), size),
        "parts": len(root.parts),
        "bytes/segment": round(sum(p.bytes for p in parts) / sum(p.count for p in parts), 2),
        **_json_sizes(min(size, 50_000)),
        "root bytes": len(encode_envelope(encode_root(root))),
    }


def _commit_many(stream: Stream, commits: int, bare: Storage) -> dict[str, Any]:
    """Commit made-up segments; after each put an object as large, synced, which nothing plans."""
    filler = random.Random(4).randbytes(4096)
    return beside_bare(
        repeat(partial(commit_entry, stream, random.Random(3)), commits),
        lambda number: bare.create(f"bare/{number}", filler),
        stream._log.storage.stats,
        "commit",
    )


def _open_tail(folder: Path) -> dict[str, Any]:
    def open_and_plan(storage: Storage) -> None:
        snapshot = open_snapshot(storage)
        snapshot.tasks(snapshot.plan(snapshot.root.tail - 1))

    storages = [open_storage(folder) for _ in range(5)]
    best = min(timed(partial(open_and_plan, storage)) for storage in storages)
    return {"tail ms": round(best * 1e3, 1), "tail requests": storages[-1].stats.total}


def _plan_all(folder: Path) -> dict[str, Any]:
    snapshots = [open_snapshot(open_storage(folder)) for _ in range(3)]
    best = min(timed(lambda own=own: own.tasks(own.plan())) for own in snapshots)
    snapshot = open_snapshot(open_storage(folder))
    tracemalloc.start()
    tasks = snapshot.tasks(snapshot.plan())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {
        "full plan ms": round(best * 1e3, 1),
        "tasks": len(tasks),
        "plan MB": rounded(peak / 1e6),
    }


def _clone(folder: Path, size: int) -> dict[str, Any]:
    segstore.create(folder / "origin", EVENTS)
    fill(open_storage(folder / "origin"), size)
    stream = segstore.open(folder / "origin")
    seconds, stats = [], stream._log.storage.stats
    before = folder_bytes(folder)
    for n in range(CLONES):
        stats.reset()
        clone = partial(stream.copy_to, folder / str(n), copy_id=f"c{n}", mode="clone")
        seconds.append(timed(clone))
    return {
        "clone ms": round(statistics.median(seconds) * 1e3, 2),
        "clone requests": stats.total - stats.requests["info"],
        "clone bytes": round((folder_bytes(folder) - before) / CLONES),
    }


def _json_sizes(count: int) -> dict[str, float]:
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
    sizes = {"JSON": len(text), "gzip": len(gzip.compress(text, 6))}
    return {f"{name} B/segment": round(size / count, 1) for name, size in sizes.items()}
