"""One small append after the other on local disk: time, requests and bytes as the log grows."""

import secrets
import statistics
import time
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import segstore_ds as segstore
from benchmarks.by_hand import ByHand
from benchmarks.datasets import EVENTS, events
from benchmarks.report import Found, Ratio
from benchmarks.workload import Settings, beside_bare, rounded, timed, walk, workload
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream

BATCH_ROWS = 10
OPENS = 20
HINT_S = 1.1  # the hint that an open starts from is written once a second at most


@workload(
    "one writer, one long-lived handle: nothing has to be looked up between two appends",
    "requests of an open are counted with a fresh hint, and in a burst with one up to a second old",
    "one folder on one disk; over a network each request costs a round trip (see commit_rate)",
    "the bare cost next to it is one synced object through the same storage code",
    "by hand: encoding, checksum, record and a synced file, in straight Python (by_hand.py)",
    rows=10_000,
    tiny_rows=15,
)
def append_latency(settings: Settings) -> Found:
    """Append 10 events at a time, synced, at 10, 1,000 and 10,000 commits (rows: last of them)."""
    lengths = sorted({min(10, settings.rows), min(1_000, settings.rows), settings.rows})
    samples, opens, rest_s = (5, 2, 0.0) if settings.tiny else (500, OPENS, HINT_S)
    with settings.scratch() as scratch:
        stream = segstore.create(scratch / "stream", EVENTS)
        bare = open_storage(scratch / "bare")
        rows = []
        for length in lengths:
            appends = _appends(scratch, stream, bare, length, samples)
            burst = {f"{name} in a burst": n for name, n in _open(stream, opens).items()}
            time.sleep(rest_s)
            stream.append(events(0, BATCH_ROWS))
            rows.append({"commits": length, **appends, **_open(stream, opens), **burst})
        assert segstore.open(scratch / "stream").tail == stream.tail
        young = segstore.create(scratch / "young", EVENTS)
        walks = [
            *walk("append", partial(young.append, events(0, BATCH_ROWS)), 500, 45),
            *walk("read", lambda: young.read(0, "tail").read_all(), 420, 40),
            *walk("open", partial(segstore.open, young.url)),
        ]
    first, last = rows[0], rows[-1]
    bounds = {
        "last append / bare cost, medians": (last["median ms"] / last["bare median ms"], 2.5),
        "median at the last / at the first length": (last["median ms"] / first["median ms"], None),
        "p99 / median at the last length": (last["p99 ms"] / last["median ms"], 3),
        "CPU ms of an append": (last["CPU mean ms"], 0.9),
        "CPU of an append / by hand": (last["CPU mean ms"] / last["by_hand CPU ms"], None),
    }
    ratios = [Ratio(name, *bound, most=True) for name, bound in bounds.items()]
    setup = {"appends": f"{samples} of {BATCH_ROWS} rows at each length, beside the bare cost"}
    return Found(rows, [*ratios, *walks], setup)


def _appends(
    folder: Path, stream: Stream, bare: Storage, length: int, samples: int
) -> dict[str, Any]:
    batch = events(0, BATCH_ROWS)
    while stream.version < length:
        stream.append(batch)
    hand = ByHand(folder / f"by-hand-{length}", stream._log.root)
    return beside_bare(
        repeat(partial(stream.append, batch), samples),
        lambda _: bare.create(f"log/{secrets.token_hex(8)}", b"x" * 1500),
        stream._log.storage.stats,
        "append",
        by_hand=partial(hand.append, batch),
    )


def _open(stream: Stream, opens: int) -> dict[str, float]:
    storages = [open_storage(stream.url) for _ in range(opens)]
    median = statistics.median(timed(partial(open_on, storage)) for storage in storages)
    return {"requests/open": storages[-1].stats.total, "open ms": rounded(median * 1e3)}
