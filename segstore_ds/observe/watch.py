"""Watches streams and streaming queries, and measures them when samples are collected.

A query reports its progress when a batch ends; a batch that hangs reports nothing, and then lag
matters most. So lag is measured at collection: in the thread of a scrape or an exporter, never in
the thread that delivers Spark's events.
"""

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow.compute as pc

from segstore_ds.errors import FormatError, SegstoreError
from segstore_ds.log.context import StreamContext
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.observe.figures import Lag, Metrics, measure, measure_lag
from segstore_ds.observe.series import Sample, sample, stream_samples
from segstore_ds.storage import open_storage, resolve_location

_LOG = logging.getLogger(__name__)
EVERY_S = 10.0
MOST_ENDED = 100  # most ended queries that are remembered


@dataclass(frozen=True, slots=True)
class Place:
    """A query's position in a stream, and the tail when its last batch was planned."""

    stream_id: str
    generation: int
    offset: int
    tail: int


@dataclass(slots=True)
class Query:
    """One query, which keeps its id over several runs."""

    label: str  # its name, or its id if it has none
    running: bool = True
    places: dict[str, Place] = field(default_factory=dict)  # by the location of the stream
    batch: tuple[str, int] | None = None  # run and number of its last batch
    gauges: dict[str, float] = field(default_factory=dict)  # of its last progress, by metric
    counts: dict[str, float] = field(default_factory=dict)  # totals of all progress, by metric

    def progressed(self, progress: Mapping[str, Any]) -> None:
        """Note a progress, in the form of `query.lastProgress`."""
        self.running = True
        batch = (str(progress["runId"]), int(progress["batchId"]))
        if batch != self.batch:
            self.batch = batch
            self._add("query_batches", 1)
        self._add("query_input_rows", progress.get("numInputRows") or 0)
        self.gauges = {
            "query_input_rate": progress.get("inputRowsPerSecond") or 0.0,
            "query_processed_rate": progress.get("processedRowsPerSecond") or 0.0,
        }
        took_ms = (progress.get("durationMs") or {}).get("triggerExecution")
        if took_ms is not None:
            self.gauges["query_batch_seconds"] = took_ms / 1000
        self.places |= dict(_places(progress.get("sources") or ()))

    def ended(self, *, failed: bool) -> None:
        """Note that a run has ended; its gauges and places are no longer valid."""
        self.running, self.gauges, self.places = False, {}, {}
        if failed:
            self._add("query_failures", 1)

    def samples(self) -> Iterator[Sample]:
        """Yield all samples of the query but its lag."""
        yield sample("query_running", self.running, self.label)
        counts = {"query_failures": 0.0, **self.counts}
        for name, value in (*counts.items(), *self.gauges.items()):
            yield sample(name, value, self.label)

    def _add(self, name: str, amount: float) -> None:
        self.counts[name] = self.counts.get(name, 0) + amount


def _places(sources: Any) -> Iterator[tuple[str, Place]]:
    for source in sources:
        match _value(source.get("endOffset")), _value(source.get("latestOffset")):
            case (
                {"offset": int(offset), "stream": str(stream), "generation": int(generation)},
                {"offset": int(tail), "url": str(url)},
            ):
                yield url, Place(stream, generation, offset, max(tail, offset))


def _value(offset: Any) -> Any:
    try:
        return json.loads(offset) if isinstance(offset, str) else offset
    except ValueError:
        return None  # an offset of another source


def forget_ended(queries: dict[str, Query]) -> None:
    """Forget the queries that ended first, beyond `MOST_ENDED`."""
    ended = [key for key, query in queries.items() if not query.running]
    for key in ended[: max(len(ended) - MOST_ENDED, 0)]:
        del queries[key]


class Watch:
    """Streams by location, and the queries that read them.

    Safe to use from several threads. If a stream can't be measured, its sample `up` is 0, and a
    warning is logged once.
    """

    def __init__(
        self,
        urls: Sequence[str | os.PathLike[str]] = (),
        *,
        storage_options: Mapping[str, Any] | None = None,
        every_s: float = EVERY_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options, self._every_s, self._now_s = storage_options, every_s, now_s
        self._queries: dict[str, Query] = {}
        self._telling = threading.Lock()
        self._streams: dict[str, _WatchedStream] = {}
        self._measuring = threading.Lock()
        for url in urls:
            self._find(url)

    # These three send no request, and wait for none.
    def started(self, query_id: str, name: str | None) -> None:
        """Note that a query runs."""
        with self._telling:
            self._query(query_id, name).running = True

    def progressed(self, progress: Mapping[str, Any]) -> None:
        """Note the progress of a query."""
        with self._telling:
            self._query(str(progress["id"]), progress.get("name")).progressed(progress)

    def ended(self, query_id: str, *, failed: bool) -> None:
        """Note that a query has ended."""
        with self._telling:
            query = self._query(query_id, None)
            query.ended(failed=failed)
            del self._queries[query_id]
            self._queries[query_id] = query  # in the order in which they ended
            forget_ended(self._queries)

    def _query(self, query_id: str, name: str | None) -> Query:
        found = self._queries.setdefault(query_id, Query(name or query_id))
        found.label = name or found.label
        return found

    def samples(self) -> list[Sample]:
        """Return all samples; streams are measured again if the last time is long enough ago."""
        with self._telling:
            # Exporters can't tell queries with the same label apart: the running one counts.
            known = sorted(self._queries.values(), key=lambda query: query.running)
            queries = {query.label: query for query in known}.values()
            told = [sample for query in queries for sample in query.samples()]
            places = [
                (query.label, url, place)
                for query in queries
                for url, place in query.places.items()
            ]
        with self._measuring:
            for _, url, _ in places:
                self._find(url)
            for stream in self._streams.values():
                stream.look(self._now_s(), self._every_s)
            seen = [sample for stream in self._streams.values() for sample in stream.samples()]
            lags = [
                sample
                for label, url, place in places
                for sample in self._find(url).lag_samples(label, place)
            ]
        return [*seen, *told, *lags]

    def _find(self, location: str | os.PathLike[str]) -> "_WatchedStream":
        url = resolve_location(location).url
        if url not in self._streams:
            self._streams[url] = _WatchedStream(url, self._options)
        return self._streams[url]


class _WatchedStream:
    """One stream: its newest figures, and its totals since it is watched."""

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None) -> None:
        self._url, self._options = url, storage_options
        self._context: StreamContext | None = None
        self._metrics: Metrics | None = None
        self._looked_s: float | None = None
        self._up = True
        self._seen_version: int | None = None
        self._commits = self._races = 0
        self._lapses: dict[str, int] = {}

    def look(self, now_s: float, every_s: float) -> None:
        """Measure the stream, unless that was done a short time ago."""
        if self._looked_s is not None and now_s - self._looked_s < every_s:
            return
        self._looked_s = now_s
        try:
            context = self._context or self._open()
            before, self._metrics = self._metrics, measure(context)
            self._count_commits(context)
        except SegstoreError as error:
            if self._up:
                _LOG.warning("%s can't be measured: %s", self._url, error)
            self._up, self._metrics = False, None
            # The stream may have been dropped, and another one be in its place.
            self._context = None
            return
        self._up, self._context = True, context
        live = {reader.name for reader in before.readers if reader.live} if before else set()
        self._lapses = {
            reader.name: self._lapses.get(reader.name, 0)
            + (not reader.live and reader.name in live)
            for reader in self._metrics.readers
        }

    def samples(self) -> Iterator[Sample]:
        """Yield the figures of the last look."""
        if self._metrics is None:
            yield sample("up", 0, self._url)
            return
        yield from stream_samples(self._metrics)
        yield sample("commits", self._commits, self._url)
        yield sample("races_lost", self._races, self._url)
        for name, count in self._lapses.items():
            yield sample("reader_lapses", count, self._url, name)

    def lag_samples(self, label: str, place: Place) -> Iterator[Sample]:
        """Yield a query's lag; by its own last progress if the stream can't be measured."""
        try:
            lag = self._lag(place)
        except SegstoreError as error:
            _LOG.warning("lag in %s can't be measured: %s", self._url, error)
            lag = None
        if lag is None:
            yield sample("query_lag_events", place.tail - place.offset, label, self._url)
            return
        yield sample("query_lag_events", lag.events, label, self._url)
        yield sample("query_lag_bytes", lag.bytes, label, self._url)
        if lag.seconds is not None:
            yield sample("query_lag_seconds", lag.seconds, label, self._url)

    def _lag(self, place: Place) -> Lag | None:
        context = self._context
        if context is None:
            return None
        if place.tail > context.log.root.tail:
            context.log.refresh()
        root = context.log.root
        if (place.stream_id, place.generation) != (root.stream_id, root.generation):
            return None
        return measure_lag(context, place.offset)

    def _open(self) -> StreamContext:
        storage = open_storage(self._url, self._options, single_writer=True)
        log = StreamLog(storage)
        log.open()
        return StreamContext.of(log)

    def _count_commits(self, context: StreamContext) -> None:
        root, seen = context.log.root, self._seen_version
        if seen is not None and seen < root.version:
            try:
                for rows in context.log.history.batches(root, seen + 1):
                    self._commits += rows.num_rows
                    self._races += pc.sum(rows["races_lost"]).as_py() or 0
            except FormatError as error:  # the metric `damaged` counts the damage
                _LOG.warning("commits to %s can't be counted: %s", self._url, error)
        self._seen_version = root.version
