"""Status parts in the second encoding: packed columns followed by statistics (FORMAT.md 5).

An object holds an envelope of packed columns, followed by envelopes of statistics, which the first
envelope lists with length and digest. One name and one digest therefore cover everything, and a
reader that needs no statistics stops at the end of the columns. Statistics lie in chunks, which a
merge of large parts copies unchanged.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from segstore_ds.errors import CorruptionError
from segstore_ds.format.envelope import decode_envelope, digest_of, encode_envelope
from segstore_ds.format.fields import MAX_INT, build_json, parse_json
from segstore_ds.format.parts.columns import SegmentColumns, decode_columns, encode_columns
from segstore_ds.format.parts.packed import Unpacked

CHUNK_ROWS = 8192  # a merge recompresses statistics of fewer rows than this
RAW_LIMIT_BYTES = 128 << 20

Stats = Sequence[str | None]


@dataclass(frozen=True, slots=True)
class StatsChunk:
    """The location of the statistics of adjacent segments; no bytes if none has statistics."""

    rows: int
    bytes: int
    digest: str


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The segments of a part, and where their statistics lie after the columns."""

    columns: SegmentColumns
    chunks: tuple[StatsChunk, ...]

    @property
    def stats_bytes(self) -> int:
        """The length of all statistics."""
        return sum(chunk.bytes for chunk in self.chunks)


def encode_chunk(stats: Stats) -> tuple[StatsChunk, bytes]:
    """Encode a chunk of statistics; return its list entry and its bytes."""
    if all(text is None for text in stats):
        return StatsChunk(len(stats), 0, ""), b""
    data = encode_envelope(build_json(list(stats)))
    return StatsChunk(len(stats), len(data), digest_of(data)), data


def encode_chunks(stats: Stats) -> tuple[tuple[StatsChunk, ...], bytes]:
    """Encode statistics in as few chunks as their size allows."""
    pieces = [
        encode_chunk(stats[start : start + CHUNK_ROWS])
        for start in range(0, len(stats), CHUNK_ROWS)
    ]
    return tuple(chunk for chunk, _ in pieces), b"".join(data for _, data in pieces)


def encode_part(columns: SegmentColumns, chunks: Iterable[StatsChunk]) -> bytes:
    """Encode the columns of a part in their envelope; the caller appends the chunks."""
    listed = [[chunk.rows, chunk.bytes, chunk.digest] for chunk in chunks]
    return encode_envelope(encode_columns(columns, {"stats": listed}))


def decode_part(data: bytes, *, where: str) -> Part:
    """Decode the columns of a part and the list of its statistics."""
    body = decode_envelope(data, where=where, raw_limit_bytes=RAW_LIMIT_BYTES)
    columns, packed = decode_columns(body, where=where)
    return Part(columns, _chunks(packed, where))


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
        body = decode_envelope(piece, where=where, raw_limit_bytes=RAW_LIMIT_BYTES)
        if digest_of(piece) != chunk.digest:
            raise CorruptionError("statistics have the wrong digest", where=where)
        found = parse_json(body, where=where)
        if not isinstance(found, list) or len(found) != chunk.rows:
            raise CorruptionError("statistics belong to other segments", where=where)
        if not all(item is None or isinstance(item, str) for item in found):
            raise CorruptionError("statistics are not text", where=where)
        stats += found
    if cursor != len(data):
        raise CorruptionError("extra bytes after the statistics", where=where)
    return stats


def _chunks(packed: Unpacked, where: str) -> tuple[StatsChunk, ...]:
    chunks = []
    found = packed.extra.get("stats")
    for item in found if isinstance(found, list) else [None]:
        match item:
            case [int(rows), int(size), str(digest)] if rows > 0 and 0 <= size <= MAX_INT:
                chunks.append(StatsChunk(rows, size, digest))
                continue
        raise CorruptionError("list of statistics is malformed", where=where)
    if sum(chunk.rows for chunk in chunks) != packed.rows:
        raise CorruptionError("statistics belong to other segments", where=where)
    return tuple(chunks)
