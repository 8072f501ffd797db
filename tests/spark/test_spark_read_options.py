"""Read options as Spark takes them; each one, and each error: tests/unit/spark."""

import datetime as dt
import json

import pytest
from pyspark.errors import AnalysisException, PythonException
from source_kit import SCHEMA, T0, rows

import segstore_ds as segstore
from segstore_ds.options.table import HYBRID, READ, TABLE

pytestmark = pytest.mark.usefixtures("verified")


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


def test_cuts_versions_and_times_of_options_in_any_case(stream, load):
    version, moment = stream.version, dt.datetime.now(dt.UTC).isoformat()
    df = load(STARTCUT="version:1", endcut="version:3", offsetColumn="o")
    assert df.schema.simpleString() == "struct<n:bigint,user:string,ts:timestamp,o:bigint>"
    assert offsets(df) == list(range(25, 75))
    stream.truncate("tail")
    assert load(versionAsOf=version).count() == load(timestampAsOf=moment).count() == 100


def test_every_read_option_of_the_table_is_taken(spark, stream, url, load):
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
        "commitTimeColumn": "at",
        "partitionBytes": "1m",
        "minPartitions": "3",
        "failOnDataLoss": "false",
        "readCacheBytes": "1m",
        "singleWriter": "true",
    }
    stream.settings.update(time_column="ts")
    # These are read with others, or instead of events.
    elsewhere = {
        "timestampAsOf",
        "replicatedOnly",
        "metadata",
        "compactRows",
        "compactBytes",
        "compactMode",
    }
    many = {"streamColumn"}
    assert values.keys() | elsewhere | many == {o.name for o in TABLE if READ in o.scopes}
    assert values.keys() | elsewhere == {o.name for o in TABLE if HYBRID in o.scopes}
    del values["path"]
    df = load(**values)
    assert df.columns == ["n", "user", "o", "at"]
    assert df.count() == len([n for n in range(100) if n % 7])
    # The half that Spark reads itself knows them all, but for commit times, which no file holds.
    del values["commitTimeColumn"]
    stream.compact(layout=segstore.Layout(segment_format="parquet"))
    values["versionAsOf"] = str(stream.version)
    hybrid = segstore.spark.read(spark, url, **values)
    assert len(hybrid.inputFiles()) == 1
    assert sorted(hybrid.collect()) == sorted(load(**values).collect())


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


def test_task_sizes(stream, load):
    assert load(minPartitions=4).rdd.getNumPartitions() == 4
    none = load(offsetColumn="o", startCut=30, endCut=30)
    assert (none.rdd.getNumPartitions(), offsets(none)) == (1, [])  # Spark makes one task of none


def test_several_paths_are_an_error(spark, url):
    reader = spark.read.format("segstore")
    assert "more than one path" in error(lambda: reader.load([url, url]))


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
