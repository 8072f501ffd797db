"""Status parts of the second encoding: packed columns, statistics behind them (FORMAT.md 5).

An object holds an envelope of packed columns, then envelopes of statistics, which the first one
lists with length and digest. So one name and one digest cover everything, and a reader that needs
no statistics reads up to the end of the columns and no further. Statistics lie in chunks, which a
merge of large parts copies as they are.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from segstore_ds.errors import CorruptionError
from segstore_ds.format.envelope import decode_envelope, digest_of, encode_envelope
from segstore_ds.format.fields import MAX_INT, build_json, parse_json
from segstore_ds.format.parts.columns import SegmentColumns, decode_columns, encode_columns
from segstore_ds.format.parts.packed import Unpacked

CHUNK_ROWS = 8192  # statistics of fewer rows than this are compressed anew by a merge
RAW_LIMIT_BYTES = 128 << 20

Stats = Sequence[str | None]


@dataclass(frozen=True, slots=True)
class StatsChunk:
    """Where the statistics of some neighbouring segments lie; no bytes where none has any."""

    rows: int
    bytes: int
    digest: str


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The segments of a part, and where their statistics are behind the columns."""

    columns: SegmentColumns
    chunks: tuple[StatsChunk, ...]

    @property
    def stats_bytes(self) -> int:
        """Length of all statistics."""
        return sum(chunk.bytes for chunk in self.chunks)


def encode_chunk(stats: Stats) -> tuple[StatsChunk, bytes]:
    """Return a chunk of statistics and its place in a list."""
    if all(text is None for text in stats):
        return StatsChunk(len(stats), 0, ""), b""
    data = encode_envelope(build_json(list(stats)))
    return StatsChunk(len(stats), len(data), digest_of(data)), data


def encode_chunks(stats: Stats) -> tuple[tuple[StatsChunk, ...], bytes]:
    """Return statistics as chunks, as few as their size allows."""
    pieces = [
        encode_chunk(stats[start : start + CHUNK_ROWS])
        for start in range(0, len(stats), CHUNK_ROWS)
    ]
    return tuple(chunk for chunk, _ in pieces), b"".join(data for _, data in pieces)


def encode_part(columns: SegmentColumns, chunks: Iterable[StatsChunk]) -> bytes:
    """Return the columns of a part in their envelope; the chunks follow behind it."""
    listed = [[chunk.rows, chunk.bytes, chunk.digest] for chunk in chunks]
    return encode_envelope(encode_columns(columns, {"stats": listed}))


def decode_part(data: bytes, *, where: str) -> Part:
    """Return what the columns of a part say.

    Raises:
        FormatError: The envelope or the columns can't be read.
    """
    body = decode_envelope(data, where=where, raw_limit_bytes=RAW_LIMIT_BYTES)
    columns, packed = decode_columns(body, where=where)
    return Part(columns, _chunks(packed, where))


def decode_chunks(part: Part, data: bytes, *, where: str) -> list[str | None]:
    """Return the statistics of all segments of a part, from the bytes behind its columns.

    Raises:
        FormatError: They are cut, damaged or of another form.
    """
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
            raise CorruptionError("statistics have another digest", where=where)
        found = parse_json(body, where=where)
        if not isinstance(found, list) or len(found) != chunk.rows:
            raise CorruptionError("statistics are of other segments", where=where)
        if not all(item is None or isinstance(item, str) for item in found):
            raise CorruptionError("statistics are no texts", where=where)
        stats += found
    if cursor != len(data):
        raise CorruptionError("bytes behind the statistics", where=where)
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
        raise CorruptionError("statistics are of other segments", where=where)
    return tuple(chunks)
