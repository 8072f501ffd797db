"""`segstore.spark.read`: of compacted history, Spark's reader gives what the source gives."""

import datetime as dt
import decimal
import json
import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import source_kit
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from sessions import plan_of, session_settings

import segstore_ds as segstore
from segstore_ds.errors import NotFoundError, SegstoreError
from segstore_ds.format.parquet.encodings import Encodings

pytestmark = pytest.mark.usefixtures("large_scans")

LEAVES = {
    "n": pa.int64(),
    "i": pa.int32(),
    "b": pa.int8(),
    "flag": pa.bool_(),
    "user.name": pa.string(),
    "raw": pa.binary(),
    "f": pa.float32(),
    "d": pa.float64(),
    "dec": pa.decimal128(20, 5),
    "small": pa.decimal128(7, 2),
    "day": pa.date32(),
    "ts": pa.timestamp("us", "UTC"),
    "ntz": pa.timestamp("us"),
}
SCHEMA = pa.schema(
    [
        *LEAVES.items(),
        ("tags", pa.list_(pa.string())),
        ("point", pa.struct([("x", pa.float64()), ("Y", pa.int64())])),
        ("counts", pa.map_(pa.string(), pa.int64())),
    ]
)
T0 = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)
OLD = dt.datetime(1492, 10, 12, 1, 2, 3, 4567, tzinfo=dt.UTC)
FLOATS = [0.0, -0.0, float("nan"), 1.5, float("-inf")]


def _row(n: int) -> dict[str, object]:
    moment = (OLD if n % 4 == 0 else T0) + dt.timedelta(hours=n)
    row = {
        "n": n,
        "i": n - 50,
        "b": n % 100,
        "flag": n % 2 == 0,
        "user.name": ["ada", "bob", "größe", "\U0010ffff", ""][n % 5],
        "raw": bytes([n % 256, 255]),
        "f": FLOATS[n % 5],
        "d": FLOATS[(n + 1) % 5],
        "dec": decimal.Decimal(n) / 8,
        "small": decimal.Decimal(n) / 100,
        "day": moment.date(),
        "ts": moment,
        "ntz": moment.replace(tzinfo=None),
        "tags": ["a", None] * (n % 3),
        "point": {"x": n / 3, "Y": n},
        "counts": {"k": n},
    }
    names = list(row)
    row[names[n % len(names)]] = None
    return row


def rows(start: int, end: int) -> pa.Table:
    return pa.Table.from_pylist([_row(n) for n in range(start, end)], SCHEMA)


def layout(form: str) -> segstore.Layout:
    return segstore.Layout(frame_rows=10, inline_bytes=0, segment_format=form)


def make(url: str, formats: str) -> segstore.Stream:
    """Make a stream of 25 events per letter: `p` in Parquet, `a` in Arrow."""
    stream = segstore.create(url, SCHEMA)
    for place, letter in enumerate(formats):
        form = {"p": "parquet", "a": "arrow"}[letter]
        stream.append(rows(place * 25, place * 25 + 25), layout=layout(form))
    return stream


def collected(df) -> list[str]:
    # repr: NaN equals itself in it, and -0.0 is not 0.0.
    return sorted(map(repr, df.collect()))


def assert_same(spark, url, **options: object) -> None:
    texts = {k: json.dumps(v) if isinstance(v, list) else v for k, v in options.items()}
    source = spark.read.format("segstore").options(**texts).load(url)
    ours = segstore.spark.read(spark, url, **options)
    assert ours.schema == source.schema, options
    assert collected(ours) == collected(source), options


OPTIONS = [
    {},
    {"filters": [["d", ">=", "NaN"], ["i", "!=", 3]], "columns": "n", "startCut": 3},
    {"startCut": 7, "endCut": 93, "offsetColumn": "o"},
    {"startCut": 30, "endCut": 31, "offsetColumn": "o"},
    {"startCut": "version:1", "endCut": "version:3", "offsetColumn": "_METADATA"},
    {"columns": ["point", "n"], "offsetColumn": "o", "versionAsOf": 2},
    {"commitTimeColumn": "at", "offsetColumn": "o"},
    {"columns": [], "commitTimeColumn": "at", "offsetColumn": "o", "startCut": 7},
    {"startCut": 7, "offsetColumn": "N"},
]


@pytest.mark.parametrize(
    ("formats", "chosen"),
    [
        ("papa", OPTIONS),
        ("pppp", OPTIONS[:2]),
        pytest.param("pppp", OPTIONS[2:], marks=pytest.mark.slow),
    ],
    ids=["mixed", "parquet", "parquet, other options"],
)
def test_same_rows_and_columns_as_the_source(spark, url, formats, chosen):
    make(url, formats)
    for options in chosen:
        assert_same(spark, url, **options)


def test_offsets_alone_are_counted_without_arrow_segments(spark, url):
    """They are gone here: the plan knows their offsets; of Parquet files Spark reads footers."""
    stream = make(url, "papa")
    for row in stream.segments().read_all().to_pylist():
        if row["format"] == "arrow":
            stream._log.storage.delete(row["path"])
    frame = segstore.spark.read(spark, url, columns=[], offsetColumn="o", startCut=7)
    assert frame.count() == stream.scan(7).count() == 93
    assert frame.agg({"o": "sum"}).first()[0] == sum(range(7, 100))
    with pytest.raises(AnalysisException, match="the requested schema has no columns"):
        segstore.spark.read(spark, url, columns=[])


@pytest.mark.smoke
def test_compacted_history_is_one_plain_parquet_scan(spark, url):
    """No union, no Python: columns are pruned, filters pushed down, the size is known."""
    make(url, "pppp")
    df = segstore.spark.read(spark, url).where("n = 30").select("n", "tags")
    shown = plan_of(df)
    assert shown.count("FileScan parquet") == 1
    assert "Union" not in shown
    assert "EqualTo(n,30)" in shown
    assert "ReadSchema: struct<n:bigint,tags:array<string>>" in shown
    size = df._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()
    assert int(str(size)) < 10_000_000  # the planner broadcasts it by itself


CONDITIONS = [
    *(f"{c} {op}" for c in ("d", "f", "point.x") for op in ("> 20", "= 0.0")),
    *("d = double('NaN')", "d >= double('NaN')", "NOT d < 7", "f <> 0"),
]


def test_filters_of_spark_keep_nan_and_both_zeros(spark, url, monkeypatch):
    """Bounds as older versions wrote them leave NaN out: pushed down, these would lose rows."""
    options = Encodings.options
    monkeypatch.setattr(
        Encodings, "options", lambda self, *a: options(replace(self, bounded=None), *a)
    )
    stream = segstore.create(url, SCHEMA)
    for start in range(5):
        table = pa.Table.from_pylist([_row(n) for n in range(start, 40, 5)], SCHEMA)
        stream.append(table, layout=layout("parquet"))
    nan = {
        **dict.fromkeys(SCHEMA.names),
        "d": float("nan"),
        "f": -0.0,
        "point": {"x": float("nan")},
    }
    low = {**dict.fromkeys(SCHEMA.names), "d": -0.0, "f": 0.5, "point": {"x": -0.0}}
    stream.append(pa.Table.from_pylist([nan, low], SCHEMA), layout=layout("parquet"))
    source, ours = spark.read.format("segstore").load(url), segstore.spark.read(spark, url)
    for condition in CONDITIONS:
        assert collected(ours.where(condition)) == collected(source.where(condition)), condition


@pytest.mark.parametrize("encoding", ["PLAIN", "RLE_DICTIONARY"])
def test_sparks_own_reader_of_files_keeps_nan(spark, url, encoding):
    """Floats have no bounds in the files, so that it does not pass over what they leave out."""
    chance = random.Random(5)
    others = [chance.random() if encoding == "PLAIN" else 0.5 for _ in range(2400)]
    values = chance.sample([*[float("nan"), -0.0] * 300, *others], 3000)
    stream = segstore.create(url, pa.schema([("d", pa.float64())]))
    large = segstore.Layout(inline_bytes=0, segment_format="parquet")
    stream.append(pa.table({"d": values}), layout=large)
    urls = [file.url for file in stream.scan().files()]
    column = pq.read_metadata(urls[0].removeprefix("file://")).row_group(0).column(0)
    assert ("RLE_DICTIONARY" in column.encodings) == (encoding == "RLE_DICTIONARY")
    # It also looks into dictionaries, where the two zeros are two words.
    files = spark.read.option("parquet.filter.dictionary.enabled", "false").parquet(*urls)
    for condition in ("d > 1", "d = double('NaN')", "NOT d < 1", "d = 0"):
        assert files.where(condition).count() == 300, condition


@pytest.mark.smoke
def test_each_segment_is_in_one_half(spark, url):
    make(url, "papap")
    shown = plan_of(segstore.spark.read(spark, url, startCut=5, offsetColumn="o"))
    # Whole segments, the divided one, and the source.
    assert shown.count("FileScan parquet") == 2
    assert shown.count("BatchScan") == 1
    df = segstore.spark.read(spark, url, startCut=5, offsetColumn="o")
    assert sorted(row.o for row in df.select("o").collect()) == list(range(5, 125))


def test_files_that_no_version_lists_are_not_read(spark, url):
    """Staged leftovers and what compaction replaced lie in the same folder."""
    stream = make(url, "pppp")
    folder = Path(url.removeprefix("file://")) / "segments"
    found = next(folder.rglob("*.parquet"))
    found.with_name("0-deadbeef-9.parquet").write_bytes(found.read_bytes())
    assert segstore.spark.read(spark, url).count() == 100
    pinned = segstore.spark.read(spark, url, offsetColumn="o")
    stream.compact()
    stream.append(rows(100, 125), layout=layout("parquet"))
    stream.truncate(10)
    assert pinned.count() == 100
    assert sorted(row.o for row in pinned.select("o").collect()) == list(range(100))
    assert_same(spark, url, offsetColumn="o")


def test_a_clone_that_shares_segments_is_read_through_the_source(spark, url):
    make(url, "pp").copy_to(f"{url}-clone", copy_id="c", mode="clone")
    df = segstore.spark.read(spark, f"{url}-clone", startCut=3)
    assert "BatchScan" in plan_of(df)
    assert df.count() == 47


def test_a_refresh_is_refused_and_changes_nothing(spark, url):
    make(url, "pp")
    df = segstore.spark.read(spark, url)
    df.createOrReplaceTempView("hybrid_view")
    with pytest.raises(PySparkException, match=r"segstore\.invalid"):
        spark.catalog.refreshTable("hybrid_view")
    assert df.count() == 50
    assert df.cache().count() == 50
    df.unpersist()


def test_epochs_columns_added_and_widened(spark, url):
    """A column that a file lacks is null; one that has become wider comes through the source."""
    stream = segstore.create(url, pa.schema([("n", pa.int32())]))
    for table in (
        pa.table({"n": pa.array([1, 2], pa.int32())}),
        pa.table({"n": pa.array([3, None], pa.int32()), "w": ["x", "y"]}),
        pa.table({"n": pa.array([5, 6], pa.int64()), "w": ["z", None]}),
    ):
        stream.append(table, layout=layout("parquet"), merge_schema=True)
    assert_same(spark, url, offsetColumn="o")
    assert_same(spark, url, filters=[["w", "is null"]])
    assert "BatchScan" not in plan_of(segstore.spark.read(spark, url, columns="w"))
    assert "BatchScan" in plan_of(segstore.spark.read(spark, url, columns="n"))


def test_types_spark_reads_differently_use_the_source(spark, url):
    df = spark.range(20).selectExpr(
        "id",
        "parse_json('{\"a\":1}') AS v",
        "make_dt_interval(id) AS iv",
        "time'10:00:00' AS t",
        "'A' COLLATE UTF8_LCASE AS c",
    )
    writer = df.write.format("segstore").mode("append")
    writer.options(segmentFormat="parquet", inlineBytes=0).save(url)
    source = spark.read.format("segstore").load(url)
    for names in (["id"], ["v"], ["iv"], ["t"], ["c"], source.columns):
        ours = segstore.spark.read(spark, url, columns=names).select(*names)
        assert ours.schema == source.select(*names).schema
        assert ("BatchScan" in plan_of(ours)) == (names != ["id"])
        shown = [f"CAST({name} AS STRING)" for name in names]
        expected = source.selectExpr(*shown).collect()
        assert sorted(ours.selectExpr(*shown).collect()) == sorted(expected)


WRONG = [
    {"startcutt": 1},
    {"startingOffsets": "earliest"},
    {"batchId": 1},
    {"startCut": "yesterday"},
    {"startCut": 101},
    {"startCut": 20, "endCut": 10},
    {"versionAsOf": 99},
    {"versionAsOf": 1, "timestampAsOf": "2026-01-01T00:00:00Z"},
    {"columns": "nope"},
    {"filters": [["n", "==", "x"]]},
    {"offsetColumn": "n"},
    {"startCut": 5},
]


def test_same_errors_as_the_source(spark, url):
    """`read` raises them itself, and the source where Spark asks it."""
    with pytest.raises(NotFoundError):
        segstore.spark.read(spark, url)
    make(url, "pppp").truncate(10)
    for options in WRONG:
        with pytest.raises(SegstoreError) as ours:
            segstore.spark.read(spark, url, **options)
        texts = {k: json.dumps(v) if isinstance(v, list) else v for k, v in options.items()}
        with pytest.raises(SegstoreError) as sources:
            source_kit.load(url, **texts).table()
        # Spark makes the names of options small.
        assert str(ours.value).lower() in str(sources.value).lower()


HOSTILE = {
    "spark.sql.files.ignoreMissingFiles": "true",
    "spark.sql.files.ignoreCorruptFiles": "true",
    "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
    "spark.sql.parquet.int96RebaseModeInRead": "LEGACY",
    "spark.sql.parquet.mergeSchema": "true",
    "spark.sql.parquet.binaryAsString": "true",
    "spark.sql.parquet.int96AsTimestamp": "false",
    "spark.sql.parquet.int96TimestampConversion": "true",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "false",
    "spark.sql.parquet.fieldId.read.enabled": "true",
    "spark.sql.parquet.fieldId.read.ignoreMissing": "true",
    "spark.sql.datetime.java8API.enabled": "true",
    "spark.sql.parquet.enableVectorizedReader": "false",
    "spark.sql.parquet.recordLevelFilter.enabled": "true",
    "spark.sql.legacy.parquet.nanosAsLong": "true",
    "spark.sql.caseSensitive": "true",
    "spark.sql.session.timeZone": "Asia/Kathmandu",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.hive.manageFilesourcePartitions": "false",
    "spark.sql.hive.filesourcePartitionFileCacheSize": "0",
    "spark.sql.sources.useV1SourceList": "",
    "spark.sql.files.ignoredPathSegmentRegex": ".",
    "spark.sql.files.archive.reader.enabled": "true",
    "spark.sql.parser.quotedRegexColumnNames": "true",
    "spark.sql.legacy.parquet.returnNullStructIfAllFieldsMissing": "true",
    "parquet.strings.signed-min-max.enabled": "true",
}


@pytest.mark.slow
def test_no_setting_of_the_session_changes_the_rows(spark, url):
    """Each alone, then all at once; compared with what Python reads, which no setting reaches."""
    url = f"{url}/_hidden/.too"  # names that Spark leaves out when it lists
    make(url, "pp")
    filters = [["ts", ">=", "1000-01-01T00:00:00Z"], ["raw", "!=", "AA=="]]
    reader = segstore.open(url).read(filters=filters, offset_column="o")
    expected = repr(reader.read_all().to_pylist())
    alone = ({name: value} for name, value in HOSTILE.items())
    for chosen in (*alone, HOSTILE):
        with session_settings(spark, chosen):
            df = segstore.spark.read(spark, url, filters=filters, offsetColumn="o")
            assert "FileScan parquet" in plan_of(df), chosen
            found = df.orderBy("o").toArrow().cast(reader.schema)
        assert repr(found.to_pylist()) == expected, chosen


@pytest.mark.parametrize("harm", ["delete", "damage", "truncate"])
def test_lost_and_damaged_files_never_vanish_from_a_sum(spark, url, harm):
    """Whatever the session says of missing and corrupt files."""
    make(url, "ppp")
    hostile = {
        "spark.sql.files.ignoreMissingFiles": "true",
        "spark.sql.files.ignoreCorruptFiles": "true",
        "parquet.page.verify-checksum.enabled": "false",
    }
    with session_settings(spark, hostile):
        df = segstore.spark.read(spark, url)
        folder = Path(url.removeprefix("file://")) / "segments"
        victim = sorted(folder.rglob("*.parquet"))[1]
        data = bytearray(victim.read_bytes())
        if harm == "delete":
            victim.unlink()
        elif harm == "truncate":
            victim.write_bytes(data[: len(data) // 2])
        else:
            data[len(data) // 6] ^= 0xFF
            victim.write_bytes(data)
        with pytest.raises((PySparkException, Py4JJavaError)):
            df.collect()
