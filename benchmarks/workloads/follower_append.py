"""Appends to a stream with followers, every place far away."""

import uuid
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
from wrapped_storage import LatencyStorage

from benchmarks.datasets import EVENTS, events
from benchmarks.report import Found, Ratio
from benchmarks.workload import Race, Settings, race, workload
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout

FOLLOWERS = (0, 1, 2)
DELAY_S = 0.03
BATCH_ROWS = 10
BULK_ROWS = 4_000_000


class FarPlace(LatencyStorage):
    """A place far away, whose followers are as far away."""

    def sibling(self, url: str) -> Storage:
        """Open another place."""
        return FarPlace(self.inner.sibling(url), self._latency_s)


@workload(
    "every request waits 30 ms, whatever its size: bandwidth is not limited",
    "all places lie in this process's memory: nothing is synced, and nothing is sent",
    "one writer, one long-lived handle; appends with 0, 1 and 2 followers are interleaved",
    rows=40,
    tiny_rows=3,
)
def follower_append(settings: Settings) -> Found:
    """Append with 0, 1 and 2 followers, each place 30 ms away (rows: how many small appends)."""
    bulk = events(0, BULK_ROWS // 1000 if settings.tiny else BULK_ROWS)
    small = events(0, BATCH_ROWS)
    kinds = {
        "events in the commit": (small, Layout(), settings.rows, 3.1),
        "a segment object": (small, Layout(inline_bytes=0), settings.rows, 2.1),
        "bulk": (bulk, Layout(), settings.rounds, 1.1),
    }
    found, ratios = Race(), []
    for kind, (batch, layout, turns, goal) in kinds.items():
        timings = _measure(batch, layout, replace(settings, rounds=turns))
        found |= {f"{kind}, {name}": timing for name, timing in timings.items()}
        none, one, two = (timing.median for timing in timings.values())
        ratios += [
            Ratio(f"{kind}: one follower / none", one / none, goal, most=True),
            Ratio(f"{kind}: two followers / one", two / one, 1.05, most=True),
        ]
    setup = {"delay ms": DELAY_S * 1e3, "bulk append": f"{bulk.num_rows} events"}
    return Found(found.rows(), ratios, setup, found.raw)


def _measure(batch: pa.RecordBatch, layout: Layout, settings: Settings) -> Race:
    """Time appends by number of followers."""
    delay_s = 0.001 if settings.tiny else DELAY_S

    def append(_: Path, stream: Stream) -> None:
        stream.append(batch, layout=layout)

    streams = {f"{n} followers": _make(n, delay_s) for n in FOLLOWERS}
    with settings.scratch() as scratch:
        candidates = {name: partial(append, stream=each) for name, each in streams.items()}
        return race(candidates, settings, scratch)


def _make(followers: int, delay_s: float) -> Stream:
    near = open_storage(f"memory://{uuid.uuid4().hex}")
    stream = create_on(FarPlace(near, delay_s), EVENTS)
    for _ in range(followers):
        stream.followers.add(f"memory://{uuid.uuid4().hex}")
    return stream
