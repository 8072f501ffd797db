"""Write options as Spark takes them: writers, schema contract, layout, modes."""

import re
from pathlib import Path

import pyarrow as pa
import pytest
from checkpoints import forget_newest_commit, start_query
from sessions import error_of, session_settings

import segstore_ds as segstore

pytestmark = pytest.mark.usefixtures("verified")


def objects(url: str) -> list[Path]:
    return sorted(Path(url.removeprefix("file://"), "segments").rglob("*.*"))


def read(url: str) -> list[dict]:
    return segstore.open(url).read().read_all().to_pylist()


def ids(url: str) -> list[int]:
    return [row["id"] for row in read(url)]


def test_events_keep_the_order_of_partitions_and_rows(spark, url, append):
    append(spark.range(0, 50, 1, 5))
    append(spark.range(50, 100, 1, 5), inlineBytes=0)
    assert ids(url) == list(range(100))


@pytest.mark.smoke
def test_overwrite_moves_the_head_and_keeps_offsets_going(spark, url, append, load):
    append(spark.range(10))
    append(spark.range(3), mode="overwrite")
    stream = segstore.open(url)
    assert (stream.head, stream.tail, ids(url)) == (10, 13, [0, 1, 2])
    with session_settings(spark, {"spark.sql.sources.partitionOverwriteMode": "dynamic"}):
        append(spark.range(2), mode="overwrite")
    assert [(row.id, row.o) for row in load(offsetColumn="o").collect()] == [(0, 13), (1, 14)]


def test_history_names_the_application(spark, url, append):
    append(spark.range(2))
    row = segstore.open(url).history(1).read_all().to_pylist()[0]
    assert row["application"] == spark.conf.get("spark.app.id") != ""
    assert re.fullmatch(
        r"segstore/\S+ python/\S+ pyarrow/\S+ user/\S+ host/\S+ pyspark/\S+", row["client"]
    )


def test_modes_that_spark_refuses_make_nothing(spark, url):
    for mode in ("errorifexists", "ignore"):
        writer = spark.range(1).write.format("segstore").mode(mode)
        assert 'use either the "Append" or "Overwrite"' in error_of(lambda w=writer: w.save(url))
    assert "ErrorIfExists" in error_of(lambda: spark.range(1).write.format("segstore").save(url))
    assert not segstore.exists(url)


@pytest.mark.smoke
def test_repeated_batch_changes_nothing(spark, url, append):
    for _ in range(2):
        append(spark.range(20), writerId="etl", batchId=7, inlineBytes=0)
    assert segstore.open(url).tail == 20
    assert len(objects(url)) == segstore.open(url).verify().segments
    append(spark.range(5), writerId="other", batchId=7)
    append(spark.range(5), writerId="etl", batchId=8)
    assert segstore.open(url).tail == 30


def test_tiny_tasks_make_one_object_together(spark, url, append):
    """Or none, where the commit file has room for all of them."""
    append(spark.range(0, 100, 1, 8))
    assert len(objects(url)) == 0
    append(spark.range(0, 100_000, 1, 8))
    assert len(objects(url)) == 1
    append(spark.range(0, 100, 1, 3), inlineBytes=0)
    assert len(objects(url)) == 4


def test_merge_schema_adds_widens_and_keeps_comments(spark, append, load):
    append(spark.sql("SELECT 1 AS a, 'x' AS b").withMetadata("b", {"comment": "kept"}))
    append(spark.sql("SELECT 2L AS a, INTERVAL '02:03' HOUR TO MINUTE AS i"), mergeSchema="true")
    append(spark.sql("SELECT 'z' AS b, null AS i, 3 AS a"))
    df = load()
    assert df.schema.simpleString() == "struct<a:bigint,b:string,i:interval hour to minute>"
    assert df.schema["b"].metadata == {"comment": "kept"}
    assert [(row.a, row.b, row.i is None) for row in df.collect()] == [
        (1, "x", True),
        (2, None, False),
        (3, "z", True),
    ]


def test_merge_schema_widens_integers_to_doubles(spark, append, load):
    append(spark.sql("SELECT 1 AS a, array(2S) AS l"))
    doubles = spark.sql("SELECT 0.5D AS a, array(0.5D) AS l")
    assert "mergeSchema" in error_of(lambda: append(doubles))
    append(doubles, mergeSchema="true")
    append(spark.sql("SELECT 3S AS a, array(null, 4) AS l"))
    assert "cast the column" in error_of(lambda: append(spark.sql("SELECT 3L AS a, array(4) AS l")))
    df = load()
    assert df.schema.simpleString() == "struct<a:double,l:array<double>>"
    rows = [(1.0, [2.0]), (0.5, [0.5]), (3.0, [None, 4.0])]
    assert [(row.a, row.l) for row in df.collect()] == rows
    assert df.where("a > 0.7").count() == 2


def test_overwrite_schema_replaces_columns_and_types(spark, append, load):
    append(spark.sql("SELECT 1 AS a, 'x' AS b"))
    old = load()
    changed = spark.sql("SELECT 'text' AS a, 1.5D AS c")
    assert "column='a'" in error_of(lambda: append(changed, mode="overwrite"))
    append(changed, mode="overwrite", overwriteSchema="true")
    assert load().schema.simpleString() == "struct<a:string,c:double>"
    assert [tuple(row) for row in load().collect()] == [("text", 1.5)]
    assert [tuple(row) for row in old.collect()] == [(1, "x")]


def test_row_that_breaks_a_rule_is_named_and_nothing_is_committed(spark, url, append, tmp_path):
    stream = segstore.create(url, pa.schema([("id", pa.int64())]))
    stream.settings.update(rules={"checks": {"few": "id < 7"}})
    told = "row=2, task=1, column='id', rule='few: id < 7', value=7"
    assert told in error_of(lambda: append(spark.range(0, 10, 1, 2)))
    source = segstore.create(f"file://{tmp_path}/source", stream.schema)
    source.append(pa.table({"id": [1, 2, 8]}))
    query = spark.readStream.format("segstore").load(source.url).writeStream.format("segstore")
    told = error_of(lambda: start_query(query.option("path", url), f"{tmp_path}/c", now=True))
    assert "row=2, column='id'" in told
    assert stream.refresh().tail == 0


@pytest.mark.slow
def test_rows_that_break_a_rule_are_dead_letters_once(spark, url, append, tmp_path):
    stream = segstore.create(url, pa.schema([("id", pa.int64())]))
    rules = {"checks": {"few": "id < 7"}, "dead_letters": f"file://{tmp_path}/letters"}
    stream.settings.update(rules=rules)
    assert "with writerId and batchId it would" in error_of(
        lambda: append(spark.range(0, 10, 1, 2))
    )
    for _ in range(2):
        append(spark.range(0, 10, 1, 2), writerId="w", batchId=1)
    assert ids(url) == [*range(7)]
    source = segstore.create(f"file://{tmp_path}/source", stream.schema)
    source.append(pa.table({"id": [1, 8]}))
    checkpoint = tmp_path / "c"

    def drain():
        query = spark.readStream.format("segstore").load(source.url).writeStream.format("segstore")
        start_query(query.option("path", url), str(checkpoint), now=True)

    drain()
    forget_newest_commit(checkpoint)  # Spark repeats the batch
    drain()
    source.append(pa.table({"id": [9, 2]}))
    drain()
    assert ids(url) == [*range(7), 1, 2]
    letters = read(f"file://{tmp_path}/letters")
    assert [row["id"] for row in letters] == [7, 8, 9, 8, 9]
    assert letters[1]["_reason"] == "few: id < 7, row 3"


@pytest.mark.slow
def test_partitions_are_refused_or_without_effect(spark, url, append, tmp_path):
    """A batch write is refused whole; streams and tables pass over them, as the pages say."""
    append(spark.range(3))
    for way in ("partitionBy", "clusterBy"):
        write = spark.range(3, 6).write.format("segstore").mode("append")
        with pytest.raises(Exception, match="partitioning or clustering columns do not match"):
            getattr(write, way)("id").save(url)
    write = spark.readStream.format("segstore").load(url).writeStream.format("segstore")
    copy = f"file://{tmp_path}/copy"
    start_query(write.partitionBy("id").option("path", copy), f"{tmp_path}/c", now=True)
    assert ids(url) == ids(copy) == [0, 1, 2]
    parts = "PARTITIONED BY (id) CLUSTERED BY (name) INTO 2 BUCKETS"
    try:
        spark.sql(f"CREATE TABLE parted (id BIGINT, name STRING) USING segstore {parts}")
        spark.sql(f"INSERT INTO parted WITH (path = '{url}-sql') VALUES (1, 'a'), (2, 'b')")
        assert ids(f"{url}-sql") == [1, 2]
    finally:
        spark.sql("DROP TABLE IF EXISTS parted")
