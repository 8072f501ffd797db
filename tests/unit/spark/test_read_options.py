"""What each read option does, and what a wrong one says; Spark itself: tests/spark."""

import datetime as dt
import pickle
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from source_kit import SCHEMA, Loaded, again, load, rows

import segstore_ds as segstore
from segstore_ds.errors import SegstoreError
from segstore_ds.options.table import BY_NAME, READ, STREAM_READ, Option
from segstore_ds.spark.batch import planning, slices
from segstore_ds.spark.parquet_scan.read import read, read_in_order


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A location without a stream."""
    return f"file://{tmp_path}/stream"


@pytest.fixture
def stream(url) -> segstore.Stream:
    """100 events in four commits, versions 1 to 4, two frames of ten rows and one of five each."""
    made = segstore.create(url, SCHEMA)
    layout = segstore.Layout(frame_rows=10, inline_bytes=0)
    for start in range(0, 100, 25):
        made.append(rows(start, start + 25), layout=layout)
    return made


def columns(**types: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


def offsets(loaded: Loaded) -> list[int]:
    return [row["o"] for row in loaded.rows()]


def error(action) -> str:
    with pytest.raises(SegstoreError) as caught:
        action()
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "first", "last"),
    [
        ({}, 0, 100),
        ({"startCut": 10, "endCut": "20"}, 10, 20),
        ({"STARTCUT": "version:1", "endcut": "version:3"}, 25, 75),
        ({"startCut": "version:4"}, 100, 100),
        ({"startCut": "head", "endCut": "tail"}, 0, 100),
        ({"startCut": "tail"}, 100, 100),
        ({"startCut": 40, "endCut": 40}, 40, 40),
        ({"endCut": "2013-01-01T00:00:00Z"}, 0, 0),
        ({"startCut": "2013-01-01T00:00:00+03:00", "endCut": 5}, 0, 5),
    ],
)
def test_cuts(stream, url, options, first, last):
    df = load(url, offsetColumn="o", **options)
    assert df.schema.simpleString() == "struct<n:bigint,user:string,ts:timestamp,o:bigint>"
    assert offsets(df) == list(range(first, last))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startCut": "yesterday"}, "SEG_INVALID_INPUT"),
        ({"startCut": "2013-01-01T00:00:00"}, "zone"),
        ({"startCut": -1}, "SEG_INVALID_INPUT"),
        ({"startCuts": 1}, "did you mean startCut?"),
        ({"partitionByte": 1}, "did you mean partitionBytes?"),
        ({"qqqqqq": 1}, "known: path, storageOptions, startCut"),
        ({"startingOffsets": "latest"}, "use startCut"),
        ({"startingVersion": 1}, "use startCut"),
        ({"endingTimestamp": 1}, "use endCut"),
        ({"ignoreMissingFiles": "true"}, "use failOnDataLoss"),
        ({"maxPartitionBytes": 1}, "use partitionBytes"),
        ({"writerId": "x"}, "option belongs to a write, not to a read"),
        ({"mergeSchema": "true"}, "option belongs to a write, not to a read"),
        ({"minPartitions": 0}, "an integer of at least 1"),
        ({"partitionRows": 1}, "option belongs to a call from Python, not to a read"),
        ({"segmentColumn": "s"}, "unknown option"),
        ({"partitionBytes": "1x"}, "with k, m, g or t"),
        ({"failOnDataLoss": "maybe"}, "give true or false"),
        ({"columns": "n,n"}, "give each name once"),
        ({"columns": "n,gone"}, "columns=['gone']"),
        ({"offsetColumn": "user"}, "would occur twice"),
        ({"filters": '[["gone","==",1]]'}, "gone"),
        ({"filters": '[["n","~",1]]'}, "~"),
        ({"startEventTime": "2013-01-01T00:00:00Z"}, "stream has no time column"),
        ({"filters": '[["n","==","x"]]'}, "SEG_INVALID_INPUT"),
        ({"filters": '[["n","==",null]]'}, "use is null"),
        ({"filters": "n = "}, "SEG_INVALID_INPUT"),
        ({"storageOptions": "{secret"}, "a JSON object"),
        ({"storageOptions": '{"auto_mkdir": "env:SEGSTORE_NO_SUCH"}'}, "SEGSTORE_NO_SUCH"),
    ],
)
def test_wrong_options_are_named_at_load(stream, url, options, message):
    """Everything is said when the DataFrame is loaded, not when it first runs."""
    text = error(lambda: load(url, **options))
    assert message in text
    assert "SEG_" in text
    assert "{secret" not in text


def test_columns_are_projected_in_their_order(stream, url):
    df = load(url, columns="user, n", offsetColumn="o")
    assert df.columns == ["user", "n", "o"]
    assert df.rows()[8] == {"user": "eve", "n": 8, "o": 8}
    assert load(url, columns='["ts"]', endCut=3).count() == 3


def test_earlier_versions_are_read_as_they_were(stream, url):
    """With the columns of then, whatever came since; by number and by time."""
    version, moment = stream.version, dt.datetime.now(dt.UTC).isoformat()
    stream.append(pa.table({"n": [1], "more": ["x"]}), merge_schema=True)
    stream.truncate("tail")
    then = load(url, versionAsOf=version)
    assert "more" not in then.columns
    assert then.count() == load(url, timestampAsOf=moment).count() == 100
    assert load(url, versionAsOf=version, endCut=7).count() == 7
    assert load(url, versionAsOf=version, schema=columns(n=LongType())).count() == 100
    assert load(url, versionAsOf=version, metadata="tags").count() == 0
    assert load(url).count() == 0
    assert "SEG_NOT_FOUND" in error(lambda: load(url, versionAsOf=10**6))
    assert "versionAsOf or timestampAsOf" in error(
        lambda: load(url, versionAsOf=1, timestampAsOf="2026-01-01T00:00:00Z")
    )
    assert "zone" in error(lambda: load(url, timestampAsOf="2026-01-01T00:00:00"))


def test_given_schema_projects(stream, url):
    df = load(
        url, schema=columns(o=LongType()).add("user", StringType()), offsetColumn="o", startCut=98
    )
    assert [tuple(row.items()) for row in df.rows()] == [
        (("o", 98), ("user", "eve")),
        (("o", 99), ("user", "Ada")),
    ]
    df = load(url, schema=columns(o=LongType()), offsetColumn="o", commitTimeColumn="s", endCut=2)
    assert df.rows() == [{"o": 0}, {"o": 1}]


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        (columns(N=LongType()), {}, "column='N'"),
        (columns(n=IntegerType()), {}, "stream='bigint'"),
        (columns(user=StringType("UTF8_LCASE")), {}, "column='user'"),
        (columns(o=IntegerType()), {"offsetColumn": "o"}, "stream='bigint'"),
        (columns(n=LongType()), {"columns": "user"}, "give one of the two"),
        (columns(n=LongType()).add("n", LongType()), {}, "would occur twice"),
        (StructType([]), {}, "no columns"),
    ],
)
def test_schema_that_is_not_the_streams_is_refused(stream, url, schema, options, message):
    assert message in error(lambda: load(url, schema=schema, **options).table())


def test_not_null_in_a_given_schema_holds_or_is_an_error(stream, url):
    strict = StructType([StructField("n", LongType(), False)])
    assert load(url, schema=strict, startCut=1, endCut=7).count() == 6
    assert "NOT NULL holds null: column='n'" in error(load(url, schema=strict).table)


def test_commit_time_column_tells_when_each_event_was_committed(stream, url):
    df = load(url, offsetColumn="o", commitTimeColumn="at", minPartitions=4)
    assert df.schema["at"].dataType == TimestampType()
    commits = stream.history().read_all().to_pylist()
    expected = [row["time"] for row in commits for _ in range(row["rows"])]
    assert [row["at"] for row in df.rows()] == expected
    schema = columns(at=TimestampType(), n=LongType())
    asked = load(url, schema=schema, commitTimeColumn="at", endCut=2)
    assert asked.table().column_names == ["at", "n"]
    assert asked.count() == 2


@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        ({}, 1),
        ({"minPartitions": 4}, 4),
        ({"startCut": 30, "endCut": 31, "minPartitions": 8}, 1),
        ({"startCut": 30, "endCut": 30}, 1),  # Spark makes one task of none
        ({"endCut": 25, "minPartitions": 3}, 3),  # 25 rows lie in three frames
    ],
)
def test_task_sizes(stream, url, options, tasks):
    df = load(url, offsetColumn="o", **options)
    assert len(df.plan()[1]) == tasks
    assert offsets(df) == list(range(options.get("startCut", 0), options.get("endCut", 100)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startCut": 20, "endCut": 10}, "SEG_INVALID_INPUT"),
        ({"startCut": "tail", "endCut": "head"}, "SEG_INVALID_INPUT"),
        ({"endCut": 101}, "SEG_POSITION"),
        ({"startCut": "version:9"}, "SEG_NOT_FOUND"),
    ],
)
def test_cut_that_is_not_in_the_stream_is_named_when_it_is_read(stream, url, options, message):
    """Spark asks batch and streaming reads alike for columns, so cuts are bound later."""
    assert message in error(lambda: load(url, **options).table())


def test_start_below_the_head_names_what_is_lost_or_is_clamped(stream, url):
    stream.overwrite(rows(0, 5))
    assert "SEG_TRUNCATED" in error(lambda: load(url, startCut=90).table())
    df = load(url, startCut=90, failOnDataLoss="false", offsetColumn="o")
    assert offsets(df) == [100, 101, 102, 103, 104]


def test_missing_stream_and_missing_path_are_errors(url):
    assert "SEG_NOT_FOUND" in error(lambda: load(url))
    assert "no path was given; give the stream's location" in error(lambda: load(None))


def test_a_short_stream_is_planned_when_it_is_loaded(stream, url, monkeypatch):
    """Spark's process for the plan hands it on; what may send requests is planned there."""
    plain, user_schema = load(url, offsetColumn="o"), load(url, columns='["n"]').schema
    others = [load(url, filters='[["n", ">", 3]]'), load(url, startCut="version:1")]
    calls = []
    whole = planning.plan
    monkeypatch.setattr(planning, "plan", lambda *given: calls.append(given) or whole(*given))
    assert (plain.count(), calls) == (100, [])
    assert [df.count() for df in (*others, load(url, schema=user_schema))][-1] == 100
    assert len(calls) == 3


def test_rows_of_a_small_stream_travel_with_its_plan(stream, url, tmp_path):
    """The process that Spark starts for a task then loads hardly anything."""
    small, part = load(url, offsetColumn="o", minPartitions=4), load(url, startCut=30, endCut=60)
    later = load(
        url, filters='[["n", ">", -1]]', readCacheBytes=0
    )  # planned, and read, when the query runs
    whole, cut = small.table(), part.table()
    assert (len(small.plan()[1]), whole.num_rows, cut.num_rows) == (4, 100, 30)
    shutil.rmtree(tmp_path / "stream" / "segments")
    assert small.table() == whole
    assert whole["o"].to_pylist() == list(range(100))
    assert part.table() == cut == whole.slice(30, 30).drop_columns("o")
    assert whole.drop_columns("o").to_pylist() == rows(0, 100).to_pylist()
    assert "SEG_MISSING_OBJECT" in error(later.table)


@pytest.mark.parametrize("bound", ["_MOST_BYTES", "_MOST_MEMORY", "_MOST_SEGMENTS"])
def test_larger_streams_are_read_by_tasks(stream, url, monkeypatch, tmp_path, bound):
    monkeypatch.setattr(slices, bound, 3)
    df = load(url, readCacheBytes=0)
    assert df.count() == 100
    shutil.rmtree(tmp_path / "stream" / "segments")
    assert "SEG_MISSING_OBJECT" in error(df.table)


def test_tasks_get_their_part_of_a_plan_and_no_more(stream, url):
    """Spark pickles the source beside the reader into each task."""
    found = load(url)
    made = again(found.pinned)
    reader = made.reader(found.schema)
    parts = [part.value for part in reader.partitions()]
    assert len(pickle.dumps((made, reader))) < 1_500 < sum(map(len, parts))
    assert again(made).name() == "segstore"
    assert [part.value for part in made.reader(found.schema).partitions()] == parts


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("chunks", {}, "SEG_INVALID_INPUT"),
        ("segments", {"columns": "rows"}, "a metadata table is read as a whole"),
        ("tags", {"filters": '[["name","==","a"]]'}, "a metadata table is read as a whole"),
    ],
)
def test_options_for_events_are_refused_for_metadata(stream, url, name, options, text):
    """Nothing is passed over in silence."""
    assert text in error(lambda: load(url, metadata=name, **options).table())


@pytest.mark.parametrize("call", [read, read_in_order])
def test_hybrid_scan_refuses_an_option_that_one_of_its_halves_does_not_know(
    stream, call, monkeypatch
):
    """It is never left out in silence: what Spark reads itself would lack it."""
    monkeypatch.setitem(BY_NAME, "newest", Option("newest", "int", (READ, STREAM_READ)))
    said = error(lambda: call(None, stream.url, startCut=1, newest=3))
    assert "does not know this option: options=['newest']; remove it, or read through" in said
