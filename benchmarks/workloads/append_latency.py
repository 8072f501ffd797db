"""One small append after the other on local disk: time, requests and bytes as the log grows."""

import secrets
import statistics
import time
from functools import partial
from typing import Any

import segstore_ds as segstore
from benchmarks.datasets import EVENTS, events
from benchmarks.report import Found, Ratio
from benchmarks.workload import Settings, distribution, rounded, timed, workload
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream import Stream, open_on

BATCH_ROWS = 10
OPENS = 20
HINT_S = 1.1  # the hint that an open starts from is written once a second at most


@workload(
    "one writer, one long-lived handle: nothing has to be looked up between two appends",
    "requests of an open are counted with a fresh hint, and in a burst with one up to a second old",
    "one folder on one disk; over a network each request costs a round trip (see commit_rate)",
    "the bare cost next to it is one synced object through the same storage code",
    rows=10_000,
    tiny_rows=15,
)
def append_latency(settings: Settings) -> Found:
    """Append 10 events at a time, synced, at 10, 1,000 and 10,000 commits (rows: last of them)."""
    lengths = (5, 10, settings.rows) if settings.tiny else (10, 1_000, settings.rows)
    samples, opens, rest_s = (5, 2, 0.0) if settings.tiny else (500, OPENS, HINT_S)
    with settings.scratch() as scratch:
        stream = segstore.create(scratch / "stream", EVENTS)
        bare = open_storage(scratch / "bare")
        rows = []
        for length in lengths:
            appends = _appends(stream, bare, length, samples)
            burst = _open(stream, opens)
            time.sleep(rest_s)
            stream.append(events(0, BATCH_ROWS))
            rest = _open(stream, opens)
            in_burst = {f"{name} in a burst": value for name, value in burst.items()}
            rows.append({"commits": length, **appends, **rest, **in_burst})
        assert segstore.open(scratch / "stream").tail == stream.tail
    first, last = rows[0], rows[-1]
    return Found(
        rows,
        [
            Ratio(
                "last append / bare cost, medians",
                last["median ms"] / last["bare median ms"],
                2.5,
                most=True,
            ),
            Ratio(
                "median at the last / at the first length", last["median ms"] / first["median ms"]
            ),
            Ratio(
                "p99 / median at the last length", last["p99 ms"] / last["median ms"], 3, most=True
            ),
        ],
        {"appends": f"{samples} of {BATCH_ROWS} rows at each length, in turns with the bare cost"},
    )


def _appends(stream: Stream, bare: Storage, length: int, samples: int) -> dict[str, Any]:
    batch = events(0, BATCH_ROWS)
    while stream.version < length:
        stream.append(batch)
    stats = stream._log.storage.stats
    requests, written = stats.total, stats.bytes_written
    appends, floors = [], []
    for _ in range(samples):
        appends.append(timed(partial(stream.append, batch)))
        floors.append(timed(partial(bare.create, f"log/{secrets.token_hex(8)}", b"x" * 1500)))
    return {
        **distribution(appends),
        **distribution(floors, "bare "),
        "requests/append": round((stats.total - requests) / samples, 2),
        "bytes/append": (stats.bytes_written - written) // samples,
    }


def _open(stream: Stream, opens: int) -> dict[str, float]:
    """Open with nothing remembered, so many times."""
    times = []
    for _ in range(opens):
        storage = open_storage(stream.url)
        times.append(timed(partial(open_on, storage)))
    return {
        "requests/open": storage.stats.total,
        "open ms": rounded(statistics.median(times) * 1e3),
    }
