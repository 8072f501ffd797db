"""`segstore.spark.listener()` observes queries, for Prometheus and for OpenTelemetry.

`test_connect.py` has it through Connect.
"""

import pyarrow as pa
import pytest
from listener_kit import listening
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.errors import StreamingQueryException

import segstore_ds as segstore

pytestmark = pytest.mark.slow


def scrape(registry: CollectorRegistry) -> dict:
    """Return what a scrape of a registry finds: values by name and sorted labels."""
    return {
        (one.name.removeprefix("segstore_"), *(one.labels[key] for key in sorted(one.labels))): (
            one.value
        )
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for one in family.samples
    }


def test_a_query_is_scraped_and_observed(spark, tmp_path):
    """Run a limited query to its end of a batch, and compare what both exporters say."""
    registry = CollectorRegistry()
    source = segstore.create(tmp_path / "source", pa.schema([("n", pa.int64())]), upkeep=None)
    for start in range(0, 30, 10):
        source.append(pa.table({"n": range(start, start + 10)}))
    target = f"file://{tmp_path}/target"
    segstore.create(target, pa.schema([("n", pa.int64())]), upkeep=None)
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    listener = segstore.spark.listener(
        target, every_s=0, registry=registry, meter_provider=provider
    )
    with listening(spark, listener) as heard:
        rows = spark.readStream.format("segstore").option("endCut", 20).load(source.url)
        query = (
            rows.writeStream.format("segstore")
            .queryName("etl")
            .option("checkpointLocation", f"{tmp_path}/checkpoint")
            .start(target)
        )
        query.processAllAvailable()
        heard.wait("onQueryProgress")
        found = scrape(registry)
        assert found["query_running", "etl"] == 1
        assert found["query_lag_events", "etl", source.url] == 10
        assert found["query_lag_bytes", "etl", source.url] > 0
        assert 0 <= found["query_lag_seconds", "etl", source.url] < 600
        assert found["query_input_rows_total", "etl"] == 20
        assert found["query_batch_seconds", "etl"] > 0
        assert found["events", target] == 20
        assert found["up", source.url] == found["up", target] == 1
        *_, client = segstore.open(target).history().read_all()["client"].to_pylist()
        assert " query/etl" in client
        data = reader.get_metrics_data()
        told = {
            metric.name: metric.data.data_points
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }
        (lag,) = told["segstore.query_lag_events"]
        assert (lag.value, dict(lag.attributes)) == (10, {"query": "etl", "stream": source.url})
        query.stop()
        heard.wait("onQueryTerminated")
        assert scrape(registry)["query_running", "etl"] == 0
    provider.shutdown()


def test_a_failed_query_is_counted(spark, tmp_path):
    """Its stream is dropped while it runs."""
    registry = CollectorRegistry()
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
        assert scrape(registry)["query_failures_total", "lost"] == 1
