"""What `spark_rivals` measures in one session.

`python -m benchmarks.spark_works INSTALLATION MODE ...` is such a session.

Each work runs once a round for each peer, peers in turn, and prints a JSON line.
"""

import argparse
import os
import shutil
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.spark_peers import INSTALLATIONS, MODES, Peer, say, start_session
from benchmarks.workload import cpu_seconds, quantile

Found = dict[str, float]


@dataclass(frozen=True, slots=True)
class Turn:
    """One round of one peer in one mode.

    Attributes:
        spark: The session.
        peer: Who is measured.
        source: A folder of Parquet files of events.
        mode: ``default`` or ``tuned``.
        number: Which round, from 0; -1 warms up.
        batches: Micro-batches of a query in one round; the small appends grow with it.
        pieces: A folder of ten Parquet files, for a query that ends by itself.
        large: A folder of large Parquet files of real events, each a batch.
    """

    spark: SparkSession
    peer: Peer
    source: Path
    pieces: Path
    large: Path
    mode: str
    number: int
    batches: int

    def table(self, name: str) -> str:
        """Name a table that lives as long as the mode does."""
        return f"{name}_{self.peer.name}_{self.mode}"

    def fresh(self, name: str) -> str:
        """Name a table of this round."""
        return f"{self.table(name)}_{self.number + 1}"


def bulk(turn: Turn) -> Found:
    """Append all events, then read them in three ways."""
    table, spark, peer = turn.fresh("bulk"), turn.spark, turn.peer
    events = spark.read.parquet(str(turn.source))
    found = _timed("bulk append", lambda: peer.append(events, table))
    found["bulk bytes"] = peer.live_bytes(spark, table)
    found["bulk files"] = peer.files(table)
    loaded = peer.load(spark, table)
    found |= _timed("scan of all columns", lambda: _drain(loaded))
    found |= _timed("scan of one column", lambda: loaded.agg({"value": "sum"}).collect())
    last = events.count() * 99 // 100
    tail = loaded.where(loaded.id >= last)
    return found | _timed("scan of the last 1 %", lambda: _drain(tail))


def micro_batches(turn: Turn) -> Found:
    """Go on with a query of ten rows a batch; after the last round its table is counted."""
    table, spark, peer = turn.table("micro"), turn.spark, turn.peer
    rates = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10)
    df = rates.option("numPartitions", 2).load()
    warm = min(10, turn.batches)
    query = peer.stream(df, table).start()
    _await(query, warm)
    begun, cpu = len(query.recentProgress), cpu_seconds()
    _await(query, warm + turn.batches)
    progress = list(query.recentProgress)
    spent = (cpu_seconds() - cpu) / max(len(progress) - begun, 1)
    _stop(query)
    times = [found["durationMs"] for found in progress[warm:] if "addBatch" in found["durationMs"]]
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
    events = spark.read.parquet(str(turn.source)).limit(1000).coalesce(1).cache()
    events.count()
    appends = max(turn.batches // 10, 5)
    seconds = [_seconds(lambda: peer.append(events, table)) for _ in range(appends)]
    events.unpersist()
    found: Found = {"small append": statistics.median(seconds)}
    return found | _timed("compaction of small appends", lambda: peer.compact(spark, table))


def available_now(turn: Turn) -> Found:
    """Bring ten files in as ten batches of a query that ends by itself."""
    writer = _bring_in(turn, turn.pieces, turn.fresh("available"))
    return _timed("AvailableNow in 10 batches", lambda: writer.start().awaitTermination())


def many_tasks(turn: Turn) -> Found:
    """Write with 200 tasks, of five rows and of 2,000 each."""
    tasks = 200 if turn.batches > 10 else 4
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
    table, each = turn.fresh("writers"), max(turn.batches // 20, 2)
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
    table, batches = turn.fresh("large"), len([*turn.large.iterdir()])
    _bring_in(turn, turn.large, table).start().awaitTermination()
    return {
        "streamed bytes a batch, live": turn.peer.live_bytes(turn.spark, table) / batches,
        "streamed bytes a batch, on disk": turn.peer.disk_bytes(table) / batches,
    }


WORKS = (bulk, micro_batches, compaction, available_now, many_tasks, writers, large_batches)


def main() -> None:
    """Run every work in every round, peers in turn within each work."""
    arguments = _parse()
    installation = INSTALLATIONS[arguments.installation]
    folder: Path = arguments.folder
    spark = start_session(installation, folder, arguments.mode)
    say(setup={"spark": spark.version, "syncs": {p.name: p.syncs for p in installation.peers}})
    peers = [make(folder) for make in installation.peers]
    for peer in peers:
        peer.prepare(spark, arguments.mode)
    for number in range(arguments.first, arguments.rounds):
        for work in WORKS:
            for peer in peers:
                turn = Turn(
                    spark=spark,
                    peer=peer,
                    source=arguments.source,
                    pieces=arguments.pieces,
                    large=arguments.large,
                    mode=arguments.mode,
                    number=number,
                    batches=arguments.batches,
                )
                _run(work, turn)
    spark.stop()


def _bring_in(turn: Turn, files: Path, table: str) -> DataStreamWriter:
    """Return the writer of a query that ends by itself, a file a batch; its table is there."""
    schema = turn.spark.read.parquet(str(files)).schema
    stream = turn.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    return turn.peer.stream(stream.parquet(str(files)), table).trigger(availableNow=True)


def _run(work: Callable[[Turn], Found], turn: Turn) -> None:
    os.sync()  # What the one before has left unwritten must not burden this one.
    found = work(turn)
    if turn.number >= 0:
        say(peer=turn.peer.name, mode=turn.mode, round=turn.number, found=found)
    for path in turn.peer.place("any").parent.glob(f"*{turn.fresh('')}*"):
        shutil.rmtree(path)


def _drain(df: DataFrame) -> None:
    df.write.format("noop").mode("overwrite").save()


def _seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _timed(name: str, work: Callable[[], Any]) -> Found:
    cpu = cpu_seconds()
    seconds = _seconds(work)
    return {name: seconds, f"{name}, CPU": cpu_seconds() - cpu}


def _await(query: StreamingQuery, batches: int) -> None:
    while query.isActive and len(query.recentProgress) < batches:
        time.sleep(0.05)


def _stop(query: StreamingQuery) -> None:
    query.stop()
    if (error := query.exception()) is not None:
        raise RuntimeError("the query failed") from error


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("installation", choices=INSTALLATIONS)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--folder", type=Path, required=True, help="for tables")
    parser.add_argument("--source", type=Path, required=True, help="Parquet files of events")
    parser.add_argument("--pieces", type=Path, required=True, help="ten small Parquet files")
    parser.add_argument("--large", type=Path, required=True, help="large ones, of real events")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--first", type=int, default=-1, help="-1 for a round that warms up")
    parser.add_argument("--batches", type=int, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
