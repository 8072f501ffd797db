"""Spark writes no stream into a folder of somebody else's, and drop keeps what is not its own."""

from pathlib import Path

import pytest
from checkpoints import start_query
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import segstore_ds as segstore
from segstore_ds.errors import InvalidInputError


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file's bytes by its path."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.mark.slow
def test_no_write_begins_in_a_parquet_table(spark: SparkSession, tmp_path: Path) -> None:
    """Append, overwrite, the helper, a streaming query and copies name what the folder holds."""
    table, stream = tmp_path / "table", tmp_path / "stream"
    rows = spark.range(10).selectExpr("id", "id % 2 AS day")
    rows.write.partitionBy("day").parquet(str(table))
    rows.write.format("segstore").mode("append").save(str(stream))
    before = contents(table)
    assert before

    def query() -> None:
        events = spark.readStream.format("segstore").load(str(stream))
        writer = events.writeStream.format("segstore").option("path", str(table))
        start_query(writer, str(tmp_path / "checkpoint"), now=True)

    def save(mode: str) -> None:
        rows.write.format("segstore").mode(mode).save(str(table))

    copied = (spark, str(stream), str(table), "c")
    writes = [
        lambda: save("append"),
        lambda: save("overwrite"),
        lambda: segstore.spark.write(rows, table),
        query,
        lambda: segstore.spark.copy(*copied),
        lambda: segstore.spark.copy(*copied, lambda events: events),
        lambda: segstore.spark.open(*copied[:2]).copy_to(table, copy_id="c", mode="clone"),
    ]
    for write in writes:
        with pytest.raises((PySparkException, InvalidInputError)) as caught:
            write()
        assert "a new stream needs a missing or empty folder" in str(caught.value)
        assert "holds=[" in str(caught.value)
        assert contents(table) == before
    with pytest.raises((PySparkException, InvalidInputError), match="no stream here, but other"):
        spark.read.format("segstore").load(str(table))
    assert spark.read.parquet(str(table)).count() == 10


@pytest.mark.slow
def test_checkpoint_inside_a_new_stream_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Within a new one it is refused and named; in a stream it works, and drop keeps it."""
    source, target = tmp_path / "source", tmp_path / "target"
    segstore.spark.write(spark.range(3), source)

    def run() -> None:
        events = spark.readStream.format("segstore").load(str(source))
        writer = events.writeStream.format("segstore").option("path", str(target))
        start_query(writer, str(target / "checkpoint"), now=True)

    with pytest.raises(PySparkException, match=r"missing or empty folder.*checkpoint/"):
        run()
    assert not (target / "log").exists()
    assert (target / "checkpoint").exists()
    (target / "checkpoint").rename(tmp_path / "aside")
    segstore.create(target, segstore.open(source).schema)
    run()
    assert segstore.open(target).tail == 3
    before = contents(target / "checkpoint")
    kept = segstore.drop(target, confirm=target).kept
    assert {f"checkpoint/{name}" for name in before} >= {*kept} > set()
    assert contents(target / "checkpoint") == before


@pytest.mark.parametrize("url", ["b\ud800", "s3://b/\ud800", "memory://\udcff"])
def test_helpers_refuse_half_a_surrogate_pair(spark: SparkSession, url: str) -> None:
    """At the call: the JVM would raise UnicodeEncodeError, or something worse."""
    rows = spark.range(1)
    for call in (
        lambda: segstore.spark.write(rows, url),
        lambda: segstore.spark.read(spark, url),
        lambda: segstore.spark.open(spark, url).compact(),
        lambda: segstore.spark.copy(spark, "memory://x", url, "c"),
        lambda: segstore.spark.copy(spark, url, "memory://x", "c"),
    ):
        with pytest.raises(InvalidInputError, match="a character that no name can have"):
            call()


def test_name_that_is_not_utf_8_reaches_the_jvm(spark: SparkSession, tmp_path: Path) -> None:
    """As a URL, in which the stray byte is escaped."""
    url = tmp_path / "b\udcff"
    segstore.spark.write(spark.range(3), url)
    assert segstore.spark.read(spark, url).count() == 3
    assert segstore.open(url).url.endswith("/b%FF")
