"""Status parts: segments as rows, then their statistics and filters (FORMAT.md 5.2).

An object is up to three envelopes, each of one Arrow frame with a row per segment: the segments,
their statistics, and filters of their key columns. The first one holds length and digest of the
other two. So its digest covers everything, and a reader that needs neither reads only the first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import pyarrow as pa

from segstore_ds.errors import CorruptionError
from segstore_ds.format.bloom import BLOCK_BYTES, Filters, join_filters
from segstore_ds.format.envelope import decode_envelope, encode_envelope, envelope_digest
from segstore_ds.format.parts.columns import SCHEMA, SegmentColumns, from_batch
from segstore_ds.format.parts.rows import decode_rows, encode_rows, facts_of
from segstore_ds.format.record import MAX_INT
from segstore_ds.format.statistics import Stats, decode_stats, encode_stats

STATS_BYTES = 64 << 20  # most decoded bytes of a part's statistics; further columns have none
FILTER_BYTES = 64 << 20  # most bytes of a part's filters; further segments have none
_FILTERS = "filters"
SHARE = 0.004  # share of a segment's bytes for the filters of all of its key columns
LEAST_BYTES, MOST_BYTES = 512, 16 << 10  # bounds of that share
_TYPE = pa.map_(pa.string(), pa.list_(pa.binary()))  # On disk: by column; null: not collected.

# The filters of each column of a segment; None if they were not collected from its frames yet.
SegmentFilters = Mapping[str, Sequence[bytes]] | None


@dataclass(frozen=True, slots=True)
class Behind:
    """An envelope after the first one: its length, 0 if there is none, and its digest."""

    bytes: int = 0
    digest: str = ""


NOTHING = Behind()


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The segments of a part, and the envelopes after them.

    `looked` is the number of segments whose filters were collected, even if they have none.
    """

    columns: SegmentColumns
    stats: Behind = NOTHING
    filters: Behind = NOTHING
    looked: int = 0

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def behind_bytes(self) -> int:
        """The length of all envelopes after the first."""
        return self.stats.bytes + self.filters.bytes


def build_part(
    columns: SegmentColumns, stats: Stats, filters: Sequence[SegmentFilters] = ()
) -> tuple[Part, bytes]:
    """Return a part, and the bytes after its first envelope."""
    found, bounds, stats = NOTHING, b"", stats.within(STATS_BYTES)
    if stats.columns:
        bounds = encode_envelope(encode_stats(stats))
        found = Behind(len(bounds), envelope_digest(bounds))
    looked = sum(each is not None for each in filters)
    if not looked:
        return Part(columns, found), bounds
    held = accumulate(map(measure, filters))
    kept = [
        each if size <= FILTER_BYTES else each and {}
        for each, size in zip(filters, held, strict=True)
    ]
    cells = [None if each is None else [(k, list(each[k])) for k in sorted(each)] for each in kept]
    batch = pa.RecordBatch.from_arrays([pa.array(cells, _TYPE)], [_FILTERS])
    data = encode_envelope(encode_rows(batch))
    return Part(columns, found, Behind(len(data), envelope_digest(data)), looked), bounds + data


def read_stats(part: Part, data: bytes, *, where: str) -> Stats:
    """Return the statistics of a part from the bytes after its first envelope."""
    if not part.stats.bytes:
        return Stats(len(part.columns), {})
    body = decode_envelope(data[: part.stats.bytes], where=where, digest=part.stats.digest)
    return decode_stats(body, rows=len(part.columns), where=where)


def read_filters(part: Part, data: bytes, *, where: str) -> list[SegmentFilters]:
    """Return the filters of a part's segments from the bytes after its statistics."""
    if not part.filters.bytes:
        return [None] * len(part.columns)
    body = decode_envelope(data, where=where, digest=part.filters.digest)
    batch = decode_rows(body, None, where=where)
    filters = parse_filters(batch, _FILTERS, where=where)
    looked = sum(each is not None for each in filters)
    if len(filters) != len(part.columns) or looked != part.looked:
        raise CorruptionError("filters do not match the segments of their part", where=where)
    return filters


def encode_part(part: Part) -> bytes:
    """Return the body of a part's first envelope."""
    facts: dict[str, Any] = {}
    if part.stats.bytes:
        facts["statistics"] = [part.stats.bytes, part.stats.digest]
    if part.filters.bytes:
        facts["filters"] = [part.filters.bytes, part.filters.digest, part.looked]
    return encode_rows(part.columns.batch, facts)


def decode_part(body: bytes, *, where: str) -> Part:
    """Decode the first envelope of a part: its segments, and the facts about the others."""
    batch = decode_rows(body, SCHEMA, where=where)
    columns, facts = from_batch(batch, where=where), facts_of(batch, where=where)
    found = {"statistics": NOTHING, "filters": NOTHING}
    looked = 0
    for name in found:
        match facts.get(name):
            case None:
                continue
            case [int(size), str(digest), *rest] if 0 < size <= MAX_INT:
                found[name] = Behind(size, digest)
                if name == "filters":
                    looked = rest[0] if rest and type(rest[0]) is int else 0
                continue
        raise CorruptionError("malformed length or digest in a part", where=where, what=name)
    if not 0 <= looked <= len(columns):
        raise CorruptionError("filters do not match the segments of their part", where=where)
    return Part(columns, found["statistics"], found["filters"], looked)


# Filters of whole segments: those of their frames, joined. So a read that looks up a key need not
# open segments without it.


def join_frames(frames: Sequence[Filters], *, segment_bytes: int) -> Mapping[str, Sequence[bytes]]:
    """Return a segment's filters, within its share, of the columns that have one in every frame."""
    left = min(max(int(segment_bytes * SHARE), LEAST_BYTES), MOST_BYTES)
    found: dict[str, Sequence[bytes]] = {}
    for name in sorted(set.intersection(*map(set, frames))) if frames else ():
        filters = join_filters([frame[name] for frame in frames])
        size = sum(map(len, filters))
        if size <= left:
            found[name] = filters
            left -= size
    return found


def measure(filters: SegmentFilters) -> int:
    """Return the bytes of a segment's filters."""
    return sum(len(data) for column in (filters or {}).values() for data in column)


def parse_filters(batch: pa.RecordBatch, name: str, *, where: str) -> list[SegmentFilters]:
    """Return the filters in a column of decoded rows."""
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
