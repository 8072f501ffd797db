"""The index of a segment: where each frame is and what it holds.

It is stored as JSON with one array per field and one element per frame, which zstd compresses to a
few bytes per frame. Unknown fields are ignored.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from segstore_ds.checksum import crc32
from segstore_ds.errors import CorruptionError, InvalidInputError
from segstore_ds.format.arrow.frame import MAX_RAW_BYTES, MAX_ROWS
from segstore_ds.format.bloom import Filters, decode_filters, encode_filters
from segstore_ds.format.bounds import Piece, merge
from segstore_ds.format.record import ABSENT, Range, from_json
from segstore_ds.format.root import SegmentEntry
from segstore_ds.format.statistics import Stats, encode_piece, entry_stats

MAX_INDEX_BYTES = 32 << 20
RAW_UNIT = 64 << 10  # On disk: the unit of a segment's decompressed bytes in entries
_MAX_CRC = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class FrameEntry:
    """What the index says about one frame.

    `start` is its offset in the object, `bytes` its length there, and `crc` the CRC-32 of these
    bytes. `raw_bytes` is the decompressed size of its buffers. `fingerprint` is the digest of its
    schema. `filters` cover some of its columns.
    """

    start: int
    bytes: int
    rows: int
    crc: int
    fingerprint: str
    raw_bytes: int
    filters: Filters = field(default_factory=dict, repr=False)

    @property
    def end(self) -> int:
        """The offset after the last byte."""
        return self.start + self.bytes


def finished_segment(
    form: str, frames: Sequence[FrameEntry], stats: Piece, *, end: bytes, size: int
) -> SegmentEntry:
    """Return a finished segment of `size` bytes, which has no path yet.

    `stats` are those of all frames, and `end` has all bytes after the frames.
    """
    return SegmentEntry(
        segment_id=0,
        path="",
        rows=sum(frame.rows for frame in frames),
        bytes=size,
        footer_bytes=len(end),
        footer_crc=crc32(end),
        stats=entry_stats(stats),
        format=form,
        frames=len(frames),
        frame_raws=count_raws(frames),
    )


def count_raws(frames: Iterable[FrameEntry]) -> int:
    """Return the decompressed size of frames in units of 64 KiB, rounded up."""
    return -(-sum(frame.raw_bytes for frame in frames) // RAW_UNIT)


def merge_frames(frames: Sequence[FrameEntry], stats: Sequence[Piece]) -> Piece:
    """Return the statistics of all frames of a segment."""
    return merge((frame.rows, piece) for frame, piece in zip(frames, stats, strict=True))


def build_index(frames: Sequence[FrameEntry], stats: Sequence[Piece] = ()) -> bytes:
    """Encode the index of a segment's frames, which are in order and without gaps, as JSON.

    The result has at most `MAX_INDEX_BYTES`: filters, then statistics are left out if they would
    not fit. Too many frames raise InvalidInputError.
    """
    schemas = list(dict.fromkeys(entry.fingerprint for entry in frames))
    footer: dict[str, Any] = {
        "bytes": [entry.bytes for entry in frames],
        "rows": [entry.rows for entry in frames],
        "crc": [entry.crc for entry in frames],
        "raw": [entry.raw_bytes for entry in frames],
        "schemas": schemas,
        "schema": [schemas.index(entry.fingerprint) for entry in frames],
    }
    bare: dict[str, Any] = {**footer, "stats": [encode_piece(piece) for piece in stats]}
    filters = [encode_filters(entry.filters) for entry in frames]
    whole = {**bare, "filters": filters} if any(filters) else bare
    for content in (whole, bare, {**footer, "stats": []}):
        raw = json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        encoded = raw.encode()
        if len(encoded) <= MAX_INDEX_BYTES:
            return encoded
    raise InvalidInputError("a segment has too many frames", frames=len(frames))


@dataclass(frozen=True, slots=True)
class _Index:
    """The frames of a segment, by columns."""

    bytes: list[int]
    rows: Annotated[list[int], Range(most=MAX_ROWS)]
    crc: Annotated[list[int], Range(most=_MAX_CRC)]
    raw: Annotated[list[int], Range(most=MAX_RAW_BYTES)]
    schemas: list[str]
    schema: list[int]
    stats: list[dict[str, Any]]
    filters: Annotated[list[Any], ABSENT]


def parse_index(
    value: Any, *, frames_start: int, frames_end: int, alignment: int, where: str
) -> tuple[tuple[FrameEntry, ...], Stats]:
    """Parse the JSON that `build_index` returned; it is untrusted.

    Checks that the frames fill ``[frames_start, frames_end)`` of the object, and that each frame's
    length is a multiple of `alignment`. Statistics are parsed later, when they are used.
    """
    index = from_json(_Index, value, where=where)
    sizes, count = index.bytes, len(index.bytes)
    stats, filters = index.stats or [{}] * count, index.filters or [{}] * count
    arrays: tuple[list[Any], ...] = (index.rows, index.crc, index.raw, index.schema, stats, filters)
    if {count} != {*map(len, arrays)} or max(index.schema, default=-1) >= len(index.schemas):
        raise CorruptionError("a segment's index is wrong", where=where)
    entries = []
    start = frames_start
    for place, size in enumerate(sizes):
        entry = FrameEntry(
            start=start,
            bytes=size,
            rows=index.rows[place],
            crc=index.crc[place],
            fingerprint=index.schemas[index.schema[place]],
            raw_bytes=index.raw[place],
            filters=decode_filters(filters[place], where=where),
        )
        entries.append(entry)
        start += size
    if start != frames_end or any(not size or size % alignment for size in sizes):
        raise CorruptionError("a segment's frames do not cover it", where=where)
    return tuple(entries), Stats(count, None, stats, where)
