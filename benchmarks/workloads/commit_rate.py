"""Many writers on one stream: commits per second, near and far."""

import multiprocessing as mp
import secrets
import time
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

from wrapped_storage import LatencyStorage

from benchmarks.datasets import EVENTS, events
from benchmarks.report import Found, Ratio
from benchmarks.workload import Settings, distribution, quantile, timed, workload
from segstore_ds.errors import ConflictError
from segstore_ds.storage import Storage, open_storage
from segstore_ds.storage.base import FAR
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on

DELAY_S = 0.03
BATCH_ROWS = 10


@dataclass(frozen=True)
class Place:
    """A folder that every process opens anew, near or with a wait before every request."""

    name: str
    url: str
    delay_s: float = 0.0

    def open(self, folder: str) -> Storage:
        """Open a folder in it."""
        storage = open_storage(f"{self.url}/{folder}")
        if not self.delay_s:
            return storage
        far = LatencyStorage(storage, self.delay_s)
        far.profile = FAR  # as on an object store, not as on the disk that it is
        return far


@dataclass(frozen=True)
class _Writer:
    """What one writer counted; its last commit may be `late`, after the time was over."""

    counts: tuple[int, ...]
    times: list[float]
    versions: list[int]
    late: bool


BARE_PUTS, BARE_BYTES = 100, 1000


@workload(
    "a writer that lost every race for one append tries it again and is counted under conflicts",
    "waits are counted in commits: from a writer's commit to its next one, that one included",
    "the delay is only waited, so requests never fail and bandwidth has no end",
    "against us: all processes share the cores of this one machine",
    rows=10,
    tiny_rows=1,
)
def commit_rate(settings: Settings) -> Found:
    """Commit with 1, 4 and 16 processes on one stream, local and 30 ms away (rows: seconds)."""
    crowd = (1, 2) if settings.tiny else (1, 4, 16)
    rows, ratios = [], []
    setup = {"writers": f"a process each, {BATCH_ROWS} rows per commit, {settings.rows} s each"}
    with settings.scratch() as scratch:
        far = Place("local + 30 ms", str(scratch), delay_s=DELAY_S)
        for place in (far,) if settings.tiny else (Place("local", str(scratch)), far):
            setup[f"bare put, {place.name}"] = str(_bare_puts(place))
            found = [_measure(place, writers, settings.rows) for writers in crowd]
            rows += found
            ratios += [
                Ratio(
                    f"{place.name}: {row['writers']} writers / 1 writer",
                    row["commits/s"] / found[0]["commits/s"],
                )
                for row in found[1:]
            ]
    return Found(rows, ratios, setup)


def _bare_puts(place: Place) -> dict[str, float]:
    put = partial(place.open(f"bare-{place.delay_s}").create, data=bytes(BARE_BYTES))
    names = [f"log/{secrets.token_hex(16)}" for _ in range(BARE_PUTS)]
    return distribution([timed(partial(put, name)) for name in names])


def _measure(place: Place, writers: int, seconds: int) -> dict[str, Any]:
    folder = f"stream-{writers}-{place.delay_s}"
    create_on(place.open(folder), EVENTS)
    context = mp.get_context("spawn")
    ready, answers = context.Barrier(writers), context.Queue()
    arguments = (place, folder, seconds, ready, answers)
    processes = [context.Process(target=_write, args=arguments) for _ in range(writers)]
    for process in processes:
        process.start()
    found = [answers.get() for _ in processes]
    for process in processes:
        process.join()
    times = [time for one in found for time in one.times]
    waits = [after - before for one in found for before, after in pairwise((0, *one.versions))]
    each = [len(one.times) for one in found]
    commits, counts = sum(each), [one.counts for one in found]
    attempts, conflicts, requests, written = map(sum, zip(*counts, strict=True))
    assert open_on(place.open(folder)).tail == commits * BATCH_ROWS
    return {
        "storage": place.name,
        "writers": writers,
        "commits/s": round((commits - sum(one.late for one in found)) / seconds, 1),
        **distribution(times),
        "p99, max wait in commits": f"{quantile(waits, 0.99)}, {max(waits)}",
        "slowest/fastest writer": f"{min(each)}/{max(each)}",
        "attempts/commit": round(attempts / commits, 2),
        "conflicts": conflicts,
        "requests/commit": round(requests / commits, 1),
        "bytes/commit": written // commits,
    }


def _write(place: Place, folder: str, seconds: int, ready: Any, answers: Any) -> None:
    storage = place.open(folder)
    stream = open_on(storage)
    storage.ensure_exclusive()  # once per process: not the cost of the first append
    batch = events(0, BATCH_ROWS)
    ready.wait()
    storage.stats.reset()
    attempts = conflicts = 0
    times, versions = list[float](), list[int]()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        try:
            commit = stream.append(batch)
        except ConflictError:
            conflicts += 1
            continue
        attempts += commit.attempts
        versions.append(commit.version)
        times.append(time.perf_counter() - began)
    stats = storage.stats
    counts = (attempts, conflicts, stats.total, stats.bytes_written)
    answers.put(_Writer(counts, times, versions, late=time.perf_counter() > end))
