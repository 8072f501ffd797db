"""The data of a stream's pictures, as plain values whose number does not grow with the stream.

Neighbouring segments are grouped into one bar, and neighbouring commits into one step. Tables have
the newest rows.
"""

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from segstore_ds.format import compute as pc
from segstore_ds.format.operation import Operation
from segstore_ds.format.parts.rows import Ints, column_values
from segstore_ds.format.root import Root
from segstore_ds.log.context import StreamContext
from segstore_ds.observe.figures import FORMATS, Metrics, Readable, Segments, figures_of
from segstore_ds.read.metadata_tables import open_table
from segstore_ds.status.epochs import stream_schema
from segstore_ds.status.table import readable_parts

BARS = 240
STEPS = 120
COMMITS_READ = 50_000
TABLE_ROWS = 20
TAGS_SHOWN = 6
LANES = 12
MIXED = "both"


@dataclass(frozen=True, slots=True)
class Bar:
    """Neighbouring segments that are drawn as one."""

    start: int  # offset of the first event, even if the head hides it
    end: int
    segments: int
    bytes: int
    format: str  # `MIXED` if they have several formats


@dataclass(frozen=True, slots=True)
class Step:
    """Neighbouring commits that are drawn as one: versions, times, and head and tail after them."""

    first: int
    last: int
    start: dt.datetime
    end: dt.datetime
    head: int
    tail: int
    commits: int


@dataclass(frozen=True, slots=True)
class Description:
    """A stream as of one version, for pictures."""

    figures: Metrics
    columns: Mapping[str, str]  # names and types
    bars: tuple[Bar, ...]  # in offset order, at most about `BARS`
    steps: tuple[Step, ...]  # of the newest `COMMITS_READ`, oldest first, at most about `STEPS`
    tags: tuple[tuple[int, str], ...]  # offsets and names of the first `TAGS_SHOWN`
    tags_count: int  # of all tags
    commits: tuple[Mapping[str, Any], ...]  # rows of the newest, without those of readers
    segments: tuple[Mapping[str, Any], ...]  # rows of the newest

    @property
    def start(self) -> int:
        """The first offset of the axis; events that the head hides are drawn, too."""
        return self.bars[0].start if self.bars else self.figures.head


def describe(context: StreamContext, *, storage: bool) -> Description:
    """Return the description of a stream's newest version; `storage` also lists its folder.

    Only the newest root has to be readable: other damaged metadata is left out, and named.
    """
    root, status, readable = context.log.refresh(), context.status, Readable()
    segments = Segments.of(context, root, root.head, readable)
    figures = figures_of(context, root, segments, readable, storage=storage)
    tags = sorted((tag.offset, name) for name, tag in root.tags.items())
    schema = readable.read(lambda: stream_schema(status, root)) or ()
    history = _history(context, root, readable)
    newest = readable.read(lambda: _newest_segments(context, root, segments.starts)) or ()
    commits = history.filter(pc.not_equal(history["operation"], Operation.READER.value))
    return Description(
        figures=replace(figures, damaged=tuple(readable.damaged)),
        columns={each.name: str(each.type) for each in schema},
        bars=_bars(segments, root.tail),
        steps=_steps(history),
        tags=tuple(tags[:TAGS_SHOWN]),
        tags_count=len(tags),
        commits=tuple(reversed(commits.slice(max(len(commits) - TABLE_ROWS, 0)).to_pylist())),
        segments=newest,
    )


def _bars(segments: Segments, tail: int) -> tuple[Bar, ...]:
    starts, rows = segments.starts, segments.rows
    if not len(starts):
        return ()
    firsts = _first_of_groups(starts, BARS, until=tail)
    lasts = np.append(firsts[1:], len(starts)) - 1
    sizes = np.add.reduceat(segments.bytes, firsts)
    low = np.minimum.reduceat(segments.formats, firsts)
    high = np.maximum.reduceat(segments.formats, firsts)
    return tuple(
        Bar(
            start=int(starts[first]),
            end=int(starts[last] + rows[last]),
            segments=int(last - first + 1),
            bytes=int(size),
            format=FORMATS[least] if least == most else MIXED,
        )
        for first, last, size, least, most in zip(firsts, lasts, sizes, low, high, strict=True)
    )


def _first_of_groups(values: Ints, groups: int, *, until: int) -> Ints:
    """Return the index of the first value in each of at most `groups` equal ranges of values."""
    width = max(until - int(values[0]), 1)
    group = ((values - values[0]) / width * groups).astype(np.int64)
    return np.flatnonzero(np.diff(group, prepend=-1))


def _history(context: StreamContext, root: Root, readable: Readable) -> pa.Table:
    history, first = context.log.history, max(root.version + 1 - COMMITS_READ, 0)
    batches: list[pa.RecordBatch] = []
    for part in readable_parts(history, root, lambda _, error: readable.note(error)):
        rows = readable.read(partial(history.part, part)) if part.end > first else None
        if rows is not None:
            batches.append(rows.slice(max(first - part.start, 0)))
    batches += history.batches(replace(root, history_lists=(), history_parts=()), first)
    return pa.Table.from_batches(batches)


def _steps(history: pa.Table) -> tuple[Step, ...]:
    (batch,) = history.combine_chunks().to_batches()
    times = column_values(batch, "time")
    firsts = _first_of_groups(times, STEPS, until=int(times[-1]) + 1)
    ends = np.append(firsts[1:], len(times))
    columns = {name: column_values(batch, name) for name in ("version", "head", "tail")}
    return tuple(
        Step(
            first=int(columns["version"][first]),
            last=int(columns["version"][end - 1]),
            start=batch["time"][first].as_py(),
            end=batch["time"][end - 1].as_py(),
            head=int(columns["head"][end - 1]),
            tail=int(columns["tail"][end - 1]),
            commits=end - first,
        )
        for first, end in zip(firsts.tolist(), ends.tolist(), strict=True)
    )


def _newest_segments(
    context: StreamContext, root: Root, starts: Ints
) -> tuple[Mapping[str, Any], ...]:
    if not len(starts):
        return ()
    span = (max(int(starts[-TABLE_ROWS:][0]), root.head), root.tail)
    found = [
        row for batch in open_table(context, "segments", root, span) for row in batch.to_pylist()
    ]
    return tuple(reversed(found))
