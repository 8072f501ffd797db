"""Threads that append one event each and wait until it is durable: sharing commits, or one each."""

import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from wrapped_storage import LatencyStorage

import segstore_ds as segstore
from benchmarks.datasets import EVENTS, events
from benchmarks.report import Ratio, Report, machine
from benchmarks.workload import Settings, Workload, quantile
from segstore_ds.storage import open_storage
from segstore_ds.stream import open_on

MEANING = "acknowledged events/s of threads that wait for each event, 30 ms away (rows: seconds)"
DELAY_S = 0.03
FLATTERS = (
    "all threads append as soon as they may, so groups are as large as they can be",
    "the delay is only waited, so requests never fail and bandwidth has no end",
)


def run(settings: Settings) -> Report:
    """Measure both ways with several numbers of threads."""
    with settings.scratch() as scratch:
        rows = [
            measure(scratch / f"{name}-{threads}", threads, settings.rows)
            for threads in ((2,) if settings.tiny else (1, 8, 64))
            for name, measure in (("shared", _shared), ("each", _each))
        ]
        return Report(
            workload="shared_commits",
            meaning=MEANING,
            setup=machine(settings.folder) | {"storage": f"local + {DELAY_S * 1e3:.0f} ms"},
            rows=rows,
            ratios=[
                Ratio(
                    f"{shared['threads']} threads: shared / one commit per event",
                    shared["events/s"] / max(each["events/s"], 0.1),
                )
                for shared, each in zip(rows[::2], rows[1::2], strict=True)
            ],
            flatters=FLATTERS,
        )


def _open(folder: Path) -> segstore.Stream:
    segstore.create(folder, EVENTS)
    return open_on(LatencyStorage(open_storage(folder), DELAY_S))


def _shared(folder: Path, threads: int, seconds: int) -> dict[str, Any]:
    stream = _open(folder)
    event = events(0, 1).to_pylist()[0]
    with stream.appender(flush_seconds=None) as appender:
        times = _crowd(threads, seconds, lambda: appender.wait(appender.append(event)))
    return _row("one appender, wait", threads, seconds, times, folder)


def _each(folder: Path, threads: int, seconds: int) -> dict[str, Any]:
    stream, one = _open(folder), threading.Lock()
    batch = events(0, 1)

    def append() -> None:
        with one:
            stream.append(batch)

    return _row("one commit per event", threads, seconds, _crowd(threads, seconds, append), folder)


def _crowd(threads: int, seconds: int, append: Callable[[], object]) -> list[float]:
    end = time.perf_counter() + seconds

    def work() -> list[float]:
        times = []
        while (began := time.perf_counter()) < end:
            append()
            times.append(time.perf_counter() - began)
        return times

    with ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(work) for _ in range(threads)]
        return [seconds for done in running for seconds in done.result()]


def _row(
    candidate: str, threads: int, seconds: int, times: list[float], folder: Path
) -> dict[str, Any]:
    stream = segstore.open(folder)
    assert stream.tail == len(times)
    return {
        "candidate": candidate,
        "threads": threads,
        "events/s": round(len(times) / seconds, 1),
        "events/commit": round(len(times) / max(stream.version, 1), 1),
        "median ms": round(statistics.median(times) * 1e3, 1),
        "p99 ms": round(quantile(times, 0.99) * 1e3, 1),
    }


WORKLOADS = {"shared_commits": Workload(MEANING, run, 5, 1)}
