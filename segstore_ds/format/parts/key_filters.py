"""Filters of whole segments on key columns, as a status part holds them (FORMAT.md 5.2).

Those of a segment's frames, united where they fit into one another. So a read that looks a key up
need not open the segments that surely lack it. They lie behind the statistics of a part, and a
segment without any may hold everything.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from segstore_ds.errors import CorruptionError
from segstore_ds.format.bloom import BLOCK_BYTES, Filters, unite

SHARE = 0.004  # of a segment's bytes, for the filters of all of its key columns
LEAST_BYTES, MOST_BYTES = 512, 16 << 10  # of one segment, however small or large it is
_TYPE = pa.map_(pa.string(), pa.list_(pa.binary()))  # On disk: by column.

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


def to_array(segments: Sequence[SegmentFilters]) -> pa.Array:
    """Return filters as a column: null where nobody has looked."""
    cells = [
        None if filters is None else [(name, list(filters[name])) for name in sorted(filters)]
        for filters in segments
    ]
    return pa.array(cells, _TYPE)


def parse_filters(batch: pa.RecordBatch, name: str, *, where: str) -> list[SegmentFilters]:
    """Return the filters that a column of decoded rows holds."""
    column = batch.column(name) if name in batch.schema.names else None
    if column is None or not column.type.equals(_TYPE):
        raise CorruptionError("filters of segments are malformed", where=where)
    found: list[SegmentFilters] = []
    for cells in column.to_pylist():
        if cells is not None and not all(key and _are_blocks(each) for key, each in cells):
            raise CorruptionError("filters of a segment are malformed", where=where)
        found.append(None if cells is None else {key: tuple(each) for key, each in cells})
    return found


def _are_blocks(filters: Any) -> bool:
    return bool(filters) and all(data and not len(data) % BLOCK_BYTES for data in filters)
