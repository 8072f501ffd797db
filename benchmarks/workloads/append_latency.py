"""One small append after the other on local disk: time, requests and bytes as the log grows."""

import secrets
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import segstore_ds as segstore
from benchmarks.datasets import EVENTS, events
from benchmarks.report import Ratio, Report, machine
from benchmarks.workload import Settings, Workload, quantile
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream import Stream, open_on

MEANING = "append 10 events at a time, synced, at 10, 1,000 and 10,000 commits (rows: last of them)"
BATCH_ROWS = 10
OPENS = 20
HINT_S = 1.1  # the hint that an open starts from is written once a second at most
FLATTERS = (
    "one writer, one long-lived handle: nothing has to be looked up between two appends",
    "requests of an open are counted with a fresh hint, and in a burst with one up to a second old",
    "one folder on one disk; over a network each request costs a round trip (see commit_rate)",
    "the bare cost next to it is one synced object through the same storage code",
)


def run(settings: Settings) -> Report:
    """Grow a stream and measure at three lengths of its log."""
    lengths = (5, 10, settings.rows) if settings.tiny else (10, 1_000, settings.rows)
    samples = 5 if settings.tiny else 500
    looks = (2, 0.0) if settings.tiny else (OPENS, HINT_S)
    with settings.scratch() as scratch:
        setup = machine(settings.folder) | {
            "appends": f"{BATCH_ROWS} rows each; {samples} samples at each length, interleaved "
            "with the bare cost; the folder is synced as in production",
        }
        stream = segstore.create(scratch / "stream", EVENTS)
        bare = open_storage(scratch / "bare")
        rows = [_measure(stream, bare, length, samples, looks) for length in lengths]
        assert segstore.open(scratch / "stream").tail == stream.tail
    medians = [row["median ms"] for row in rows]
    return Report(
        workload="append_latency",
        meaning=MEANING,
        setup=setup,
        rows=rows,
        ratios=[
            Ratio(
                "last append / bare cost, medians",
                medians[-1] / rows[-1]["bare ms"],
                2.5,
                most=True,
            ),
            Ratio("median at the last / at the first length", medians[-1] / medians[0]),
            Ratio(
                "p99 / median at the last length", rows[-1]["p99 ms"] / medians[-1], 3, most=True
            ),
        ],
        flatters=FLATTERS,
    )


def _measure(
    stream: Stream, bare: Storage, length: int, samples: int, looks: tuple[int, float]
) -> dict[str, Any]:
    (opens, rest_s), batch = looks, events(0, BATCH_ROWS)
    while stream.version < length:
        stream.append(batch)
    stats = stream.storage.stats
    requests, written = stats.total, stats.bytes_written
    appends, floors = [], []
    for _ in range(samples):
        appends.append(_timed_ms(partial(stream.append, batch)))
        floors.append(_timed_ms(partial(_bare_append, bare)))
    requests, written = stats.total - requests, stats.bytes_written - written
    burst = _open(stream, opens)
    time.sleep(rest_s)
    stream.append(batch)
    rest = _open(stream, opens)
    return {
        "commits": length,
        "median ms": round(statistics.median(appends), 2),
        "p99 ms": round(quantile(appends, 0.99), 2),
        "max ms": round(max(appends), 2),
        "bare ms": round(statistics.median(floors), 2),
        "bare p99 ms": round(quantile(floors, 0.99), 2),
        "requests/append": round(requests / samples, 2),
        "bytes/append": written // samples,
        "requests/open": rest[1],
        "open ms": rest[0],
        "requests/open in a burst": burst[1],
        "open ms in a burst": burst[0],
    }


def _bare_append(storage: Storage) -> None:
    storage.create(f"log/{secrets.token_hex(8)}", b"x" * 1500)


def _open(stream: Stream, opens: int) -> tuple[float, int]:
    """Return milliseconds and requests of one open, with nothing remembered."""
    times = []
    for _ in range(opens):
        storage = open_storage(stream.url)
        times.append(_timed_ms(partial(open_on, storage)))
    return round(statistics.median(times), 2), storage.stats.total


def _timed_ms(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


WORKLOADS = {"append_latency": Workload(MEANING, run, 10_000, 15)}
