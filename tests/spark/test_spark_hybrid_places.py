"""Where `segstore.spark.read` lets Spark read the files: what Hadoop reaches, and its names."""

import os
import sys
import warnings
from pathlib import Path

import pyarrow as pa
import pytest
from checkpoints import start_query
from fixtures_s3 import S3Server
from process_kit import plain_environment
from sessions import plan_of, run_program, session_settings

import segstore_ds as segstore
from segstore_ds.spark.parquet_scan import read as hybrid

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("large_scans")]

SCHEMA = pa.schema([("n", pa.int64()), ("d", pa.float64())])


def make(url: str, formats: str, options: dict[str, object] | None = None) -> segstore.Stream:
    """Make a stream of 25 events per letter: `p` in Parquet, `a` in Arrow."""
    stream = segstore.create(url, SCHEMA, storage_options=options)
    for place, letter in enumerate(formats):
        numbers = range(place * 25, place * 25 + 25)
        form = {"p": "parquet", "a": "arrow"}[letter]
        layout = segstore.Layout(frame_rows=10, inline_bytes=0, segment_format=form)
        stream.append(pa.table({"n": numbers, "d": numbers}, schema=SCHEMA), layout=layout)
    return stream


def test_where_spark_cannot_read_the_files_the_source_does(spark, url):
    """And a warning says so, once."""
    make(url, "pa")
    broken = {"fs.file.impl": "no.such.FileSystem", "fs.file.impl.disable.cache": "true"}
    hybrid._warned.clear()
    with session_settings(spark, broken):
        with pytest.warns(UserWarning, match="no.such.FileSystem"):
            df = segstore.spark.read(spark, url)
        assert "FileScan parquet" not in plan_of(df)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert segstore.spark.read(spark, url, startCut=3).count() == 47


def test_s3_is_read_as_s3a_where_hadoop_knows_only_that(spark, tmp_path, s3_server: S3Server):
    """Hadoop's ViewFs replaces the filesystem of AWS under its name."""
    bucket = s3_server.new_bucket()
    url = f"s3://{bucket}/some/stream"
    stream = make(url, "ppa", s3_server.options)
    for found in stream._log.storage.list("segments/"):
        copy = tmp_path / found.path
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(stream._log.storage.get(found.path))
    settings = {
        "fs.s3a.impl": "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme",
        "fs.viewfs.overload.scheme.target.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
        f"fs.viewfs.mounttable.{bucket}.link./some/stream": f"file://{tmp_path}",
    }
    segstore.spark.register(spark, s3_server.options)
    try:
        with session_settings(spark, settings), warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            df = segstore.spark.read(spark, url, startCut=3, offsetColumn="o")
            assert plan_of(df).count("FileScan parquet") == 2
            assert {file.partition(":")[0] for file in df.inputFiles()} == {"s3a"}
            assert sorted((row.o, row.n) for row in df.collect()) == [(n, n) for n in range(3, 75)]
    finally:
        segstore.spark.register(spark)


def test_foreach_batch_reads_with_its_sessions_options(spark, tmp_path, s3_server):
    """`foreachBatch` knows a clone of the session, and has only that to give."""
    url = f"s3://{s3_server.new_bucket()}/stream"
    make(url, "aa", s3_server.options)
    source = tmp_path / "source"
    make(str(source), "a")
    found: list[object] = []

    def ask(batch, _: int) -> None:
        session = batch.sparkSession
        assert session is not spark
        found.append(session.read.format("segstore").load(url).count())
        found.append(segstore.spark.read(session, url).count())

    segstore.spark.register(spark, s3_server.options)
    try:
        events = spark.readStream.format("segstore").load(str(source))
        start_query(events.writeStream.foreachBatch(ask), str(tmp_path / "checkpoint"), now=True)
        assert found == [50, 50]
        assert segstore.spark.read(spark, url).count() == 50
        with pytest.raises(segstore.SegstoreError):
            segstore.spark.read(spark.newSession(), url)  # what was registered is another session's
    finally:
        segstore.spark.register(spark)
    with pytest.raises(segstore.SegstoreError):
        segstore.spark.read(spark, url)


def test_options_that_another_process_bound_are_asked_for(spark, url):
    """As where Spark Connect runs the batches of a query: what it has is a key without a lock."""
    make(url, "p")
    with session_settings(spark, {"spark.segstore.bound": "elsewhere"}):
        with pytest.raises(segstore.SegstoreError, match="register"):
            segstore.spark.read(spark, url)
        segstore.spark.register(spark, {"endpoint_url": "http://127.0.0.1:1"})
        assert segstore.spark.read(spark, url).count() == 25
    segstore.spark.register(spark)


@pytest.mark.sweep
@pytest.mark.skipif("SEGSTORE_S3A" not in os.environ, reason="downloads 690 MB from Maven Central")
def test_s3_is_read_by_the_real_s3a(s3_server):
    url = f"s3://{s3_server.new_bucket()}/stream"
    make(url, "ppa", s3_server.options)
    driver = Path(__file__).with_name("s3a_driver.py")
    given = [s3_server.endpoint, s3_server.key, s3_server.secret, url]
    environment = plain_environment(PYSPARK_PYTHON=sys.executable)
    assert run_program(driver, *given, env=environment).split() == ["FileScan", "s3a", "72", "2772"]
