"""A query that `segstore.spark.listener()` observes: a real scrape, a reader of OpenTelemetry."""

import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryListener

import segstore_ds as segstore


@contextmanager
def scraped() -> Iterator[tuple[CollectorRegistry, Callable[[], dict]]]:
    """Yield a registry, and a scrape of it through HTTP: values by name and sorted labels."""
    registry = CollectorRegistry()
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)

    def ask() -> dict:
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        with urllib.request.urlopen(url, timeout=60) as answer:
            text = answer.read().decode()
        return {
            (
                one.name.removeprefix("segstore_"),
                *(one.labels[key] for key in sorted(one.labels)),
            ): (one.value)
            for family in text_string_to_metric_families(text)
            for one in family.samples
        }

    try:
        yield registry, ask
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Heard:
    """Waits for an event of a listener; Spark hands events on in another thread."""

    def __init__(self, listener: object) -> None:
        names = ("onQueryStarted", "onQueryProgress", "onQueryTerminated")
        self.events = {name: threading.Event() for name in names}
        for name, event in self.events.items():
            setattr(listener, name, self._noting(getattr(listener, name), event))

    def _noting(self, method: Callable, event: threading.Event) -> Callable:
        def call(heard: object) -> None:
            method(heard)
            event.set()

        return call

    def wait(self, name: str) -> None:
        assert self.events[name].wait(180), name


@contextmanager
def listening(spark: SparkSession, listener: StreamingQueryListener) -> Iterator[Heard]:
    """Add a listener, and remove it when the query that it heard of has ended.

    While Connect's client removes the last listener, it holds the lock that the next event needs,
    and waits for that event for ever (SPARK-59623).
    """
    heard = Heard(listener)
    spark.streams.addListener(listener)
    try:
        yield heard
    finally:
        for query in spark.streams.active:
            query.stop()
        if heard.events["onQueryStarted"].is_set():
            heard.wait("onQueryTerminated")
        spark.streams.removeListener(listener)


def check_query(spark: SparkSession, folder: Path) -> None:
    """Run a limited query to its end of a batch, and compare what both exporters say."""
    with scraped() as (registry, ask):
        _check_query(spark, folder, registry, ask)


def _check_query(
    spark: SparkSession, folder: Path, registry: CollectorRegistry, ask: Callable[[], dict]
) -> None:
    source = segstore.create(folder / "source", pa.schema([("n", pa.int64())]), upkeep=None)
    for start in range(0, 30, 10):
        source.append(pa.table({"n": range(start, start + 10)}))
    target = f"file://{folder}/target"
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
            .option("checkpointLocation", f"{folder}/checkpoint")
            .start(target)
        )
        query.processAllAvailable()
        heard.wait("onQueryProgress")
        found = ask()
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
        assert ask()["query_running", "etl"] == 0
    provider.shutdown()
