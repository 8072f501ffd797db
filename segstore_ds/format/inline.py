"""Inline segments: one small frame each, behind the body of the commit file that lists it.

In memory an inline segment is an Arrow segment like any other, under a name that no object has. Its
header and footer are made from the entry, so whatever reads, copies or compacts segments works
without knowing. Only the commit file and the commit that makes objects of inline segments do.

Pure. The checksum of a frame is compared by its readers, so that a damaged frame hides nothing
else.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

import pyarrow as pa

from segstore_ds.errors import CorruptionError, TruncatedObjectError
from segstore_ds.format import names
from segstore_ds.format.arrow.frame import Frame
from segstore_ds.format.arrow.segment import ArrowEncoder
from segstore_ds.format.root import InlineFrame, Root, SegmentEntry, StagedSegment
from segstore_ds.format.statistics import entry_stats, parse_stats

FRAME_MOST_BYTES = 4096  # a larger commit is a segment
SHARE_BYTES = 10 << 10  # of the commit file: more would write each event's bytes too often
SHARE_HARD_BYTES = 24 << 10  # after a lost race


def inline_entry(segment_id: int, rows: int, frame: InlineFrame, stats: str | None) -> SegmentEntry:
    """Return the entry of an inline segment."""
    _, laid = _lay_out(frame, rows, stats)
    facts = (rows, laid.bytes, laid.footer_bytes, laid.footer_crc, laid.format, stats, frame)
    path = names.build_inline_path(segment_id)
    return SegmentEntry(segment_id, path, *facts, laid.frames, laid.frame_raws)


def encoded_entry(segment_id: int, frame: Frame) -> SegmentEntry:
    """Return the entry of the inline segment of an encoded frame."""
    stored = InlineFrame(frame.data.to_pybytes(), frame.crc, frame.raw_bytes, frame.fingerprint)
    return inline_entry(segment_id, frame.rows, stored, entry_stats(frame.stats))


def renumbered(entry: SegmentEntry, segment_id: int) -> SegmentEntry:
    """Return an entry with another id; the path of an inline one follows its id."""
    path = names.build_inline_path(segment_id) if entry.frame else entry.path
    return replace(entry, segment_id=segment_id, path=path)


def inline_object(entry: SegmentEntry, frame: InlineFrame) -> bytes:
    """Return the Arrow segment that an inline segment is in memory."""
    return _lay_out(frame, entry.rows, entry.stats)[0]


def stored_frame(entry: SegmentEntry, frame: InlineFrame) -> Frame:
    """Return the frame of an inline segment; its checksum may be wrong."""
    return _frame(frame, entry.rows, entry.stats)


def lay_out(frames: Iterable[Frame]) -> tuple[bytes, StagedSegment]:
    """Return an Arrow segment of some frames as bytes, and as a segment without a path."""
    writer = ArrowEncoder()
    pieces = [writer.start()]
    pieces += [data.to_pybytes() for frame in frames for data in writer.add(frame)]
    end, laid = writer.finish()
    return b"".join((*pieces, end)), laid


def frames_of(root: Root) -> bytes:
    """Return what lies behind the body of a root's commit file."""
    return join_frames(root.entries)


def join_frames(entries: Iterable[SegmentEntry]) -> bytes:
    """Return the frames of the inline ones of some entries, one behind the other."""
    return b"".join([entry.frame.data for entry in entries if entry.frame])


def attach_frames(root: Root, frames: bytes, *, where: str) -> Root:
    """Return a decoded root with the frames that lay behind its body.

    Raises:
        TruncatedObjectError: The root declares more bytes.
        CorruptionError: It declares fewer bytes, or statistics can't be read.
    """
    declared = sum(entry.bytes for entry in root.entries if entry.frame)
    if len(frames) < declared:
        raise TruncatedObjectError(
            "file ends within its frames", where=where, expected=declared, actual=len(frames)
        )
    if len(frames) > declared:
        raise CorruptionError(
            "extra bytes after the body", where=where, expected=declared, actual=len(frames)
        )
    return replace(root, entries=attach_to(root.entries, frames)) if declared else root


def attach_to(entries: Sequence[SegmentEntry], frames: bytes) -> tuple[SegmentEntry, ...]:
    """Return parsed entries with the frames that `join_frames` gave."""
    found, start = list[SegmentEntry](), 0
    for entry in entries:
        if entry.frame is not None:
            end = start + entry.bytes
            frame = replace(entry.frame, data=frames[start:end])
            found.append(inline_entry(entry.segment_id, entry.rows, frame, entry.stats))
            start = end
        else:
            found.append(entry)
    return tuple(found)


@lru_cache(maxsize=256)
def _lay_out(frame: InlineFrame, rows: int, stats: str | None) -> tuple[bytes, StagedSegment]:
    return lay_out([_frame(frame, rows, stats)])


def _frame(frame: InlineFrame, rows: int, stats: str | None) -> Frame:
    return Frame(
        data=pa.py_buffer(frame.data),
        rows=rows,
        crc=frame.crc,
        stats=parse_stats(stats, where="statistics of an inline segment") if stats else {},
        fingerprint=frame.fingerprint,
        raw_bytes=frame.raw_bytes,
    )
