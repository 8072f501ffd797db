"""What `spark_rivals` and `kafka` measure in one session.

`python -m benchmarks.spark_works GIVEN`, in JSON, is such a session.

Each work runs once a round for each peer, peers in turn, and prints a JSON line.
"""

import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kafka_broker import CONNECTOR
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.session import drain, run_batches
from benchmarks.spark_peers import INSTALLATIONS, Peer, say, start_session
from benchmarks.workload import cpu_seconds, quantile, timed

Found = dict[str, float]
TOPIC, KAFKA_BATCHES = "events", 10


@dataclass(frozen=True, slots=True)
class Given:
    """What a session is asked to measure.

    Attributes:
        data: A folder with folders of Parquet files: `events`; `pieces`, ten for a query that ends
            by itself; `large`, of real events, each a batch.
        batches: Micro-batches of a query in one round; the small appends grow with it.
        broker: Of Kafka, to measure that alone.
    """

    installation: str
    mode: str
    folder: str
    data: str
    rows: int
    rounds: int
    batches: int
    broker: str
    warm_up: bool


@dataclass(frozen=True, slots=True)
class Turn:
    """A round of one peer; the one that warms up has the number -1."""

    spark: SparkSession
    peer: Peer
    given: Given
    number: int

    def table(self, name: str) -> str:
        """Name a table that lives as long as the mode does."""
        return f"{name}_{self.peer.name}_{self.given.mode}"

    def fresh(self, name: str) -> str:
        """Name a table of this round."""
        return f"{self.table(name)}_{self.number + 1}"


def bulk(turn: Turn) -> Found:
    """Append all events, then scan them thrice by each way to read them."""
    table, spark, peer = turn.fresh("bulk"), turn.spark, turn.peer
    events = spark.read.parquet(f"{turn.given.data}/events")
    found = _timed("bulk append", lambda: peer.append(events, table))
    found["bulk bytes"] = peer.live_bytes(spark, table)
    found["bulk files"] = peer.files(table)
    for way, loaded in peer.ways(spark, table).items():
        tail = loaded.where(loaded.id >= turn.given.rows * 99 // 100)
        total = loaded.agg({"value": "sum"})
        found |= _timed(f"scan of all columns{way}", partial(drain, loaded))
        found |= _timed(f"scan of one column{way}", total.collect)
        found |= _timed(f"scan of the last 1 %{way}", partial(drain, tail))
    return found


def micro_batches(turn: Turn) -> Found:
    """Go on with a query of ten rows a batch; after the last round its table is counted."""
    table, spark, peer = turn.table("micro"), turn.spark, turn.peer
    rates = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10)
    df = rates.option("numPartitions", 2).load()
    warm = min(10, turn.given.batches)
    times, spent = run_batches(peer.stream(df, table).start(), turn.given.batches, warm)
    triggers = [found["triggerExecution"] for found in times]
    found: Found = {
        "micro-batch, trigger ms": statistics.median(triggers),
        "micro-batch, trigger p99 ms": quantile(triggers, 0.99),
        "micro-batch, addBatch p99 ms": quantile([each["addBatch"] for each in times], 0.99),
        "micro-batch, CPU s": spent,
    }
    found |= _timed("load and count micro-batches", lambda: peer.load(spark, table).count())
    found["micro-batches' files"] = peer.files(table)
    return found


def compaction(turn: Turn) -> Found:
    """Merge what so many small appends left."""
    table, spark, peer = turn.fresh("merged"), turn.spark, turn.peer
    events = spark.read.parquet(f"{turn.given.data}/events").limit(1000).coalesce(1).cache()
    events.count()
    appends = max(turn.given.batches // 10, 5)
    seconds = [timed(lambda: peer.append(events, table)) for _ in range(appends)]
    events.unpersist()
    found: Found = {"small append": statistics.median(seconds)}
    return found | _timed("compaction of small appends", lambda: peer.compact(spark, table))


def available_now(turn: Turn) -> Found:
    """Bring ten files in as ten batches of a query that ends by itself."""
    writer = _bring_in(turn, f"{turn.given.data}/pieces", turn.fresh("available"))
    return _timed("AvailableNow in 10 batches", lambda: writer.start().awaitTermination())


def many_tasks(turn: Turn) -> Found:
    """Write with 200 tasks, of five rows and of 2,000 each."""
    tasks = 200 if turn.given.batches > 10 else 4
    found: Found = {}
    for rows in (5, 2_000):
        df = turn.spark.range(0, tasks * rows, 1, tasks)
        table = turn.fresh(f"tasks{rows}")
        found |= _timed(
            f"{tasks} tasks of {rows:,} rows",
            lambda df=df, table=table: turn.peer.append(df, table),
        )
    return found


def writers(turn: Turn) -> Found:
    """Append from four threads; who fails is counted, not tried again."""
    table, each = turn.fresh("writers"), max(turn.given.batches // 20, 2)
    turn.peer.append(turn.spark.range(0, 10, 1, 1), table)
    from pyspark import inheritable_thread_target

    def append(_: int) -> int:
        failed = 0
        for _number in range(each):
            try:
                turn.peer.append(turn.spark.range(0, 10, 1, 1), table)
            except Exception:  # noqa: BLE001 - each format has errors of its own; all are counted
                failed += 1
        return failed

    with ThreadPoolExecutor(4) as pool:
        start = time.perf_counter()
        failed = sum(pool.map(inheritable_thread_target(turn.spark)(append), range(4)))
        seconds = time.perf_counter() - start
    kept = turn.peer.load(turn.spark, table).count() - 10
    missing = (4 * each - failed) * 10 - kept
    return {
        "4 writers": seconds,
        "4 writers, failed": failed,
        "4 writers, lost rows": max(missing, 0),
        "4 writers, rows of failed appends": max(-missing, 0),
    }


def large_batches(turn: Turn) -> Found:
    """Bring real events in by batches of 100,000, in one round: what they leave is the same."""
    if turn.number != 0:
        return {}
    table, batches = turn.fresh("large"), len([*Path(turn.given.data, "large").iterdir()])
    _bring_in(turn, f"{turn.given.data}/large", table).start().awaitTermination()
    return {
        "streamed bytes a batch, live": turn.peer.live_bytes(turn.spark, table) / batches,
        "streamed bytes a batch, on disk": turn.peer.disk_bytes(table) / batches,
    }


def from_kafka(turn: Turn) -> Found:
    """Bring a topic in from its start, in ten batches."""
    topic = turn.spark.readStream.format("kafka").option(
        "kafka.bootstrap.servers", turn.given.broker
    )
    topic = topic.options(subscribe=TOPIC, startingOffsets="earliest")
    df = topic.option("maxOffsetsPerTrigger", turn.given.rows // KAFKA_BATCHES).load()
    table = turn.fresh("kafka")
    columns = df.select("key", "value", "partition", "offset", "timestamp")
    writer = turn.peer.stream(columns, table).trigger(availableNow=True)
    found = _timed("topic of Kafka", lambda: writer.start().awaitTermination())
    kept = turn.peer.load(turn.spark, table).count()
    if kept != turn.given.rows:
        raise RuntimeError(f"{turn.peer.name} holds {kept} events instead of {turn.given.rows}")
    return found


WORKS = (bulk, micro_batches, compaction, available_now, many_tasks, writers, large_batches)


def main() -> None:
    """Run every work in every round, peers in turn within each work."""
    given = Given(**json.loads(sys.argv[1]))
    installation, folder = INSTALLATIONS[given.installation], Path(given.folder)
    jars = CONNECTOR if given.broker else ""
    spark = start_session(installation, folder, given.mode, jars=jars)
    say(setup={"spark": spark.version, "syncs": {p.name: p.syncs for p in installation.peers}})
    peers = [make(folder) for make in installation.peers]
    for peer in peers:
        peer.prepare(spark, given.mode)
    if given.broker:
        value = "to_json(named_struct('user', concat('user', id % 1000), 'page', hex(id), 'n', id))"
        events = spark.range(given.rows).selectExpr("cast(id as string) key", f"{value} value")
        topic = events.write.format("kafka").option("kafka.bootstrap.servers", given.broker)
        topic.option("topic", TOPIC).save()
    for number in range(-1 if given.warm_up else 0, given.rounds):
        for work in (from_kafka,) if given.broker else WORKS:
            for peer in peers:
                _run(work, Turn(spark, peer, given, number))
    spark.stop()


def _bring_in(turn: Turn, files: str, table: str) -> DataStreamWriter:
    """Return the writer of a query that ends by itself, a file a batch; its table is there."""
    schema = turn.spark.read.parquet(files).schema
    stream = turn.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    return turn.peer.stream(stream.parquet(files), table).trigger(availableNow=True)


def _run(work: Callable[[Turn], Found], turn: Turn) -> None:
    os.sync()  # What the one before has left unwritten must not burden this one.
    found = work(turn)
    if turn.number >= 0:
        say(peer=turn.peer.name, round=turn.number, found=found)
    for path in turn.peer.place("any").parent.glob(f"*{turn.fresh('')}*"):
        shutil.rmtree(path)


def _timed(name: str, work: Callable[[], Any]) -> Found:
    cpu = cpu_seconds()
    seconds = timed(work)
    return {name: seconds, f"{name}, CPU": cpu_seconds() - cpu}


if __name__ == "__main__":
    main()
