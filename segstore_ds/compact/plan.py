"""Plans a compaction: which neighbouring segments are merged, and which segments are split.

Pure. A run is a stretch of neighbours whose sums stay within the target in rows *and* in bytes. If
even a pair would exceed a target, there is nothing to do. A run keeps the order, offsets and rows
of its inputs, so it may be planned on one version and committed on another as long as the inputs
are listed. A segment that can't be merged with a neighbour, but has many tiny frames, is rewritten
alone if that at least halves the number of its frames. A split also rewrites a segment whose frames
are too large. Which segments may be in a run:

- Segments of a sealed stream, pinned segments, and segments that a clone shares with its origin:
  yes. The events do not change, and pinned objects stay in storage until the pin is removed.
- Segments of several epochs: in `merge`, if the older bytes can be converted to the newest schema
  of the run without losing a column; in `stitch`, which decodes nothing, never.

Rows of a plan pass through Spark and code of its user. So each row names its stream and version and
has a digest of all values that are used. A row that was altered, or is of another stream, is
refused before anything is read. The commit detects changes of the stream since the plan.

Source: the "do nothing if it would exceed" rule of Skyhook's compaction; CarbonData's minor (4, 3)
and major compaction.
"""

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from segstore_ds.errors import FormatError, InvalidInputError
from segstore_ds.format.arrow.index import RAW_UNIT, FrameEntry, count_raws
from segstore_ds.format.envelope import digest_of
from segstore_ds.format.inline import attach_to, join_frames
from segstore_ds.format.parts.rows import Ints
from segstore_ds.format.record import Positive, build_json, from_json, parse_json, to_json
from segstore_ds.format.root import SegmentEntry
from segstore_ds.format.segment import ARROW
from segstore_ds.options.arguments import MINOR, CompactRules
from segstore_ds.options.table import MERGE, SPLIT, STITCH, default
from segstore_ds.status.table_status import Slice
from segstore_ds.write.layout import FRAME_BYTES

# Most footer bytes of one run's inputs together. The output has at most as many frames, columns and
# pages as the inputs, and each takes 25 bytes of a footer. So this limit ends a run well before the
# output reaches the limit of a segment (`task_writer.MOST_PIECES`).
MOST_FOOTER_BYTES = 2 << 20

Joins = Callable[[int, int], bool]
# Returns the frames of a segment whose entry has no sizes of them; none if they may not be read.
Frames = Callable[[SegmentEntry], Sequence[FrameEntry]]


@dataclass(frozen=True, slots=True)
class Group:
    """Neighbouring segments that are replaced together."""

    inputs: tuple[Slice, ...]  # in offset order; a single one is split or rewritten
    epoch: int  # epoch of the outputs' bytes
    pieces: int = 1  # number of outputs
    rules: CompactRules = field(default_factory=CompactRules)  # the mode and the targets

    @property
    def start(self) -> int:
        """Offset of the first event."""
        return self.inputs[0].start

    @property
    def end(self) -> int:
        """Offset after the last event."""
        return self.inputs[-1].end

    @property
    def rows(self) -> int:
        """Number of events in the group."""
        return self.end - self.start

    @property
    def bytes(self) -> int:
        """Encoded bytes of the inputs."""
        return sum(segment.entry.bytes for segment in self.inputs)


@dataclass(slots=True)
class _Run:
    """A run that grows by one neighbour at a time."""

    rules: CompactRules
    inputs: list[Slice] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0
    footer_bytes: int = 0
    epochs: set[int] = field(default_factory=set)

    def takes(self, one: Slice, joins: Joins) -> bool:
        if (
            self.rows + one.entry.rows > self.rules.target_rows
            or self.bytes + one.entry.bytes > self.rules.most_bytes
            or self.footer_bytes + one.entry.footer_bytes > MOST_FOOTER_BYTES
        ):
            return False
        epochs = self.epochs | {one.entry.epoch}
        newest = max(epochs)
        return all(epoch == newest or joins(epoch, newest) for epoch in epochs)

    def add(self, one: Slice) -> None:
        self.inputs.append(one)
        self.rows += one.entry.rows
        self.bytes += one.entry.bytes
        self.footer_bytes += one.entry.footer_bytes
        self.epochs.add(one.entry.epoch)

    def group(self) -> Group:
        return Group(tuple(self.inputs), max(self.epochs), rules=self.rules)


def count_frames(entry: SegmentEntry, frames: Frames) -> tuple[int, int]:
    """Return the number of a segment's frames and their decompressed size in `RAW_UNIT`s."""
    if entry.frames:
        return entry.frames, entry.frame_raws
    read = frames(entry)  # the entry was written before it had these fields
    return len(read), count_raws(read)


def plan_groups(
    segments: Iterable[Slice],
    rules: CompactRules,
    *,
    joins: Joins = lambda _older, _newer: False,
    frames: Frames = lambda _entry: (),
    frame_rows: int = default("frameRows"),
) -> list[Group]:
    """Choose the groups to replace, in offset order and without overlap. Pure.

    `segments` are those of one version, in offset order and without a gap. `joins` returns True if
    bytes of an older epoch can be converted to a newer one. Frames of outputs have at most
    `frame_rows` events. A merge rewrites a single segment if that at least halves its `frames`; not
    with `minor`, which bounds the work after a commit. A split rewrites a segment whose frames are
    larger than allowed.
    """
    found: list[Group] = []
    for stretch in _stretches(segments, rules):
        if rules.mode == SPLIT:
            found.extend(_splits(stretch, rules, frames, frame_rows))
        else:
            joined = joins if rules.mode == MERGE else (lambda _older, _newer: False)
            runs = _minor_runs if rules.minor else _major_runs
            found.extend(
                group
                for group in runs(stretch, rules, joined)
                if len(group.inputs) > 1
                or (rules.mode == MERGE and _halves(group.inputs[0].entry, frames, frame_rows))
            )
    return _within_budget(found, rules.budget_bytes)


def _halves(entry: SegmentEntry, frames: Frames, frame_rows: int) -> bool:
    """Tell whether a rewrite at least halves a segment's frames; a second rewrite never does."""
    count, raws = count_frames(entry, frames)
    return count >= 2 * most_frames(entry.rows, raws, frame_rows)


def _has_large(entry: SegmentEntry, frames: Frames, frame_rows: int) -> bool:
    """Tell whether a segment has frames above the limit of rows, or above twice that of bytes.

    A rewrite leaves no such frame: its frames have at most `FRAME_BYTES` of values and less than
    that of padding. Only a single row may be larger.
    """
    count, raws = count_frames(entry, frames)
    if entry.rows > count * frame_rows > 0:
        return True
    return raws * RAW_UNIT >= 2 * count * FRAME_BYTES and any(
        frame.rows > 1 and frame.raw_bytes >= 2 * FRAME_BYTES for frame in frames(entry)
    )


def most_frames(rows: int, raws: int, frame_rows: int) -> int:
    """Return the most frames that a rewrite makes. Pure.

    A frame ends where the next piece of a batch would not fit, so two neighbours together exceed
    the rows or the bytes of one frame. `raws` are units of `RAW_UNIT`.

    >>> most_frames(100, 1, 100), most_frames(101, 1, 100), most_frames(10, 257, 100)
    (1, 3, 5)
    """
    filled = (rows / frame_rows, raws * RAW_UNIT / FRAME_BYTES)
    return 1 if max(filled) <= 1 else int(2 * sum(filled)) + 1


def plan_pieces(rows: int, size: int, rules: CompactRules) -> int:
    """Return the number of near-equal pieces to cut a segment into; 1 means no cut. Pure.

    >>> rules = CompactRules("split", target_rows=10, target_bytes=100)
    >>> plan_pieces(10, 100, rules), plan_pieces(11, 100, rules), plan_pieces(3, 1000, rules)
    (1, 2, 3)
    """
    wanted = max(-(-rows // rules.target_rows), -(-size // rules.target_bytes))
    return max(min(wanted, rows), 1)


def _stretches(segments: Iterable[Slice], rules: CompactRules) -> Iterator[Iterable[Slice]]:
    if rules.mode != STITCH:
        yield segments
        return
    # Only Arrow frames can be joined without decoding; any other segment ends the stretch.
    for form, stretch in groupby(segments, lambda segment: segment.entry.format):
        if form == ARROW:
            yield stretch


def _splits(
    stretch: Iterable[Slice], rules: CompactRules, frames: Frames, frame_rows: int
) -> Iterator[Group]:
    for segment in stretch:
        pieces = plan_pieces(segment.entry.rows, segment.entry.bytes, rules)
        if pieces > 1 or _has_large(segment.entry, frames, frame_rows):
            yield Group((segment,), segment.entry.epoch, pieces, rules)


def _major_runs(stretch: Iterable[Slice], rules: CompactRules, joins: Joins) -> Iterator[Group]:
    run = _Run(rules)
    for segment in stretch:
        if run.inputs and not run.takes(segment, joins):
            yield run.group()
            run = _Run(rules)
        run.add(segment)
    if run.inputs:
        yield run.group()


def _minor_runs(stretch: Iterable[Slice], rules: CompactRules, joins: Joins) -> Iterator[Group]:
    segments, first = [*stretch], 0
    while first < len(segments):
        group = _minor_run(segments, first, rules, joins)
        if group is None:
            first += 1
        else:
            yield group
            first += len(group.inputs)


def _minor_run(
    stretch: Sequence[Slice], first: int, rules: CompactRules, joins: Joins
) -> Group | None:
    run, best, largest = _Run(rules), None, 0
    for place in range(first, len(stretch)):
        segment = stretch[place]
        if not run.takes(segment, joins):
            break
        run.add(segment)
        largest = max(largest, segment.entry.bytes)
        small, medium = rules.minor or MINOR
        fan_in = small if run.bytes * 3 < rules.target_bytes else medium
        if len(run.inputs) >= fan_in and run.bytes >= 2 * largest:
            best = run.group()
    return best


def _within_budget(groups: Sequence[Group], budget_bytes: int | None) -> list[Group]:
    if budget_bytes is None:
        return list(groups)
    kept: list[Group] = []
    for group in reversed(groups):
        if group.bytes > budget_bytes:
            break
        budget_bytes -= group.bytes
        kept.append(group)
    return kept[::-1]


def small_segments(rows: Ints, sizes: Ints, rules: CompactRules | None = None) -> tuple[int, int]:
    """Return how many segments fit into one with a neighbour, and their encoded bytes.

    `rows` and `sizes` are those of non-empty segments in offset order. After a compaction of all of
    them only segments are left whose schemas can't be joined.

    >>> rules = CompactRules(target_rows=10, target_bytes=100)
    >>> small_segments(np.array([9, 9, 1, 3]), np.array([5, 6, 7, 8]), rules)
    (3, 21)
    """
    rules = rules or CompactRules()
    joins = (rows[:-1] + rows[1:] <= rules.target_rows) & (
        sizes[:-1] + sizes[1:] <= rules.target_bytes
    )
    small = np.append(joins, [False]) | np.append([False], joins)
    return int(small[: len(rows)].sum()), int(sizes[small[: len(rows)]].sum())


PLAN_SCHEMA = pa.schema(
    [
        ("stream", pa.string()),
        ("version", pa.int64()),
        ("number", pa.int64()),
        ("start", pa.int64()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("segments", pa.int64()),
        ("plan", pa.string()),
        ("digest", pa.string()),
    ]
)
_WHERE = "compaction plan"
_UNCHANGED = "write the rows of metadata=compactionPlan unchanged"


@dataclass(frozen=True, slots=True)
class _Plan:
    mode: str
    target_rows: Positive
    target_bytes: Positive
    epoch: int
    pieces: Positive
    inputs: tuple[SegmentEntry, ...]
    frames: str


def build_row(stream_id: str, version: int, number: int, group: Group) -> dict[str, Any]:
    """Return a group as a row of `PLAN_SCHEMA`."""
    entries = tuple(placed.entry for placed in group.inputs)
    plan = _Plan(
        group.rules.mode,
        group.rules.target_rows,
        group.rules.target_bytes,
        group.epoch,
        group.pieces,
        entries,
        # Inline frames: tasks don't read the log, and the newest commit may not have them then.
        b64encode(join_frames(entries)).decode(),
    )
    row: dict[str, Any] = {
        "stream": stream_id,
        "version": version,
        "number": number,
        "start": group.start,
        "rows": group.rows,
        "bytes": group.bytes,
        "segments": len(group.inputs),
        "plan": build_json(to_json(plan)).decode(),
    }
    return {**row, "digest": _digest(row)}


def parse_row(row: Mapping[str, Any], *, stream_id: str) -> Group:
    """Return the group of a row, or raise InvalidInputError if the row was changed."""
    if row["digest"] != _digest(row):
        raise InvalidInputError(
            "a row of the compaction plan was changed", remedy=_UNCHANGED, number=row["number"]
        )
    if row["stream"] != stream_id:
        raise InvalidInputError(
            "the compaction plan belongs to another stream",
            remedy="plan the compaction of the stream that you write to",
            plan=row["stream"],
            stream=stream_id,
        )
    try:
        plan = from_json(_Plan, parse_json(row["plan"], where=_WHERE), where=_WHERE)
        rules = CompactRules(plan.mode, plan.target_rows, plan.target_bytes)
        attach_to(plan.inputs, b64decode(plan.frames), where=_WHERE)
    except FormatError as error:
        raise InvalidInputError(
            "not a row of a compaction plan", remedy=_UNCHANGED, number=row["number"]
        ) from error
    placed, start = [], int(row["start"])
    for entry in plan.inputs:
        placed.append(Slice(start, entry))
        start += entry.rows
    group = Group(tuple(placed), plan.epoch, plan.pieces, rules)
    if not placed or group.rows != row["rows"]:
        raise InvalidInputError(
            "not a row of a compaction plan", remedy=_UNCHANGED, number=row["number"]
        )
    return group


def _digest(row: Mapping[str, Any]) -> str:
    kept = {name: row[name] for name in PLAN_SCHEMA.names if name != "digest"}
    return digest_of(build_json(kept))
