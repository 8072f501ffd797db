"""Many writers on one stream: commits per second, near, far and on a real S3 server."""

import multiprocessing as mp
import secrets
import statistics
import time
from collections.abc import Callable
from typing import Any

from object_servers import MINIO, running

from benchmarks.datasets import EVENTS, events
from benchmarks.places import Place, S3Meter
from benchmarks.report import Ratio, Report, machine
from benchmarks.workload import Settings, Workload, quantile
from segstore_ds.errors import ConflictError
from segstore_ds.storage import Storage
from segstore_ds.stream import create_on, open_on

MEANING = "commits/s of 1, 4 and 16 processes on one stream, local and 30 ms away (rows: seconds)"
S3_MEANING = "appends of 1, 4 and 16 processes on a real S3 server, and bare puts (rows: seconds)"
DELAY_S = 0.03
BATCH_ROWS = 10
BARE_PUTS = 100
BARE_BYTES = 1000
FLATTERS = (
    "a writer that lost every race for one append tries it again and is counted under conflicts",
    "the delay is only waited, so requests never fail and bandwidth has no end",
    "against us: all processes share the cores of this one machine",
)
S3_FLATTERS = (
    FLATTERS[0],
    "bare puts go to names of their own, appends of one stream to the same names",
    "against us: the server shares the cores of this one machine with all processes",
    "the server is on the loopback address: a request takes a few ms, to a far store tens of them",
)


def run(settings: Settings) -> Report:
    """Measure every number of writers at both distances."""
    crowd = (1, 2) if settings.tiny else (1, 4, 16)
    rows = []
    with settings.scratch() as scratch:
        setup = _setup(settings)
        far = Place("local + 30 ms", str(scratch), delay_s=DELAY_S)
        for place in (far,) if settings.tiny else (Place("local", str(scratch)), far):
            setup[f"bare put, {place.name}"] = _bare_put(place)
            rows += [_measure(place, writers, settings.rows) for writers in crowd]
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


def run_s3(settings: Settings) -> Report:
    """Measure every number of writers on a real server, and as many processes that only put."""
    crowd = (1, 2) if settings.tiny else (1, 4, 16)
    bare, appends = [], []
    with settings.scratch() as scratch, running(MINIO, scratch) as server:
        place = Place(MINIO.name, server.new_bucket(), server.options)
        for writers in crowd:
            bare.append(_measure_puts(place, writers, settings.rows))
            appends.append(_measure(place, writers, settings.rows))
    return Report(
        workload="commit_rate_s3",
        meaning=S3_MEANING,
        setup=_setup(settings) | {"server": f"{MINIO.name} {MINIO.version}, one disk"},
        rows=[*bare, *appends],
        ratios=[
            Ratio(f"{row['writers']} writers: append / bare put, {name}", row[name] / other[name])
            for other, row in zip(bare, appends, strict=True)
            for name in ("median ms", "worst ms")
        ],
        flatters=S3_FLATTERS,
    )


def _setup(settings: Settings) -> dict[str, Any]:
    writers = f"a process each, {BATCH_ROWS} rows per commit, {settings.rows} s each"
    return machine(settings.folder) | {"writers": writers}


def _measure(place: Place, writers: int, seconds: int) -> dict[str, Any]:
    folder = f"stream-{writers}-{place.delay_s}"
    create_on(place.open(folder), EVENTS)
    found = _crowd(_write, place, folder, writers, seconds)
    times = [time for _, own in found for time in own]
    counts = [one for one, _ in found]
    commits, attempts, conflicts, requests, written = map(sum, zip(*counts, strict=True))
    assert open_on(place.open(folder)).tail == commits * BATCH_ROWS
    return {
        "storage": place.name,
        "writers": writers,
        "commits/s": round(commits / seconds, 1),
        **_distribution(times),
        "p99 in commits": round(quantile(times, 0.99) * commits / seconds, 1),
        "slowest/fastest writer": f"{min(len(own) for _, own in found)}"
        f"/{max(len(own) for _, own in found)}",
        "attempts/commit": round(attempts / commits, 2),
        "conflicts": conflicts,
        "requests/commit": round(requests / commits, 1),
        "bytes/commit": written // commits,
    }


def _measure_puts(place: Place, writers: int, seconds: int) -> dict[str, Any]:
    found = _crowd(_put, place, f"bare-{writers}", writers, seconds)
    times = [time for _, own in found for time in own]
    return {
        "storage": f"{place.name}, bare put",
        "writers": writers,
        "commits/s": round(len(times) / seconds, 1),
        **_distribution(times),
    }


def _distribution(times: list[float]) -> dict[str, float]:
    return {
        "median ms": round(statistics.median(times) * 1e3, 1),
        "p99 ms": round(quantile(times, 0.99) * 1e3, 1),
        "worst ms": round(max(times) * 1e3, 1),
    }


def _crowd(
    work: Callable[..., None], place: Place, folder: str, writers: int, seconds: int
) -> list[Any]:
    context = mp.get_context("spawn")
    ready, answers = context.Barrier(writers), context.Queue()
    arguments = (place, folder, seconds, ready, answers)
    processes = [context.Process(target=work, args=arguments) for _ in range(writers)]
    for process in processes:
        process.start()
    found = [answers.get() for _ in processes]
    for process in processes:
        process.join()
    return found


def _bare_put(place: Place) -> str:
    storage = place.open(f"bare-{place.delay_s}")
    times = [_timed_put(storage) for _ in range(BARE_PUTS)]
    return f"{statistics.median(times) * 1e3:.1f} ms median, {quantile(times, 0.99) * 1e3:.1f} p99"


def _timed_put(storage: Storage) -> float:
    began = time.perf_counter()
    assert storage.create(f"log/{secrets.token_hex(16)}", bytes(BARE_BYTES))
    return time.perf_counter() - began


def _put(place: Place, folder: str, seconds: int, ready: Any, answers: Any) -> None:
    storage = place.open(folder)
    _timed_put(storage)  # connects
    ready.wait()
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        times.append(_timed_put(storage))
    answers.put(((len(times),), times))


def _write(place: Place, folder: str, seconds: int, ready: Any, answers: Any) -> None:
    storage = place.open(folder)
    stream = open_on(storage)
    storage.ensure_exclusive()  # once per process: not the cost of the first append
    meter = S3Meter(storage) if place.is_s3 else None
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
    requests = meter.requests if meter else stats.total
    answers.put(((len(times), attempts, conflicts, requests, stats.bytes_written), times))


WORKLOADS = {
    "commit_rate": Workload(MEANING, run, 10, 1),
    "commit_rate_s3": Workload(S3_MEANING, run_s3, 10, 1),
}
