"""Read options as Spark takes them, also `metadata` and those of event time.

Each one, and each error: tests/unit/spark.
"""

import datetime as dt
import json
from typing import Any

import pyarrow as pa
import pytest
from query_kit import as_spark, ask, start_reader
from query_kit import rows as rows_of
from sessions import error_of
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


def test_several_paths_are_an_error(spark, url):
    reader = spark.read.format("segstore")
    assert "more than one path" in error_of(lambda: reader.load([url, url]))


def test_dataframe_with_a_schema_is_pinned_by_its_first_run(stream, load):
    df = load(schema="n bigint")
    assert df.count() == 100
    stream.append(rows(100, 110))
    assert (df.count(), df.union(df).count()) == (100, 200)


N = pa.schema([("n", pa.int64())])


@pytest.fixture
def described(url: str) -> segstore.Stream:
    """A stream of three segments, with a writer, a reader and a tag."""
    made = segstore.create(url, N)
    for start in (0, 10, 20):
        rows = pa.table({"n": list(range(start, start + 10))}, N)
        made.append(rows, writer_id="w", batch_id=start)
    made.readers.register("etl", start=5)
    made.tags.set("eod", 20)
    return made


def test_metadata_tables_are_dataframes(described, load):
    """What the engine says, as Spark shows it, of the version that was loaded."""
    segments = load(metadata="segments")
    found = segments.where("rows > 5").orderBy("start").collect()
    assert [(row.start, row.end) for row in found] == [(0, 10), (10, 20), (20, 30)]
    assert [row.segment_id for row in found] == [0, 1, 2]
    assert load(metadata="FRAMES").count() == 3
    (writer,) = load(metadata="writers").select("writer_id", "batch_id").collect()
    assert tuple(writer) == ("w", 20)
    (reader,) = load(metadata="readers").select("name", "offset", "live", "behind").collect()
    assert tuple(reader) == ("etl", 5, True, 25)
    (info,) = load(metadata="info").select("events", "segments", "sealed").collect()
    assert tuple(info) == (30, 3, False)
    (tag,) = load(metadata="tags").collect()
    assert (tag.name, tag.offset) == ("eod", 20)
    assert tag.time is not None
    described.append(pa.table({"n": [30]}, N))
    assert (segments.count(), load(metadata="segments").count()) == (3, 4)
    for how in ({"startCut": 5}, {"endCut": "10"}, {"compactRows": 5}, {"compactMode": "split"}):
        text = error_of(lambda how=how: load(metadata="segments", **how).count())
        assert "a metadata table is read as a whole" in text


def test_streams_below_a_path_are_a_dataframe(spark, described, tmp_path):
    """As segstore.streams says, damaged ones included; there is no version to pin."""
    folder, below = described.url.rpartition("/")[::2]
    segstore.create(f"{folder}/other", N)
    (tmp_path / "other" / "log" / f"{0:020}").write_bytes(b"")
    reader = spark.read.format("segstore").option("metadata", "streams")
    found = {row.path: row for row in reader.load(folder).collect()}
    expected = segstore.streams(described.url).to_pylist()[0] | {"path": below}
    shown = found[below].asDict()
    assert shown.pop("time").replace(tzinfo=dt.UTC) == expected.pop("time")
    assert shown == expected
    assert (found[below].events, found["other"].code) == (30, "SEG_EMPTY_OBJECT")
    sound = segstore.spark.read(spark, folder, metadata="streams").where("code IS NULL")
    assert [row.path for row in sound.collect()] == [below]
    pinned = reader.option("versionAsOf", 1)
    assert "a metadata table is read as a whole" in error_of(lambda: pinned.load(folder).count())


TIMED = pa.schema([("n", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
MIDNIGHT = dt.datetime(2026, 11, 20, tzinfo=dt.UTC)
HOURS = [[5, 1, None], [9, 2, 3], [4, 8, 7]]


def at(hour: int) -> dt.datetime:
    return MIDNIGHT + dt.timedelta(hours=hour)


@pytest.fixture
def disordered(url) -> segstore.Stream:
    """A disordered stream: two Parquet segments and an Arrow segment."""
    made = segstore.create(url, TIMED, time_column="ts", upkeep=None)
    for number, hours in enumerate(HOURS):
        times = [None if hour is None else at(hour) for hour in hours]
        form = "arrow" if number == 1 else "parquet"
        layout = segstore.Layout(inline_bytes=0, segment_format=form)
        made.append(pa.table([[hour or 0 for hour in hours], times], schema=TIMED), layout=layout)
    return made


def test_source_and_hybrid_scan_read_an_interval(spark, disordered, url, load):
    options = {"startEventTime": at(3).isoformat(), "endEventTime": at(8).isoformat()}
    assert sorted(row.n for row in load(**options).collect()) == [3, 4, 5, 7]
    hybrid = segstore.spark.read(spark, url, startEventTime=at(3), endEventTime=at(8))
    assert sorted(row.n for row in hybrid.collect()) == [3, 4, 5, 7]
    assert sorted(row.n for row in load(endEventTime=at(2).isoformat()).collect()) == [1]


def test_cuts_by_event_time_bind_a_range(disordered, load):
    first, last = (f"eventtime:{at(hour).isoformat()}" for hour in (6, 8))
    found = load(offsetColumn="o", startCut=first, endCut=last)
    assert sorted(row.o for row in found.collect()) == [3, 4, 5, 6, 7, 8]


def steps(url: str, start: dict[str, Any] | None = None, **options: str) -> tuple[Any, list[int]]:
    """Return the offset after the next batch of a query, and the numbers of its events."""
    reader = start_reader(url, **options)
    given = start or as_spark(reader.initialOffset())
    end = ask(reader, given)
    return end, [row["n"] for row in rows_of(reader, given, end)]


def test_streaming_query_starts_at_a_time_and_filters(disordered, url):
    start = f"eventtime:{at(6).isoformat()}"
    assert steps(url, startCut=start, endEventTime=at(5).isoformat())[1] == [2, 3, 4]


def test_end_at_a_time_stays_where_it_was_bound(disordered, url):
    """Restarted, with a late event since, which would move the cut."""
    cut = f"eventtime:{at(4).isoformat()}"
    end, found = steps(url, endCut=cut)
    assert found == [5, 1, 0, 9, 2, 3]
    disordered.append(pa.table([[3], [at(3)]], schema=TIMED))
    assert steps(url, end, endCut=cut) == (end, [])
    moved = f"eventtime:{at(5).isoformat()}"
    assert steps(url, end, endCut=moved)[1] == [4, 8, 7, 3]
