"""Inline segments: one small frame each, after the body of the commit file that lists it.

The entry of an inline segment holds its frame, and the segment is read from there. It has a path
that no object has, and no header or footer. In the process that encoded it, it has its rows, too.

Pure. Decoding a commit file does not verify its frames, so a damaged frame hides nothing else.
"""

from collections.abc import Iterable
from operator import attrgetter

import pyarrow as pa

from segstore_ds.checksum import crc32
from segstore_ds.errors import CorruptionError, TruncatedObjectError
from segstore_ds.format import names
from segstore_ds.format.arrow.frame import Frame
from segstore_ds.format.arrow.index import FrameEntry
from segstore_ds.format.arrow.segment import ArrowEncoder, ArrowIndex
from segstore_ds.format.root import InlineFrame, Root, SegmentEntry, frame_of
from segstore_ds.format.statistics import Stats, entry_stats, parse_piece

FRAME_MOST_BYTES = 4096  # larger frames become objects
SHARE_BYTES = 10 << 10  # most bytes of all frames in a commit file: each commit writes them again
SHARE_HARD_BYTES = 24 << 10  # the same, after a lost race
_data_of = attrgetter("data")
_NO_STATS = Stats(1, {})


def encoded_entry(segment_id: int, frame: Frame) -> SegmentEntry:
    """Return the entry of the inline segment of an encoded frame."""
    size, data = frame.data.size, frame.data.to_pybytes()
    stored = InlineFrame(size, frame.crc, frame.raw_bytes, frame.fingerprint, data, frame.batch)
    facts = (names.build_inline_path(segment_id), frame.rows, size, 0, 0)
    return SegmentEntry(segment_id, *facts, stats=entry_stats(frame.stats), frame=stored)


def lay_out(frames: Iterable[Frame]) -> tuple[bytes, SegmentEntry]:
    """Return an Arrow segment of some frames as bytes, and its entry without a path."""
    writer = ArrowEncoder()
    pieces = [writer.start()]
    pieces += [data.to_pybytes() for frame in frames for data in writer.add(frame)]
    end, laid = writer.finish()
    return b"".join((*pieces, end)), laid


def join_frames(entries: Iterable[SegmentEntry]) -> bytes:
    """Return the frames of inline entries, joined."""
    return b"".join(map(_data_of, filter(None, map(frame_of, entries))))


def attach_to(entries: Iterable[SegmentEntry], frames: bytes, *, where: str) -> None:
    """Set the frames of entries that were just parsed from what `join_frames` returned."""
    start = 0
    for frame in filter(None, map(frame_of, entries)):
        # Safe, as nobody else has it yet; copies would take a tenth of a poll's time.
        object.__setattr__(frame, "data", frames[start : start + frame.size])
        start += frame.size
    if len(frames) < start:
        raise TruncatedObjectError(
            "file ends within its frames", where=where, expected=start, actual=len(frames)
        )
    if len(frames) > start:
        raise CorruptionError(
            "extra bytes after the body", where=where, expected=start, actual=len(frames)
        )


def frame_is_sound(frame: InlineFrame | Frame) -> bool:
    """Tell whether an inline frame passes its checksum."""
    return crc32(frame.data) == frame.crc


def same_frame(root: Root, entry: SegmentEntry) -> InlineFrame | None:
    """Return a root's frame of the same segment, whatever its bytes; None if it is not listed."""

    def facts(other: SegmentEntry) -> tuple[object, ...]:
        frame = other.frame
        described = frame and (frame.crc, len(frame.data), frame.raw_bytes, frame.fingerprint)
        return other.segment_id, other.rows, other.stats, described

    wanted = facts(entry)
    return next((other.frame for other in root.entries if facts(other) == wanted), None)


def index_of(entry: SegmentEntry, frame: InlineFrame) -> ArrowIndex:
    """Return the index of an inline segment: its frame, whose bytes begin at 0.

    The frame has no statistics of its own, since readers have used those of the entry.
    """
    facts = (entry.rows, frame.crc, frame.fingerprint, frame.raw_bytes)
    return ArrowIndex((FrameEntry(0, frame.size, *facts),), _NO_STATS, frame.batch)


def stored_frame(entry: SegmentEntry, frame: InlineFrame) -> Frame:
    """Return the frame of an inline segment, unverified."""
    return Frame(
        data=pa.py_buffer(frame.data),
        rows=entry.rows,
        crc=frame.crc,
        stats=parse_piece(entry.stats, where=entry.path),
        fingerprint=frame.fingerprint,
        raw_bytes=frame.raw_bytes,
        batch=frame.batch,
    )
