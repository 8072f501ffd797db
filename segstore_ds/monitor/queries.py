"""What streaming queries have told of themselves: Spark's progress as values. No I/O."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from segstore_ds.monitor.series import Sample, sample

MOST_ENDED = 100  # how many queries that have ended are remembered


@dataclass(frozen=True, slots=True)
class Place:
    """How far a query has come in a stream, and the tail when its last batch was planned."""

    stream_id: str
    generation: int
    offset: int
    tail: int


@dataclass(slots=True)
class Query:
    """One query by its id, which outlives its runs.

    Attributes:
        label: Its name, or its id if it has none.
        running: Whether it runs.
        places: How far it has come, by the location of the stream.
        batch: Run and number of its last batch.
        gauges: What its last progress said, by metric.
        counts: What has been added up, by metric.
    """

    label: str
    running: bool = True
    places: dict[str, Place] = field(default_factory=dict)
    batch: tuple[str, int] | None = None
    gauges: dict[str, float] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)

    def progressed(self, progress: Mapping[str, Any]) -> None:
        """Take over a progress, as `query.lastProgress` has it."""
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
        """Note that a run has ended; what it said last holds no more."""
        self.running, self.gauges, self.places = False, {}, {}
        if failed:
            self._add("query_failures", 1)

    def samples(self) -> Iterator[Sample]:
        """Yield all but the lag."""
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
        return None  # of another source


def forget_ended(queries: dict[str, Query]) -> None:
    """Forget the queries that ended first, beyond a bound."""
    ended = [key for key, query in queries.items() if not query.running]
    for key in ended[: max(len(ended) - MOST_ENDED, 0)]:
        del queries[key]
