"""Every type that Spark hands over comes back exactly; what can't be kept is refused by name."""

import json
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from checkpoints import start_query
from pyspark.errors import AnalysisException, PySparkTypeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import (
    ArrayType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)
from sessions import session_settings
from stream_kit import snapshot
from udts import Point, PointUDT

import segstore_ds as segstore
from segstore_ds.errors import SchemaMismatchError
from segstore_ds.spark import schemas
from segstore_ds.spark.schemas import from_stored, to_spark_json, to_stored
from segstore_ds.spark.source import SegstoreDataSource
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on

pytestmark = pytest.mark.usefixtures("verified")

# Name -> SQL expressions, one per row.
COLUMNS = {
    "boolean": ["true", "false", "null"],
    "byte": ["-128Y", "127Y", "null"],
    "short": ["-32768S", "32767S", "null"],
    "int": ["-2147483648", "2147483647", "null"],
    "long": ["-9223372036854775808", "9223372036854775807L", "null"],
    "float": ["float('-0.0')", "float('nan')", "float('-inf')"],
    "double": ["double('-0.0')", "double('nan')", "double(5e-324)"],
    "decimal": ["99999999999999999999999999999999999999BD", "-1BD", "null"],
    "decimal_scale": ["0.00000000000000000000000000000000000001BD", "-0.5BD", "null"],
    "string": ["''", "'naïve \U0001f427'", "null"],
    "binary": ["X''", "X'00FF0A'", "null"],
    "date": ["DATE'0001-01-01'", "DATE'9999-12-31'", "null"],
    "timestamp": [
        "TIMESTAMP'0001-01-02 00:00:00Z'",
        "TIMESTAMP'2013-11-03 05:30:00.123456Z'",  # the hour that St John's has twice
        "TIMESTAMP'9999-12-30 23:59:59.999999Z'",
    ],
    "timestamp_ntz": [
        "TIMESTAMP_NTZ'0001-01-01 00:00:00'",
        "TIMESTAMP_NTZ'2013-03-10 02:30:00.000001'",  # an hour that some zones lack
        "null",
    ],
    "time": ["TIME'00:00:00'", "TIME'23:59:59.999999'", "null"],
    "time_millis": ["TIME'12:34:56.123'::time(3)", "TIME'00:00:01'::time(3)", "null"],
    "interval": ["INTERVAL '-1 02:03:04.000005' DAY TO SECOND", "INTERVAL '0' DAY", "null"],
    "interval_hours": ["INTERVAL '02:03' HOUR TO MINUTE", "INTERVAL '-99' HOUR", "null"],
    "void": ["null", "null", "null"],
    "array": ["array(1, null, 3)", "array()", "null"],
    "array_void": ["array(null)", "array()", "null"],
    "map": ["map('a', 1, 'b', null)", "map()", "null"],
    "struct": ["struct(1 AS a, 'x' AS b)", "struct(null AS a, null AS b)", "null"],
    "struct_empty": ["struct()", "struct()", "null"],
    "nested": [
        "array(struct(map('k', array(struct(TIME'01:02:03' AS t, 1.5BD AS d))) AS m, null AS n))",
        "array(struct(map('k', array(null)) AS m, null AS n), null)",
        "null",
    ],
    "map_of_structs": ["map(struct(1 AS a), struct(date'2020-01-01' AS d))", "map()", "null"],
    "variant": ["parse_json('{\"a\": [1, null, 2.5]}')", "parse_json('null')", "null"],
    "variant_nested": ["array(struct(parse_json('[1]') AS v), null)", "array()", "null"],
    "collated": ["'Ada' COLLATE UTF8_LCASE", "'' COLLATE UTF8_LCASE", "null"],
    "collated_nested": ["array('Ada' COLLATE UNICODE_CI)", "null", "null"],
    "geometry": ["st_geomfromwkb(X'0101000000000000000000F03F0000000000000040')", "null", "null"],
    "geography": ["st_geogfromwkb(X'0101000000000000000000F03F0000000000000040')", "null", "null"],
}


# Types that not every supported Spark has, or has switched on.
NEWER = {"time", "time_millis", "nested", "geometry", "geography"}


def nullable(data_type: DataType) -> DataType:
    """The type with everything in it nullable, as a stream has it."""
    if isinstance(data_type, StructType):
        fields = [StructField(f.name, nullable(f.dataType), True, f.metadata) for f in data_type]
        return StructType(fields)
    if isinstance(data_type, ArrayType):
        return ArrayType(nullable(data_type.elementType), True)
    if isinstance(data_type, MapType):
        return MapType(nullable(data_type.keyType), nullable(data_type.valueType), True)
    return data_type


def all_types(spark: SparkSession) -> DataFrame:
    """One column of each type that this Spark has."""
    spark.conf.set("spark.sql.timeType.enabled", "true")
    columns = {
        name: f"CASE row WHEN 0 THEN {first} WHEN 1 THEN {second} ELSE {third} END AS `{name}`"
        for name, (first, second, third) in COLUMNS.items()
    }
    for name in NEWER:
        try:
            spark.sql(f"SELECT {columns[name]} FROM range(3) AS t(row)")
        except AnalysisException:  # and ParseException
            del columns[name]
    return spark.sql(f"SELECT row, {', '.join(columns.values())} FROM range(3) AS t(row)")


@pytest.fixture(scope="module")
def kept(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> list[tuple]:
    """All types: the rows and the schema as they were, as they come back, and after a query."""
    url = f"file://{tmp_path_factory.mktemp('types')}/stream"
    df = all_types(spark)
    df.write.format("segstore").mode("append").option("inlineBytes", 0).save(url)
    back = spark.read.format("segstore").load(url)
    segstore.open(url).verify().check()
    writer = spark.readStream.format("segstore").load(url).writeStream.format("segstore")
    start_query(writer.option("path", f"{url}-2"), f"{url}-at", now=True)
    again = spark.read.format("segstore").load(f"{url}-2")
    return [(each.orderBy("row").collect(), each.schema) for each in (df, back, again)]


@pytest.mark.smoke
@pytest.mark.parametrize("way", ["batch", "streaming"])
@pytest.mark.parametrize("name", COLUMNS)
def test_type_comes_back_exactly(kept, name, way):
    (rows, schema), (back_rows, back_schema) = kept[0], kept[1 + (way == "streaming")]
    if name in NEWER and name not in schema.names:
        pytest.skip("this Spark does not have the type")
    # repr: NaN equals itself in it, -0.0 is not 0.0, and variants have no other equality.
    assert [repr(row[name]) for row in back_rows] == [repr(row[name]) for row in rows]
    assert back_schema[name] == StructField(name, nullable(schema[name].dataType), True)


def test_comments_and_metadata_come_back(spark, append, load):
    schema = StructType(
        [
            StructField("a", LongType(), False, {"comment": "the first", "mine": {"x": [1, 2]}}),
            StructField("s", StructType([StructField("b", StringType(), True, {"comment": "in"})])),
        ]
    )
    append(spark.createDataFrame([], schema))
    assert load().schema == nullable(schema)
    append(spark.createDataFrame([(1, ("x",))], schema))
    assert load().schema == nullable(schema)


KEPT = {"comment": "kept", "mine": {"x": [1]}, "parquet.field.id": 7}
NOTED = {
    "spark.watermarkDelayMs": 1000,
    "spark.timeWindow": True,
    "spark.sessionWindow": True,
    "__metadata_col": "_metadata",
    "__file_source_metadata_col": True,
    "__file_source_constant_metadata_col": True,
    "__qualified_access_only": True,
    "__autoGeneratedAlias": "true",
}


def with_metadata(metadata: dict[str, object]) -> StructType:
    """A column and nested fields of each kind, all of which have this metadata."""
    inner = StructType([StructField("t", LongType(), True, metadata)])
    types = [LongType(), inner, ArrayType(inner), MapType(inner, ArrayType(inner))]
    return StructType([StructField(f"c{n}", of, True, metadata) for n, of in enumerate(types)])


def test_notes_of_sparks_plans_reach_no_other_session(spark, url, append, tmp_path):
    """Handed on, a watermark drops late rows, and a session window's mark merges groups."""
    noted, clean = with_metadata(KEPT | NOTED), with_metadata(KEPT)
    old = f"file://{tmp_path}/old"  # as a release before this wrote it
    create_on(open_storage(old), to_stored(noted), spark_schema=noted.json())
    source = spark.read.format("segstore").load(old)
    follow = spark.readStream.format("segstore").load(old)
    assert source.schema == segstore.spark.read(spark, old).schema == follow.schema == clean
    events = spark.sql(
        "SELECT * FROM VALUES (TIMESTAMP'2026-01-01 10:00:00', 'a'), "
        "(TIMESTAMP'2026-01-01 10:02:00', 'b') AS t(ts, user)"
    )
    window = F.session_window("ts", "5 minutes").alias("session_window")
    append(events.groupBy(window, "user").count(), inlineBytes=0, segmentFormat="parquet")
    for found in (spark.read.format("segstore").load(url), segstore.spark.read(spark, url)):
        assert found.groupBy("session_window").count().count() == 2


def test_every_note_that_spark_knows_of_is_left_out(spark):
    """Of columns and fields within them; what users have noted is kept."""
    names = spark._jvm.org.apache.spark.sql.catalyst.util.__getattr__("package$")
    keys = names.__getattr__("MODULE$").INTERNAL_METADATA_KEYS()
    found = [keys.apply(n) for n in range(keys.size())]
    assert {"__metadata_col", "__qualified_access_only"} <= {*found}
    noted, clean = with_metadata(KEPT | NOTED | dict.fromkeys(found, True)), with_metadata(KEPT)
    assert json.loads(to_spark_json(noted)) == json.loads(clean.json())
    assert from_stored(to_stored(noted), noted.json()) == clean


def test_char_and_varchar_come_back_as_a_table_has_them(spark, append, load):
    spark.sql("CREATE TABLE chars (c CHAR(5) COMMENT 'code', v VARCHAR(7)) USING parquet")
    try:
        spark.sql("INSERT INTO chars VALUES ('ab', 'cd')")
        table = spark.table("chars")
        append(table)
        assert load().schema == table.schema
        assert load().collect() == table.collect()
    finally:
        spark.sql("DROP TABLE chars")


def test_empty_partitions_and_empty_batches_leave_no_trace(spark, url, append, load):
    rows = spark.range(10).repartition(2).filter("id = 3").repartitionByRange(6, "id")
    append(rows)
    append(rows, inlineBytes=0)
    assert [row.id for row in load().collect()] == [3, 3]
    # The first write's event is in its commit file.
    assert len(list(Path(url.removeprefix("file://"), "segments").rglob("*.arrow"))) == 1


def test_large_var_types_and_small_batches_store_the_same(spark, append, load):
    arrow = "spark.sql.execution.arrow"
    settings = {f"{arrow}.useLargeVarTypes": "true", f"{arrow}.maxRecordsPerBatch": "1"}
    with session_settings(spark, settings):
        append(spark.range(5).selectExpr("id", "string(id) AS s", "binary(string(id)) AS b"))
        rows = load().collect()
    assert load().schema.simpleString() == "struct<id:bigint,s:string,b:binary>"
    assert [tuple(row) for row in rows] == [
        (n, str(n), bytearray(str(n).encode())) for n in range(5)
    ]


def test_stream_from_python_gets_types_from_arrow(url, load):
    table = pa.table(
        {
            "u": pa.array([2**64 - 1], pa.uint64()),
            "d": pa.array(["x"]).dictionary_encode(),
            "t": pa.array([1], pa.time64("us")),
            "z": pa.array([0], pa.timestamp("ms", "Asia/Tokyo")),
            "l": pa.array([[1]], pa.large_list(pa.int8())),
        }
    )
    segstore.create(url, table.schema).append(table)
    assert load().schema.simpleString() == (
        "struct<u:decimal(20,0),d:string,t:time(6),z:timestamp,l:array<tinyint>>"
    )
    row = load().selectExpr("u", "d", "string(t) t", "unix_micros(z) z", "l").first()
    assert row.asDict() == {"u": 2**64 - 1, "d": "x", "t": "00:00:00.000001", "z": 0, "l": [1]}


@pytest.mark.smoke
def test_year_month_intervals_are_kept_as_the_error_says(spark, append, load):
    df = spark.sql("SELECT INTERVAL '-1-2' YEAR TO MONTH AS c")
    with pytest.raises(AnalysisException, match="make_ym_interval") as caught:
        append(df)
    assert "CAST(CAST(c AS INTERVAL MONTH) AS INT)" in str(caught.value)
    append(df.selectExpr("CAST(CAST(c AS INTERVAL MONTH) AS INT) AS c"))
    same = "make_ym_interval(0, c) = INTERVAL '-1-2' YEAR TO MONTH AS same"
    assert load().selectExpr("c", same).first().asDict() == {"c": -14, "same": True}


def test_what_cannot_be_kept_is_refused_by_name_before_any_task(spark, url, append):
    group = uuid.uuid4().hex
    spark.sparkContext.setJobGroup(group, "refused")
    for expression, message in (
        ("array(struct(1 AS bad, 2 AS bad)) AS s", "names=['bad'], where='s.element'"),
        ("make_interval(1, 2, 3) AS bad", "bad#"),  # Spark's own refusal
    ):
        with pytest.raises(AnalysisException) as caught:
            append(spark.range(3).selectExpr(expression))
        assert message in str(caught.value)
    assert list(spark.sparkContext.statusTracker().getJobIdsForGroup(group)) == []
    assert not segstore.exists(url)


@pytest.mark.slow
def test_vectors_of_spark_ml_come_back(spark, append, load):
    linalg = pytest.importorskip("pyspark.ml.linalg")
    rows = [(linalg.Vectors.dense([1.0, -0.0]),), (linalg.Vectors.sparse(5, {3: 2.0}),), (None,)]
    df = spark.createDataFrame(rows, StructType([StructField("v", linalg.VectorUDT())]))
    append(df)
    assert load().schema == df.schema
    assert load().collect() == df.collect()


@pytest.mark.slow
def test_user_defined_type_comes_back_where_its_class_is(spark, url, append, load, tmp_path):
    """A stream whose type's class is elsewhere is readable all the same, in its plain form."""
    schema = StructType(
        [
            StructField("p", PointUDT()),
            StructField("l", ArrayType(PointUDT())),
            StructField("n", IntegerType()),
        ]
    )
    df = spark.createDataFrame([(Point(1.0, 2.0), [Point(3.0, 4.0), None], 7)], schema)
    append(df)
    assert load().schema == schema
    assert load().collect() == df.collect()
    text, stored = snapshot(segstore.open(url)).spark_schema, segstore.open(url).schema
    assert "serializedClass" not in text
    for name in ("gone.PointUDT", "udts.Gone", "os.abort", "udts.Point"):
        kept = json.loads(text)
        kept["fields"][0]["type"]["pyClass"] = name
        kept["fields"][0]["type"]["serializedClass"] = "gANjb3MKYWJvcnQKcQAu"
        segstore.create(f"{tmp_path}/{name}", stored, spark_schema=json.dumps(kept))
        back = load(of=f"{tmp_path}/{name}").select("p", "n")
        assert back.schema.simpleString() == "struct<p:array<double>,n:int>"
    assert back.collect() == []


def test_other_columns_are_read_where_spark_lacks_a_type(spark, url, monkeypatch):
    def lacking(data_type):
        if pa.types.is_time(data_type):
            raise PySparkTypeError("no such type")
        return from_arrow_type(data_type)

    monkeypatch.setattr(schemas, "from_arrow_type", lacking)
    schema = pa.schema([("n", pa.int64()), ("t", pa.time64("us"))])
    stream = segstore.create(url, schema)
    stream.append(pa.table({"n": [1], "t": [None]}, schema))
    with pytest.raises(SchemaMismatchError, match="column='t'"):
        segstore.spark.read(spark, url)
    assert segstore.spark.read(spark, url, columns=["n"]).collect() == [(1,)]
    source = SegstoreDataSource({"path": url, "columns": "n"})
    assert source.reader(source.schema()).partitions()
