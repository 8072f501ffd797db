"""A store like S3, a real server behind a relay with its latencies: how fast, and at what price."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from object_servers import MINIO, running
from pyspark.sql import SparkSession

import segstore_ds as segstore
from benchmarks.datasets import EVENTS, events
from benchmarks.relay import S3_STANDARD, Counts, relay
from benchmarks.report import Found, Ratio
from benchmarks.session import describe, spark_session
from benchmarks.workload import Settings, distribution, timed, workload

CLIENTS = (1, 8, 64)
OWN_HANDLES = (1, 8)
BATCH_ROWS = 10
# SlateDB's documents give these for durable puts on S3 Standard.
SLATEDB_MS = {"median ms": 115, "p99 ms": 220}
MONTH_S = 365 * 86_400 / 12
# Dollars of S3 Standard in us-east-1 for a thousand requests.
PRICES = {"put": 0.005, "list": 0.005, "get": 0.0004, "delete": 0.0}


@dataclass(frozen=True, slots=True)
class _Far:
    """A bucket behind the relay, and what it counts."""

    url: str
    options: dict[str, Any]
    take_counts: Callable[[], Counts]

    def create(self, name: str) -> segstore.Stream:
        """Create a stream with the default upkeep."""
        return segstore.create(f"{self.url}/{name}", EVENTS, storage_options=self.options)

    def open(self, name: str) -> segstore.Stream:
        """Open it with a new handle."""
        return segstore.open(f"{self.url}/{name}", storage_options=self.options)


@contextmanager
def _far(scratch: Path) -> Iterator[_Far]:
    with (
        running(MINIO, scratch) as server,
        relay(server.endpoint, S3_STANDARD) as between,
    ):
        yield _Far(
            server.new_bucket(), server.behind(between.endpoint).options, between.take_counts
        )


@workload(
    "latencies are drawn from S3's published percentiles; bandwidth has no end, nothing fails",
    "clients of one appender share commits; those with handles of their own race for each commit",
    "SlateDB's figures are its documents', from another machine and real S3; nothing was run here",
    "the server, the relay and the clients share this machine's cores",
    rows=60,
    tiny_rows=1,
)
def far_appends(settings: Settings) -> Found:
    """Durable appends of 10 events on a store like S3, with 1, 8 and 64 clients (rows: seconds)."""
    shared, own = ((1,), (1,)) if settings.tiny else (CLIENTS, OWN_HANDLES)
    rows, ratios = [], []
    with settings.scratch() as scratch, _far(scratch) as far:
        for clients in shared:
            stream = far.create(f"shared-{clients}")
            with stream.appender() as appender:
                found = _crowd(
                    [lambda: appender.wait(appender.append(_batch()))] * clients, settings
                )
            rows.append({"by": "an appender of all", **_row(found, stream, settings)})
            ratios += [
                Ratio(f"{name[:-3]} of {clients} / SlateDB's", rows[-1][name] / theirs)
                for name, theirs in SLATEDB_MS.items()
            ]
        for clients in own:
            stream = far.create(f"own-{clients}")
            handles = [far.open(f"own-{clients}") for _ in range(clients)]
            found = _crowd([lambda to=handle: to.append(_batch()) for handle in handles], settings)
            rows.append({"by": "a handle each", **_row(found, stream, settings)})
    return Found(rows, ratios, {"server": MINIO.version, "latencies": str(S3_STANDARD)})


def _batch() -> Any:
    return events(0, BATCH_ROWS)


def _crowd(calls: list[Callable[[], object]], settings: Settings) -> list[list[float]]:
    """Call each in a thread of its own, again and again; return the seconds of each call."""
    found: list[list[float]] = [[] for _ in calls]
    end = time.monotonic() + settings.rows

    def work(call: Callable[[], object], into: list[float]) -> None:
        call()  # what the first one looks up is not counted
        into.append(timed(call))
        while time.monotonic() < end:
            into.append(timed(call))

    threads = [threading.Thread(target=work, args=pair) for pair in zip(calls, found, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def _row(found: list[list[float]], stream: segstore.Stream, settings: Settings) -> dict[str, Any]:
    every = [seconds for one in found for seconds in one]
    appends = len(every) + len(found)
    assert stream.refresh().tail == appends * BATCH_ROWS
    return {
        "clients": len(found),
        **distribution(every),
        "appends/s": round(len(every) / settings.rows, 1),
        "commits/s": round(stream.version / settings.rows, 1),
    }


@workload(
    "prices are a table of parameters, those of S3 Standard in us-east-1; what is stored is not in",
    "requests are counted at the server's door; a month goes on as the measured seconds did",
    rows=120,
    tiny_rows=2,
)
def far_costs(settings: Settings) -> Found:
    """Requests and dollars a month on a store like S3, by what goes on (rows: seconds of each).

    An idle query, an idle follower, an event a second by append and by an appender with a second's
    flush; and a million small appends with the upkeep that runs beside them.
    """
    rows = []
    with settings.scratch() as scratch, _far(scratch) as far, spark_session() as spark:
        with _running_follow(far):
            rows.append(_priced("an idle follower", far, settings.rows))
        with _running_query(far, spark, scratch / "checkpoint"):
            rows.append(_priced("an idle query", far, settings.rows))
        stream = far.create("live")
        rows.append(_priced("an append a second", far, settings.rows, _each_second(stream.append)))
        with stream.appender(flush_seconds=1) as appender:
            append = _each_second(appender.append)
            rows.append(_priced("an event a second by an appender", far, settings.rows, append))
        rows.append(_million(far, settings))
        setup = describe(spark)
    prices = {"dollars for a thousand requests": str(PRICES)}
    return Found(rows, (), {**setup, "server": MINIO.version, **prices})


@contextmanager
def _running_follow(far: _Far) -> Iterator[None]:
    stream = far.create("followed")
    stream.append(_batch())
    follow = far.open("followed").follow(start="head")
    next(follow)
    thread = threading.Thread(target=lambda: [*follow])
    thread.start()
    yield
    stream.seal()
    thread.join()


@contextmanager
def _running_query(far: _Far, spark: SparkSession, checkpoint: Path) -> Iterator[None]:
    stream = far.create("queried")
    stream.append(_batch())
    source = spark.readStream.format("segstore").option("storageOptions", json.dumps(far.options))
    writer = source.load(stream.url).writeStream.format("noop")
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    query.processAllAvailable()
    yield
    query.stop()


def _each_second(append: Callable[[Any], object]) -> Callable[[float], None]:
    def work(until: float) -> None:
        while time.monotonic() < until:
            append(events(0, 1))
            time.sleep(1)

    return work


def _priced(
    what: str, far: _Far, seconds: int, work: Callable[[float], None] | None = None
) -> dict[str, Any]:
    """Count the requests of some seconds, and give their price for a month."""
    far.take_counts()
    began = time.monotonic()
    if work is None:
        time.sleep(seconds)
    else:
        work(began + seconds)
    share = MONTH_S / (time.monotonic() - began)
    return {"what": what, **_dollars(far.take_counts(), share), "for": "a month"}


def _million(far: _Far, settings: Settings) -> dict[str, Any]:
    """Append some batches, with the upkeep that this brings, and give a million's price."""
    stream, appends = far.create("million"), 5 if settings.tiny else 1_000
    far.take_counts()
    for _ in range(appends):
        stream.append(_batch())
    return {
        "what": "small appends",
        **_dollars(far.take_counts(), 1e6 / appends),
        "for": "a million",
    }


def _dollars(counts: Counts, share: float) -> dict[str, Any]:
    found: Mapping[str, float] = {kind: getattr(counts, kind) * share for kind in PRICES}
    return {
        **{f"{kind} requests": round(count) for kind, count in found.items()},
        "dollars": round(sum(PRICES[kind] * count / 1e3 for kind, count in found.items()), 2),
    }
