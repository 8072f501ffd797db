"""What each write option does, and what a wrong one says; Spark itself: tests/spark."""

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    IntegerType,
    MapType,
    StructField,
    StructType,
    YearMonthIntervalType,
)
from source_kit import append, load, source

import segstore_ds as segstore
from segstore_ds.errors import SegstoreError
from segstore_ds.spark.batch.writer import QUERY_LIMIT, client_of


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A location without a stream."""
    return f"file://{tmp_path}/stream"


def numbers(*values: int) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())})


def ids(url: str) -> list[int]:
    return [row["id"] for row in load(url).rows()]


def error(action: Callable[[], None]) -> str:
    with pytest.raises(SegstoreError) as caught:
        action()
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"writerId": "x"}, "must be given together"),
        ({"batchId": 1}, "must be given together"),
        ({"batchID": "one", "writerId": "x"}, "an integer of at least 0"),
        ({"onRepeat": "skip"}, "give writerId and batchId too"),
        ({"takeover": "true"}, "give writerId and batchId too"),
        ({"txnAppId": "x"}, "use writerId"),
        ({"txnVersion": 1}, "use batchId"),
        ({"maxRecordsPerFile": 1}, "use segmentBytes"),
        ({"codec": "zstd"}, "use compression"),
        ({"startCut": 1}, "option belongs to a read, not to a write"),
        ({"compresion": "zstd"}, "did you mean compression?"),
        ({"compression": "gzip"}, "one of zstd, lz4, none"),
        ({"frameRows": 0}, "an integer of at least 1"),
        ({"segmentRows": 5}, "option belongs to a call from Python, not to a write"),
        ({"statsColumns": "id,gone"}, "columns=['gone']"),
        ({"keyColumns": "id,gone"}, "no such key column"),
        ({"timeColumn": "gone"}, "no such time column"),
        ({"overwriteSchema": "true"}, "overwrite the events as well, or set mergeSchema=true"),
        ({"createIfMissing": "false"}, "SEG_NOT_FOUND"),
        ({"expectedTail": 3}, "SEG_NOT_FOUND"),
        ({"expectedTail": 0, "operation": "compact"}, "options=['expectedTail']"),
        ({"batchId": 0, "operation": "compact"}, "takes no options of an append"),
        ({"writerId": "x", "operation": "copy"}, "takes no options of an append"),
        ({"compact": "auto", "copyMode": "segments"}, "options=['compact']"),
        ({"copyMode": "clone", "operation": "copy"}, r"Stream.copy_to"),
    ],
)
def test_wrong_options_are_refused_and_make_nothing(url, options, message):
    assert message in error(lambda: append(url, numbers(0), **options))
    assert not segstore.exists(url)


def test_tasks_are_one_commit_in_their_order(url):
    append(url, numbers(0, 1), numbers(), numbers(2))
    append(url, numbers(3), overwrite=True, inlineBytes=0)
    stream = segstore.open(url)
    assert (stream.version, stream.head, stream.tail, ids(url)) == (2, 3, 4, [3])
    assert [row["rows"] for row in stream.history().read_all().to_pylist()] == [0, 3, 1]
    stream.verify().check()


def test_other_events_under_a_known_batch_are_refused(url):
    """As many rows as before among them; the same ones in other tasks are the same batch."""
    key = {"writerId": "etl", "batchId": 7}
    append(url, numbers(0, 1), numbers(2), **key)
    append(url, numbers(0), numbers(1, 2), inlineBytes=0, **key)
    for overwrite in (False, True):
        text = error(
            lambda overwrite=overwrite: append(
                url, numbers(1, 2, 3), overwrite=overwrite, inlineBytes=0, **key
            )
        )
        assert "SEG_WRITER_CONFLICT: batch id was committed with other events" in text
        assert "differing_columns=['id']" in text
    assert segstore.open(url).verify().leftovers == []
    append(url, numbers(1, 2, 3), onRepeat="skip", **key)
    assert ids(url) == [0, 1, 2]


def test_empty_batch_of_a_writer_is_remembered(url):
    for _ in range(2):
        append(url, numbers(), writerId="etl", batchId=1)
    text = error(lambda: append(url, numbers(*range(5)), writerId="etl", batchId=1))
    assert "rows=5" in text
    assert "committed_rows=0" in text
    append(url, numbers(*range(5)), writerId="etl", batchId=2)
    assert segstore.open(url).tail == 5


ONE = {"a": pa.array([1]), "b": pa.array(["x"])}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"A": ONE["a"], "b": ONE["b"]}, "differs from the stream's only in case"),
        ({"a": ONE["a"]}, "missing_columns=['b']"),
        ({**ONE, "c": pa.array([2], pa.int32())}, "new_columns=['c: int32']"),
        ({**ONE, "c": pa.array([2], pa.int32())}, "mergeSchema=true"),
        ({**ONE, "a": pa.array(["1"])}, "column='a'"),
        ({**ONE, "a": pa.array([1.5])}, "column='a'"),
        ({**ONE, "a": pa.array([Decimal(5)], pa.decimal128(1, 0))}, "column='a'"),
    ],
)
def test_columns_that_do_not_fit_are_named_before_any_task(url, columns, message):
    segstore.create(url, pa.schema([("a", pa.int64()), ("b", pa.string())]))
    assert message in error(lambda: append(url, pa.table(columns)))
    assert segstore.open(url).version == 0


YEARS, MONTHS = YearMonthIntervalType(0, 0), YearMonthIntervalType(1, 1)
TWICE = StructType([StructField("bad", IntegerType()), StructField("bad", IntegerType())])


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (StructType().add("bad", YearMonthIntervalType(0, 1)), "column='bad'"),
        (
            StructType().add("bad", ArrayType(StructType().add("m", MONTHS))),
            "column='bad.element.m'",
        ),
        (StructType().add("bad", MapType(IntegerType(), YEARS)), "column='bad.value'"),
        (TWICE, "names=['bad']"),
        (
            StructType().add("bad", IntegerType()).add("BAD", IntegerType()),
            "columns=['bad', 'BAD']",
        ),
        (StructType().add("s", TWICE), "names=['bad'], where='s'"),
        (StructType().add("s", ArrayType(TWICE)), "names=['bad'], where='s.element'"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name_before_any_task(url, schema, message):
    assert message in error(lambda: append(url, schema=schema))
    assert not segstore.exists(url)


def test_option_of_another_place_is_refused_in_a_query(url):
    """Spark numbers the batches of a query, and limits belong to the reader."""
    for option in ("batchId", "maxRowsPerTrigger"):
        sink = source(url, {option: 7})
        text = error(lambda sink=sink: sink.streamWriter(StructType(), overwrite=False))
        assert "not to a stream write" in text


def test_a_query_is_named_in_the_history() -> None:
    """By one word, whatever it is called; the application is another one."""
    name = " ".join(["clicks  to"] + ["x"] * 99)
    first, query, application = client_of("app-1", name).split(" ")
    assert first.startswith("pyspark/")
    assert query.startswith("query/clicks_to_x")
    assert len(query) == len("query/") + QUERY_LIMIT
    assert application == "app/app-1"
    assert client_of(None) == first
