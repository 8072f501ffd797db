"""Metrics for Prometheus, by its own client: a text, or a collector of a registry."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from segstore_ds.monitor.series import SERIES, Sample, Series

Samples = Callable[[], Iterable[Sample]]


class SamplesCollector:
    """Hands the samples of each scrape to a registry, metric by metric."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def describe(self) -> list[Metric]:
        """Name every metric, so that a registry refuses a second collector without a scrape."""
        return [_family(series) for series in SERIES.values()]

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics that have values."""
        families: dict[str, Any] = {}
        for sample in self._samples():
            series = sample.series
            found = families.setdefault(series.name, _family(series))
            found.add_metric(sample.labels, sample.value)
        yield from families.values()


def _family(series: Series) -> Any:
    kind = CounterMetricFamily if series.counter else GaugeMetricFamily
    return kind(series.family, series.meaning, labels=series.labels)


def prometheus_text(samples: Iterable[Sample]) -> str:
    """Return samples in Prometheus' text format."""
    registry = CollectorRegistry()
    found = list(samples)
    registry.register(SamplesCollector(lambda: found))
    return generate_latest(registry).decode()


def export(samples: Samples, registry: Any = None) -> None:
    """Register samples with a registry, by default the client's own."""
    (registry or REGISTRY).register(SamplesCollector(samples))
