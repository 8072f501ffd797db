"""Many writers on one stream: commits per second, near and far."""

import multiprocessing as mp
import statistics
import time
from pathlib import Path
from typing import Any

import segstore_ds as segstore
from benchmarks.datasets import EVENTS, events
from benchmarks.report import Ratio, Report, machine
from benchmarks.workload import Settings, Workload, quantile
from segstore_ds.errors import ConflictError
from segstore_ds.storage import open_storage
from segstore_ds.stream import open_on
from segstore_ds.testing.faults import LatencyStorage

MEANING = "commits/s of 1, 4 and 16 processes on one stream, local and 30 ms away (rows: seconds)"
DELAY_S = 0.03
BATCH_ROWS = 10
BARE_PUTS = 100
FLATTERS = (
    "a writer that lost every race for one append tries it again and is counted under conflicts",
    "the delay is only waited, so requests never fail and bandwidth has no end",
    "against us: all processes share the cores of this one machine",
)


def run(settings: Settings) -> Report:
    """Measure every number of writers at both distances."""
    crowd = (1, 2) if settings.tiny else (1, 4, 16)
    rows = []
    with settings.scratch() as scratch:
        setup = machine(settings.folder) | {
            "writers": f"a process each, {BATCH_ROWS} rows per commit, {settings.rows} s each"
        }
        for delay_s in (DELAY_S,) if settings.tiny else (0.0, DELAY_S):
            setup[f"bare put, {_place(delay_s)}"] = _bare_put(scratch / f"bare-{delay_s}", delay_s)
            for writers in crowd:
                folder = scratch / f"{writers}-{delay_s}"
                rows.append(_measure(folder, writers, delay_s, settings.rows))
    return Report(
        workload="commit_rate",
        meaning=MEANING,
        setup=setup,
        rows=rows,
        ratios=[
            Ratio(
                f"{row['storage']}: {row['writers']} writers / 1 writer",
                row["commits/s"] / first["commits/s"],
            )
            for first in rows[:: len(crowd)]
            for row in rows
            if row["storage"] == first["storage"] and row is not first
        ],
        flatters=FLATTERS,
    )


def _measure(folder: Path, writers: int, delay_s: float, seconds: int) -> dict[str, Any]:
    segstore.create(folder, EVENTS)
    context = mp.get_context("spawn")
    ready, answers = context.Barrier(writers), context.Queue()
    arguments = (str(folder), delay_s, seconds, ready, answers)
    processes = [context.Process(target=_write, args=arguments) for _ in range(writers)]
    for process in processes:
        process.start()
    found = [answers.get() for _ in processes]
    for process in processes:
        process.join()
    times = [time for _, own in found for time in own]
    counts = [one for one, _ in found]
    commits, attempts, conflicts, requests, written = map(sum, zip(*counts, strict=True))
    stream = segstore.open(folder)
    assert stream.tail == commits * BATCH_ROWS
    return {
        "storage": _place(delay_s),
        "writers": writers,
        "commits/s": round(commits / seconds, 1),
        "median ms": round(statistics.median(times) * 1e3, 1),
        "p99 ms": round(quantile(times, 0.99) * 1e3, 1),
        "worst ms": round(max(times) * 1e3, 1),
        "p99 in commits": round(quantile(times, 0.99) * commits / seconds, 1),
        "slowest/fastest writer": f"{min(len(own) for _, own in found)}"
        f"/{max(len(own) for _, own in found)}",
        "attempts/commit": round(attempts / commits, 2),
        "conflicts": conflicts,
        "requests/commit": round(requests / commits, 1),
        "bytes/commit": written // commits,
    }


def _place(delay_s: float) -> str:
    return f"local + {delay_s * 1e3:.0f} ms" if delay_s else "local"


def _bare_put(folder: Path, delay_s: float) -> str:
    storage = open_storage(folder)
    storage = LatencyStorage(storage, delay_s) if delay_s else storage
    times = []
    for n in range(BARE_PUTS):
        began = time.perf_counter()
        storage.create(f"log/{n:020d}", bytes(1000))
        times.append(time.perf_counter() - began)
    return f"{statistics.median(times) * 1e3:.1f} ms median, {quantile(times, 0.99) * 1e3:.1f} p99"


def _write(folder: str, delay_s: float, seconds: int, ready: Any, answers: Any) -> None:
    storage = open_storage(folder)
    stream = open_on(LatencyStorage(storage, delay_s) if delay_s else storage)
    batch = events(0, BATCH_ROWS)
    ready.wait()
    storage.stats.reset()
    attempts = conflicts = 0
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        try:
            attempts += stream.append(batch).attempts
        except ConflictError:
            conflicts += 1
            continue
        times.append(time.perf_counter() - began)
    stats = storage.stats
    answers.put(((len(times), attempts, conflicts, stats.total, stats.bytes_written), times))


WORKLOADS = {"commit_rate": Workload(MEANING, run, 10, 1)}
