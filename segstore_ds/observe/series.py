"""The table of exported metrics, their values, and their export to Prometheus and OpenTelemetry.

OpenTelemetry uses a metric's name, such as `segstore.reader_lag_seconds`. In Prometheus the dots
are underscores, and the name of a counter ends with `_total`.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from segstore_ds.errors import InvalidInputError
from segstore_ds.observe.figures import Metrics
from segstore_ds.version import __version__, requirement

_COLLECTION_S = 1.0  # OpenTelemetry calls back for each metric: one measurement serves them all


@dataclass(frozen=True, slots=True)
class Series:
    """One metric."""

    name: str  # in OpenTelemetry
    unit: str  # in UCUM: `By`, `s`, `{event}`; `1` for yes or no
    meaning: str
    labels: tuple[str, ...] = ("stream",)  # names of its labels
    counter: bool = False  # whether it only grows

    @property
    def unit_word(self) -> str:
        """The unit as a word."""
        return _WORDS.get(self.unit, self.unit.strip("{}"))

    @property
    def family(self) -> str:
        """The name in Prometheus, without the `_total` of a counter."""
        return self.name.replace(".", "_")

    @property
    def prometheus_name(self) -> str:
        """The name in queries to Prometheus."""
        return f"{self.family}_total" if self.counter else self.family


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric; `labels` are the values of the series' labels, in order."""

    series: Series
    labels: tuple[str, ...]
    value: float


_WORDS = {"By": "bytes", "s": "seconds", "1": "number", "{row}/s": "row/s"}
_READER = ("stream", "reader")
_MEMBER = ("stream", "reader", "member")
_FOLLOWER = ("stream", "follower")
_STORAGE = ("stream", "why")
_TABLES = ("stream", "table")
_EXPIRY = ("stream", "column")
_QUERY = ("query",)
_SOURCE = ("query", "stream")
_TABLE = (
    # The stream.
    Series("segstore.up", "1", "Whether the stream could be measured."),
    Series("segstore.events", "{event}", "Events that the stream holds."),
    Series("segstore.head_offset", "{event}", "Offset of the oldest event."),
    Series("segstore.tail_offset", "{event}", "Offset of the next event."),
    Series("segstore.version", "{commit}", "Number of the newest commit."),
    Series("segstore.generation", "1", "Generation: it grows when history is abandoned."),
    Series("segstore.sealed", "1", "Whether the stream has ended."),
    Series("segstore.last_commit_timestamp_seconds", "s", "Unix time of the newest commit."),
    Series("segstore.last_append_timestamp_seconds", "s", "Unix time of the newest event."),
    Series("segstore.idle_seconds", "s", "Time since the newest event was committed."),
    Series("segstore.segments", "{segment}", "Segments that hold the events."),
    Series("segstore.segment_bytes", "By", "Encoded bytes of these segments."),
    Series("segstore.small_segments", "{segment}", "Segments that a compaction would join."),
    Series("segstore.small_segment_bytes", "By", "Encoded bytes of these small segments."),
    Series("segstore.versions", "{version}", "Versions that can be read."),
    Series("segstore.retired_objects", "{object}", "Dropped objects that are not yet deleted."),
    Series(
        "segstore.last_upkeep_timestamp_seconds", "s", "Unix time of the last upkeep; 0: never."
    ),
    Series("segstore.damaged", "1", "Metadata objects that can't be read; events are not read."),
    Series("segstore.published_lag_events", "{event}", "Events that a table lacks.", _TABLES),
    Series("segstore.expired_events", "{event}", "Events that lost values by expiry.", _EXPIRY),
    Series("segstore.expiry_lag_seconds", "s", "For how long values are past due.", _EXPIRY),
    Series("segstore.storage_objects", "{object}", "Objects held, by reason.", _STORAGE),
    Series("segstore.storage_bytes", "By", "Bytes held, by reason.", _STORAGE),
    # Its readers and followers.
    Series(
        "segstore.reader_lag_events", "{event}", "Events that a reader has not passed.", _READER
    ),
    Series("segstore.reader_lag_bytes", "By", "Encoded bytes that it has not passed.", _READER),
    Series("segstore.reader_lag_seconds", "s", "Age of the oldest of these events.", _READER),
    Series(
        "segstore.reader_lost_events", "{event}", "Events dropped before it read them.", _READER
    ),
    Series("segstore.reader_live", "1", "Whether it holds events back: not lapsed.", _READER),
    Series("segstore.member_lag_events", "{event}", "Events a member leased, not done.", _MEMBER),
    Series("segstore.member_lag_seconds", "s", "Age of the oldest of these events.", _MEMBER),
    Series("segstore.follower_up", "1", "Whether a follower could be read.", _FOLLOWER),
    Series("segstore.follower_lag_versions", "{version}", "Versions it lacks.", _FOLLOWER),
    Series("segstore.follower_lag_events", "{event}", "Events it lacks.", _FOLLOWER),
    # Totals since a listener began.
    Series("segstore.commits", "{commit}", "Commits seen, by any writer.", counter=True),
    Series("segstore.races_lost", "{race}", "Races that these commits lost.", counter=True),
    Series("segstore.reader_lapses", "{lapse}", "How often readers lapsed.", _READER, counter=True),
    # Streaming queries.
    Series("segstore.query_running", "1", "Whether the query runs.", _QUERY),
    Series("segstore.query_failures", "{failure}", "How often it failed.", _QUERY, counter=True),
    Series("segstore.query_batches", "{batch}", "Batches it has finished.", _QUERY, counter=True),
    Series("segstore.query_input_rows", "{row}", "Rows it has read.", _QUERY, counter=True),
    Series("segstore.query_input_rate", "{row}/s", "Rows that arrive a second.", _QUERY),
    Series("segstore.query_processed_rate", "{row}/s", "Rows it processes a second.", _QUERY),
    Series("segstore.query_batch_seconds", "s", "Duration of its last batch.", _QUERY),
    Series("segstore.query_lag_events", "{event}", "Committed events not processed.", _SOURCE),
    Series("segstore.query_lag_bytes", "By", "Their encoded bytes.", _SOURCE),
    Series("segstore.query_lag_seconds", "s", "Age of the oldest of them.", _SOURCE),
)
SERIES = {series.name.removeprefix("segstore."): series for series in _TABLE}


def sample(name: str, value: float, *labels: str) -> Sample:
    """Return a value of a metric, given its name without `segstore.`."""
    return Sample(SERIES[name], labels, float(value))


def stream_samples(metrics: Metrics) -> Iterator[Sample]:
    """Yield the samples of a stream's figures. Pure."""
    url, upkeep = metrics.url, metrics.last_upkeep
    values: dict[str, float] = {
        "up": 1,
        "events": metrics.events,
        "head_offset": metrics.head,
        "tail_offset": metrics.tail,
        "version": metrics.version,
        "generation": metrics.generation,
        "sealed": metrics.sealed,
        "last_commit_timestamp_seconds": metrics.last_commit.timestamp(),
        "idle_seconds": metrics.idle_s,
        "segments": metrics.segments,
        "segment_bytes": metrics.bytes,
        "small_segments": metrics.small_segments,
        "small_segment_bytes": metrics.small_bytes,
        "versions": metrics.versions,
        "retired_objects": metrics.retired,
        "last_upkeep_timestamp_seconds": upkeep.timestamp() if upkeep else 0,
        "damaged": len(metrics.damaged),
    }
    if metrics.last_append is not None:
        values["last_append_timestamp_seconds"] = metrics.last_append.timestamp()
    for name, value in values.items():
        yield sample(name, value, url)
    for table in metrics.published:
        kind = f"{table.format} latest" if table.latest_by else table.format
        yield sample("published_lag_events", table.lag, url, kind)
    for rule in metrics.expiry:
        yield sample("expired_events", rule.rows, url, rule.column)
        if rule.lag_s is not None:
            yield sample("expiry_lag_seconds", rule.lag_s, url, rule.column)
    for held in metrics.storage or ():
        yield sample("storage_objects", held.objects, url, held.why)
        yield sample("storage_bytes", held.bytes, url, held.why)
    yield from _reader_samples(metrics)
    for follower in metrics.followers:
        yield sample("follower_up", follower.version is not None, url, follower.url)
        if follower.lag_versions is not None and follower.lag_events is not None:
            yield sample("follower_lag_versions", follower.lag_versions, url, follower.url)
            yield sample("follower_lag_events", follower.lag_events, url, follower.url)


def _reader_samples(metrics: Metrics) -> Iterator[Sample]:
    for reader in metrics.readers:
        labels = (metrics.url, reader.name)
        yield sample("reader_lag_events", reader.lag.events, *labels)
        yield sample("reader_lag_bytes", reader.lag.bytes, *labels)
        if reader.lag.seconds is not None:
            yield sample("reader_lag_seconds", reader.lag.seconds, *labels)
        yield sample("reader_lost_events", reader.lost_events, *labels)
        yield sample("reader_live", reader.live, *labels)
        for member in reader.members:
            yield sample("member_lag_events", member.lag_events, *labels, member.name)
            if member.lag_seconds is not None:
                yield sample("member_lag_seconds", member.lag_seconds, *labels, member.name)


Samples = Callable[[], Iterable[Sample]]


def export_samples(samples: Samples, *, registry: Any = None, meter_provider: Any = None) -> None:
    """Export to the given targets; without any, to those whose package is installed."""
    given = {"prometheus": registry, "otel": meter_provider}
    named = {extra: target for extra, target in given.items() if target is not None}
    missing = []
    for extra, target in (named or given).items():
        try:
            EXPORTERS[extra](samples, target)
        except ImportError:
            missing.append(extra)
    if missing and (named or len(missing) == len(given)):
        raise InvalidInputError(
            "no package to export metrics with is installed",
            remedy=" or ".join(f"pip install '{requirement(extra)}'" for extra in missing),
        )


class SamplesCollector:
    """A Prometheus collector, which yields the samples of each scrape, metric by metric."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def describe(self) -> list[Any]:
        """Return every metric, so that a registry refuses a second collector without a scrape."""
        return [_family(series) for series in SERIES.values()]

    def collect(self) -> Iterator[Any]:
        """Yield the metrics that have values."""
        families: dict[str, Any] = {}
        for sample in self._samples():
            series = sample.series
            family = families.setdefault(series.name, _family(series))
            family.add_metric(sample.labels, sample.value)
        yield from families.values()


def _family(series: Series) -> Any:
    from prometheus_client import core  # noqa: PLC0415 - an extra

    kind = core.CounterMetricFamily if series.counter else core.GaugeMetricFamily
    return kind(series.family, series.meaning, labels=series.labels)


def prometheus_text(samples: Iterable[Sample]) -> str:
    """Return samples in Prometheus' text format; ImportError without its package."""
    from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415

    registry, taken = CollectorRegistry(), list(samples)
    registry.register(SamplesCollector(lambda: taken))
    return generate_latest(registry).decode()


def to_prometheus(samples: Samples, registry: Any = None) -> None:
    """Register samples with a registry, by default the client's own; ImportError without it."""
    from prometheus_client import REGISTRY  # noqa: PLC0415

    try:
        (registry or REGISTRY).register(SamplesCollector(samples))
    except ValueError as error:
        raise InvalidInputError(
            "the registry already has these metrics",
            remedy="keep the first listener, or give a new prometheus_client.CollectorRegistry()",
        ) from error


def to_otel(samples: Samples, provider: Any = None) -> None:
    """Make an observable instrument for each metric, by default with the global provider."""
    from opentelemetry.metrics import Observation, get_meter_provider  # noqa: PLC0415

    taken: tuple[float, list[Sample]] = (float("-inf"), [])

    def newest() -> list[Sample]:
        nonlocal taken
        if time.monotonic() - taken[0] > _COLLECTION_S:
            taken = time.monotonic(), [*samples()]
        return taken[1]

    def observed(series: Series) -> Callable[[Any], Iterator[Any]]:
        def observe(_options: Any) -> Iterator[Any]:
            for sample in newest():
                if sample.series is series:
                    labels = dict(zip(series.labels, sample.labels, strict=True))
                    yield Observation(sample.value, labels)

        return observe

    meter = (provider or get_meter_provider()).get_meter("segstore", __version__)
    for series in SERIES.values():
        make = meter.create_observable_counter if series.counter else meter.create_observable_gauge
        calls = [observed(series)]
        make(series.name, callbacks=calls, unit=series.unit, description=series.meaning)


EXPORTERS = {"prometheus": to_prometheus, "otel": to_otel}
