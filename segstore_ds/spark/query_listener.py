"""`segstore.spark.listener()`: exports the metrics of streaming queries and their streams."""

import json
import os
from collections.abc import Mapping
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from segstore_ds.options.arguments import check_seconds
from segstore_ds.stream.connector.jobs import MEASURE_EVERY_S, Watch, watch_streams


class SegstoreListener(StreamingQueryListener):
    """Passes Spark's events to a watch."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Note that a query runs."""
        self._watch.started(str(event.id), event.name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Note what a batch did."""
        self._watch.progressed(json.loads(event.progress.json))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: the lag of an idle query is measured when the metrics are collected."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Note that a query has ended, and whether it failed."""
        self._watch.ended(str(event.id), failed=event.exception is not None)


def listener(
    *urls: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    every_s: float = MEASURE_EVERY_S,
    registry: Any = None,
    meter_provider: Any = None,
) -> StreamingQueryListener:
    """Return a listener that exports the metrics of streaming queries and of their streams.

    The streams that queries read are watched from a query's first finished batch on. They are
    measured when the metrics are collected, in that thread, so the lag of a batch that hangs is
    seen to grow. Nothing is written. With Spark Connect the listener runs in the client: remove it
    when its queries have ended, since `removeListener` may hang there if an event comes meanwhile.

    Args:
        urls: More streams to watch, such as those that queries write, which Spark does not name.
        storage_options: For all of these streams, flat or keyed by URL prefix; `env:NAME` values
            are allowed.
        every_s: Least seconds between two measurements of a stream.
        registry: Prometheus' `CollectorRegistry` to export to; needs the extra `[prometheus]`.
        meter_provider: OpenTelemetry's `MeterProvider` to export to; needs the extra `[otel]`.
            If neither is given, it exports to the default registry and to the global provider, as
            far as these packages are installed.

    Returns:
        The listener, for ``spark.streams.addListener``.

    Raises:
        InvalidInputError: A location is not valid, the registry has a listener already, or no
            package to export with is installed.

    Examples:
        >>> from prometheus_client import CollectorRegistry, generate_latest
        >>> registry = CollectorRegistry()
        >>> listener = segstore.spark.listener(stream.url, registry=registry)
        >>> spark.streams.addListener(listener)
        >>> b"segstore_tail_offset" in generate_latest(registry)  # what Prometheus scrapes
        True
        >>> spark.streams.removeListener(listener)
    """
    check_seconds("every_s", every_s)
    watch = watch_streams(
        urls,
        storage_options=storage_options,
        every_s=every_s,
        registry=registry,
        meter_provider=meter_provider,
    )
    return SegstoreListener(watch)
