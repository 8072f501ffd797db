"""The streaming sink with real Spark: each batch once, whatever is replayed, shared or deleted."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from checkpoints import forget_newest_commit, set_back, start_query
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StructType

import segstore_ds as segstore
from segstore_ds.spark.source import SegstoreDataSource
from segstore_ds.spark.streaming.sink import SegstoreStreamWriter
from segstore_ds.stream.stream import Stream

pytestmark = pytest.mark.usefixtures("verified")
SCHEMA = pa.schema([("n", pa.int64())])
# Spark gives a Python process ten seconds to start, and a busy machine takes longer.
LATE_WORKER = "Python worker failed to connect back"


class Sink:
    """A stream of numbered events, queries that write them to another stream, and that stream."""

    def __init__(self, spark: SparkSession, folder: Path, url: str) -> None:
        self.spark, self.folder, self.url = spark, folder, url
        self.checkpoint = folder / "checkpoint"
        self.numbers = segstore.create(f"file://{folder}/numbers", SCHEMA)

    def extend(self, count: int) -> None:
        """Append the next numbers to the source."""
        tail = self.numbers.refresh().tail
        self.numbers.append(pa.table({"n": list(range(tail, tail + count))}, SCHEMA))

    def follow(self, **options: object) -> DataFrame:
        """Return the numbers as a streaming DataFrame."""
        reader = self.spark.readStream.format("segstore").options(**options)
        return reader.load(self.numbers.url)

    def drain(
        self,
        df: DataFrame,
        *,
        checkpoint: str = "checkpoint",
        mode: str = "append",
        source: str = "segstore",
        **options: object,
    ) -> StreamingQuery:
        """Write everything that is available, then end."""
        writer = df.writeStream.format(source).options(**options).outputMode(mode)
        writer = writer.option("checkpointLocation", str(self.folder / checkpoint))
        writer = writer.option("path", self.url).trigger(availableNow=True)
        while True:
            query = writer.start()
            try:
                query.awaitTermination()
            except StreamingQueryException as error:
                if LATE_WORKER not in str(error):
                    raise
            else:
                return query

    def stream(self) -> Stream:
        """Open what was written."""
        return segstore.open(self.url)

    def values(self) -> list[int]:
        """Return what was written."""
        return self.stream().read().read_all()["n"].to_pylist()


@pytest.fixture
def sink(spark: SparkSession, tmp_path: Path, url: str) -> Sink:
    """Nothing is written yet."""
    return Sink(spark, tmp_path, url)


def test_batches_arrive_once_and_in_order(sink: Sink) -> None:
    """Over several batches and a restart; a commit per batch, named by the query."""
    sink.extend(12)
    query = sink.drain(sink.follow(maxRowsPerTrigger=7), compact="off")
    assert [p["numInputRows"] for p in query.recentProgress] == [7, 5]
    sink.extend(5)
    sink.drain(sink.follow(maxRowsPerTrigger=7), compact="off")
    stream = sink.stream()
    assert sink.values() == list(range(17))
    assert stream.version == 3
    writer = stream._log.root.writers[str(query.id)]
    assert writer.owner == str(query.id)
    assert (writer.batch_id, writer.rows, writer.end) == (2, 5, 17)


@pytest.mark.slow
def test_small_batches_are_compacted_after_their_commit(sink: Sink) -> None:
    """By default a query leaves few segments, the same events, and no batch twice."""
    sink.extend(12)
    sink.drain(sink.follow(maxRowsPerTrigger=1))
    stream = sink.stream()
    assert sink.values() == list(range(12))
    assert len(stream._log.root.entries) <= 6
    assert stream._log.root.next_segment > 12
    stream.verify().check()


def test_replayed_batch_changes_nothing(sink: Sink) -> None:
    """Spark's newest commit file is lost: the batch runs again, and stages nothing."""
    sink.extend(10)
    sink.drain(sink.follow())
    forget_newest_commit(sink.checkpoint)
    before = sink.stream().version
    sink.extend(3)
    sink.drain(sink.follow())
    assert sink.stream().version == before + 1
    assert not sink.stream().verify().leftovers
    assert sink.values() == list(range(13))


def test_empty_batch_is_progress_without_a_segment(sink: Sink) -> None:
    """Nothing passes the filter; the batch is known all the same."""
    sink.extend(5)
    query = sink.drain(sink.follow().where("n < 0"))
    stream = sink.stream()
    assert stream.tail == 0
    assert stream._log.root.writers[str(query.id)].batch_id == 0
    assert not stream._log.root.entries


@pytest.mark.slow
def test_complete_mode_replaces_in_one_commit(sink: Sink) -> None:
    """Every batch takes the place of the one before; offsets go on."""
    sink.extend(9)
    counted = sink.follow(maxRowsPerTrigger=3).groupBy().count().withColumnRenamed("count", "n")
    sink.drain(counted, mode="complete")
    stream = sink.stream()
    assert (stream.version, stream.head, stream.tail) == (3, 2, 3)
    assert sink.values() == [9]


@pytest.mark.slow
def test_one_writer_id_belongs_to_one_query(sink: Sink) -> None:
    """Another query or a deleted checkpoint gets an error with a remedy."""
    sink.extend(6)
    first = sink.drain(sink.follow(), checkpoint="one", writerId="etl")
    known = sink.stream()._log.root.writers["etl"]
    assert (known.owner, known.batch_id) == (str(first.id), 0)
    with pytest.raises(StreamingQueryException, match=r"another owner.*takeover"):
        sink.drain(sink.follow(), checkpoint="two", writerId="etl")
    shutil.rmtree(sink.folder / "one")
    with pytest.raises(StreamingQueryException, match=r"another owner.*takeover"):
        sink.drain(sink.follow(), checkpoint="one", writerId="etl")
    assert sink.values() == list(range(6))
    sink.drain(sink.follow(), checkpoint="one", writerId="etl", takeover=True)
    assert sink.values() == [*range(6), *range(6)]


@pytest.mark.slow
def test_deleted_checkpoint_is_noticed_by_its_location(sink: Sink) -> None:
    """The new query would write everything again; it is refused and leaves nothing behind.

    With one option, on both sides, it goes on at the reader's position.
    """
    sink.extend(6)
    sink.drain(sink.follow(readerName="etl"))
    shutil.rmtree(sink.checkpoint)
    with pytest.raises(StreamingQueryException, match=r"belongs to another query.*deleted"):
        sink.drain(sink.follow())
    assert sink.values() == list(range(6))
    shutil.rmtree(sink.checkpoint)
    sink.extend(2)
    sink.drain(sink.follow(readerName="etl", takeover=True), takeover=True)
    sink.extend(2)
    sink.drain(sink.follow(readerName="etl"))
    assert sink.values() == list(range(10))
    assert not sink.stream().verify().leftovers


@pytest.mark.slow
def test_moved_stream_and_the_querys_own_source_are_no_sink(sink: Sink) -> None:
    """Neither begins a new stream with the newest batch, nor reads for ever what it writes.

    Where both streams and the checkpoint are now, the query goes on, with its reader.
    """
    sink.extend(6)
    query = sink.drain(sink.follow(readerName="etl"))
    moved = sink.folder / "moved"
    Path(sink.url.removeprefix("file://")).rename(moved)
    sink.extend(2)
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match=r"none of the batches.*takeover"):
            sink.drain(sink.follow(readerName="etl"))
        assert sink.values() == []
    sink.url = f"file://{moved}"
    elsewhere = f"file://{sink.folder}/elsewhere"
    sink.numbers.back_up(elsewhere)
    segstore.drop(sink.numbers.url, confirm=sink.numbers.url)
    sink.numbers = segstore.open(elsewhere)
    shutil.move(sink.checkpoint, sink.folder / "checkpoint-elsewhere")
    for _ in range(2):
        again = sink.drain(sink.follow(readerName="etl"), checkpoint="checkpoint-elsewhere")
        assert again.id == query.id
        sink.extend(1)
    assert sink.values() == list(range(9))
    assert [(seen.name, seen.record.offset) for seen in sink.numbers.readers] == [("etl", 9)]
    sink.url = sink.numbers.url
    for df in (sink.follow(), sink.follow(), sink.follow().repartition(3)):
        with pytest.raises(StreamingQueryException, match=r"it reads.*nothing of this batch"):
            sink.drain(df, checkpoint="loop", inlineBytes=0)
    assert sink.numbers.refresh().tail == 10
    assert not sink.numbers.verify().leftovers


@pytest.mark.slow
def test_own_source_is_refused_where_the_checkpoint_is_a_setting(sink: Sink) -> None:
    """Its place is not known then, so the first batch lands, and the second is refused."""
    sink.extend(8)
    session = sink.spark.newSession()
    session.conf.set("spark.sql.streaming.checkpointLocation", str(sink.folder / "all"))
    segstore.spark.register(session)
    rows = session.readStream.format("segstore").load(sink.numbers.url)
    query = rows.writeStream.format("segstore").option("path", sink.numbers.url).start()
    refused = r"writes to the stream that it reads.*written=\(8, 16\)"
    with pytest.raises(StreamingQueryException, match=refused):
        query.awaitTermination(120)
    assert sink.numbers.refresh().tail == 16


@pytest.mark.slow
def test_sink_recreated_during_a_query_is_refused(sink: Sink) -> None:
    """No commit goes to what was deleted, and the new log gets one only by a takeover."""

    def start(**options: object) -> StreamingQuery:
        writer = sink.follow().writeStream.format("segstore").options(path=sink.url, **options)
        return start_query(writer, str(sink.checkpoint), now=False)

    query = start()
    for _ in range(4):
        sink.extend(2)
        query.processAllAvailable()
    shutil.rmtree(sink.url.removeprefix("file://"))
    segstore.create(sink.url, SCHEMA).append(pa.table({"n": [0]}, SCHEMA))
    sink.extend(2)
    with pytest.raises(StreamingQueryException, match=r"none of the batches.*takeover"):
        query.processAllAvailable()
    assert sink.values() == [0]
    query = start(takeover=True)
    query.processAllAvailable()
    query.stop()
    assert sink.values() == [0, 8, 9]


@pytest.mark.slow
def test_checkpoint_that_was_set_back_is_noticed(sink: Sink) -> None:
    """An older batch than the last is an error, never dropped in silence."""
    sink.extend(3)
    sink.drain(sink.follow())
    shutil.copytree(sink.checkpoint, sink.folder / "saved")
    for _ in range(2):
        sink.extend(3)
        sink.drain(sink.follow())
    shutil.rmtree(sink.checkpoint)
    shutil.move(sink.folder / "saved", sink.checkpoint)
    with pytest.raises(StreamingQueryException, match=r"batch is older.*set back"):
        sink.drain(sink.follow())
    assert sink.values() == list(range(9))


@pytest.mark.slow
def test_checkpoint_set_back_by_one_batch_loses_no_event(sink: Sink) -> None:
    """A rerun with one more event is an error or left out, and a new checkpoint continues."""
    for count in (3, 3):
        sink.extend(count)
        query = sink.drain(sink.follow())
    set_back(sink.checkpoint)
    sink.extend(1)
    match = (
        rf"SEG_WRITER_CONFLICT.*other events: writerId='{query.id}', batchId=1, rows=4, "
        r"differing_columns=\['n'\], committed_rows=3, committed_offsets=\(3, 6\).*onRepeat='skip'"
    )
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match=match):
            sink.drain(sink.follow())
    assert sink.values() == list(range(6))
    sink.drain(sink.follow(), onRepeat="skip")
    assert sink.values() == list(range(6))
    assert not sink.stream().verify().leftovers
    sink.drain(sink.follow(startCut=6), checkpoint="behind")
    assert sink.values() == list(range(7))


def make_faulty(fault: Path) -> type[SegstoreDataSource]:
    """Return the format `faulty`, whose commits fail where a file says: `before` or `after`.

    Both classes travel by value, and so know the file.
    """

    class FaultyWriter(SegstoreStreamWriter):
        def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
            place = fault.read_text() if fault.exists() else ""
            if place != "before":
                super().commit(messages, batchId)
            if place:
                raise RuntimeError(f"injected: {place}")

    class Faulty(SegstoreDataSource):
        @classmethod
        def name(cls) -> str:
            return "faulty"

        def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802
            writer = super().streamWriter(schema, overwrite)
            writer.__class__ = FaultyWriter
            return writer

    return Faulty


@pytest.mark.parametrize("place", [pytest.param("before", marks=pytest.mark.slow), "after"])
def test_commit_that_fails_is_repeated_after_a_restart(spark, sink, tmp_path, place) -> None:
    """Before the log accepted it, and after."""
    fault = tmp_path / "fault"
    spark.dataSource.register(make_faulty(fault))
    sink.extend(4)
    fault.write_text(place)
    with pytest.raises(StreamingQueryException, match=f"injected: {place}"):
        sink.drain(sink.follow(), source="faulty")
    assert sink.stream().tail == (0 if place == "before" else 4)
    fault.unlink()
    sink.drain(sink.follow(), source="faulty")
    assert sink.values() == list(range(4))


@pytest.mark.slow
def test_foreach_batch_with_writer_and_batch_id(sink: Sink) -> None:
    """A batch that is run again changes nothing; a new query is another writer by its id.

    The checkpoint's name is no pattern, so that of another query is not found by it.
    """
    sink.checkpoint = sink.folder / "check[1]{a,b}"
    sink.extend(6)

    def write(df: DataFrame, batch: int) -> None:
        for _ in range(2):
            at = str(sink.checkpoint)
            segstore.spark.write_batch(df, batch, sink.url, checkpoint=at, name="etl")

    def run(**options: object) -> None:
        query = sink.follow(maxRowsPerTrigger=4, **options).writeStream.foreachBatch(write)
        start_query(query, str(sink.checkpoint), now=True)

    for _ in range(2):
        run()
        forget_newest_commit(sink.checkpoint)
    assert sink.values() == list(range(6))
    run()
    set_back(sink.checkpoint)
    sink.extend(1)
    with pytest.raises(StreamingQueryException, match="committed with other events"):
        run()
    shutil.rmtree(sink.checkpoint)
    sink.extend(2)
    run(startCut=6)
    assert sink.values() == list(range(9))


@pytest.mark.slow
def test_replayed_batch_in_other_partitions_changes_nothing(sink: Sink) -> None:
    """Neither their number, nor the order of rows, nor the layout makes another batch of it."""
    sink.extend(20)
    sink.drain(sink.follow(minPartitions=7), inlineBytes=0)
    layouts = ({"segmentFormat": "parquet", "inlineBytes": 0}, {"frameRows": 2}, {})
    for partitions, layout in zip((1, 7, 20), layouts, strict=True):
        forget_newest_commit(sink.checkpoint)
        mixed = sink.follow().repartition(partitions, "n")
        sink.drain(mixed, **layout)
    assert sink.values() == list(range(20))
    assert not sink.stream().verify().leftovers
