"""Frames: the unit of checksum and of decoding, each a self-contained Arrow IPC stream.

A frame holds exactly one record batch. Its checksum covers every byte, including padding, and is
verified before anything else reads the bytes. A frame with the right checksum may still be crafted,
so nothing is decompressed before its size is known to be within the limit, and all offsets in a
column are checked before it is returned. The contents of strings are not checked: Spark stores and
returns strings that are not UTF-8, and so does segstore.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

import pyarrow as pa

from segstore_ds.checksum import crc32
from segstore_ds.errors import CorruptionError, InvalidInputError
from segstore_ds.format.arrow.offsets import check_offsets, is_sound
from segstore_ds.format.bloom import Filters, build_filters, distinct_values, keys_of
from segstore_ds.format.bounds import Piece, compute, label_of
from segstore_ds.format.rows import only_rows, rows_pool, with_types
from segstore_ds.format.schema.codec import fingerprint

ALIGNMENT = 64  # On disk. Never change; add a new one.
MAX_RAW_BYTES = (1 << 31) - 1
MAX_ROWS = (1 << 31) - 1

Compression = Literal["zstd", "lz4", "none"]

KEPT_BYTES = 32 << 10  # a frame with at most this many bytes before compression keeps its rows
_SMALL_BYTES = 64 << 10
_THREADED_BYTES = 256 << 10  # with fewer bytes, threads cost more than they save
_CONTINUATION = 0xFFFFFFFF  # On disk, by Arrow: starts every message of a stream.
_END = b"\xff\xff\xff\xff\0\0\0\0"  # On disk, by Arrow: ends a stream.
_DICTIONARY, _RECORD_BATCH = 2, 3  # On disk, by Arrow: kinds of messages.
# Slots of the flatbuffer tables in Arrow's Message.fbs.
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3
_DATA = 1
_BUFFERS, _COMPRESSION = 2, 3
_MOST_SLOTS = 4
_ABSENT = (0,) * _MOST_SLOTS
_PREFIX, _LONG = struct.Struct("<II"), struct.Struct("<q")
_OFFSET, _BACK, _SIZE = struct.Struct("<I"), struct.Struct("<i"), struct.Struct("<H")
_ARROW_ERRORS = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, IndexError)


@dataclass(frozen=True, slots=True)
class Frame:
    """One encoded record batch.

    The length of `data` is a multiple of 64 bytes, and `crc` is its CRC-32. `raw_bytes` is the
    decompressed size of its buffers. `fingerprint` is the digest of its schema. `stats` and
    `filters` cover some of its columns. `batch` is a copy of its rows, if they are few and were
    encoded in this process.
    """

    data: pa.Buffer
    rows: int
    crc: int
    stats: Piece
    fingerprint: str
    raw_bytes: int
    filters: Filters = field(default_factory=dict)
    batch: pa.RecordBatch | None = field(default=None, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle all but the batch, which may be many times as large."""
        facts = (self.data, self.rows, self.crc, self.stats, self.fingerprint, self.raw_bytes)
        return type(self), (*facts, self.filters)

    def decode(
        self,
        schema: pa.Schema,
        columns: Sequence[str] | None = None,
        *,
        where: str = "inline frame",
    ) -> pa.RecordBatch:
        """Return the rows; CorruptionError if the bytes are damaged."""
        check_frame(self.data, crc=self.crc, where=where)
        return decode_frame(
            self.data,
            rows=self.rows,
            schema=schema,
            columns=columns,
            where=where,
            limit_bytes=max(self.raw_bytes, 1),
        )


def encode_frame(
    batch: pa.RecordBatch,
    *,
    compression: Compression,
    compression_level: int | None,
    stats_columns: Sequence[str],
    key_columns: Sequence[str] = (),
    into: memoryview | None = None,
) -> Frame:
    """Encode a batch, whose schema is in normal form, as a frame.

    A level of None is the codec's own default. Statistics are computed for `stats_columns`, except
    nested ones. Filters are made for the `key_columns` that the batch has. A batch too large for
    one frame is an InvalidInputError. The bytes are written to the front of `into` if they fit
    there, else into memory of their own.
    """
    check_size(batch)
    # A small batch is copied in any case: the caller may change the memory of its columns.
    given, small = batch, batch.get_total_buffer_size() <= KEPT_BYTES
    batch = pa.concat_batches([batch]) if small else only_rows(batch)
    values = distinct_values(batch, key_columns) if key_columns else {}
    stats = compute(batch, stats_columns, distinct=values)
    if compression == "none" and into is None:
        data = _plain(batch)
    else:
        data = _compressed(batch, _codec(compression, compression_level), into)
    raw_bytes = declared_bytes(memoryview(data))
    return Frame(
        data=data,
        rows=batch.num_rows,
        crc=crc32(data),
        stats=stats,
        fingerprint=fingerprint(batch.schema),
        raw_bytes=raw_bytes,
        filters=build_filters(batch.schema, values, frame_bytes=data.size) if values else {},
        batch=batch if raw_bytes <= KEPT_BYTES and batch is not given else None,
    )


def with_marks(
    frame: Frame, *, schema: pa.Schema, keys: Sequence[str], bounded: str | None, where: str
) -> Frame:
    """Return a checked frame with filters of key columns, and with bounds of `bounded` first."""
    wanted = keys_of(schema, keys)
    if all(name in frame.filters for name in wanted):
        wanted = []
    timed = [bounded] if bounded is not None and bounded in schema.names else []
    first = [label_of(schema.field(name)) or "" for name in timed]
    lacking = [] if {*first} <= frame.stats.keys() else timed
    stats, filters = frame.stats, frame.filters
    if columns := list(dict.fromkeys((*wanted, *lacking))):
        batch = frame.decode(schema, columns, where=where)
        stats = {**stats, **compute(batch, lacking)}
        values = distinct_values(batch, wanted)
        filters = build_filters(schema, values, frame_bytes=frame.data.size) if wanted else filters
    stats = {**{label: stats[label] for label in first if label in stats}, **stats}
    return replace(frame, stats=stats, filters=filters)


def check_size(batch: pa.RecordBatch) -> None:
    """Raise InvalidInputError if a batch is larger than an index can describe, in both formats."""
    # Calling `nbytes` takes longer than encoding a few rows, so small batches are passed without.
    small = batch.get_total_buffer_size() <= _SMALL_BYTES
    if batch.num_rows > MAX_ROWS or (not small and batch.nbytes > MAX_RAW_BYTES):
        raise InvalidInputError(
            "a frame is too large",
            remedy="write fewer rows per frame",
            rows=batch.num_rows,
            bytes=batch.nbytes,
        )


def _plain(batch: pa.RecordBatch) -> pa.Buffer:
    """Return the stream of a batch, without a writer: opening one takes longer than a few rows."""
    pieces = (batch.schema.serialize(), batch.serialize(), _END)
    size = sum(map(len, pieces))
    return pa.py_buffer(b"".join((*pieces, bytes(-size % ALIGNMENT))))


def _compressed(
    batch: pa.RecordBatch, codec: pa.Codec | None, into: memoryview | None
) -> pa.Buffer:
    options = pa.ipc.IpcWriteOptions(
        compression=codec, use_threads=batch.get_total_buffer_size() >= _THREADED_BYTES
    )
    data = None if into is None else _lay(batch, options, into)
    if data is not None:
        return data
    sink = pa.BufferOutputStream()
    _write(batch, options, sink)
    return _exact(sink.getvalue())


def _write(batch: pa.RecordBatch, options: pa.ipc.IpcWriteOptions, sink: pa.NativeFile) -> None:
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    sink.write(bytes(-sink.tell() % ALIGNMENT))


def _lay(
    batch: pa.RecordBatch, options: pa.ipc.IpcWriteOptions, into: memoryview
) -> pa.Buffer | None:
    memory = pa.py_buffer(into)
    try:
        with pa.FixedSizeBufferWriter(memory) as sink:
            _write(batch, options, sink)
            return memory.slice(0, sink.tell())
    except OSError:  # the stream is larger than the memory
        return None


def _exact(data: pa.Buffer) -> pa.Buffer:
    # The buffer of a stream has up to twice the capacity that its size says, and callers bound
    # memory by sizes. The copy costs 1 % of encoding.
    exact = pa.allocate_buffer(data.size)
    with pa.FixedSizeBufferWriter(exact) as writer:
        writer.write(data)
    return exact


@cache
def check_compression(compression: str, level: int | None) -> None:
    """Raise InvalidInputError if a compression is unknown or its level is out of range."""
    if compression == "none":
        return
    if compression not in {"zstd", "lz4"}:
        raise InvalidInputError(
            "unknown compression", remedy="use zstd, lz4 or none", compression=compression
        )
    low = pa.Codec.minimum_compression_level(compression)
    high = pa.Codec.maximum_compression_level(compression)
    if level is not None and not low <= level <= high:
        raise InvalidInputError(
            "the compression level is out of range",
            remedy=f"use {low} to {high}",
            compression=compression,
            level=level,
        )


def _codec(compression: str, level: int | None) -> pa.Codec | None:
    if compression == "none":
        return None
    check_compression(compression, level)
    return pa.Codec(compression, compression_level=level)


def check_frame(data: pa.Buffer | bytes | memoryview, *, crc: int, where: str) -> None:
    """Raise CorruptionError unless the stored bytes of a frame have the CRC-32 `crc`."""
    actual = crc32(data)
    if actual != crc:
        raise CorruptionError(
            "a frame fails its checksum", where=where, expected=crc, actual=actual
        )


def decode_frame(
    data: pa.Buffer | bytes | memoryview,
    *,
    rows: int,
    schema: pa.Schema,
    columns: Sequence[str] | None,
    where: str,
    limit_bytes: int = MAX_RAW_BYTES,
) -> pa.RecordBatch:
    """Decode some columns (None: all) of a frame whose checksum was verified.

    The frame must have `rows` events and `schema` (in normal form), and its decompressed buffers at
    most `limit_bytes`. Uncompressed buffers are views of `data`.
    """
    names = schema.names if columns is None else list(columns)
    places = _places(schema, names)
    try:
        raw_bytes = declared_bytes(memoryview(data))
        if raw_bytes > limit_bytes:
            raise CorruptionError(
                "a frame is too large", where=where, raw_bytes=raw_bytes, limit_bytes=limit_bytes
            )
        batch = _read_batch(data, schema, places)
    except MemoryError:  # Arrow's is also an ArrowException; it says nothing about the bytes
        raise
    except (*_ARROW_ERRORS, struct.error) as error:
        raise CorruptionError("a frame cannot be decoded", where=where) from error
    if batch.num_rows != rows:
        raise CorruptionError(
            "a frame has the wrong number of rows",
            where=where,
            expected=rows,
            actual=batch.num_rows,
        )
    return batch if batch.schema.names == names else batch.select(names)


def _places(schema: pa.Schema, names: Sequence[str]) -> list[int]:
    places = [schema.get_field_index(name) for name in names]
    if min(places, default=0) < 0 or len(set(places)) < len(places):
        raise InvalidInputError(
            "columns must exist and be named once", columns=list(names), known=schema.names
        )
    return places


def _read_batch(data: pa.Buffer | bytes, schema: pa.Schema, places: list[int]) -> pa.RecordBatch:
    # To Arrow an empty list means all fields, so decode the first field to count rows.
    wanted = sorted(places) or [0][: len(schema)]
    options = pa.ipc.IpcReadOptions(
        included_fields=wanted, use_threads=len(data) >= _THREADED_BYTES
    )
    with pa.ipc.open_stream(pa.py_buffer(data), options=options, memory_pool=rows_pool()) as reader:
        read = [*reader]
    whole = len(wanted) == len(schema)
    expected = schema if whole else pa.schema([schema.field(place) for place in wanted])
    if len(read) != 1 or not reader.schema.equals(expected):
        raise ValueError(expected)
    (batch,) = read
    if not is_sound(batch):
        batch.validate()
        for column in batch.columns:
            check_offsets(column)
    if not expected.names or batch.schema.equals(expected, check_metadata=True):
        return batch
    return with_types(pa.RecordBatch.from_arrays(batch.columns, schema=expected))


def declared_bytes(data: memoryview) -> int:
    """Return the decompressed size of a stream's buffers, without decompressing them.

    Bytes that are not messages raise struct.error or ValueError. A message that is neither a
    schema, a dictionary nor a record batch, or a negative size, raises ValueError.
    """
    total, messages = 0, _messages(data)
    next(messages, None)
    for metadata, message, body in messages:
        kind = metadata[message[_HEADER_TYPE]]
        if kind not in (_RECORD_BATCH, _DICTIONARY):
            raise ValueError(kind)
        batch = _fields(metadata, message[_HEADER])
        if kind == _DICTIONARY:
            batch = _fields(metadata, batch[_DATA])
        compressed = batch[_COMPRESSION]
        for start, length in _buffers(metadata, batch[_BUFFERS]):
            size = _LONG.unpack_from(body, start)[0] if compressed and length else -1
            if size < -1 or start < 0 or length < 0:
                raise ValueError(size)
            total += length if size < 0 else size
    return total


def _messages(data: memoryview) -> Iterator[tuple[memoryview, Sequence[int], memoryview]]:
    """Yield each message of a stream: its metadata, the places of its fields, and its body."""
    place = 0
    while place + 8 <= len(data):
        marker, size = _PREFIX.unpack_from(data, place)
        if not (marker and size):
            return
        if marker != _CONTINUATION:  # refuse messages as Arrow wrote them before 2019
            raise ValueError(marker)
        place += 8
        metadata = data[place : place + size]
        message = _fields(metadata, 0)
        slot = message[_BODY_LENGTH]
        (length,) = _LONG.unpack_from(metadata, slot) if slot else (0,)
        if length < 0:
            raise ValueError(length)
        place += size
        yield metadata, message, data[place : place + length]
        place += length


def _fields(metadata: memoryview, place: int) -> Sequence[int]:
    """Return the places of the fields of a flatbuffer table, 0 for absent; `place` points to it."""
    table = place + int(_OFFSET.unpack_from(metadata, place)[0])
    start = table - int(_BACK.unpack_from(metadata, table)[0])
    (size,) = _SIZE.unpack_from(metadata, start)
    slots = min(size // 2 - 2, _MOST_SLOTS)
    found: list[int] = [*struct.unpack_from(f"<{slots}H", metadata, start + 4), *_ABSENT[slots:]]
    a, b, c, d = found  # no loop: every small frame comes by here
    return a and table + a, b and table + b, c and table + c, d and table + d


def _buffers(metadata: memoryview, slot: int) -> Iterator[tuple[int, int]]:
    if not slot:
        return iter(())
    vector = slot + int(_OFFSET.unpack_from(metadata, slot)[0])
    (count,) = _OFFSET.unpack_from(metadata, vector)
    return struct.iter_unpack("<qq", metadata[vector + 4 : vector + 4 + 16 * count])
