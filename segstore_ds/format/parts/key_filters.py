"""Filters of whole segments on key columns, as a status part holds them (FORMAT.md 5.2).

Those of a segment's frames, united where they fit into one another. So a read that looks a key up
need not open the segments that surely lack it. They lie in chunks behind the statistics of a part,
and a segment without any may hold everything.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from segstore_ds.errors import CorruptionError
from segstore_ds.format.bloom import BLOCK_BYTES, Filters, unite
from segstore_ds.format.record import build_json, parse_json

SHARE = 0.004  # of a segment's bytes, for the filters of all of its key columns
LEAST_BYTES, MOST_BYTES = 512, 16 << 10  # of one segment, however small or large it is
CHUNK_BYTES = 4 << 20  # of the filters of one chunk
_LENGTH = struct.Struct("<I")

# The filters of each column of a segment; None: nobody has looked at its frames' filters yet.
SegmentFilters = Mapping[str, Sequence[bytes]] | None


def join_frames(frames: Sequence[Filters], *, segment_bytes: int) -> Mapping[str, Sequence[bytes]]:
    """Return the filters of a segment, of those columns of which every frame has one.

    Columns that would pass the segment's share are left out.
    """
    left = min(max(int(segment_bytes * SHARE), LEAST_BYTES), MOST_BYTES)
    found: dict[str, Sequence[bytes]] = {}
    for name in sorted(set.intersection(*map(set, frames))) if frames else ():
        filters = unite([frame[name] for frame in frames])
        size = sum(map(len, filters))
        if size <= left:
            found[name] = filters
            left -= size
    return found


def measure(filters: SegmentFilters) -> int:
    """Return how many bytes the filters of a segment take."""
    return sum(len(data) for column in (filters or {}).values() for data in column)


def encode_filters(segments: Sequence[SegmentFilters]) -> bytes:
    """Return the body of a chunk: how many blocks each filter has, then the blocks."""
    counts: list[Any] = []
    blocks: list[bytes] = []
    for filters in segments:
        if filters is None:
            counts.append(None)
            continue
        counts.append([[name, *map(_blocks, filters[name])] for name in sorted(filters)])
        blocks += (data for name in sorted(filters) for data in filters[name])
    header = build_json(counts)
    return b"".join((_LENGTH.pack(len(header)), header, *blocks))


def _blocks(data: bytes) -> int:
    return len(data) // BLOCK_BYTES


def decode_filters(body: bytes, *, rows: int, where: str) -> list[SegmentFilters]:
    """Decode the filters of `rows` adjacent segments."""
    start = _LENGTH.size + (_LENGTH.unpack_from(body)[0] if len(body) >= _LENGTH.size else 0)
    counts = parse_json(body[_LENGTH.size : start], where=where) if start <= len(body) else None
    if not isinstance(counts, list) or len(counts) != rows:
        raise CorruptionError("filters are of other segments", where=where)
    blocks = _Blocks(body, start, where)
    found: list[SegmentFilters] = [
        None if columns is None else dict(blocks.columns(columns)) for columns in counts
    ]
    if blocks.cursor != len(body):
        raise CorruptionError("bytes behind the filters of segments", where=where)
    return found


class _Blocks:
    """Takes filters from a body, one after the other."""

    def __init__(self, body: bytes, cursor: int, where: str) -> None:
        self.cursor = cursor
        self._body = body
        self._where = where

    def columns(self, columns: Any) -> Iterator[tuple[str, Sequence[bytes]]]:
        for column in columns if isinstance(columns, list) else [None]:
            match column:
                case [str(name), *counts] if counts and all(map(_is_count, counts)):
                    yield name, tuple(map(self._take, counts))
                case _:
                    raise CorruptionError("filters of a segment are malformed", where=self._where)

    def _take(self, blocks: int) -> bytes:
        start, self.cursor = self.cursor, self.cursor + blocks * BLOCK_BYTES
        if self.cursor > len(self._body):
            raise CorruptionError("filters of a segment are truncated", where=self._where)
        return self._body[start : self.cursor]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
