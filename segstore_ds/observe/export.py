"""Exports samples to Prometheus and OpenTelemetry, by the packages that are installed."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from segstore_ds.errors import InvalidInputError
from segstore_ds.observe.series import SERIES, Sample, Series
from segstore_ds.version import __version__, requirement

Samples = Callable[[], Iterable[Sample]]
_COLLECTION_S = 1.0  # OpenTelemetry asks for each metric: one measurement serves a collection


def export_samples(samples: Samples, *, registry: Any = None, meter_provider: Any = None) -> None:
    """Export to a registry of Prometheus and a meter provider of OpenTelemetry.

    Where neither is given, it exports to the default of each package that is installed.

    Raises:
        InvalidInputError: The registry has these metrics already, or a package is missing.
    """
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
    """Hands the samples of each scrape to a registry of Prometheus, metric by metric."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def describe(self) -> list[Any]:
        """Name every metric, so that a registry refuses a second collector without a scrape."""
        return [_family(series) for series in SERIES.values()]

    def collect(self) -> Iterator[Any]:
        """Yield the metrics that have values."""
        families: dict[str, Any] = {}
        for sample in self._samples():
            series = sample.series
            found = families.setdefault(series.name, _family(series))
            found.add_metric(sample.labels, sample.value)
        yield from families.values()


def _family(series: Series) -> Any:
    from prometheus_client import core  # noqa: PLC0415 - an extra

    kind = core.CounterMetricFamily if series.counter else core.GaugeMetricFamily
    return kind(series.family, series.meaning, labels=series.labels)


def prometheus_text(samples: Iterable[Sample]) -> str:
    """Return samples in Prometheus' text format; ImportError without its package."""
    from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415

    registry, found = CollectorRegistry(), list(samples)
    registry.register(SamplesCollector(lambda: found))
    return generate_latest(registry).decode()


def to_prometheus(samples: Samples, registry: Any = None) -> None:
    """Register samples with a registry, by default the client's own; ImportError without it."""
    from prometheus_client import REGISTRY  # noqa: PLC0415

    try:
        (registry or REGISTRY).register(SamplesCollector(samples))
    except ValueError as error:
        raise InvalidInputError(
            "the registry has these metrics already",
            remedy="keep the first listener, or give a new prometheus_client.CollectorRegistry()",
        ) from error


def to_otel(samples: Samples, provider: Any = None) -> None:
    """Make an observable instrument for each metric, by default with the global provider."""
    from opentelemetry.metrics import Observation, get_meter_provider  # noqa: PLC0415

    told: tuple[float, list[Sample]] = (float("-inf"), [])

    def newest() -> list[Sample]:
        nonlocal told
        if time.monotonic() - told[0] > _COLLECTION_S:
            told = time.monotonic(), [*samples()]
        return told[1]

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
