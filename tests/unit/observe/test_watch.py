"""A watch on streams and queries: what it is told, what it measures, what it adds up."""

import json
import sys
import uuid

import pyarrow as pa
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry

import segstore_ds as segstore
from segstore_ds.errors import InvalidInputError
from segstore_ds.observe.series import SERIES, export_samples
from segstore_ds.observe.watch import MOST_ENDED, Watch

SCHEMA = pa.schema([("n", pa.int64())])


def rows(count):
    return pa.table({"n": range(count)})


@pytest.fixture
def stream():
    return segstore.create(f"memory://{uuid.uuid4().hex}", SCHEMA, upkeep=None)


def progress(stream, end, batch=0, texts=True, **more):
    """Return a progress as Spark has it: offsets are texts in one place and values in another."""
    at = {"generation": 0, "offset": end, "origin": 0, "stream": stream._log.root.stream_id}
    tail = {
        "generation": 0,
        "offset": stream.tail,
        "stream": stream._log.root.stream_id,
        "url": stream.url,
    }
    shown = json.dumps if texts else (lambda value: value)
    source = {"description": "x", "endOffset": shown(at), "latestOffset": shown(tail)}
    rate = {"description": "rate", "endOffset": "7", "latestOffset": None}
    found = {"id": "q1", "runId": "r1", "name": "etl", "batchId": batch, "numInputRows": 4}
    found |= {"inputRowsPerSecond": 2.0, "processedRowsPerSecond": 8.0}
    return {**found, "durationMs": {"triggerExecution": 250}, "sources": [source, rate], **more}


def values(watch):
    return {(one.series.name, *one.labels): one.value for one in watch.samples()}


@pytest.mark.parametrize("texts", [True, False])
def test_lag_of_a_query_grows_without_its_word(stream, texts):
    stream.append(rows(10))
    watch = Watch(every_s=0)
    watch.progressed(progress(stream, 4, texts=texts))
    found = values(watch)
    assert found["segstore.query_lag_events", "etl", stream.url] == 6
    assert found["segstore.query_lag_bytes", "etl", stream.url] > 0
    assert 0 <= found["segstore.query_lag_seconds", "etl", stream.url] < 600
    assert found["segstore.events", stream.url] == 10
    stream.append(rows(5))
    assert values(watch)["segstore.query_lag_events", "etl", stream.url] == 11
    watch.progressed(progress(stream, 15, batch=1))
    found = values(watch)
    assert found["segstore.query_lag_events", "etl", stream.url] == 0
    assert found["segstore.query_lag_seconds", "etl", stream.url] == 0


def test_progress_that_is_newer_than_the_measurement_counts(stream):
    """Between two measurements of the stream its lag stays exact."""
    watch = Watch(every_s=3600)
    watch.progressed(progress(stream, 0))
    assert values(watch)["segstore.tail_offset", stream.url] == 0
    stream.append(rows(10))
    watch.progressed(progress(stream, 4, batch=1))
    found = values(watch)
    assert found["segstore.tail_offset", stream.url] == 0
    assert found["segstore.query_lag_events", "etl", stream.url] == 6
    assert found["segstore.query_lag_bytes", "etl", stream.url] > 0


def test_rates_batches_and_rows_of_a_query(stream):
    watch = Watch()
    watch.started("q1", "etl")
    for batch in (0, 0, 1):
        watch.progressed(progress(stream, 0, batch=batch))
    found = values(watch)
    assert found["segstore.query_running", "etl"] == 1
    assert found["segstore.query_batches", "etl"] == 2
    assert found["segstore.query_input_rows", "etl"] == 12
    assert found["segstore.query_input_rate", "etl"] == 2
    assert found["segstore.query_processed_rate", "etl"] == 8
    assert found["segstore.query_batch_seconds", "etl"] == 0.25
    watch.ended("q1", failed=True)
    found = values(watch)
    assert found["segstore.query_running", "etl"] == 0
    assert found["segstore.query_failures", "etl"] == 1
    assert found["segstore.query_input_rows", "etl"] == 12
    assert not {key for key in found if "lag" in key[0] or "rate" in key[0]}
    watch.started("q1", "etl")
    assert values(watch)["segstore.query_running", "etl"] == 1


def test_queries_without_a_name_are_known_by_id_and_forgotten_when_many_ended():
    watch = Watch()
    for number in range(MOST_ENDED + 5):
        watch.started(f"id-{number}", None)
        watch.ended(f"id-{number}", failed=False)
    watch.started("runs", None)
    names = {key[1] for key in values(watch) if key[0] == "segstore.query_running"}
    assert names == {"runs", *(f"id-{number}" for number in range(5, MOST_ENDED + 5))}


def test_commits_and_lost_races_are_added_up(stream):
    watch = Watch([stream.url], every_s=0)
    assert values(watch)["segstore.commits", stream.url] == 0
    behind = segstore.open(stream.url)
    stream.append(rows(1))
    behind.append(rows(1))  # its base is old: it loses one race
    stream.append(rows(1))
    found = values(watch)
    lost = sum(row["races_lost"] for row in stream.history(1).read_all().to_pylist())
    assert lost > 0
    assert found["segstore.commits", stream.url] == 3
    assert found["segstore.races_lost", stream.url] == lost
    assert values(watch)["segstore.commits", stream.url] == 3


def test_a_reader_that_lapses_is_counted_once(stream):
    stream.append(rows(3))
    stream.readers.register("billing", owner="a", lapse_s=60)
    watch = Watch([stream.url], every_s=0)
    assert values(watch)["segstore.reader_lapses", stream.url, "billing"] == 0
    clock = watch._find(stream.url)._context.clock
    hours_later = type(clock)(wall_us=lambda: clock.wall_us() + 3_600_000_000)
    watch._find(stream.url)._context.log.clock = hours_later
    for _ in range(2):
        found = values(watch)
        assert found["segstore.reader_live", stream.url, "billing"] == 0
        assert found["segstore.reader_lapses", stream.url, "billing"] == 1
    stream.readers.release("billing")
    assert ("segstore.reader_lapses", stream.url, "billing") not in values(watch)


def test_a_stream_that_is_gone_is_down_and_comes_back(stream, caplog):
    url = f"memory://{uuid.uuid4().hex}"
    watch = Watch([url, stream.url], every_s=0)
    for _ in range(2):
        found = values(watch)
        assert (found["segstore.up", url], found["segstore.up", stream.url]) == (0, 1)
    assert caplog.text.count("can't be measured") == 1
    segstore.create(url, SCHEMA, upkeep=None)
    assert values(watch)["segstore.up", url] == 1


def test_streams_are_measured_at_most_so_often(stream):
    now = [0.0]
    watch = Watch([stream.url], every_s=10, now_s=lambda: now[0])
    values(watch)
    stream.append(rows(3))
    now[0] = 9.0
    assert values(watch)["segstore.events", stream.url] == 0
    now[0] = 10.0
    assert values(watch)["segstore.events", stream.url] == 3


def test_a_location_in_another_spelling_is_the_same_stream(tmp_path):
    stream = segstore.create(tmp_path / "s", SCHEMA, upkeep=None)
    watch = Watch([tmp_path / "s", stream.url])
    watch.progressed(progress(stream, 0))
    assert [key for key in values(watch) if key[0] == "segstore.up"] == [
        ("segstore.up", stream.url)
    ]


def test_opentelemetry_gets_every_metric_with_its_attributes(stream):
    stream.append(rows(10))
    stream.readers.register("billing", owner="a", start=4)
    watch, reader = Watch([stream.url]), InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    export_samples(watch.samples, meter_provider=provider)
    watch.progressed(progress(stream, 4))
    data = reader.get_metrics_data()
    found = {
        metric.name: metric
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    provider.shutdown()
    assert {f"segstore.{name}" for name in SERIES} >= {*found}
    expected = {one.series.name for one in watch.samples()}
    assert {*found} == expected
    (point,) = found["segstore.reader_lag_events"].data.data_points
    assert (point.value, dict(point.attributes)) == (
        6,
        {"stream": stream.url, "reader": "billing"},
    )
    assert found["segstore.query_lag_bytes"].unit == "By"
    assert found["segstore.query_input_rows"].data.is_monotonic


def test_missing_packages_are_named(monkeypatch):
    for name in ("prometheus_client", "opentelemetry.metrics"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InvalidInputError, match=r"segstore-ds\[prometheus\].*segstore-ds\[otel\]"):
        export_samples(list)
    with pytest.raises(InvalidInputError, match=r"pip install 'segstore-ds\[prometheus\]'$"):
        export_samples(list, registry=CollectorRegistry())


def test_a_registry_takes_one_listener():
    registry = CollectorRegistry()
    export_samples(list, registry=registry)
    with pytest.raises(InvalidInputError, match="already"):
        export_samples(list, registry=registry)


def test_a_query_takes_the_place_of_one_with_its_name_that_ended(stream):
    """Started again without a checkpoint it has another id; a scrape takes no series twice."""
    watch = Watch()
    watch.progressed(progress(stream, 0, id="q1"))
    watch.started("q2", "etl")
    watch.ended("q1", failed=True)
    watch.progressed(progress(stream, 0, id="q2", numInputRows=1))
    told = [(one.series.name, *one.labels) for one in watch.samples()]
    assert len(told) == len({*told})
    found = values(watch)
    assert found["segstore.query_running", "etl"] == 1
    assert found["segstore.query_input_rows", "etl"] == 1


def test_opentelemetry_measures_once_a_collection(stream):
    asked, reader = [], InMemoryMetricReader()
    watch = Watch([stream.url])
    provider = MeterProvider([reader], shutdown_on_exit=False)

    def samples():
        asked.append(1)
        return watch.samples()

    export_samples(samples, meter_provider=provider)
    assert reader.get_metrics_data() is not None
    provider.shutdown()
    assert len(asked) <= 2  # a slow machine may take a second
