"""What each read option does; streams are made from Python, so that tests need few jobs."""

import datetime as dt
import json

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PythonException

import segstore_ds as segstore
from segstore_ds.options import READ, TABLE

pytestmark = pytest.mark.usefixtures("verified")

SCHEMA = pa.schema([("n", pa.int64()), ("user", pa.string()), ("ts", pa.timestamp("us", "UTC"))])
T0 = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)
USERS = ["ada", "bob", None, "eve", "Ada"]


def rows(start: int, end: int) -> pa.Table:
    columns = {
        "n": [n if n % 7 else None for n in range(start, end)],
        "user": [USERS[n % 5] for n in range(start, end)],
        "ts": [T0 + dt.timedelta(hours=n) for n in range(start, end)],
    }
    return pa.table(columns, schema=SCHEMA)


@pytest.fixture
def stream(url) -> segstore.Stream:
    """100 events in four commits, versions 1 to 4, two frames of ten rows and one of five each."""
    made = segstore.create(url, SCHEMA)
    layout = segstore.Layout(frame_rows=10, inline_bytes=0)
    for start in range(0, 100, 25):
        made.append(rows(start, start + 25), layout=layout)
    return made


def offsets(df) -> list[int]:
    return sorted(row.o for row in df.select("o").collect())


def error(action) -> str:
    with pytest.raises((AnalysisException, PythonException)) as caught:
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
def test_cuts(stream, load, options, first, last):
    df = load(offsetColumn="o", **options)
    assert df.schema.simpleString() == "struct<n:bigint,user:string,ts:timestamp,o:bigint>"
    assert offsets(df) == list(range(first, last))


def test_commit_time_cut_includes_that_commit(stream, load):
    time_us = stream.root.time_us
    stream.append(rows(100, 103))
    after = dt.datetime.fromtimestamp(stream.root.time_us / 1e6 + 1, dt.UTC).isoformat()
    behind = load(endCut=after, offsetColumn="o")
    assert behind.count() == 103
    if stream.root.time_us > time_us:
        moment = dt.datetime.fromtimestamp(time_us // 1_000_000, dt.UTC)
        micros = time_us % 1_000_000
        cut = f"{moment:%Y-%m-%dT%H:%M:%S}.{micros:06d}Z"
        assert offsets(load(startCut=cut, offsetColumn="o")) == [100, 101, 102]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startCut": "yesterday"}, "SEG_INVALID_INPUT"),
        ({"startCut": "2013-01-01T00:00:00"}, "zone"),
        ({"startCut": -1}, "SEG_INVALID_INPUT"),
        ({"startCuts": 1}, "did you mean startCut?"),
        ({"partitionRow": 1}, "did you mean partitionRows?"),
        ({"qqqqqq": 1}, "known: path, storageOptions, startCut"),
        ({"startingOffsets": "latest"}, "here it is called startCut"),
        ({"startingVersion": 1}, "here it is called startCut"),
        ({"endingTimestamp": 1}, "here it is called endCut"),
        ({"ignoreMissingFiles": "true"}, "here it is called failOnDataLoss"),
        ({"maxPartitionBytes": 1}, "here it is called partitionBytes"),
        ({"writerId": "x"}, "option belongs to a write, not to a read"),
        ({"mergeSchema": "true"}, "option belongs to a write, not to a read"),
        ({"partitionRows": 0}, "an integer of at least 1"),
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
        ({"filters": "n = 1"}, "SEG_INVALID_INPUT"),
        ({"storageOptions": "{secret"}, "a JSON object"),
        ({"storageOptions": '{"auto_mkdir": "env:SEGSTORE_NO_SUCH"}'}, "SEGSTORE_NO_SUCH"),
    ],
)
def test_wrong_options_are_named_at_load(stream, load, options, message):
    """Everything is said when the DataFrame is loaded, not when it first runs."""
    text = error(lambda: load(**options))
    assert message in text
    assert "SEG_" in text
    assert "{secret" not in text


def test_spark_own_keys_are_allowed(stream, load):
    assert load(provider="x", **{"spark.some.setting": "1"}).count() == 100


def test_every_read_option_of_the_table_is_taken(stream, url, load):
    values = {
        "path": url,
        "storageOptions": "{}",
        "startCut": "0",
        "endCut": "tail",
        "versionAsOf": str(stream.version + 1),
        "columns": '["n", "user"]',
        "filters": '[["n", "is not null"]]',
        "startEventTime": T0.isoformat(),
        "endEventTime": "2099-01-01T00:00:00Z",
        "offsetColumn": "o",
        "segmentColumn": "s",
        "commitTimeColumn": "at",
        "partitionBytes": "1m",
        "partitionRows": "10",
        "minPartitions": "3",
        "failOnDataLoss": "false",
        "readCacheBytes": "1m",
        "singleWriter": "true",
    }
    stream.set_time_column("ts")
    # These are read with others, or instead of events.
    elsewhere = {
        "timestampAsOf",
        "replicatedOnly",
        "metadata",
        "compactRows",
        "compactBytes",
        "compactMode",
    }
    assert values.keys() | elsewhere == {o.name for o in TABLE if READ in o.scopes}
    del values["path"]
    df = load(**values)
    assert df.columns == ["n", "user", "o", "s", "at"]
    assert df.count() == len([n for n in range(100) if n % 7])


def test_columns_are_projected_in_their_order(stream, load):
    df = load(columns="user, n", offsetColumn="o")
    assert df.columns == ["user", "n", "o"]
    assert df.filter("o = 8").collect()[0].asDict() == {"user": "eve", "n": 8, "o": 8}
    assert load(columns='["ts"]', endCut=3).count() == 3


def test_earlier_versions_are_read_as_they_were(stream, load):
    """With the columns of then, whatever came since; by number and by time."""
    version, moment = stream.version, dt.datetime.now(dt.UTC).isoformat()
    stream.append(pa.table({"n": [1], "more": ["x"]}), merge_schema=True)
    stream.truncate("tail")
    then = load(versionAsOf=version)
    assert "more" not in then.columns
    assert then.count() == load(timestampAsOf=moment).count() == 100
    assert load(versionAsOf=version, endCut=7).count() == 7
    assert load(versionAsOf=version, schema="n BIGINT").columns == ["n"]
    assert load(versionAsOf=version, schema="n BIGINT").count() == 100
    assert load(versionAsOf=version, metadata="tags").count() == 0
    assert load().count() == 0
    assert "SEG_NOT_FOUND" in error(lambda: load(versionAsOf=10**6))
    assert "versionAsOf or timestampAsOf" in error(
        lambda: load(versionAsOf=1, timestampAsOf="2026-01-01T00:00:00Z")
    )
    assert "zone" in error(lambda: load(timestampAsOf="2026-01-01T00:00:00"))


def test_given_schema_projects(stream, load):
    assert load(schema="user string, n bigint", startCut=8, endCut=9).first() == ("eve", 8)
    df = load(schema="o bigint, user string", offsetColumn="o", startCut=98)
    assert [tuple(row) for row in df.collect()] == [(98, "eve"), (99, "Ada")]
    assert load(schema="o bigint", offsetColumn="o", segmentColumn="s", endCut=2).collect() == [
        (0,),
        (1,),
    ]


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        ("N bigint", {}, "column='N'"),
        ("n int", {}, "stream='bigint'"),
        ("user string collate UTF8_LCASE", {}, "column='user'"),
        ("o int", {"offsetColumn": "o"}, "stream='bigint'"),
        ("n bigint", {"columns": "user"}, "give one of the two"),
        ("n bigint, n bigint", {}, "would occur twice"),
        ("", {}, "no columns"),
    ],
)
def test_schema_that_is_not_the_streams_is_refused(stream, load, schema, options, message):
    from pyspark.sql.types import StructType

    given = schema or StructType([])
    assert message in error(lambda: load(schema=given, **options).collect())


def test_not_null_in_a_given_schema_holds_or_is_an_error(stream, load):
    from pyspark.sql.types import LongType, StructField, StructType

    strict = StructType([StructField("n", LongType(), False)])
    assert load(schema=strict, startCut=1, endCut=7).count() == 6
    assert "NOT NULL holds null: column='n'" in error(load(schema=strict).collect)


FILTERS = [
    ([["user", "==", "ada"]], "user = 'ada'"),
    ([["user", "!=", "ada"]], "user != 'ada'"),
    ([["user", "in", ["ada", "eve", None]]], "user in ('ada', 'eve', null)"),
    ([["user", "not in", ["ada"]]], "user not in ('ada')"),
    ([["user", "not in", ["ada", None]]], "user not in ('ada', null)"),
    ([["user", "is null"]], "user is null"),
    ([["n", "is not null"], ["user", "starts with", "A"]], "n is not null and user like 'A%'"),
    ([["n", ">=", 30], ["n", "<", 60]], "n >= 30 and n < 60"),
    ([["ts", ">=", "2013-01-03T00:00:00Z"]], "ts >= TIMESTAMP'2013-01-03 00:00:00Z'"),
    ([["n", ">", 10**6]], "n > 1000000"),
]


def test_filters_are_exact_as_sql_has_them(stream, load):
    """The answers are Spark's own over the whole stream, nulls included."""
    conditions = [f"coalesce({condition}, false)" for _, condition in FILTERS]
    answers = load(offsetColumn="o").selectExpr("o", *conditions).collect()
    for place, (filters, _) in enumerate(FILTERS):
        wanted = [row.o for row in answers if row[1 + place]]
        assert offsets(load(offsetColumn="o", filters=json.dumps(filters))) == wanted, filters


def test_filtered_columns_need_not_be_read(stream, load):
    df = load(columns="ts", filters='[["user", "==", "bob"], ["n", "<", 20]]', offsetColumn="o")
    assert df.columns == ["ts", "o"]
    assert offsets(df) == [1, 6, 11, 16]


def test_segment_column_names_the_segment_of_each_event(stream, load):
    df = load(offsetColumn="o", segmentColumn="s")
    found = {(row.o // 25, row.s) for row in df.collect()}
    assert len(found) == 4
    assert sorted(found) == sorted(found, key=lambda pair: pair[1])


def test_commit_time_column_tells_when_each_event_was_committed(stream, load):
    df = load(offsetColumn="o", commitTimeColumn="at", partitionRows=30)
    assert dict(df.dtypes)["at"] == "timestamp"
    rows = stream.history().read_all().to_pylist()
    expected = [row["time"] for row in rows for _ in range(row["rows"])]
    micros = df.selectExpr("o", "unix_micros(at) AS us").orderBy("o").collect()
    assert [row.us for row in micros] == [round(at.timestamp() * 1e6) for at in expected]
    asked = load(schema="at timestamp, n bigint", commitTimeColumn="at", endCut=2)
    assert asked.columns == ["at", "n"]
    assert asked.count() == 2


@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        ({}, 1),
        ({"partitionRows": 25}, 4),
        ({"minPartitions": 4}, 4),
        ({"startCut": 30, "endCut": 31, "minPartitions": 8}, 1),
        ({"startCut": 30, "endCut": 30}, 1),  # Spark makes one task of none
        ({"endCut": 25, "partitionRows": 10}, 3),  # 25 rows lie in three frames
        ({"endCut": 25, "minPartitions": 3}, 3),
    ],
)
def test_task_sizes(stream, load, options, tasks):
    df = load(offsetColumn="o", **options)
    assert df.rdd.getNumPartitions() == tasks
    assert offsets(df) == list(range(options.get("startCut", 0), options.get("endCut", 100)))


def test_tiny_tasks_read_each_event_once(stream, load):
    for options in ({"partitionBytes": 1}, {"minPartitions": 1000}):
        df = load(offsetColumn="o", startCut=20, endCut=50, **options)
        assert df.rdd.getNumPartitions() > 3
        assert offsets(df) == list(range(20, 50))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startCut": 20, "endCut": 10}, "SEG_INVALID_INPUT"),
        ({"startCut": "tail", "endCut": "head"}, "SEG_INVALID_INPUT"),
        ({"endCut": 101}, "SEG_POSITION"),
        ({"startCut": "version:9"}, "SEG_NOT_FOUND"),
    ],
)
def test_cut_that_is_not_in_the_stream_is_named_when_it_is_read(stream, load, options, message):
    """Spark asks batch and streaming reads alike for columns, so cuts are bound later."""
    assert message in error(lambda: load(**options).collect())


def test_start_below_the_head_names_what_is_lost_or_is_clamped(stream, load):
    stream.overwrite(rows(0, 5))
    assert "SEG_TRUNCATED" in error(lambda: load(startCut=90).collect())
    df = load(startCut=90, failOnDataLoss="false", offsetColumn="o")
    assert offsets(df) == [100, 101, 102, 103, 104]


def test_missing_stream_and_several_paths_are_errors(spark, load, url):
    assert "SEG_NOT_FOUND" in error(load)
    reader = spark.read.format("segstore")
    assert "more than one path" in error(lambda: reader.load([url, url]))
    assert "no path was given; give the stream's location" in error(reader.load)


def test_dataframe_is_a_snapshot_of_its_load(stream, load):
    df = load(offsetColumn="o")
    stream.append(rows(100, 110))
    assert df.count() == 100
    stream.append(rows(110, 120))
    assert df.alias("a").join(df.alias("b"), "o").count() == 100
    assert df.filter("o >= 50").count() == 50
    assert load().count() == 120


def test_dataframe_with_a_schema_is_pinned_by_its_first_run(stream, load):
    df = load(schema="n bigint")
    assert df.count() == 100
    stream.append(rows(100, 110))
    assert (df.count(), df.union(df).count()) == (100, 200)


def test_damage_is_named_not_skipped(stream, load, tmp_path):
    segment = next((tmp_path / "stream" / "segments").rglob("*.*"))
    data = bytearray(segment.read_bytes())
    data[100] ^= 1
    segment.write_bytes(data)
    text = error(load().collect)
    assert "SEG_CORRUPTION" in text
    assert segment.name in text
    data[100] ^= 1
    segment.write_bytes(data)
