"""Following a stream from Python and on the command line: how long an append takes to be seen."""

import json
import multiprocessing as mp
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

import segstore_ds as segstore
from benchmarks.report import Ratio, Report, machine
from benchmarks.workload import Settings, Workload, quantile
from segstore_ds.log.clock import SYSTEM_CLOCK
from segstore_ds.storage import open_storage
from segstore_ds.stream import open_on

MEANING = (
    "another process appends an event each 20 to 200 ms (rows: events); from before its append to "
    "where the event is seen, by `stream.follow` and by `segstore tail -f`"
)
MOST_WAIT_S = 0.2
IDLE_S = 2.0
GOAL_MS = 50
FLATTERS = (
    "one local disk, one follower at a time; the append itself is in the time, and is synced",
    "the wait between polls is at most 50 ms, so appends that come seldom are seen half of it late",
)
SCHEMA = pa.schema([("sent_ns", pa.int64())])


def run(settings: Settings) -> Report:
    """Follow in each way while a process appends; then count what polls of nothing cost."""
    waits: dict[str, list[float]] = {}
    with settings.scratch() as scratch:
        for name, follow in {"stream.follow": _follow, "segstore tail -f": _tail}.items():
            url = str(scratch / str(len(waits)))
            # An event at time 0 tells that the follower has begun.
            segstore.create(url, SCHEMA, upkeep=None).append({"sent_ns": 0})
            begun = mp.get_context("spawn").Event()
            with _appender(url, settings.rows, begun), follow(url) as seen:
                waits[name] = []
                for sent, at in seen:
                    if sent:
                        waits[name].append((at - sent) / 1e6)
                    else:
                        begun.set()
                assert len(waits[name]) == settings.rows
        polls, requests = _polls(str(scratch / "0"), 0.2 if settings.tiny else IDLE_S)
    return Report(
        workload="following",
        meaning=MEANING,
        setup=machine(settings.folder)
        | {"events": settings.rows, "idle polls": f"{polls} in {IDLE_S} s"},
        rows=[
            {
                "follower": name,
                "median ms": round(statistics.median(found), 1),
                "p99 ms": round(quantile(found, 0.99), 1),
                "max ms": round(max(found), 1),
            }
            for name, found in waits.items()
        ],
        ratios=[
            *[
                Ratio(
                    f"{name}: median / {GOAL_MS} ms",
                    statistics.median(found) / GOAL_MS,
                    1,
                    most=True,
                )
                for name, found in waits.items()
            ],
            Ratio("requests of a poll that finds nothing", requests / polls, 1, most=True),
        ],
        flatters=FLATTERS,
        raw=waits,
    )


@contextmanager
def _follow(url: str) -> Iterator[Iterator[tuple[int, int]]]:
    def seen() -> Iterator[tuple[int, int]]:
        for batch in segstore.open(url).follow(start="head"):
            at = time.time_ns()
            yield from ((sent, at) for sent in batch.column(0).to_pylist())

    yield seen()


@contextmanager
def _tail(url: str) -> Iterator[Iterator[tuple[int, int]]]:
    command = [sys.executable, "-m", "segstore_ds.cli.main", "tail", "-f", url, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield ((json.loads(line)["sent_ns"], time.time_ns()) for line in process.stdout)
    assert process.returncode == 0  # it ends with the seal


@contextmanager
def _appender(url: str, events: int, begun: Any) -> Iterator[None]:
    process = mp.get_context("spawn").Process(target=_append, args=(url, events, begun))
    process.start()
    try:
        yield
    finally:
        process.join()
    assert process.exitcode == 0


def _append(url: str, events: int, begun: Any) -> None:
    stream, draw = segstore.open(url), random.Random(0)
    assert begun.wait(60)
    for _ in range(events):
        time.sleep(draw.uniform(MOST_WAIT_S / 10, MOST_WAIT_S))
        stream.append(pa.table({"sent_ns": [time.time_ns()]}, SCHEMA))
    stream.seal()


def _polls(url: str, seconds: float) -> tuple[int, float]:
    """Return how many polls an unsealed stream's idle follower makes, and their requests."""
    polls = 0

    class OverError(Exception):
        pass

    def sleep(wait_s: float) -> None:
        nonlocal polls
        polls += 1
        if time.monotonic() > until:
            raise OverError
        time.sleep(wait_s)

    folder = Path(url).with_name("idle")
    segstore.create(folder, SCHEMA, upkeep=None)
    storage = open_storage(folder)
    follow = open_on(storage, clock=replace(SYSTEM_CLOCK, sleep=sleep)).follow(start="tail")
    before, until = _requests(storage), time.monotonic() + seconds
    with suppress(OverError):
        next(follow)
    return polls, _requests(storage) - before


def _requests(storage: Any) -> int:
    return sum(storage.stats.requests.values())


WORKLOADS = {"following": Workload(MEANING, run, 200, 5)}
