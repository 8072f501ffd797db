"""Redacts one segment: finds the matching events, and writes it again without their values.

All that is written, also dictionaries, statistics and indexes, is made from decoded columns. A
redacted column is a `take` by indices with nulls. So the slots of its nulls hold zeros, and no
child buffer of a list, string or struct holds the old values.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from segstore_ds.compact.commit import Replacement, discard, run_each
from segstore_ds.compact.plan import Group
from segstore_ds.compact.rewrite import CompactJob, events_of
from segstore_ds.errors import InternalError
from segstore_ds.format import names
from segstore_ds.format.root import PartRef
from segstore_ds.read.plan import Reading, ReadTask
from segstore_ds.read.prefetch import read_ahead
from segstore_ds.read.prune import Key, find_keys, part_test
from segstore_ds.read.scan import run_task
from segstore_ds.redact.plan import Wanted
from segstore_ds.status.table_status import Run, Slice
from segstore_ds.write.task_writer import TaskWriter

SEGMENTS_AT_ONCE = 4  # one is encoded while another is synced
_OFFSET = "offset"


@dataclass(frozen=True, slots=True)
class RedactJob:
    """What all segments of a redaction share; picklable."""

    job: CompactJob = field(repr=False)
    wanted: Mapping[int, Wanted] = field(repr=False)  # by epoch
    tail: int  # events from this offset on are not changed

    def run(self, rows: Iterable[Slice]) -> Generator["RedactedSegment", None, None]:
        """Redact segments, several at once."""
        nonce = self.job.clock.new_id()[:12]
        return run_each(
            lambda number, placed: redact_segment(self, placed, number=number, nonce=nonce),
            rows,
            lambda done: discard(self.job.storage, (each.run for each in done)),
            threads=SEGMENTS_AT_ONCE,
            weigh=lambda placed: placed.entry.bytes,
        )

    def size(self, rows: Iterable[Slice]) -> int:
        """Return the encoded size of segments in bytes."""
        return sum(placed.entry.bytes for placed in rows)

    def keys(self) -> dict[int, tuple[Key, ...]]:
        """Return the keys that the filters look up in segments, by epoch."""
        return {
            number: find_keys(each.filters, each.stored) for number, each in self.wanted.items()
        }

    def part_test(self) -> Callable[[PartRef], bool]:
        """Return a function that tells whether an event of a part may match."""
        newest = self.wanted[max(self.wanted)]
        if not all(each.filters for each in self.wanted.values()):
            return lambda _part: True
        return part_test(newest.filters, newest.schema)

    def may_match(self, run: Run) -> npt.NDArray[np.bool_]:
        """Tell for each segment of a run whether an event may match."""
        may: npt.NDArray[np.bool_] = run.starts < self.tail
        epochs = run.columns.epochs
        for number in np.unique(epochs).tolist():
            may &= self.wanted[number].may_match(run) | (epochs != number)
        return may


@dataclass(frozen=True, slots=True)
class RedactedSegment:
    """A segment that was searched: how many events matched, and its replacement if any did."""

    placed: Slice = field(repr=False)
    rows: int = 0
    run: Replacement | None = None


def redact_segment(job: RedactJob, placed: Slice, *, number: int, nonce: str) -> RedactedSegment:
    """Search a segment; if an event matches, stage its replacement.

    `number` and `nonce` are parts of the staged names. Nothing is visible before
    `commit_redaction`; if this fails, staged objects are deleted.
    """
    matched = find_matches(job, placed)
    if matched is None:
        return RedactedSegment(placed)
    entry, token = placed.entry, names.build_token(job.job.version, nonce)
    target = job.job.target(entry.epoch, token, form=entry.format)
    batches = _without(job, placed, matched)
    staged = TaskWriter(target, number, names.REDACTED).stage(read_ahead(batches))
    group = Group((placed,), entry.epoch)
    inputs = ((entry.segment_id, entry.path),)
    run = Replacement(group.start, inputs, group.rows, group.epoch, staged.segments)
    return RedactedSegment(placed, int(matched.sum()), run)


def find_matches(
    job: RedactJob, placed: Slice
) -> "np.ndarray[tuple[int], np.dtype[np.bool_]] | None":
    """Return which events of a segment match; None if none does. Reads the columns it needs."""
    wanted = job.wanted[placed.entry.epoch]
    if placed.start >= job.tail or not wanted.columns:
        return None
    end = min(placed.end, job.tail)
    offset = _OFFSET
    while offset in wanted.schema.names:
        offset += "_"
    reading = Reading(
        storage=job.job.storage,
        stream_id=job.job.stream_id,
        version=job.job.version,
        start=placed.start,
        end=end,
        epochs=job.job.epochs,
        schema=wanted.schema,
        columns=wanted.columns,
        filters=wanted.filters,
        offset_column=offset,
    )
    matched = np.zeros(placed.entry.rows, np.bool_)
    for batch in run_task(reading, ReadTask((placed.cut(placed.start, end),))):
        held = np.zeros(batch.num_rows, np.bool_)
        for name in wanted.columns:
            held |= batch.column(name).is_valid().to_numpy(zero_copy_only=False)
        matched[batch.column(offset).to_numpy()[held] - placed.start] = True
    return matched if matched.any() else None


def _without(
    job: RedactJob, placed: Slice, matched: "np.ndarray[tuple[int], np.dtype[np.bool_]]"
) -> Iterator[pa.RecordBatch]:
    """Yield a segment's events with nulls in matched rows."""
    columns, row = job.wanted[placed.entry.epoch].columns, 0
    for batch in events_of(job.job, placed.entry.epoch, [placed]):
        part = matched[row : row + batch.num_rows]
        row += batch.num_rows
        yield with_nulls(batch, columns, part) if part.any() else batch
    if row != placed.entry.rows:
        raise InternalError("a segment was not read completely", path=placed.entry.path, rows=row)


def with_nulls(
    batch: pa.RecordBatch,
    columns: tuple[str, ...],
    matched: "np.ndarray[tuple[int], np.dtype[np.bool_]]",
) -> pa.RecordBatch:
    """Return a batch with nulls in some columns of some rows; no buffer holds the old values."""
    places = pa.array(np.arange(batch.num_rows, dtype=np.int64), mask=matched)
    arrays = [
        column.take(places) if name in columns else column
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)
