"""Status parts: segments as packed columns, and their statistics behind them (FORMAT.md 5).

The first envelope of an object holds the columns and lists the envelopes of statistics that follow
it, with length and digest. So its digest covers everything, and a reader that needs no statistics
stops at its end. Statistics lie in chunks, which a merge of large parts copies unchanged.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from segstore_ds.errors import CorruptionError
from segstore_ds.format.envelope import decode_envelope, encode_envelope, envelope_digest
from segstore_ds.format.fields import MAX_INT, build_json, parse_json
from segstore_ds.format.parts.columns import SegmentColumns, decode_columns, encode_columns
from segstore_ds.format.parts.packed import Unpacked

CHUNK_ROWS = 8192  # a merge recompresses statistics of fewer rows than this
CHUNK_TEXT = 8 << 20  # characters: of wide tables a chunk has fewer rows, and stays readable
RAW_LIMIT_BYTES = 128 << 20  # of the body of a status object, and of a chunk

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


def encode_chunk(stats: Stats) -> tuple[StatsChunk, bytes]:
    """Encode a chunk of statistics; return its list entry and its bytes."""
    if all(text is None for text in stats):
        return StatsChunk(len(stats), 0, ""), b""
    data = encode_envelope(build_json(list(stats)))
    return StatsChunk(len(stats), len(data), envelope_digest(data)), data


def encode_chunks(stats: Stats) -> tuple[tuple[StatsChunk, ...], bytes]:
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
    listed = [[chunk.rows, chunk.bytes, chunk.digest] for chunk in part.chunks]
    return encode_columns(part.columns, {"stats": listed})


def decode_part(body: bytes, *, where: str) -> Part:
    """Decode the columns of a part and the list of its statistics."""
    columns, packed = decode_columns(body, where=where)
    return Part(columns, _chunks(packed, where))


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
        raise CorruptionError("statistics are of other segments", where=where)
    return tuple(chunks)
