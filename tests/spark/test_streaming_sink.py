"""The streaming sink with real Spark: each batch once, whatever is replayed, shared or deleted."""

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from checkpoints import forget_newest_commit
from faulty_source import make_faulty
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import segstore_ds as segstore
from segstore_ds.stream import Stream

pytestmark = pytest.mark.usefixtures("verified")
SCHEMA = pa.schema([("n", pa.int64())])


@pytest.fixture
def numbers(tmp_path: Path) -> Stream:
    """The source of numbered events."""
    return segstore.create(f"file://{tmp_path}/numbers", SCHEMA)


def extend(stream: Stream, count: int) -> None:
    """Append the next numbers."""
    tail = stream.refresh().tail
    stream.append(pa.table({"n": list(range(tail, tail + count))}, SCHEMA))


@pytest.fixture
def follow(spark: SparkSession, numbers: Stream) -> Callable[..., DataFrame]:
    """The numbers as a streaming DataFrame."""

    def run(**options: object) -> DataFrame:
        return spark.readStream.format("segstore").options(**options).load(numbers.url)

    return run


@pytest.fixture
def drain(url: str, tmp_path: Path) -> Callable[..., StreamingQuery]:
    """Write everything that is available to the stream at `url`, then end."""

    def run(
        df: DataFrame,
        *,
        checkpoint: str = "checkpoint",
        mode: str = "append",
        source: str = "segstore",
        **options: object,
    ) -> StreamingQuery:
        writer = df.writeStream.format(source).options(**options).outputMode(mode)
        writer = writer.option("checkpointLocation", f"{tmp_path}/{checkpoint}")
        query = writer.option("path", url).trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    return run


def values(url: str, *cuts: object) -> list[int]:
    return segstore.open(url).read(*cuts).read_all()["n"].to_pylist()


def test_batches_arrive_once_and_in_order(
    numbers: Stream, follow: Callable[..., DataFrame], drain: Callable[..., Any], url: str
) -> None:
    """Over several batches and a restart; a commit per batch, named by the query."""
    extend(numbers, 20)
    query = drain(follow(maxRowsPerTrigger=7), compact="off")
    assert [p["numInputRows"] for p in query.recentProgress] == [7, 7, 6]
    extend(numbers, 5)
    drain(follow(maxRowsPerTrigger=7), compact="off")
    stream = segstore.open(url)
    assert values(url) == list(range(25))
    assert stream.version == 4
    writer = stream.root.writers[str(query.id)]
    assert writer.owner == str(query.id)
    assert (writer.batch_id, writer.rows, writer.end) == (3, 5, 25)


def test_small_batches_are_compacted_after_their_commit(
    numbers: Stream, follow: Callable[..., DataFrame], drain: Callable[..., Any], url: str
) -> None:
    """A query leaves few segments without being told, the same events, and no batch twice."""
    extend(numbers, 12)
    drain(follow(maxRowsPerTrigger=1))
    stream = segstore.open(url)
    assert values(url) == list(range(12))
    assert len(stream.root.entries) <= 6
    assert stream.root.next_segment > 12
    stream.verify().check()


def test_replayed_batch_changes_nothing(
    numbers: Stream,
    follow: Callable[..., DataFrame],
    drain: Callable[..., Any],
    url: str,
    tmp_path: Path,
) -> None:
    """Spark's newest commit file is lost: the batch runs again, and stages nothing."""
    for count in (10, 3):
        extend(numbers, count)
        drain(follow())
        forget_newest_commit(tmp_path / "checkpoint")
        before = segstore.open(url).version
        drain(follow())
        assert segstore.open(url).version == before
        assert not segstore.open(url).verify().leftovers
    extend(numbers, 1)
    drain(follow())
    assert values(url) == list(range(14))


def test_replayed_batch_after_another_schema_changes_nothing(
    numbers: Stream,
    follow: Callable[..., DataFrame],
    drain: Callable[..., Any],
    url: str,
    tmp_path: Path,
) -> None:
    """What is committed is done, whatever has changed since; what is new is refused."""
    extend(numbers, 4)
    drain(follow())
    stream = segstore.open(url)
    more = pa.table({"n": [99], "more": ["x"]})
    stream.append(more, merge_schema=True)
    forget_newest_commit(tmp_path / "checkpoint")
    drain(follow())
    assert stream.refresh().tail == 5
    extend(numbers, 1)
    with pytest.raises(StreamingQueryException, match=r"SEG_SCHEMA_MISMATCH.*mergeSchema"):
        drain(follow())
    drain(follow(), mergeSchema=True)
    assert values(url) == [0, 1, 2, 3, 99, 4]


def test_replayed_batch_after_truncation_and_seal_changes_nothing(
    numbers: Stream,
    follow: Callable[..., DataFrame],
    drain: Callable[..., Any],
    url: str,
    tmp_path: Path,
) -> None:
    """The batch is known though its events are gone and the stream has ended; a new one is not."""
    extend(numbers, 4)
    drain(follow())
    stream = segstore.open(url)
    stream.truncate("tail")
    stream.seal()
    forget_newest_commit(tmp_path / "checkpoint")
    drain(follow())
    assert (stream.refresh().head, stream.tail, stream.sealed) == (4, 4, True)
    extend(numbers, 1)
    with pytest.raises(StreamingQueryException, match="SEG_SEALED"):
        drain(follow())
    assert stream.refresh().tail == 4


def test_empty_batch_is_progress_without_a_segment(
    numbers: Stream, follow: Callable[..., DataFrame], drain: Callable[..., Any], url: str
) -> None:
    """Nothing passes the filter; the batch is known all the same."""
    extend(numbers, 5)
    query = drain(follow().where("n < 0"))
    stream = segstore.open(url)
    assert stream.tail == 0
    assert stream.root.writers[str(query.id)].batch_id == 0
    assert not stream.root.entries


def test_many_tiny_tasks_make_one_segment(
    numbers: Stream, follow: Callable[..., DataFrame], drain: Callable[..., Any], url: str
) -> None:
    """One object of data and one of the log."""
    extend(numbers, 1)
    drain(follow())
    before = objects(url)
    extend(numbers, 50)
    drain(follow().repartition(50))
    stream = segstore.open(url)
    assert [entry.rows for entry in stream.root.entries] == [1, 50]
    assert sorted(values(url)) == list(range(51))
    assert len(objects(url) - before) == 2


def objects(url: str) -> set[Path]:
    """Files of a stream, the hint aside."""
    folder = Path(url.removeprefix("file://"))
    return {path for path in folder.rglob("*") if path.is_file() and path.name != "_latest"}


def test_complete_mode_replaces_in_one_commit(
    numbers: Stream, follow: Callable[..., DataFrame], drain: Callable[..., Any], url: str
) -> None:
    """Every batch takes the place of the one before; offsets go on."""
    extend(numbers, 9)
    counted = follow(maxRowsPerTrigger=3).groupBy().count().withColumnRenamed("count", "n")
    drain(counted, mode="complete")
    stream = segstore.open(url)
    assert (stream.version, stream.head, stream.tail) == (3, 2, 3)
    assert values(url) == [9]


def test_update_mode_is_refused(
    numbers: Stream, follow: Callable[..., DataFrame], drain: Callable[..., Any]
) -> None:
    """By Spark itself: nothing here could update."""
    extend(numbers, 1)
    with pytest.raises(StreamingQueryException, match="does not support Update"):
        drain(follow().groupBy("n").count(), mode="update")


def test_two_queries_on_one_stream_both_arrive(
    numbers: Stream, follow: Callable[..., DataFrame], drain: Callable[..., Any], url: str
) -> None:
    """Each has a writer of its own."""
    extend(numbers, 6)
    drain(follow(maxRowsPerTrigger=4), checkpoint="one")
    drain(follow(maxRowsPerTrigger=4), checkpoint="two")
    assert values(url) == [*range(6), *range(6)]
    owners = {writer.owner for writer in segstore.open(url).root.writers.values()}
    assert len(owners) == 2


def test_one_writer_id_belongs_to_one_query(
    numbers: Stream,
    follow: Callable[..., DataFrame],
    drain: Callable[..., Any],
    url: str,
    tmp_path: Path,
) -> None:
    """Another query, or a deleted checkpoint, is told what happened and what to do."""
    extend(numbers, 6)
    first = drain(follow(), checkpoint="one", writerId="etl")
    known = segstore.open(url).root.writers["etl"]
    assert (known.owner, known.batch_id) == (str(first.id), 0)
    with pytest.raises(StreamingQueryException, match=r"another owner.*writerTakeover"):
        drain(follow(), checkpoint="two", writerId="etl")
    shutil.rmtree(tmp_path / "one")
    with pytest.raises(StreamingQueryException, match=r"another owner.*writerTakeover"):
        drain(follow(), checkpoint="one", writerId="etl")
    assert values(url) == list(range(6))
    drain(follow(), checkpoint="one", writerId="etl", writerTakeover=True)
    assert values(url) == [*range(6), *range(6)]


def test_deleted_checkpoint_is_noticed_by_its_location(
    numbers: Stream,
    follow: Callable[..., DataFrame],
    drain: Callable[..., Any],
    url: str,
    tmp_path: Path,
) -> None:
    """The new query would write everything once more; it is refused, and leaves nothing behind."""
    extend(numbers, 6)
    drain(follow())
    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(StreamingQueryException, match=r"belongs to another query.*deleted"):
        drain(follow())
    assert values(url) == list(range(6))
    shutil.rmtree(tmp_path / "checkpoint")
    extend(numbers, 2)
    drain(follow(startCut=6), writerTakeover=True)
    extend(numbers, 2)
    drain(follow())
    assert values(url) == list(range(10))
    assert not segstore.open(url).verify().leftovers


def test_checkpoint_that_was_set_back_is_noticed(
    numbers: Stream,
    follow: Callable[..., DataFrame],
    drain: Callable[..., Any],
    url: str,
    tmp_path: Path,
) -> None:
    """An older batch than the last is an error, never dropped in silence."""
    extend(numbers, 3)
    drain(follow())
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "saved")
    for _ in range(2):
        extend(numbers, 3)
        drain(follow())
    shutil.rmtree(tmp_path / "checkpoint")
    shutil.move(tmp_path / "saved", tmp_path / "checkpoint")
    with pytest.raises(StreamingQueryException, match=r"batch is older.*set back"):
        drain(follow())
    assert values(url) == list(range(9))


def test_new_checkpoint_begins_again(
    numbers: Stream, follow: Callable[..., DataFrame], drain: Callable[..., Any], url: str
) -> None:
    """A query stopped and started on a new checkpoint is another one: it starts at its cut."""
    extend(numbers, 3)
    drain(follow(), checkpoint="old")
    extend(numbers, 2)
    drain(follow(startCut=3), checkpoint="new")
    assert values(url) == list(range(5))


@pytest.fixture
def faults(spark: SparkSession, tmp_path: Path) -> Path:
    """The folder that says what fails in the format `faulty`."""
    spark.dataSource.register(make_faulty(tmp_path))
    return tmp_path


@pytest.mark.parametrize("fault", ["before", "after"])
def test_commit_that_fails_is_repeated_after_a_restart(
    numbers: Stream,
    follow: Callable[..., DataFrame],
    drain: Callable[..., Any],
    url: str,
    *,
    faults: Path,
    fault: str,
) -> None:
    """Before the log accepted it, and after."""
    extend(numbers, 4)
    (faults / fault).write_text("1")
    with pytest.raises(StreamingQueryException, match=f"injected: {fault}"):
        drain(follow(), source="faulty")
    assert segstore.open(url).tail == (0 if fault == "before" else 4)
    (faults / fault).unlink()
    drain(follow(), source="faulty")
    assert values(url) == list(range(4))


def test_tasks_that_fail_are_repeated(
    numbers: Stream,
    follow: Callable[..., DataFrame],
    drain: Callable[..., Any],
    url: str,
    faults: Path,
) -> None:
    """Retries leave nothing behind and repeat nothing; a batch that fails is run again."""
    extend(numbers, 30)
    (faults / "task").write_text("0.2")
    for _ in range(20):
        with contextlib.suppress(StreamingQueryException):
            drain(follow(maxRowsPerTrigger=10, partitionRows=3), source="faulty", inlineBytes=0)
            break
    assert values(url) == list(range(30))


def test_foreach_batch_with_writer_and_batch_id(
    numbers: Stream, follow: Callable[..., DataFrame], url: str, tmp_path: Path
) -> None:
    """The batch writer does the same for who names writer and batch."""
    extend(numbers, 6)

    def write(df: DataFrame, batch: int) -> None:
        for _ in range(2):
            one = df.write.format("segstore").mode("append")
            one.option("writerId", "each").option("batchId", batch).save(url)

    for _ in range(2):
        query = follow(maxRowsPerTrigger=4).writeStream.foreachBatch(write)
        query = query.option("checkpointLocation", f"{tmp_path}/checkpoint")
        query.trigger(availableNow=True).start().awaitTermination()
        forget_newest_commit(tmp_path / "checkpoint")
    assert values(url) == list(range(6))


def test_option_of_another_place_is_refused(
    numbers: Stream, follow: Callable[..., DataFrame], drain: Callable[..., Any]
) -> None:
    """Spark numbers the batches of a query, and limits belong to the reader."""
    extend(numbers, 1)
    with pytest.raises(StreamingQueryException, match="not to a stream write"):
        drain(follow(), batchId=7)
    with pytest.raises(StreamingQueryException, match="not to a stream write"):
        drain(follow(), maxRowsPerTrigger=7)
