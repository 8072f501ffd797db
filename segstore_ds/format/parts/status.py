"""Status objects: parts in the first encoding, and blobs that the root refers to (FORMAT.md 5).

The body of a part is one Arrow IPC stream with a row per segment, in offset order. The body of a
blob, which holds what no longer fits in the root, is JSON. Both are in an envelope, whose header
names the codec, and both are named by their digest.
"""

import struct

import pyarrow as pa

from segstore_ds.errors import CorruptionError
from segstore_ds.format import names
from segstore_ds.format.arrow.frame import declared_bytes
from segstore_ds.format.fields import build_json, parse_json, parse_object
from segstore_ds.format.root import PartRef, Retired, SegmentEntry, Writer
from segstore_ds.format.root_codec import (
    parse_part,
    parse_retired,
    parse_writer,
    part_value,
    retired_value,
    writer_value,
)

PART_SCHEMA = pa.schema(  # On disk. Never change; add a new one under a new envelope version.
    [
        pa.field("segment_id", pa.int64(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("footer_bytes", pa.int64(), nullable=False),
        pa.field("footer_crc", pa.int64(), nullable=False),
        pa.field("format", pa.string(), nullable=False),
        pa.field("stats", pa.string()),
    ]
)


def encode_part(entries: tuple[SegmentEntry, ...]) -> bytes:
    """Return the body of a part."""
    columns = [
        pa.array([getattr(entry, field.name) for entry in entries], field.type)
        for field in PART_SCHEMA
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, PART_SCHEMA) as stream:
        stream.write_batch(pa.RecordBatch.from_arrays(columns, schema=PART_SCHEMA))
    return bytes(sink.getvalue())


def decode_part(body: bytes, *, where: str) -> tuple[SegmentEntry, ...]:
    """Decode the segments of a part, in offset order."""
    try:
        if declared_bytes(memoryview(body)) > len(body):
            raise CorruptionError("status part holds compressed buffers", where=where)
        with pa.ipc.open_stream(body) as stream:
            table = stream.read_all()
            if not table.schema.equals(PART_SCHEMA):
                raise CorruptionError("status part has the wrong columns", where=where)
            table.validate(full=True)
    except MemoryError:  # Arrow's is also an ArrowException; it says nothing about the bytes
        raise
    except (pa.ArrowException, OSError, ValueError, struct.error) as error:
        raise CorruptionError("status part does not decode", where=where) from error
    if any(table[field.name].null_count for field in PART_SCHEMA if not field.nullable):
        raise CorruptionError("status part lacks values", where=where)
    entries = tuple(
        SegmentEntry(*row)
        for row in zip(*(column.to_pylist() for column in table.columns), strict=True)
    )
    for entry in entries:
        _check_entry(entry, where)
    return entries


def _check_entry(entry: SegmentEntry, where: str) -> None:
    names.check_segment_path(entry.path, where=where)
    sizes = (entry.rows, entry.bytes, entry.footer_bytes)
    if min(sizes) < 1 or min(entry.segment_id, entry.footer_crc) < 0:
        raise CorruptionError("segment entry is out of range", where=where, path=entry.path)


def encode_part_list(parts: tuple[PartRef, ...]) -> bytes:
    """Return the body of a list of parts."""
    return build_json([part_value(part) for part in parts])


def decode_part_list(body: bytes, *, where: str) -> tuple[PartRef, ...]:
    """Decode a list of parts, in offset order."""
    value = parse_json(body, where=where)
    if not isinstance(value, list) or not value:
        raise CorruptionError("object holds no parts", where=where)
    return tuple(parse_part(item, where=where) for item in value)


def encode_retired(retired: tuple[Retired, ...]) -> bytes:
    """Return the body of a blob of retired objects."""
    return build_json([retired_value(item) for item in retired])


def decode_retired(body: bytes, *, where: str) -> tuple[Retired, ...]:
    """Decode a blob of retired objects."""
    value = parse_json(body, where=where)
    if not isinstance(value, list):
        raise CorruptionError("blob holds no retired objects", where=where)
    return tuple(parse_retired(item, where=where) for item in value)


def encode_writers(writers: dict[str, Writer]) -> bytes:
    """Return the body of a blob of writers."""
    return build_json({name: writer_value(writer) for name, writer in writers.items()})


def decode_writers(body: bytes, *, where: str) -> dict[str, Writer]:
    """Decode a blob of writers."""
    writers = parse_object(body, what="writers", where=where)
    return {name: parse_writer(item, where=where) for name, item in writers.items()}
