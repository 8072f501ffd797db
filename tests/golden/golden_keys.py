"""Golden streams with key columns, and a reader of their filters that shares no code with segstore.

They were added when filters were; `make_golden` writes them, as all others. Parquet's filters need
pyarrow 24 to be written.
"""

import base64
import json
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from golden_reader import envelope, rows_of

from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout

ARROW = Layout(inline_bytes=0, frame_rows=30, segment_format="arrow", compression="none")
NOT_KEYS = {"float", "double", "void", "list", "struct", "map"}
MOST_KEYS = 8
MASK = (1 << 64) - 1
P1, P2, P3, P4, P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
SALTS = bytes.fromhex("47b6137b44974d918824ad5ba2b7289d705495c72df1424b9efc49475c6bfb31")


def arrow(stream: Stream) -> None:
    """Keys of every type, in frames of Arrow segments behind one without filters."""
    _fill(stream, ARROW)


def parquet(stream: Stream) -> None:
    """The same in Parquet segments."""
    _fill(stream, replace(ARROW, segment_format="parquet"))


def _fill(stream: Stream, layout: Layout) -> None:
    from make_golden import many_types  # which imports this module

    once = many_types()
    rows = pa.concat_tables([once] * 12).combine_chunks()
    words = pa.array([f"{n % 9:0{n % 9 * 9}d}" for n in range(rows.num_rows)])
    rows = rows.append_column("word", words)
    prices = pa.array([n % 5 for n in range(rows.num_rows)], pa.decimal128(9, 2))
    rows = rows.append_column("price", prices)
    names = [name for name in rows.schema.names if name not in NOT_KEYS]
    stream.overwrite(rows.select(names).slice(0, 9), overwrite_schema=True, layout=layout)
    for first in range(0, len(names), MOST_KEYS):
        stream.settings.update(key_columns=names[first : first + MOST_KEYS])
        stream.append(rows.select(names), layout=layout)


def segments(stream: Stream) -> None:
    """A part whose first segment has no filters; for those of the last one nobody has looked."""
    from make_golden import events  # which imports this module

    stream.append(events(0, 25), layout=ARROW)
    stream.settings.update(key_columns=["word", "n"])
    layout = replace(ARROW, frame_rows=25, segment_rows=50)
    stream.append(events(25, 225), layout=layout)


# So that one commit spills, and the look ends before the last segment; no part of the format.
SPILL, LOOK = {"rows": 2}, {"MOST_LOOKED": 4}
SEGMENTS = {"segment-filters": segments}
KEYS = {"keys-arrow": arrow, "keys-parquet": parquet}


def filtered(folder: Path) -> Iterator[tuple[str, bytes, pa.Array]]:
    """Yield column, filter and values of each filter in a stream's segments."""
    for path in sorted(folder.rglob("segments/*/*")):
        data = path.read_bytes()
        yield from (_of_arrow if path.suffix == ".arrow" else _of_parquet)(data)


def part_filters(folder: Path, path: str, size: int) -> list[dict[str, list[bytes]] | None]:
    """Return the filters of each segment of a part; None if nobody has looked (5.2)."""
    data = (folder / path).read_bytes()
    facts, columns = rows_of(envelope(data[:size], path[-32:]))
    length, digest, looked = facts["filters"]
    _, behind = rows_of(envelope(data[-length:], digest))
    filters = [None if cells is None else dict(cells) for cells in behind["filters"]]
    assert len(filters) == len(columns["rows"])
    assert len(filters) - filters.count(None) == looked
    return filters


def _of_arrow(data: bytes) -> Iterator[tuple[str, bytes, pa.Array]]:
    (place, length) = struct.unpack_from("<QI", data, len(data) - 40)
    index: dict[str, Any] = json.loads(zstandard.decompress(data[place : place + length]))
    start = 64
    for number, size in enumerate(index["bytes"]):
        (batch,) = list(pa.ipc.open_stream(data[start : start + size]))
        for name, text in index["filters"][number].items() if "filters" in index else ():
            yield name, base64.b64decode(text, validate=True), batch.column(name)
        start += size


def _of_parquet(data: bytes) -> Iterator[tuple[str, bytes, pa.Array]]:
    file = pq.ParquetFile(pa.BufferReader(data))
    facts = base64.b64decode(file.metadata.metadata[b"segstore"], validate=True)
    names = json.loads(zstandard.decompress(facts)).get("filters", [])
    for number in range(file.metadata.num_row_groups):
        group, rows = file.metadata.row_group(number), file.read_row_group(number)
        for place in range(group.num_columns):
            chunk = group.column(place)
            start = getattr(chunk, "bloom_filter_offset", None)
            if chunk.path_in_schema in names and start is not None:
                stored = data[start : start + chunk.bloom_filter_length]
                bits = stored[-(len(stored) // 32 * 32) :]
                values = rows.column(chunk.path_in_schema).combine_chunks()
                yield chunk.path_in_schema, bits, values


def holds(data: bytes, value: bytes) -> bool:
    """Tell whether a value may be in a filter (6)."""
    hashed = xxhash64(value)
    block = ((hashed >> 32) * (len(data) // 32)) >> 32
    for word, salt in enumerate(struct.unpack(">8I", SALTS)):
        (bits,) = struct.unpack_from("<I", data, block * 32 + word * 4)
        if not bits >> ((hashed * salt & 0xFFFFFFFF) >> 27) & 1:
            return False
    return True


def hashed_bytes(array: pa.Array) -> list[bytes]:
    """Return what is hashed of each value but null (6)."""
    kind, values = array.type, array.drop_null()
    if pa.types.is_decimal(kind):
        unscaled = [int(value.as_py().scaleb(kind.scale)) for value in values]
        if kind.precision <= 18:
            width = 4 if kind.precision <= 9 else 8
            return [number.to_bytes(width, "little", signed=True) for number in unscaled]
        width = next(n for n in range(1, 17) if 10**kind.precision <= 1 << (8 * n - 1))
        return [number.to_bytes(width, "big", signed=True) for number in unscaled]
    if pa.types.is_string(kind):
        return [value.as_py().encode() for value in values]
    if pa.types.is_binary(kind):
        return [value.as_py() for value in values]
    if pa.types.is_boolean(kind):
        return [bytes([value.as_py()]) for value in values]
    width = max(kind.bit_width // 8, 4)
    stored = {4: pa.int32(), 8: pa.int64()}[width]
    numbers = values.cast(stored) if pa.types.is_integer(kind) else values.view(stored)
    return [number.to_bytes(width, "little", signed=True) for number in numbers.to_pylist()]


def xxhash64(data: bytes) -> int:
    """Return xxHash64 with seed 0."""
    rest = data
    if len(data) >= 32:
        lanes = [(P1 + P2) & MASK, P2, 0, -P1 & MASK]
        while len(rest) >= 32:
            words = struct.unpack_from("<4Q", rest)
            lanes = [_round(lane, word) for lane, word in zip(lanes, words, strict=True)]
            rest = rest[32:]
        found = sum(map(_rotated, lanes, (1, 7, 12, 18))) & MASK
        for lane in lanes:
            found = ((found ^ _round(0, lane)) * P1 + P4) & MASK
    else:
        found = P5
    found = (found + len(data)) & MASK
    while len(rest) >= 8:
        found = (
            _rotated(found ^ _round(0, struct.unpack_from("<Q", rest)[0]), 27) * P1 + P4
        ) & MASK
        rest = rest[8:]
    if len(rest) >= 4:
        found ^= struct.unpack_from("<I", rest)[0] * P1 & MASK
        found, rest = (_rotated(found, 23) * P2 + P3) & MASK, rest[4:]
    for byte in rest:
        found = _rotated(found ^ (byte * P5 & MASK), 11) * P1 & MASK
    for shift, factor in ((33, P2), (29, P3), (32, 1)):
        found = (found ^ (found >> shift)) * factor & MASK
    return found


def _round(lane: int, word: int) -> int:
    return _rotated((lane + word * P2) & MASK, 31) * P1 & MASK


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & MASK
