"""The source where Spark passes neither the start of a batch nor a limit: versions before 4.2."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import segstore_ds as segstore
from segstore_ds.errors import PositionError
from segstore_ds.spark.source import SegstoreDataSource
from segstore_ds.spark.streaming.source import SegstoreStreamReader
from segstore_ds.stream.stream import Stream

SCHEMA = pa.schema([("n", pa.int64())])


def extend(stream: Stream, count: int) -> None:
    """Append the next numbers."""
    tail = stream.refresh().tail
    stream.append(pa.table({"n": list(range(tail, tail + count))}, SCHEMA))


@pytest.fixture
def stream(url: str) -> Stream:
    """A stream of three segments of ten events."""
    made = segstore.create(url, SCHEMA)
    for _ in range(3):
        extend(made, 10)
    return made


class Spark:
    """What a Spark before 4.2 asks of a source, and what its checkpoint holds."""

    def __init__(self, url: str, **options: object) -> None:
        self._given = {"path": url, **{name: str(value) for name, value in options.items()}}
        self.logged: list[dict[str, Any]] = []
        self.read: list[int] = []
        self.start()

    def start(self) -> None:
        """Start the query, or start it again after a kill."""
        source = SegstoreDataSource(self._given)
        self.source: SegstoreStreamReader = source.streamReader(source.schema())
        if self.logged:
            self.source.partitions(self.logged[-1], self.logged[-1])

    def log_batch(self) -> bool:
        """Ask for a batch and log it; False if there is nothing new."""
        end = json.loads(json.dumps(self.source.latestOffset()))
        if self.logged and json.dumps(end) == json.dumps(self.logged[-1]):
            return False
        self.logged.append(end)
        return True

    def run_batch(self) -> None:
        """Run the batch that was logged last."""
        start = self.logged[-2] if len(self.logged) > 1 else self.source.initialOffset()
        for partition in self.source.partitions(start, self.logged[-1]):
            for batch in self.source.read(partition):
                self.read += batch.column("n").to_pylist()

    def run(self) -> None:
        """Run batches until there is nothing new."""
        while self.log_batch():
            self.run_batch()

    @property
    def ends(self) -> list[int]:
        return [offset["offset"] for offset in self.logged]


def test_each_batch_is_within_the_limits(stream: Stream, url: str) -> None:
    spark = Spark(url, maxRowsPerTrigger=7)
    spark.run()
    extend(stream, 3)
    spark.run()
    assert spark.ends == [7, 14, 21, 28, 30, 33]
    assert spark.read == list(range(33))


@pytest.mark.usefixtures("stream")
def test_one_batch_takes_everything_without_limits(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`AvailableNow` is then one batch, and ends with what was there at its start."""
    monkeypatch.setattr("segstore_ds.stream.connector.queries.BATCH_SEGMENTS", 2)
    spark = Spark(url)
    spark.log_batch()
    assert spark.ends == [30]


def test_first_batch_within_a_limit_says_that_it_is_not_all(
    stream: Stream, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    spark = Spark(url, maxRowsPerTrigger=20)
    spark.run()
    extend(stream, 60)
    spark.run()
    assert [record.args for record in caplog.records if "passes no limits" in record.msg] == [
        (0, 20, 30)
    ]


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


def test_query_that_was_killed_before_its_first_batch_begins_again(
    stream: Stream, url: str
) -> None:
    spark = Spark(url, startCut="tail")
    spark.source.latestOffset()
    extend(stream, 5)
    spark.start()
    spark.run()
    extend(stream, 5)
    spark.run()
    assert spark.read == list(range(35, 40))


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


def test_few_events_wait_no_longer_than_the_delay(stream: Stream, url: str) -> None:
    patient = Spark(url, minRowsPerTrigger=20, maxTriggerDelay="1h")
    hasty = Spark(url, minRowsPerTrigger=20, maxTriggerDelay="0s")
    for spark in (patient, hasty):
        spark.run()
    extend(stream, 1)
    assert [patient.log_batch(), hasty.log_batch()] == [False, True]


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


@pytest.mark.usefixtures("stream")
def test_batch_that_goes_back_is_refused(url: str) -> None:
    """Spark's wrapper for `AvailableNow` asks before it has named the checkpoint's offset."""
    spark = Spark(url)
    spark.run()
    spark.source = Spark(url, maxRowsPerTrigger=5).source
    spark.logged.append(spark.source.latestOffset())
    with pytest.raises(PositionError, match="ends before it begins"):
        spark.run_batch()


@pytest.mark.smoke
def test_query_in_spark_keeps_its_limits_over_restarts(
    spark: SparkSession, stream: Stream, url: str
) -> None:
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


@pytest.mark.slow
@pytest.mark.smoke
def test_available_now_ends_with_what_was_there(
    spark: SparkSession, stream: Stream, url: str
) -> None:
    def run(writer: Any) -> list[int]:
        path = f"{url}-copy"
        writer.option("checkpointLocation", f"{url}-at").trigger(availableNow=True).start(
            path
        ).awaitTermination()
        return segstore.open(path).read().read_all()["n"].to_pylist()

    def load() -> Callable[..., Any]:
        return spark.readStream.format("segstore").load(url).writeStream.format("segstore")

    assert run(load()) == list(range(30))
    extend(stream, 5)
    assert run(load()) == list(range(35))
    assert run(load()) == list(range(35))


@pytest.mark.slow
@pytest.mark.smoke
def test_query_in_spark_waits_for_a_batch_that_is_worth_it(
    spark: SparkSession, stream: Stream, url: str
) -> None:
    """In any Spark; `AvailableNow` takes what is there, and leaves nothing behind."""
    sizes: list[int] = []

    def start(**trigger: Any) -> StreamingQuery:
        rows = spark.readStream.format("segstore").options(minRowsPerTrigger=20).load(url)
        writer = rows.writeStream.option("checkpointLocation", f"{url}-at")
        return (
            writer.foreachBatch(lambda rows, _: sizes.append(rows.count()))
            .trigger(**trigger)
            .start()
        )

    query = start(processingTime="0 seconds")
    query.processAllAvailable()
    for count in (7, 13):
        extend(stream, count)
        query.processAllAvailable()
    query.stop()
    extend(stream, 3)
    start(availableNow=True).awaitTermination()
    assert [size for size in sizes if size] == [30, 20, 3]
