"""Exports samples by the packages that are installed, or to what a caller names."""

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from segstore_ds.errors import InvalidInputError
from segstore_ds.monitor.series import Sample
from segstore_ds.version import requirement

Samples = Callable[[], Iterable[Sample]]


def export_samples(samples: Samples, *, registry: Any = None, meter_provider: Any = None) -> None:
    """Export to a registry of Prometheus and a meter provider of OpenTelemetry.

    Where neither is given, it exports to the default of each package that is installed.

    Raises:
        InvalidInputError: The registry has these metrics already, or a package is missing.
    """
    given = {"prometheus": registry, "otel": meter_provider}
    named = {extra: target for extra, target in given.items() if target is not None}
    missing = [
        extra for extra, target in (named or given).items() if not _export(extra, samples, target)
    ]
    if missing and (named or len(missing) == len(given)):
        raise InvalidInputError(
            "no package to export metrics with is installed",
            remedy=" or ".join(f"pip install '{requirement(extra)}'" for extra in missing),
        )


def _export(extra: str, samples: Samples, target: Any) -> bool:
    try:
        module = import_module(f"segstore_ds.monitor.{extra}")
    except ImportError:
        return False
    try:
        module.export(samples, target)
    except ValueError as error:
        raise InvalidInputError(
            "the registry has these metrics already",
            remedy="keep the first listener, or give a new prometheus_client.CollectorRegistry()",
        ) from error
    return True
