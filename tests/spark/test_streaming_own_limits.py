"""The source where Spark passes neither the start of a batch nor a limit: versions before 4.2."""

import itertools
import json
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery
from query_kit import as_spark, numbers, rows, start_reader

from segstore_ds.stream.stream import Stream


def extend(stream: Stream, count: int) -> None:
    """Append the next numbers."""
    tail = stream.refresh().tail
    stream.append(numbers(tail, tail + count))


class Spark:
    """What a Spark before 4.2 asks of a source, and what its checkpoint holds."""

    def __init__(self, url: str, **options: object) -> None:
        self._given = {"url": url, **options}
        self.logged: list[dict[str, Any]] = []
        self.read: list[int] = []
        self.start()

    def start(self) -> None:
        """Start the query, or start it again after a kill."""
        self.source = start_reader(**self._given)
        if self.logged:
            self.source.partitions(self.logged[-1], self.logged[-1])

    def log_batch(self) -> bool:
        """Ask for a batch and log it; False if there is nothing new."""
        end = as_spark(self.source.latestOffset())
        if self.logged and json.dumps(end) == json.dumps(self.logged[-1]):
            return False
        self.logged.append(end)
        return True

    def run_batch(self) -> None:
        """Run the batch that was logged last."""
        start = self.logged[-2] if len(self.logged) > 1 else self.source.initialOffset()
        self.read += [row["n"] for row in rows(self.source, start, self.logged[-1])]

    def run(self) -> None:
        """Run batches until there is nothing new."""
        while self.log_batch():
            self.run_batch()

    @property
    def ends(self) -> list[int]:
        return [offset["offset"] for offset in self.logged]


@pytest.mark.usefixtures("stream")
def test_one_batch_takes_everything_without_limits(url, monkeypatch) -> None:
    """`AvailableNow` is then one batch, and ends with what was there at its start."""
    monkeypatch.setattr("segstore_ds.stream.connector.queries.BATCH_SEGMENTS", 2)
    spark = Spark(url)
    spark.log_batch()
    assert spark.ends == [30]


@pytest.mark.parametrize("ran", [True, False], ids=["committed", "killed in a batch"])
def test_restarted_query_goes_on_at_its_checkpoint(stream: Stream, url: str, ran: bool) -> None:
    spark = Spark(url, maxRowsPerTrigger=8, startCut="tail")
    spark.run()
    extend(stream, 20)
    for stops in (True, True, False):
        spark.log_batch()
        if ran or not stops:
            spark.run_batch()
        if stops:
            spark.start()
            if not ran:
                spark.run_batch()
    spark.run()
    assert spark.ends == [30, 38, 46, 50]
    assert spark.read == list(range(30, 50))


@pytest.mark.usefixtures("stream")
def test_batch_that_nobody_reads_is_done(url: str) -> None:
    """A function of `foreachBatch` may leave its rows alone: Spark asks for no partitions then."""
    spark = Spark(url, maxRowsPerTrigger=10)
    assert [spark.log_batch() for _ in range(4)] == [True, True, True, False]
    assert spark.ends == [10, 20, 30]


def test_few_events_wait_but_not_those_of_the_first_batch(stream: Stream, url: str) -> None:
    """`Once` and `AvailableNow` look the same to the source, and must leave nothing behind."""
    spark = Spark(url, minRowsPerTrigger=20, startCut=15)
    spark.run()
    assert spark.ends == [30]
    extend(stream, 19)
    assert not spark.log_batch()
    extend(stream, 1)
    spark.run()
    extend(stream, 3)
    assert not spark.log_batch()
    spark.start()
    spark.run()
    assert spark.ends == [30, 50, 53]


def test_position_is_published_once_a_batch_is_done(stream: Stream, url: str) -> None:
    def position() -> int:
        return next(iter(stream.readers)).record.offset

    spark = Spark(url, maxRowsPerTrigger=10, readerName="etl")
    positions = []
    for _ in range(3):
        spark.log_batch()
        positions.append(position())
        spark.run_batch()
        positions.append(position())
    spark.start()
    positions.append(position())
    spark.log_batch()
    positions.append(position())
    assert positions == [0, 0, 10, 10, 20, 20, 20, 30]


@pytest.mark.smoke
def test_query_in_spark_keeps_its_limits_over_restarts(spark, stream, url) -> None:
    """In any Spark: each event once, and no batch above the limit."""
    batches: list[list[int]] = []

    def keep(rows: DataFrame, number: int) -> None:
        assert number == len(batches)
        batches.append([row["n"] for row in rows.collect()] if number != 2 else [])

    def start(**trigger: Any) -> StreamingQuery:
        rows = spark.readStream.format("segstore").option("maxRowsPerTrigger", 7).load(url)
        writer = rows.writeStream.option("checkpointLocation", f"{url}-at").foreachBatch(keep)
        return writer.trigger(**trigger).start()

    for count in (10, 11, 0):
        extend(stream, count) if count else None
        query = start(processingTime="0 seconds")
        query.processAllAvailable()
        query.stop()
    ends = [*range(7, 40, 7), 40, 47, 51]
    expected = [list(range(*bounds)) for bounds in itertools.pairwise([0, *ends])]
    expected[2] = []  # its rows were left alone
    assert batches == expected
