"""Status parts: segments as packed columns, and what is known of each behind them (FORMAT.md 5).

The first envelope of an object holds the columns and lists the envelopes that follow it, with
length and digest: those of statistics, then those of filters of key columns. So its digest covers
everything, and a reader that needs neither stops at its end. Both lie in chunks, which a merge of
large parts copies unchanged.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import accumulate, pairwise
from typing import Any

from segstore_ds.errors import CorruptionError
from segstore_ds.format.envelope import decode_envelope, encode_envelope, envelope_digest
from segstore_ds.format.parts.columns import SegmentColumns, decode_columns, encode_columns
from segstore_ds.format.parts.key_filters import (
    CHUNK_BYTES,
    SegmentFilters,
    decode_filters,
    encode_filters,
    measure,
)
from segstore_ds.format.parts.packed import Unpacked
from segstore_ds.format.record import MAX_INT, build_json, parse_json

CHUNK_ROWS = 8192  # a merge recompresses statistics of fewer rows than this
CHUNK_TEXT = 8 << 20  # characters: of wide tables a chunk has fewer rows, and stays readable
RAW_LIMIT_BYTES = 128 << 20  # of the body of a status object, and of a chunk
FILTER_BYTES = 64 << 20  # of all filters of one part; further segments have none

Stats = Sequence[str | None]


@dataclass(frozen=True, slots=True)
class Chunk:
    """The location of what is known of adjacent segments; no bytes if there is nothing."""

    rows: int
    bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class FilterChunk(Chunk):
    """The location of the filters of adjacent segments, of which `looked` were looked at.

    No bytes if none of them has a filter.
    """

    looked: int


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The segments of a part, and where their statistics and filters lie after the columns.

    `filters` is empty if no segment has any.
    """

    columns: SegmentColumns
    chunks: tuple[Chunk, ...]
    filters: tuple[FilterChunk, ...] = ()

    @property
    def stats_bytes(self) -> int:
        """The length of all statistics, behind which the filters begin."""
        return sum(chunk.bytes for chunk in self.chunks)

    @property
    def behind_bytes(self) -> int:
        """The length of all that follows the columns."""
        return self.stats_bytes + sum(chunk.bytes for chunk in self.filters)


def encode_chunk(stats: Stats) -> tuple[Chunk, bytes]:
    """Encode a chunk of statistics; return its list entry and its bytes."""
    if all(text is None for text in stats):
        return Chunk(len(stats), 0, ""), b""
    data = encode_envelope(build_json(list(stats)))
    return Chunk(len(stats), len(data), envelope_digest(data)), data


def encode_filter_chunks(
    filters: Sequence[SegmentFilters],
) -> tuple[tuple[FilterChunk, ...], bytes]:
    """Encode the filters of adjacent segments in chunks that a reader decodes one at a time."""
    if all(found is None for found in filters):
        return (), b""
    sizes = [measure(found) for found in filters]
    total = list(accumulate(sizes))
    filters = [
        found if held <= FILTER_BYTES else found and {}
        for found, held in zip(filters, total, strict=True)
    ]
    borders, held = [0], 0
    for row, size in enumerate(sizes):
        if row - borders[-1] >= CHUNK_ROWS or (held + size > CHUNK_BYTES and row > borders[-1]):
            borders.append(row)
            held = 0
        held += size
    pieces = [
        _encode_filter_chunk(filters[start:end])
        for start, end in pairwise([*borders, len(filters)])
    ]
    return tuple(chunk for chunk, _ in pieces), b"".join(data for _, data in pieces)


def _encode_filter_chunk(filters: Sequence[SegmentFilters]) -> tuple[FilterChunk, bytes]:
    looked = sum(found is not None for found in filters)
    if not looked:
        return FilterChunk(len(filters), 0, "", 0), b""
    data = encode_envelope(encode_filters(filters))
    return FilterChunk(len(filters), len(data), envelope_digest(data), looked), data


def join_filter_chunks(
    parts: Sequence[tuple[Part, bytes]],
) -> tuple[tuple[FilterChunk, ...], bytes]:
    """Return the filters of several parts with what lies behind each, without decoding them."""
    if not any(part.filters for part, _ in parts):
        return (), b""
    chunks: list[FilterChunk] = []
    pieces: list[bytes] = []
    held = 0
    for part, behind in parts:
        cursor = part.stats_bytes
        for chunk in part.filters or (FilterChunk(len(part.columns), 0, "", 0),):
            data = behind[cursor : cursor + chunk.bytes]
            cursor += chunk.bytes
            held += chunk.bytes
            full = held > FILTER_BYTES
            chunks.append(FilterChunk(chunk.rows, 0, "", chunk.rows) if full else chunk)
            pieces.append(b"" if full else data)
    return tuple(chunks), b"".join(pieces)


def decode_filter_chunk(chunk: FilterChunk, data: bytes, *, where: str) -> list[SegmentFilters]:
    """Decode the filters of a chunk's segments."""
    if not chunk.bytes:
        return [{} if chunk.looked else None] * chunk.rows
    body = decode_envelope(data, where=where, raw_limit_bytes=RAW_LIMIT_BYTES, digest=chunk.digest)
    filters = decode_filters(body, rows=chunk.rows, where=where)
    if sum(found is not None for found in filters) != chunk.looked:
        raise CorruptionError("filters are of other segments", where=where)
    return filters


def encode_chunks(stats: Stats) -> tuple[tuple[Chunk, ...], bytes]:
    """Encode statistics in as few chunks as their size allows."""
    borders, held = [0], 0
    for row, text in enumerate(stats):
        held += len(text or "")
        if row - borders[-1] >= CHUNK_ROWS or (held > CHUNK_TEXT and row > borders[-1]):
            borders.append(row)
            held = len(text or "")
    spans = pairwise([*borders, len(stats)] if stats else [])
    pieces = [encode_chunk(stats[start:end]) for start, end in spans]
    return tuple(chunk for chunk, _ in pieces), b"".join(data for _, data in pieces)


def decode_chunks(part: Part, data: bytes, *, where: str) -> list[str | None]:
    """Decode the statistics of all segments of a part from the bytes after its columns."""
    stats: list[str | None] = []
    cursor = 0
    for chunk in part.chunks:
        if not chunk.bytes:
            stats += [None] * chunk.rows
            continue
        piece = data[cursor : cursor + chunk.bytes]
        cursor += chunk.bytes
        body = decode_envelope(
            piece, where=where, raw_limit_bytes=RAW_LIMIT_BYTES, digest=chunk.digest
        )
        found = parse_json(body, where=where)
        if not isinstance(found, list) or len(found) != chunk.rows:
            raise CorruptionError("statistics are of other segments", where=where)
        if not all(item is None or isinstance(item, str) for item in found):
            raise CorruptionError("statistics are no texts", where=where)
        stats += found
    if cursor != len(data):
        raise CorruptionError("bytes behind the statistics", where=where)
    return stats


def encode_part(part: Part) -> bytes:
    """Return the body of a part's first envelope."""
    extra: dict[str, Any] = {"stats": [astuple(chunk) for chunk in part.chunks]}
    if part.filters:
        extra["filters"] = [astuple(chunk) for chunk in part.filters]
    return encode_columns(part.columns, extra)


def decode_part(body: bytes, *, where: str) -> Part:
    """Decode the columns of a part and the lists of its statistics and filters."""
    columns, packed = decode_columns(body, where=where)
    return Part(columns, _chunks(packed, where), _filter_chunks(packed, where))


def _chunks(packed: Unpacked, where: str) -> tuple[Chunk, ...]:
    chunks = []
    found = packed.extra.get("stats")
    for item in found if isinstance(found, list) else [None]:
        match item:
            case [int(rows), int(size), str(digest)] if rows > 0 and 0 <= size <= MAX_INT:
                chunks.append(Chunk(rows, size, digest))
                continue
        raise CorruptionError("list of statistics is malformed", where=where)
    if sum(chunk.rows for chunk in chunks) != packed.rows:
        raise CorruptionError("statistics are of other segments", where=where)
    return tuple(chunks)


def _filter_chunks(packed: Unpacked, where: str) -> tuple[FilterChunk, ...]:
    chunks = []
    found = packed.extra.get("filters", [])
    for item in found if isinstance(found, list) else [None]:
        match item:
            case [int(rows), int(size), str(digest), int(looked)] if (
                0 <= looked <= rows > 0 and 0 <= size <= MAX_INT
            ):
                chunks.append(FilterChunk(rows, size, digest, looked))
                continue
        raise CorruptionError("list of filters is malformed", where=where)
    if chunks and sum(chunk.rows for chunk in chunks) != packed.rows:
        raise CorruptionError("filters are of other segments", where=where)
    return tuple(chunks)
