"""Watching streams and the queries that read and write them, in a user's process."""

from collections.abc import Mapping, Sequence
from typing import Any

from segstore_ds.observe.export import export_samples
from segstore_ds.observe.watch import EVERY_S as MEASURE_EVERY_S
from segstore_ds.observe.watch import Watch

__all__ = ["MEASURE_EVERY_S", "Watch", "watch_streams"]


def watch_streams(
    urls: Sequence[Any],
    *,
    storage_options: Mapping[str, Any] | None,
    every_s: float,
    registry: Any,
    meter_provider: Any,
) -> Watch:
    """Return a watch on streams and on queries that are told to it; its samples are exported.

    Raises:
        InvalidInputError: As `export_samples`, or a location is not valid.
    """
    watch = Watch(urls, storage_options=storage_options, every_s=every_s)
    export_samples(watch.samples, registry=registry, meter_provider=meter_provider)
    return watch
