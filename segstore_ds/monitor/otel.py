"""Metrics for OpenTelemetry: an observable instrument for each."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from opentelemetry.metrics import CallbackOptions, Observation, get_meter_provider

from segstore_ds.monitor.series import SERIES, Sample, Series
from segstore_ds.version import __version__

Samples = Callable[[], Iterable[Sample]]


def export(samples: Samples, provider: Any = None) -> None:
    """Make an instrument for each metric with a meter provider, by default the global one."""
    meter = (provider or get_meter_provider()).get_meter("segstore", __version__)
    for series in SERIES.values():
        make = meter.create_observable_counter if series.counter else meter.create_observable_gauge
        make(
            series.name,
            callbacks=[_observed(samples, series)],
            unit=series.unit,
            description=series.meaning,
        )


def _observed(
    samples: Samples, series: Series
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_options: CallbackOptions) -> Iterator[Observation]:
        for sample in samples():
            if sample.series is series:
                yield Observation(
                    sample.value, dict(zip(series.labels, sample.labels, strict=True))
                )

    return observe
