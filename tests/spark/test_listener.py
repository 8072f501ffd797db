"""`segstore.spark.listener()` observes queries; `test_connect.py` has it through Connect."""

import pyarrow as pa
import pytest
from listener_kit import check_query, listening, scraped
from pyspark.errors import StreamingQueryException

import segstore_ds as segstore

pytestmark = pytest.mark.slow


def test_a_query_is_scraped_and_observed(spark, tmp_path):
    check_query(spark, tmp_path)


def test_a_failed_query_is_counted(spark, tmp_path):
    """Its stream is dropped while it runs."""
    with scraped() as (registry, ask):
        source = segstore.create(tmp_path / "s", pa.schema([("n", pa.int64())]), upkeep=None)
        source.append(pa.table({"n": [1, 2, 3]}))
        listener = segstore.spark.listener(registry=registry)
        with listening(spark, listener) as heard:
            rows = spark.readStream.format("segstore").load(source.url)
            writer = rows.writeStream.format("noop").queryName("lost")
            query = writer.option("checkpointLocation", f"{tmp_path}/checkpoint").start()
            query.processAllAvailable()
            segstore.drop(source.url, confirm=source.url)
            with pytest.raises(StreamingQueryException):
                query.awaitTermination(180)
            heard.wait("onQueryTerminated")
            assert ask()["query_failures_total", "lost"] == 1
