"""Appends to a stream with followers, every place far away."""

import statistics
import time
import uuid
from typing import Any

import pyarrow as pa
from wrapped_storage import LatencyStorage

from benchmarks.datasets import EVENTS, events
from benchmarks.report import Ratio, Report, machine
from benchmarks.workload import Settings, Workload
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream import Stream, create_on
from segstore_ds.write.layout import Layout

MEANING = "append with 0, 1 and 2 followers, each place 30 ms away (rows: how many small appends)"
FOLLOWERS = (0, 1, 2)
DELAY_S = 0.03
BATCH_ROWS = 10
BULK_ROWS = 4_000_000
WARM = 2
GOALS = {"events in the commit": 3.1, "a segment object": 2.1, "bulk": 1.1}
FLATTERS = (
    "every request waits 30 ms, whatever its size: bandwidth is not limited",
    "all places lie in this process's memory: nothing is synced, and nothing is sent",
    "one writer, one long-lived handle; appends with 0, 1 and 2 followers are interleaved",
)


class FarPlace(LatencyStorage):
    """A place far away, whose followers are as far away."""

    def sibling(self, url: str) -> Storage:
        """Open another place."""
        return FarPlace(self.inner.sibling(url), self._latency_s)


def run(settings: Settings) -> Report:
    """Measure small appends of both kinds, and bulk appends."""
    delay_s = 0.001 if settings.tiny else DELAY_S
    bulk = events(0, BULK_ROWS // 1000 if settings.tiny else BULK_ROWS)
    small = events(0, BATCH_ROWS)
    kinds = {
        "events in the commit": (small, Layout(), settings.rows),
        "a segment object": (small, Layout(inline_bytes=0), settings.rows),
        "bulk": (bulk, Layout(), settings.rounds),
    }
    medians: dict[tuple[str, int], float] = {}
    rows: list[dict[str, Any]] = []
    for kind, (batch, layout, turns) in kinds.items():
        for followers, times in _measure(batch, layout, turns, delay_s).items():
            medians[kind, followers] = statistics.median(times)
            rows.append(
                {
                    "append": kind,
                    "followers": followers,
                    "median ms": round(medians[kind, followers], 1),
                    "spread": f"{min(times):.1f}-{max(times):.1f}",
                    "beside none": round(medians[kind, followers] / medians[kind, 0], 2),
                }
            )
    return Report(
        workload="follower_append",
        meaning=MEANING,
        setup=machine(settings.folder)
        | {"delay ms": delay_s * 1e3, "bulk append": f"{bulk.num_rows} events"},
        rows=rows,
        ratios=[ratio for kind in kinds for ratio in _ratios(kind, medians)],
        flatters=FLATTERS,
    )


def _measure(
    batch: pa.RecordBatch, layout: Layout, turns: int, delay_s: float
) -> dict[int, list[float]]:
    """Return the milliseconds of appends by number of followers, interleaved."""
    streams = {followers: _make(followers, delay_s) for followers in FOLLOWERS}
    times: dict[int, list[float]] = {followers: [] for followers in FOLLOWERS}
    for turn in range(WARM + turns):
        for followers, stream in streams.items():
            start = time.perf_counter()
            stream.append(batch, layout=layout)
            if turn >= WARM:
                times[followers].append((time.perf_counter() - start) * 1e3)
    return times


def _make(followers: int, delay_s: float) -> Stream:
    near = open_storage(f"memory://{uuid.uuid4().hex}")
    stream = create_on(FarPlace(near, delay_s), EVENTS)
    for _ in range(followers):
        stream.add_follower(f"memory://{uuid.uuid4().hex}")
    return stream


def _ratios(kind: str, medians: dict[tuple[str, int], float]) -> list[Ratio]:
    none, one, two = (medians[kind, followers] for followers in FOLLOWERS)
    return [
        Ratio(f"{kind}: one follower / none", one / none, GOALS[kind], most=True),
        Ratio(f"{kind}: two followers / one", two / one, 1.05, most=True),
    ]


WORKLOADS = {"follower_append": Workload(MEANING, run, 40, 3)}
