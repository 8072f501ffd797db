"""Parquet segments: one plain Parquet file that any engine reads, with checksums of every byte.

::

    PAR1                4 bytes
    row groups          one per frame, without gaps
    Bloom filters       of key columns, if there are any
    footer              as Parquet has it; our index is an entry of its key-value metadata
    length, PAR1        8 bytes

A frame is a row group. Page checksums cover the content of a page but not its header, so the index
holds a CRC-32 of every piece (header or page) as it was written. Pieces tile the row groups, so
every byte has a checksum, and a column's pieces are checked without reading the others. The CRC-32
in the table status covers the rest. `ARROW:schema` is stored, so that types are restored exactly;
`can_store` tells whether Parquet can restore a schema.

Pure: bytes to values and back. FORMAT.md 6.1 is normative.
"""

import base64
import binascii
import struct
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types as t
from pyarrow.parquet.core import ParquetReader

from segstore_ds.checksum import crc32
from segstore_ds.errors import (
    CorruptionError,
    EmptyObjectError,
    InvalidInputError,
    TruncatedObjectError,
    UnsupportedVersionError,
)
from segstore_ds.format.arrow.index import MAX_INDEX_BYTES, FrameEntry, parse_index
from segstore_ds.format.envelope import decompress
from segstore_ds.format.parquet.encodings import find_dictionaries, leaves_of
from segstore_ds.format.parquet.filters import read_filter
from segstore_ds.format.parquet.window import Window
from segstore_ds.format.parquet.writer import INDEX_KEY, MAGIC, NAME, PARQUET_ERRORS, VERSION
from segstore_ds.format.record import ABSENT, Positive, from_json, parse_json
from segstore_ds.format.rows import rows_pool, with_types
from segstore_ds.format.statistics import Stats

_END = struct.Struct("<I4s")  # length of the footer, magic


@dataclass(frozen=True, slots=True)
class ParquetIndex:
    """The index of a Parquet segment; a `SegmentIndex` (see `format.segment`)."""

    frames: tuple[FrameEntry, ...]
    stats: Stats
    where: str
    object_bytes: int
    end: bytes = field(repr=False)  # the bytes after the frames
    metadata: pq.FileMetaData = field(repr=False)
    schema: pa.Schema = field(repr=False)
    lengths: tuple[list[int], ...] = field(repr=False)
    crcs: tuple[list[int], ...] = field(repr=False)
    widths: tuple[int, ...] = field(repr=False)  # number of leaves of each column
    # Idle decoders by the leaves that they read as dictionaries.
    _idle: dict[tuple[int, ...], list["_Decoder"]] = field(
        default_factory=dict, repr=False, compare=False
    )
    # A cache of `spans`.
    _spans: dict[tuple[int, tuple[str, ...]], tuple[tuple[int, int], ...]] = field(
        default_factory=dict, repr=False, compare=False
    )
    # A cache of the offsets of a frame's pieces.
    _borders: dict[int, list[int]] = field(default_factory=dict, repr=False, compare=False)

    def spans(self, number: int, columns: Sequence[str] | None) -> tuple[tuple[int, int], ...]:
        """Return the ranges of the column chunks of `columns`; adjacent ones are joined."""
        frame, names = self.frames[number], self.schema.names
        wanted = tuple(names if columns is None else columns or names[:1])
        found = self._spans.get((number, wanted))
        if found is None:
            whole = len(wanted) == len(names)
            found = ((frame.start, frame.end),) if whole else self._find_spans(number, wanted)
            self._spans[number, wanted] = found
        return found

    def _find_spans(self, number: int, names: Sequence[str]) -> tuple[tuple[int, int], ...]:
        frame = self.frames[number]
        spans: list[tuple[int, int]] = []
        group = self.metadata.row_group(number)
        for leaf in self._leaves_of(names):
            start, end = _find_chunk(group.column(leaf))
            if not frame.start <= start < end <= frame.end:
                raise CorruptionError("a column lies outside its frame", where=self.where)
            if spans and spans[-1][1] == start:
                spans[-1] = (spans[-1][0], end)
            elif spans and spans[-1][1] > start:
                raise CorruptionError("columns overlap in their frame", where=self.where)
            else:
                spans.append((start, end))
        return tuple(spans) or ((frame.start, frame.end),)

    def check(self, number: int, span: tuple[int, int], data: pa.Buffer, *, where: str) -> None:
        """Check the bytes of a range against the checksums of their pieces."""
        frame = self.frames[number]
        place = f"{where}[{frame.start}:{frame.end}]"
        borders = self._borders.get(number)
        if borders is None:
            borders = list(accumulate(self.lengths[number], initial=frame.start))
            self._borders[number] = borders
        view = memoryview(data)
        first, last = (bisect_left(borders, border) for border in span)
        covered = borders[first : first + 1] + borders[last : last + 1]
        if covered != [*span] or view.nbytes != span[1] - span[0]:
            raise CorruptionError("checksums do not cover a column", where=place)
        for piece in range(first, last):
            stored = view[borders[piece] - span[0] : borders[piece + 1] - span[0]]
            actual, expected = crc32(stored), self.crcs[number][piece]
            if actual != expected:
                raise CorruptionError(
                    "a frame fails its checksum", where=place, expected=expected, actual=actual
                )

    def decode(
        self,
        number: int,
        data: Sequence[pa.Buffer],
        *,
        schema: pa.Schema,
        columns: Sequence[str] | None,
        where: str,
    ) -> pa.RecordBatch:
        """Decode the bytes of `spans`; raises as `SegmentIndex.decode`."""
        frame = self.frames[number]
        wanted = schema.names if columns is None else list(columns)
        if len(set(wanted)) < len(wanted) or not {*wanted} <= {*schema.names}:
            raise InvalidInputError(
                "columns must exist and be named once", columns=wanted, known=schema.names
            )
        place = f"{where}[{frame.start}:{frame.end}]"
        spans = self.spans(number, columns)
        names = wanted or schema.names[:1]
        try:
            expected = pa.schema([schema.field(name) for name in names])
            if not all(
                self.schema.field(column.name).type.equals(column.type) for column in expected
            ):
                raise CorruptionError(
                    "a segment has a different schema than its epoch", where=place
                )
            leaves = self._leaves_of(names)
            words = find_dictionaries(self.metadata.row_group(number), leaves)
            decoder = self._take_decoder(words)
            batch = _as_batch(decoder.read(number, spans, data, leaves), expected)
        except MemoryError:  # also an ArrowException, but not caused by the bytes
            raise
        except PARQUET_ERRORS as error:
            raise CorruptionError("a frame cannot be decoded", where=place) from error
        self._idle.setdefault(words, []).append(decoder)
        if batch.num_rows != frame.rows:
            raise CorruptionError(
                "a frame has the wrong number of rows",
                where=place,
                expected=frame.rows,
                actual=batch.num_rows,
            )
        return batch if batch.schema.names == wanted else batch.select(wanted)

    def _leaves_of(self, names: Sequence[str]) -> list[int]:
        """Return the numbers of some columns' leaves."""
        wanted, ends = {*names}, accumulate(self.widths)
        return [
            leaf
            for name, width, end in zip(self.schema.names, self.widths, ends, strict=True)
            if name in wanted
            for leaf in range(end - width, end)
        ]

    def _take_decoder(self, words: tuple[int, ...]) -> "_Decoder":
        try:
            return self._idle[words].pop()
        except (KeyError, IndexError):  # each thread that decodes at the same time needs its own
            return _Decoder(self, words)


class _Decoder:
    """A reusable Parquet reader of one segment; it serves one frame at a time."""

    def __init__(self, index: ParquetIndex, words: tuple[int, ...]) -> None:
        self._window = Window(index.object_bytes)
        # Not `pq.ParquetFile`, which accepts no pool and no column numbers. Page checksums are not
        # verified again: every byte has been checked.
        self._reader = ParquetReader(rows_pool())
        self._reader.open(
            pa.PythonFile(self._window, mode="r"),
            metadata=index.metadata,
            read_dictionary=words,
            pre_buffer=False,
            arrow_extensions_enabled=True,
        )

    def read(
        self,
        number: int,
        spans: Sequence[tuple[int, int]],
        data: Sequence[pa.Buffer],
        leaves: Sequence[int],
    ) -> pa.Table:
        """Decode some leaves of a row group from its fetched ranges; raises pyarrow's errors."""
        self._window.show(spans, data)
        table = self._reader.read_row_group(number, leaves, use_threads=False)
        self._window.show((), ())
        return table


def _find_chunk(column: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """Return where a column chunk starts and ends in its file."""
    start = column.data_page_offset
    dictionary = column.dictionary_page_offset
    if dictionary is not None and 0 < dictionary < start:
        start = dictionary
    return start, start + column.total_compressed_size


def _as_batch(table: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for column in schema:
        chunks = table.column(column.name).chunks
        if not chunks[0].type.equals(column.type):  # it was read as a dictionary
            chunks = [chunk.cast(column.type, memory_pool=rows_pool()) for chunk in chunks]
        arrays.append(chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks, rows_pool()))
    # Names of nested fields and nullability are those of our schema.
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    batch.validate()
    # `with_types` removes the field ids from types of nested arrays.
    return with_types(batch) if any(map(t.is_nested, schema.types)) else batch


@dataclass(frozen=True, slots=True)
class _Version:
    version: Positive


@dataclass(frozen=True, slots=True)
class _Footer:
    index: Any
    lengths: list[Any]
    crcs: list[Any]
    filters: Annotated[list[str], ABSENT]


@dataclass(frozen=True, slots=True)
class _Frames:
    bytes: list[int]


class ParquetSegments:
    """The format `parquet`; a `SegmentFormat` (see `format.segment`)."""

    name = NAME
    head_bytes = len(MAGIC)

    def parse_index(
        self, tail: bytes, *, object_bytes: int, where: str, footer_crc: int
    ) -> ParquetIndex:
        """Parse the index; raises as `SegmentFormat.parse_index`."""
        _check_end(tail, object_bytes=object_bytes, where=where, footer_crc=footer_crc)
        metadata, schema, value = _read_footer(tail, where)
        version = from_json(_Version, value, where=where).version
        if version > VERSION:
            raise UnsupportedVersionError(
                "a segment has a newer format version", where=where, version=version, known=VERSION
            )
        footer = from_json(_Footer, value, where=where)
        frames, stats = parse_index(
            footer.index,
            frames_start=len(MAGIC),
            frames_end=object_bytes - len(tail),
            alignment=1,
            where=where,
        )
        _check_pieces(frames, footer.lengths, footer.crcs, where)
        widths = tuple(len(leaves_of(pa.schema([column]))) for column in schema)
        _check_groups(frames, metadata, sum(widths), where)
        if footer.filters:
            leaves = dict(zip(schema.names, accumulate(widths, initial=0), strict=False))
            frames = tuple(
                replace(
                    frame,
                    filters=_filters_of(
                        metadata.row_group(number),
                        {name: leaves[name] for name in footer.filters if name in leaves},
                        tail,
                        object_bytes=object_bytes,
                        where=where,
                    ),
                )
                for number, frame in enumerate(frames)
            )
        return ParquetIndex(
            frames,
            stats,
            where,
            object_bytes,
            tail,
            metadata,
            schema,
            tuple(footer.lengths),
            tuple(footer.crcs),
            widths,
        )

    def measure_end(self, last: bytes, *, object_bytes: int) -> int:
        """Return the size of the end, unchecked; without filters if `last` lacks the footer."""
        if len(last) < _END.size:
            return 0
        size = int(_END.unpack(last[-_END.size :])[0]) + _END.size
        if size > len(last):
            return size
        try:
            _, _, value = _read_footer(last[-size:], "")
            frames = from_json(_Frames, from_json(_Footer, value, where="").index, where="").bytes
            return max(size, object_bytes - len(MAGIC) - sum(frames))
        except CorruptionError:
            return size

    def check_head(self, data: bytes, *, where: str) -> None:
        """Check the first four bytes, which reading does not need."""
        if len(data) < len(MAGIC):
            raise TruncatedObjectError("a segment is too short", where=where, bytes=len(data))
        if data[: len(MAGIC)] != MAGIC:
            raise CorruptionError("a segment's header is damaged", where=where)


def _read_footer(end: bytes, where: str) -> tuple[pq.FileMetaData, pa.Schema, Any]:
    """Return the metadata, the schema and our index from the end of a file."""
    try:
        metadata = pq.read_metadata(pa.BufferReader(end))
        schema = metadata.schema.to_arrow_schema()
        text = (metadata.metadata or {})[INDEX_KEY]
        compressed = base64.b64decode(text, validate=True)
    except MemoryError:
        raise
    except (*PARQUET_ERRORS, binascii.Error) as error:
        raise CorruptionError("a segment's footer can't be read", where=where) from error
    what = "a segment's index"
    raw = decompress(compressed, most=MAX_INDEX_BYTES, what=what, where=where)
    return metadata, schema, parse_json(raw, where=where)


def _check_end(tail: bytes, *, object_bytes: int, where: str, footer_crc: int) -> None:
    if object_bytes == 0:
        raise EmptyObjectError("a segment is empty", where=where)
    if len(tail) < _END.size or object_bytes < len(tail) + len(MAGIC):
        raise TruncatedObjectError("a segment is too short", where=where, bytes=object_bytes)
    size, magic = _END.unpack(tail[-_END.size :])
    if magic != MAGIC:
        raise TruncatedObjectError("a segment does not end with Parquet's magic bytes", where=where)
    if size + _END.size > len(tail) or crc32(tail) != footer_crc:
        raise CorruptionError("a segment is not the one that was committed", where=where)


def _filters_of(
    group: pq.RowGroupMetaData,
    leaves: Mapping[str, int],
    end: bytes,
    *,
    object_bytes: int,
    where: str,
) -> dict[str, bytes]:
    found = {
        name: read_filter(group.column(leaf), end, object_bytes=object_bytes, where=where)
        for name, leaf in leaves.items()
    }
    return {name: data for name, data in found.items() if data is not None}


def _check_pieces(
    frames: Sequence[FrameEntry], lengths: list[Any], crcs: list[Any], where: str
) -> None:
    if not len(frames) == len(lengths) == len(crcs):
        raise CorruptionError("a segment's checksums are wrong", where=where)
    for frame, sizes, sums in zip(frames, lengths, crcs, strict=True):
        lists = isinstance(sizes, list) and isinstance(sums, list)
        if (
            not lists
            or {int} != {*map(type, sizes), *map(type, sums)}
            or len(sizes) != len(sums)
            or min(sizes) < 1
            or min(sums) < 0
            or sum(sizes) != frame.bytes
        ):
            raise CorruptionError("a segment's checksums are wrong", where=where)


def _check_groups(
    frames: Sequence[FrameEntry], metadata: pq.FileMetaData, leaves: int, where: str
) -> None:
    rows = [metadata.row_group(place).num_rows for place in range(metadata.num_row_groups)]
    if rows != [frame.rows for frame in frames] or leaves != metadata.num_columns:
        raise CorruptionError("a segment's row groups do not match its frames", where=where)
