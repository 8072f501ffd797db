"""How soon an append is seen: from Python, on the command line, by a streaming query."""

import json
import multiprocessing as mp
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

import segstore_ds as segstore
from benchmarks.report import Found, Ratio
from benchmarks.session import QUICK_POLLS, describe, spark_session
from benchmarks.workload import Settings, distribution, workload
from segstore_ds.log.clock import SYSTEM_CLOCK
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import open as open_on

MOST_WAIT_S = 0.2
IDLE_S = 2.0
GOAL_MS = 50
SCHEMA = pa.schema([("sent_ns", pa.int64())])


@workload(
    "one local disk, one follower at a time; the append itself is in the time, and is synced",
    "the wait between polls is at most 50 ms, so appends that come seldom are seen half of it late",
    rows=200,
    tiny_rows=5,
)
def following(settings: Settings) -> Found:
    """Another process appends an event each 20 to 200 ms (rows: events), and we follow.

    From before its append to where the event is seen, by `stream.follow` and `segstore cat -f`.
    """
    rows: list[dict[str, Any]] = []
    raw: dict[str, list[float]] = {}
    with settings.scratch() as scratch:
        for name, follow in {"stream.follow": _follow, "segstore cat -f": _cat}.items():
            url = str(scratch / name.replace(" ", ""))
            # An event at time 0 tells that the follower has begun.
            segstore.create(url, SCHEMA, upkeep=None).append({"sent_ns": 0})
            begun = mp.get_context("spawn").Event()
            waits = []
            with _appender(url, settings.rows, begun), follow(url) as seen:
                for sent, at in seen:
                    if sent:
                        waits.append((at - sent) / 1e9)
                    else:
                        begun.set()
            assert len(waits) == settings.rows
            rows.append({"follower": name, **distribution(waits)})
            raw[name] = waits
        polls, requests = _polls(scratch / "idle", 0.2 if settings.tiny else IDLE_S)
    goals = [
        Ratio(f"{row['follower']}: median / {GOAL_MS} ms", row["median ms"] / GOAL_MS, 1, most=True)
        for row in rows
    ]
    idle = Ratio("requests of a poll that finds nothing", requests / polls, 1, most=True)
    return Found(rows, [*goals, idle], {"idle polls": f"{polls} in {IDLE_S} s"}, raw)


@contextmanager
def _follow(url: str) -> Iterator[Iterator[tuple[int, int]]]:
    def seen() -> Iterator[tuple[int, int]]:
        for batch in segstore.open(url).follow(start="head"):
            at = time.time_ns()
            yield from ((sent, at) for sent in batch.column(0).to_pylist())

    yield seen()


@contextmanager
def _cat(url: str) -> Iterator[Iterator[tuple[int, int]]]:
    command = [sys.executable, "-m", "segstore_ds.cli.main", "cat", "-f", url, "--json"]
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


def _polls(folder: Path, seconds: float) -> tuple[int, float]:
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

    segstore.create(folder, SCHEMA, upkeep=None)
    storage = open_storage(folder)
    follow = open_on(storage, clock=replace(SYSTEM_CLOCK, sleep=sleep)).follow(start="tail")
    before, until = storage.stats.total, time.monotonic() + seconds
    with suppress(OverError):
        next(follow)
    return polls, storage.stats.total - before


@workload(
    "trigger as fast as Spark goes; polling delay 1 ms; one appender, one query, local disk",
    "seen means that foreachBatch got it, the checkpoint's own files included",
    rows=200,
    tiny_rows=3,
)
def append_to_seen(settings: Settings) -> Found:
    """From stream.append to a running query that sees the event (rows: events)."""
    waits: list[float] = []
    with settings.scratch() as scratch, spark_session(QUICK_POLLS) as spark:
        stream = segstore.create(scratch / "stream", SCHEMA)
        arrived, seen = threading.Condition(), [0]

        def note(df: Any, _: int) -> None:
            count = df.count()
            with arrived:
                seen[0] += count
                arrived.notify_all()

        loaded = spark.readStream.format("segstore").load(str(scratch / "stream"))
        writer = loaded.writeStream.foreachBatch(note)
        query = writer.option("checkpointLocation", str(scratch / "checkpoint")).start()
        for n in range(settings.rows + 1):
            began = time.perf_counter()
            stream.append({"sent_ns": n})
            with arrived:
                assert arrived.wait_for(lambda wanted=n + 1: seen[0] >= wanted, timeout=120)
            waits.append(time.perf_counter() - began)
        query.stop()
        setup = describe(spark)
    waits = waits[1:]  # the first one waits for Spark to start its workers
    return Found([{"events": len(waits), **distribution(waits)}], (), setup, {"seconds": waits})
