"""Inline segments: one small frame each, behind the body of the commit file that lists it.

In memory an inline segment is an Arrow segment like any other, under a name that no object has. Its
header and footer are made from the entry, so whatever reads, copies or compacts segments works
without knowing. Only the commit file and the commit that makes objects of inline segments do.

Pure. A damaged frame hides nothing else: decoding a commit file does not compare its frames.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

import pyarrow as pa

from segstore_ds.checksum import crc32
from segstore_ds.errors import CorruptionError, TruncatedObjectError
from segstore_ds.format import names
from segstore_ds.format.arrow.frame import Frame
from segstore_ds.format.arrow.segment import ArrowEncoder
from segstore_ds.format.root import InlineFrame, SegmentEntry, StagedSegment
from segstore_ds.format.statistics import entry_stats, parse_stats

FRAME_MOST_BYTES = 4096  # a larger commit is a segment
SHARE_BYTES = 10 << 10  # of the commit file: more would write each event's bytes too often
SHARE_HARD_BYTES = 24 << 10  # after a lost race


def encoded_entry(segment_id: int, frame: Frame) -> SegmentEntry:
    """Return the entry of the inline segment of an encoded frame."""
    size, data = frame.data.size, frame.data.to_pybytes()
    stored = InlineFrame(size, frame.crc, frame.raw_bytes, frame.fingerprint, data, frame.batch)
    facts = (names.build_inline_path(segment_id), frame.rows, size, 0, 0)
    return SegmentEntry(segment_id, *facts, stats=entry_stats(frame.stats), frame=stored)


def laid_out(entry: SegmentEntry) -> SegmentEntry:
    """Return an entry as of the object that readers of an inline segment see."""
    if entry.frame is None:
        return entry
    _, laid = _lay_out(entry.frame, entry.rows, entry.stats)
    found = replace(laid, path=entry.path).entry(entry.segment_id)
    return replace(found, stats=entry.stats, frame=entry.frame)


def renumbered(entry: SegmentEntry, segment_id: int) -> SegmentEntry:
    """Return an entry with another id; the path of an inline one follows its id."""
    path = names.build_inline_path(segment_id) if entry.frame else entry.path
    return replace(entry, segment_id=segment_id, path=path)


def inline_object(entry: SegmentEntry, frame: InlineFrame) -> bytes:
    """Return the Arrow segment that an inline segment is in memory."""
    return _lay_out(frame, entry.rows, entry.stats)[0]


def lay_out(frames: Iterable[Frame]) -> tuple[bytes, StagedSegment]:
    """Return an Arrow segment of some frames as bytes, and as a segment without a path."""
    writer = ArrowEncoder()
    pieces = [writer.start()]
    pieces += [data.to_pybytes() for frame in frames for data in writer.add(frame)]
    end, laid = writer.finish()
    return b"".join((*pieces, end)), laid


def join_frames(entries: Iterable[SegmentEntry]) -> bytes:
    """Return the frames of the inline ones of some entries, one behind the other."""
    return b"".join([entry.frame.data for entry in entries if entry.frame])


def attach_to(
    entries: Sequence[SegmentEntry], frames: bytes, *, where: str
) -> tuple[SegmentEntry, ...]:
    """Return parsed entries with the frames that `join_frames` gave.

    Raises:
        TruncatedObjectError: They declare more bytes.
        CorruptionError: They declare fewer bytes.
    """
    found, start = [*entries], 0
    for place, entry in enumerate(entries):
        if (frame := entry.frame) is not None:
            data = frames[start : start + frame.size]
            found[place] = replace(entry, frame=replace(frame, data=data))
            start += frame.size
    if len(frames) < start:
        raise TruncatedObjectError(
            "file ends within its frames", where=where, expected=start, actual=len(frames)
        )
    if len(frames) > start:
        raise CorruptionError(
            "extra bytes after the body", where=where, expected=start, actual=len(frames)
        )
    return tuple(found)


@lru_cache(maxsize=256)
def _lay_out(frame: InlineFrame, rows: int, stats: str | None) -> tuple[bytes, StagedSegment]:
    return lay_out([stored_frame(frame, rows, stats)])


def frame_is_sound(frame: InlineFrame | Frame) -> bool:
    """Tell whether an inline frame has its checksum."""
    return crc32(frame.data) == frame.crc


def stored_frame(frame: InlineFrame, rows: int, stats: str | None) -> Frame:
    """Return the frame of an inline segment; its checksum may be wrong."""
    return Frame(
        data=pa.py_buffer(frame.data),
        rows=rows,
        crc=frame.crc,
        stats=parse_stats(stats, where="statistics of an inline segment") if stats else {},
        fingerprint=frame.fingerprint,
        raw_bytes=frame.raw_bytes,
        batch=frame.batch,
    )
