"""Status objects in JSON: lists of parts, retired objects and writers (FORMAT.md 5)."""

from segstore_ds.errors import CorruptionError
from segstore_ds.format.fields import build_json, parse_json, parse_object
from segstore_ds.format.root import PartRef, Retired, Writer
from segstore_ds.format.root_codec import (
    parse_part,
    parse_retired,
    parse_writer,
    part_value,
    retired_value,
    writer_value,
)


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
