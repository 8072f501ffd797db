"""How old the newest event is that a reader can see: by Spark's queries, and from Python."""

import multiprocessing as mp
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from object_servers import MINIO, running

import segstore_ds as segstore
from benchmarks.relay import S3_STANDARD, relay
from benchmarks.report import Found, Ratio
from benchmarks.spark_peers import DELTA_JAR, ICEBERG_JAR, INSTALLATIONS
from benchmarks.workload import Settings, cpu_seconds, distribution, quantile, rounded, workload
from benchmarks.workloads.spark_rivals import run_session
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import open as open_on

RATES = (10, 1_000, 50_000)
FOLLOWERS = (1, 10, 100)
EACH_S = 0.2  # between two appends of `fan_out`
THREADS = 25  # followers of a process
FLUSH_S = 0.05
TAILS = (0.95, 0.999)
SCHEMA = pa.schema([("sent_ns", pa.int64()), ("text", pa.string())])


@workload(
    "against us: the stream syncs every segment and commit to disk; the others sync nothing",
    "ours is readable when the sink has returned, the others' when their commit file is written",
    "triggers as fast as Spark goes, all settings tuned; one query at a time on this machine",
    "sessions differ in Spark and in the minute: compare with the Parquet of the same session",
    "Spark 4.1, Iceberg's, takes 0.35 s longer for a batch of a source in Python, as this one is",
    "the source produces by the clock and never waits; a broker's network is not in the times",
    rows=1_200,
    tiny_rows=5,
)
def produced_to_readable(settings: Settings) -> Found:
    """From an event's production to when a reader can see it, through Structured Streaming.

    At 10, 1,000 and 50,000 events a second for 20 minutes each (rows: seconds), into segstore,
    Delta Lake, Iceberg and Spark's file sink.
    """
    sessions = ("newest",) if settings.tiny else tuple(INSTALLATIONS)
    rows, raw, setup = [], {}, {"jars": f"{DELTA_JAR}, {ICEBERG_JAR}"}
    for session in sessions:
        with settings.scratch() as scratch:
            given = {"installation": session, "folder": str(scratch), "seconds": settings.rows}
            given["rates"] = RATES[:1] if settings.tiny else RATES
            for line in run_session("paced_works", given, settings, session):
                if "setup" in line:
                    setup[f"session {session}"] = str(line["setup"])
                if "found" in line:
                    key = {"session": session, "peer": line["peer"], "events/s": line["rate"]}
                    raw[" ".join(map(str, key.values()))] = line["found"].pop("moments")
                    rows.append({**key, **line["found"]})
    rows.sort(key=lambda row: row["events/s"])
    return Found(rows, [*_beside_parquet(rows)], setup, raw)


def _beside_parquet(rows: list[dict[str, Any]]) -> Iterator[Ratio]:
    """Yield our quantiles over those of the file sink in the same session."""
    parquet = {(row["session"], row["events/s"]): row for row in rows if row["peer"] == "parquet"}
    for row in rows:
        other = parquet[row["session"], row["events/s"]]
        if row["peer"] != "parquet":
            for name in ("p50 s", "p99 s"):
                what = f"{name[:-2]}: {row['peer']} / parquet, {row['events/s']:,} events a second"
                yield Ratio(what, row[name] / other[name])


@workload(
    "one appender and one follower, a process each; events wait at most 50 ms for their flush",
    "far is a real S3 server behind a relay that holds each request as long as S3 Standard would",
    "the servers, the relay and both processes share this machine's cores",
    rows=60,
    tiny_rows=1,
)
def appended_to_followed(settings: Settings) -> Found:
    """From append() of a long-lived appender to where follow() gives the event out.

    At 10, 1,000 and 50,000 events a second (rows: seconds), on local disk and on a far store.
    """
    rates = RATES[:1] if settings.tiny else RATES
    rows, raw = [], {}
    with settings.scratch() as scratch, _places(scratch) as places:
        for place, (url, options) in places.items():
            for rate in rates:
                stream = f"{url}/{rate}"
                made = segstore.create(stream, SCHEMA, upkeep=None, storage_options=options)
                made.append({"sent_ns": 0, "text": ""})
                arguments = (stream, options, rate, settings.rows)
                with _processes([(_produce, arguments)]):
                    found = _follow_all(made)
                tails = {f"p{100 * q:g} ms": rounded(quantile(found, q) * 1e3) for q in TAILS}
                rows.append({"store": place, "events/s": rate, **distribution(found), **tails})
                raw[f"{place}, {rate}"] = found[:: max(len(found) // 10_000, 1)]
    return Found(rows, (), {"server": MINIO.version, "far": str(S3_STANDARD)}, raw)


@workload(
    "an append each 200 ms; the followers are threads of 1 to 4 processes on the same cores",
    "each follower has a handle and a connection pool of its own, as a process of its own would",
    rows=100,
    tiny_rows=3,
)
def fan_out(settings: Settings) -> Found:
    """Follow one stream's newest events with 1, 10 and 100 followers (rows: appends)."""
    crowds = FOLLOWERS[:1] if settings.tiny else FOLLOWERS
    rows = []
    with settings.scratch() as scratch, _places(scratch) as places:
        for place, (url, options) in places.items():
            rows += [
                {
                    "store": place,
                    "followers": crowd,
                    **_crowd(f"{url}/{crowd}", options, crowd, settings.rows),
                }
                for crowd in crowds
            ]
    return Found(rows, (), {"server": MINIO.version, "far": str(S3_STANDARD)})


def _crowd(url: str, options: dict[str, Any], crowd: int, appends: int) -> dict[str, Any]:
    stream = segstore.create(url, SCHEMA, upkeep=None, storage_options=options)
    context = mp.get_context("spawn")
    sizes = [min(THREADS, crowd - n) for n in range(0, crowd, THREADS)]
    ready, answers = context.Barrier(len(sizes) + 1), context.Queue()
    arguments = [(url, options, size, ready, answers) for size in sizes]
    with _processes([(_followers, given) for given in arguments]):
        ready.wait()
        began = time.monotonic()
        for _ in range(appends):
            time.sleep(EACH_S)
            stream.append({"sent_ns": time.time_ns(), "text": ""})
        stream.seal()
        seconds = time.monotonic() - began
        found = [answers.get() for _ in sizes]
    waits = [wait for one in found for wait in one[0]]
    assert len(waits) == crowd * appends
    return {
        **distribution(waits),
        "requests/follower s": rounded(sum(one[1] for one in found) / crowd / seconds),
        "CPU ms/follower s": rounded(sum(one[2] for one in found) / crowd / seconds * 1e3),
    }


def _followers(url: str, options: dict[str, Any], crowd: int, ready: Any, answers: Any) -> None:
    storages = [open_storage(url, options) for _ in range(crowd)]
    handles = [open_on(storage) for storage in storages]
    waits: list[float] = []
    threads = [
        threading.Thread(target=lambda stream=stream: waits.extend(_follow_all(stream)))
        for stream in handles
    ]
    for thread in threads:
        thread.start()
    ready.wait()
    requests, cpu = sum(storage.stats.total for storage in storages), cpu_seconds()
    for thread in threads:
        thread.join()
    requests = sum(storage.stats.total for storage in storages) - requests
    answers.put((waits, requests, cpu_seconds() - cpu))


def _follow_all(stream: segstore.Stream) -> list[float]:
    """Follow a stream to its seal; return how old each event was in seconds, without the first."""
    waits: list[float] = []
    for batch in stream.follow(start="head"):
        now = time.time_ns()
        waits += [(now - sent) / 1e9 for sent in batch.column("sent_ns").to_pylist() if sent]
    return waits


def _produce(url: str, options: dict[str, Any], rate: int, seconds: int) -> None:
    """Append at a rate, by calls of one event or of what 10 ms bring."""
    stream = segstore.open(url, storage_options=options)
    each = max(rate // 100, 1)
    with stream.appender(flush_seconds=FLUSH_S) as appender:
        began = time.monotonic()
        for number in range(rate * seconds // each):
            time.sleep(max(began + number * each / rate - time.monotonic(), 0))
            sent = pa.array([time.time_ns()] * each, pa.int64())
            appender.append(pa.record_batch([sent, pa.array(["x" * 84] * each)], schema=SCHEMA))
    stream.refresh().seal()


@contextmanager
def _places(scratch: Path) -> Iterator[dict[str, tuple[str, dict[str, Any]]]]:
    """Give a folder near and one far, with the options that open it."""
    (scratch / "server").mkdir()
    with (
        running(MINIO, scratch / "server") as server,
        relay(server.endpoint, S3_STANDARD) as between,
    ):
        far = server.behind(between.endpoint)
        yield {"local": (str(scratch / "near"), {}), "far": (server.new_bucket(), far.options)}


@contextmanager
def _processes(calls: list[tuple[Any, tuple[Any, ...]]]) -> Iterator[None]:
    context = mp.get_context("spawn")
    started = [context.Process(target=call, args=arguments) for call, arguments in calls]
    for process in started:
        process.start()
    yield
    for process in started:
        process.join()
        assert process.exitcode == 0
