"""Arrow segments: an immutable object of frames, their index and a trailer that locates it.

::

    header   64 bytes   magic, format version, zeros, CRC-32 of the 60 bytes before
    frames              each a multiple of 64 bytes, so every frame starts aligned
    footer              zstd of JSON: one array per field, one element per frame
    trailer  40 bytes   place, size and CRC-32 of the footer, format version, CRC-32, magic

Pure: bytes to values and back. A reader needs only the tail of the object. A checksum covers every
byte that the reader relies on, and the object's size has to be exactly what the trailer implies, so
a missing or an added byte is always detected. FORMAT.md, section "Segments", is normative.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import zstandard

from segstore_ds.checksum import crc32
from segstore_ds.errors import (
    CorruptionError,
    EmptyObjectError,
    InvalidInputError,
    TruncatedObjectError,
    UnsupportedVersionError,
)
from segstore_ds.format.arrow.frame import ALIGNMENT, Frame, check_frame, decode_frame
from segstore_ds.format.arrow.index import (
    MAX_INDEX_BYTES,
    FrameEntry,
    build_index,
    finished_segment,
    merge_frames,
    parse_index,
)
from segstore_ds.format.bounds import Piece
from segstore_ds.format.envelope import decompress
from segstore_ds.format.record import parse_json
from segstore_ds.format.root import SegmentEntry
from segstore_ds.format.statistics import Stats

HEADER_MAGIC = b"SEGARROW"  # On disk. Never change; add a new one.
TRAILER_MAGIC = b"SEGATAIL"  # On disk. Never change; add a new one.
VERSION = 1  # On disk. Never change; add a new one.
HEADER_BYTES = 64
TRAILER_BYTES = 40

_HEADER = struct.Struct("<8sI48xI")
_TRAILER = struct.Struct("<QIIIII")  # footer start, bytes, raw bytes, crc, version, reserved
_TRAILER_END = struct.Struct("<I8s")  # CRC-32 of the bytes before it, magic


class ArrowEncoder:
    """Encodes one segment: call `start`, `add` for each frame, then `finish`."""

    __slots__ = ("_finished", "_frames", "_stats", "encoded_bytes", "rows", "stats")
    name = "arrow"
    expected_pieces = 1  # checksums that another frame adds to the index

    def __init__(self) -> None:
        self._finished = False
        self._frames: list[FrameEntry] = []
        self._stats: list[Piece] = []  # the statistics of each frame
        self.encoded_bytes = 0  # bytes returned so far
        self.rows = 0  # events added
        self.stats: Piece = {}  # of all frames, after `finish`

    def start(self) -> bytes:
        """Begin the segment and return its header."""
        self._expect(begun=False)
        self.encoded_bytes = HEADER_BYTES
        header = _HEADER.pack(HEADER_MAGIC, VERSION, 0)[:-4]
        return header + struct.pack("<I", crc32(header))

    @property
    def pieces(self) -> int:
        """The number of checksums in the index: one per frame."""
        return len(self._frames)

    def add(self, frame: Frame) -> list[pa.Buffer]:
        """Append a frame, whose size is a multiple of 64 bytes; return the buffers to write."""
        self._expect(begun=True)
        size = frame.data.size
        if size % ALIGNMENT or not size:
            raise InvalidInputError("a frame's size is not a multiple of 64", bytes=size)
        entry = FrameEntry(
            start=self.encoded_bytes,
            bytes=size,
            rows=frame.rows,
            crc=frame.crc,
            fingerprint=frame.fingerprint,
            raw_bytes=frame.raw_bytes,
            filters=frame.filters,
        )
        self._frames.append(entry)
        self._stats.append(frame.stats)
        self.rows += frame.rows
        self.encoded_bytes = entry.end
        return [frame.data]

    def finish(self) -> tuple[bytes, SegmentEntry]:
        """End the segment; return footer and trailer, and the segment, which has no path yet."""
        self._expect(begun=True)
        if not self._frames:
            raise InvalidInputError("a segment has no frame", remedy="add a frame before finish")
        self._finished = True
        raw = build_index(self._frames, self._stats)
        footer = zstandard.ZstdCompressor(level=3).compress(raw)
        facts = _TRAILER.pack(self.encoded_bytes, len(footer), len(raw), crc32(footer), VERSION, 0)
        end = footer + facts + _TRAILER_END.pack(crc32(facts), TRAILER_MAGIC)
        self.encoded_bytes += len(end)
        self.stats = merge_frames(self._frames, self._stats)
        return end, finished_segment(
            self.name, self._frames, self.stats, end=end, size=self.encoded_bytes
        )

    def _expect(self, *, begun: bool) -> None:
        if self._finished or begun != (self.encoded_bytes > 0):
            raise InvalidInputError(
                "a segment's parts are written in the wrong order",
                remedy="call start, add, then finish",
            )


def _parse_trailer(tail: bytes, *, object_bytes: int, where: str) -> tuple[int, int, int, int]:
    """Parse the trailer: start, stored and decompressed bytes, and CRC-32 of the footer."""
    if object_bytes == 0:
        raise EmptyObjectError("a segment is empty", where=where)
    if object_bytes < HEADER_BYTES + TRAILER_BYTES or len(tail) < TRAILER_BYTES:
        raise TruncatedObjectError(
            "a segment is too short", where=where, bytes=object_bytes, tail_bytes=len(tail)
        )
    facts = tail[-TRAILER_BYTES : -_TRAILER_END.size]
    crc, magic = _TRAILER_END.unpack(tail[-_TRAILER_END.size :])
    actual = crc32(facts)
    if magic != TRAILER_MAGIC and crc != actual:
        raise TruncatedObjectError(
            "a segment does not end with its trailer", where=where, bytes=object_bytes
        )
    if magic != TRAILER_MAGIC or crc != actual:
        raise CorruptionError("a segment's trailer is damaged", where=where)
    start, size, raw_size, footer_crc, version, _ = _TRAILER.unpack(facts)
    if version > VERSION:
        raise UnsupportedVersionError(
            "a segment has a newer format version", where=where, version=version, known=VERSION
        )
    if version != VERSION or start + size + TRAILER_BYTES != object_bytes:
        raise CorruptionError(
            "a segment's size is not what its trailer says",
            where=where,
            expected=start + size + TRAILER_BYTES,
            actual=object_bytes,
        )
    return start, size, raw_size, footer_crc


@dataclass(frozen=True, slots=True)
class ArrowIndex:
    """The index of an Arrow segment; a `SegmentIndex` (see `format.segment`).

    `held` are the rows of its only frame, if this process has encoded them: they need no decoding.
    """

    frames: tuple[FrameEntry, ...]
    stats: Stats
    held: pa.RecordBatch | None = None

    def spans(self, number: int, columns: Sequence[str] | None) -> tuple[tuple[int, int], ...]:
        """Return the range of the whole frame, whichever columns are wanted."""
        del columns
        frame = self.frames[number]
        return ((frame.start, frame.end),)

    def check(self, number: int, span: tuple[int, int], data: pa.Buffer, *, where: str) -> None:
        """Check the bytes of a frame; raises as `SegmentIndex.check`."""
        del span
        frame = self.frames[number]
        check_frame(data, crc=frame.crc, where=f"{where}[{frame.start}:{frame.end}]")

    def decode(
        self,
        number: int,
        data: Sequence[pa.Buffer],
        *,
        schema: pa.Schema,
        columns: Sequence[str] | None,
        where: str,
    ) -> pa.RecordBatch:
        """Decode a frame; raises as `decode_frame`."""
        frame, held = self.frames[number], self.held
        if held is not None and held.schema.equals(schema, check_metadata=True):
            chosen = held if columns in (None, schema.names) else held.select(columns)
            return pa.concat_batches([chosen])  # a copy, as readers may change its memory
        return decode_frame(
            data[0],
            rows=frame.rows,
            schema=schema,
            columns=columns,
            where=f"{where}[{frame.start}:{frame.end}]",
            limit_bytes=max(frame.raw_bytes, 1),
        )


class ArrowSegments:
    """The format `arrow`; a `SegmentFormat` (see `format.segment`)."""

    name = "arrow"  # On disk. Never change; add a new one.
    head_bytes = HEADER_BYTES

    def parse_index(
        self, tail: bytes, *, object_bytes: int, where: str, footer_crc: int
    ) -> ArrowIndex:
        """Parse the index; raises as `SegmentFormat.parse_index`."""
        start, size, raw_size, crc = _parse_trailer(tail, object_bytes=object_bytes, where=where)
        needed = size + TRAILER_BYTES
        if len(tail) < needed:
            raise TruncatedObjectError(
                "the tail does not hold the footer", where=where, needed=needed, actual=len(tail)
            )
        if crc32(tail[-needed:]) != footer_crc:
            raise CorruptionError("a segment is not the one that was committed", where=where)
        footer = bytes(tail[-needed:-TRAILER_BYTES])
        if crc32(footer) != crc:
            raise CorruptionError("a segment's footer fails its checksum", where=where)
        most = min(raw_size, MAX_INDEX_BYTES)
        raw = decompress(footer, least=raw_size, most=most, what="a segment's footer", where=where)
        frames, stats = parse_index(
            parse_json(raw, where=where),
            frames_start=HEADER_BYTES,
            frames_end=start,
            alignment=ALIGNMENT,
            where=where,
        )
        return ArrowIndex(frames, stats)

    def measure_end(self, last: bytes, *, object_bytes: int) -> int:
        """Return the size of footer and trailer according to the trailer, unchecked."""
        del object_bytes
        if len(last) < TRAILER_BYTES:
            return 0
        size: int = _TRAILER.unpack(last[-TRAILER_BYTES : -_TRAILER_END.size])[1]
        return size + TRAILER_BYTES

    def check_head(self, data: bytes, *, where: str) -> None:
        """Check the 64 bytes of the header, which reading does not need."""
        if len(data) < HEADER_BYTES:
            raise TruncatedObjectError("a segment is too short", where=where, bytes=len(data))
        magic, version, crc = _HEADER.unpack(data[:HEADER_BYTES])
        if (magic, version, crc) != (HEADER_MAGIC, VERSION, crc32(data[: HEADER_BYTES - 4])):
            raise CorruptionError("a segment's header is damaged", where=where)
