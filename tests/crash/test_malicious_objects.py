"""Roots, status parts and segments that somebody crafted, with right checksums.

Each is a typed error, and takes little memory.
"""

import base64
import json
import struct
import zlib
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from crash_kit import SCHEMA, content_on, events, memory_limit
from malicious_kit import BODIES, MEMORY, NEWEST, attack, plant, put_back, put_part, root_json

from segstore_ds.errors import FormatError, SegstoreError
from segstore_ds.format.arrow.frame import encode_frame
from segstore_ds.format.arrow.segment import ArrowEncoder
from segstore_ds.format.envelope import digest_of
from segstore_ds.format.parts.rows import ROWS_LIMIT, encode_rows
from segstore_ds.format.root import encode_root
from segstore_ds.format.schema.codec import fingerprint
from segstore_ds.storage import Storage
from segstore_ds.stream.opening import open as open_on

pytestmark = pytest.mark.slow

# Those that differ for a parser; the others have their turn in the long sweeps.
FEW = {"deep lists", "deep objects", "many objects", "no JSON", "a long number", "a long exponent"}
FEW |= {"an object", "lone surrogates"}
SOME_BODIES = [
    pytest.param(name, marks=[] if name in FEW else [pytest.mark.sweep]) for name in BODIES
]


@pytest.mark.parametrize("name", BODIES)
def test_bodies_that_are_no_root_are_refused(storage: Storage, name: str) -> None:
    """Deep, wide, empty or foreign JSON in a commit file: a format error."""
    plant(storage, BODIES[name])
    with memory_limit(MEMORY), pytest.raises(FormatError):
        open_on(storage)
    attack(storage)


CARRIED = {"an object", "null", "a list", "many lists", "many objects", "lists just deep enough"}
CARRIED |= {"lone surrogates"}
READ_ONLY = {"a long exponent"}  # what JSON can say and Python not repeat


@pytest.mark.parametrize("name", SOME_BODIES)
def test_unknown_fields_may_hold_anything(storage: Storage, name: str) -> None:
    """The same as the value of a field that this version does not know: refused, or carried."""
    root = root_json(storage)
    body = json.dumps(root).encode()[:-1] + b',"later":' + BODIES[name] + b"}"
    plant(storage, body)
    attack(storage, refused=False)
    if name in READ_ONLY:
        assert content_on(storage)[1] == 10
        with pytest.raises(FormatError):
            open_on(storage).append(events(10, 11))
        return
    if name not in CARRIED:
        with pytest.raises(FormatError):
            open_on(storage)
        return
    given = json.loads(BODIES[name])
    assert root_json(storage)["later"] == given
    stream = open_on(storage)
    stream.append(events(10, 11))
    stream.compact()
    assert root_json(storage)["later"] == given
    assert content_on(storage)[1] == 11


@pytest.mark.parametrize("name", SOME_BODIES)
def test_statistics_and_schemas_may_hold_anything(storage: Storage, name: str) -> None:
    """The same as a segment's statistics, and as Spark's JSON of the schema."""
    good = storage.get(NEWEST)
    text = BODIES[name].decode("latin-1")[:60_000]
    root = root_json(storage)
    root["entries"][0][7] = text
    plant(storage, json.dumps(root).encode())
    attack(storage, refused=name not in {"an object", "lone surrogates"})  # of unknown labels
    put_back(storage, good)
    root["entries"][0][7] = None
    root["epochs"][0]["spark"] = text
    plant(storage, json.dumps(root).encode())
    attack(storage, refused=False)
    wider = pa.table({"n": [1], "s": ["x"], "more": [1]})
    with suppress(SegstoreError):
        open_on(storage).append(wider, merge_schema=True)
    root["epochs"][0] |= {"spark": None, "schema": text}
    plant(storage, json.dumps(root).encode())
    attack(storage)


def bomb(raw_bytes: int, *, claimed: int | None = None) -> bytes:
    """Return an envelope of a few kilobytes that holds, or claims to hold, very many zeros."""
    compressor = zstandard.ZstdCompressor(level=3)
    unit = bytes(1 << 20)
    stream = compressor.compressobj(size=raw_bytes)
    stored = b"".join(stream.compress(unit) for _ in range(raw_bytes >> 20)) + stream.flush()
    header = f"zstd {len(stored)} {raw_bytes if claimed is None else claimed}".encode()
    return b"v1\n" + header + b" " + digest_of(header, stored).encode() + b"\n" + stored


@pytest.mark.parametrize("claimed", [None, 0, 100, 1 << 20, 10**12 - 1])
def test_bombs_are_not_unpacked(storage: Storage, claimed: int | None) -> None:
    """A quarter gigabyte of zeros in a few kilobytes is refused, also with a false size."""
    good, data = storage.get(NEWEST), bomb(256 << 20, claimed=claimed)
    assert len(data) < 1 << 20
    storage.put(NEWEST, data)
    with memory_limit(128 << 20), pytest.raises(FormatError):
        open_on(storage)
    put_back(storage, good)
    put_part(storage, b"", raw=data)
    with memory_limit(128 << 20), pytest.raises(FormatError):
        content_on(storage)
    attack(storage)


@pytest.mark.parametrize("kind", ["rows", "nothing", "no end"])
def test_crafted_parts_are_refused(storage: Storage, kind: str) -> None:
    """Rows with a right digest that are too many, lack columns, or break off."""
    rows = ROWS_LIMIT + 1 if kind == "rows" else 3
    body = encode_rows(pa.record_batch([pa.array(np.zeros(rows, np.int64))], ["x"]))
    put_part(storage, body[:-30] if kind == "no end" else body)
    why = {"rows": "too many rows", "nothing": "epochs", "no end": "cannot be decoded"}
    with memory_limit(128 << 20), pytest.raises(FormatError, match=why[kind]):
        content_on(storage)
    attack(storage)


def test_base64_that_is_no_schema_is_refused(storage: Storage) -> None:
    """Every change of a byte of the stored schema is refused or changes nothing that is read."""
    good, right = storage.get(NEWEST), content_on(storage)
    text = base64.b64decode(root_json(storage)["epochs"][0]["schema"])
    outcomes = {"read": 0, "refused": 0}
    for place in range(len(text)):
        changed = bytearray(text)
        changed[place] ^= 0xFF
        root = root_json(storage)
        root["epochs"][0]["schema"] = base64.b64encode(changed).decode()
        plant(storage, json.dumps(root).encode())
        with memory_limit(MEMORY):
            try:
                found = content_on(storage)
            except FormatError:
                outcomes["refused"] += 1
            else:
                assert found == right, place
                outcomes["read"] += 1
        put_back(storage, good)
    assert min(outcomes.values()) > 20, outcomes


# --- segments ---


def plant_segment(storage: Storage, data: bytes, *, rows: int = 2, footer: int) -> None:
    """Put bytes in the place of the newest segment, with a root that fits them."""
    root = open_on(storage)._log.root
    old = root.entries[-1]
    storage.put(f"segments/{old.path}", data)
    end = data[len(data) - footer :]
    entry = replace(
        old, rows=rows, bytes=len(data), footer_bytes=footer, footer_crc=zlib.crc32(end)
    )
    plant(storage, encode_root(replace(root, entries=(*root.entries[:-1], entry))))


def build_segment(
    frame_data: bytes, *, raw_bytes: int, rows: int = 2, index: bytes | None = None
) -> tuple[bytes, int]:
    """Return a segment of one frame with whatever bytes and index, and its end's length."""
    frame = encode_frame(
        events(0, rows).to_batches()[0],
        compression="none",
        compression_level=None,
        stats_columns=[],
    )
    data = frame_data + bytes(-len(frame_data) % 64)
    crafted = replace(
        frame, data=pa.py_buffer(data), crc=zlib.crc32(data), raw_bytes=raw_bytes, rows=rows
    )
    writer = ArrowEncoder()
    head = writer.start() + data
    writer.add(crafted)
    end, _ = writer.finish()
    if index is not None:
        end = build_end(len(head), index)
    assert fingerprint(SCHEMA) == frame.fingerprint
    return head + end, len(end)


def build_end(place: int, footer: bytes, raw_bytes: int | None = None) -> bytes:
    """Return a footer and a trailer whose checksums are right."""
    raw = zstandard.frame_content_size(footer) if raw_bytes is None else raw_bytes
    facts = struct.pack("<QIIIII", place, len(footer), raw, zlib.crc32(footer), 1, 0)
    return footer + facts + struct.pack("<I8s", zlib.crc32(facts), b"SEGATAIL")


def compressed_zeros(rows: int) -> bytes:
    """Return an Arrow stream of one batch that is small only because it is compressed."""
    batch = pa.record_batch(
        [pa.array([0] * rows, pa.int64()), pa.array([""] * rows, pa.string())], schema=SCHEMA
    )
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, SCHEMA, options=options) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def test_frame_larger_than_declared_is_refused(storage: Storage) -> None:
    """What a frame's buffers take is checked against the index before they are unpacked."""
    good = storage.get(NEWEST)
    packed = compressed_zeros(8 << 20)
    assert len(packed) < 1 << 20
    for raw_bytes in (0, 1, 1000, 1 << 20):
        data, footer = build_segment(packed, raw_bytes=raw_bytes)
        plant_segment(storage, data, footer=footer)
        with memory_limit(64 << 20), pytest.raises(FormatError, match="too large"):
            content_on(storage)
        put_back(storage, good)


def test_frame_whose_buffers_lie_about_their_size_is_refused(storage: Storage) -> None:
    """Each eight bytes of a compressed frame replaced by huge and negative numbers."""
    good = storage.get(NEWEST)
    packed = compressed_zeros(2)
    outcomes = {"read": 0, "refused": 0}
    for place in range(0, len(packed) - 8, 8):
        for value in (2**62, 2**40, 2**31, -1, -(2**40)):
            changed = bytearray(packed)
            changed[place : place + 8] = value.to_bytes(8, "little", signed=True)
            data, footer = build_segment(bytes(changed), raw_bytes=1 << 20)
            plant_segment(storage, data, footer=footer)
            with memory_limit(MEMORY):
                try:
                    found = content_on(storage)
                except FormatError:
                    outcomes["refused"] += 1
                else:
                    assert found[1] == 10
                    outcomes["read"] += 1
            put_back(storage, good)
    assert min(outcomes.values()) > 10, outcomes


INDEXES = {
    **BODIES,
    "more frames than bytes": b'{"bytes":[%s],"rows":[],"crc":[],"raw":[],"schemas":[],"schema":[],'
    b'"stats":{}}' % (b"64," * 1_000_000 + b"64"),
    "strings as numbers": b'{"bytes":["64"],"rows":["1"],"crc":[0],"raw":[0],"schemas":["x"],'
    b'"schema":[0],"stats":{}}',
    "negative": b'{"bytes":[-64],"rows":[1],"crc":[0],"raw":[0],"schemas":["x"],"schema":[0],'
    b'"stats":{}}',
    "stats of the wrong kind": b'{"bytes":[640],"rows":[2],"crc":[0],"raw":[0],"schemas":["x"],'
    b'"schema":[0],"stats":{"n":[[{"q":1}],[{"b":"!"}],[0]]}}',
}


@pytest.mark.parametrize("name", INDEXES)
def test_crafted_indexes_are_refused(storage: Storage, name: str) -> None:
    """A segment's footer with right checksums but any content: a format error."""
    footer = zstandard.ZstdCompressor().compress(INDEXES[name])
    data, end = build_segment(bytes(640), raw_bytes=0, index=footer)
    plant_segment(storage, data, footer=end)
    with memory_limit(MEMORY), pytest.raises(FormatError):
        content_on(storage)
    attack(storage)


def test_largest_index_stays_within_memory(storage: Storage) -> None:
    """A footer as large as one may be, made of what costs a parser most, and one beyond that."""
    for count in ((32 << 20) // 3 - 2, 30 << 20):
        raw = b"[" + b"{}," * count + b"0]"
        data, end = build_segment(
            bytes(640), raw_bytes=0, index=zstandard.ZstdCompressor().compress(raw)
        )
        plant_segment(storage, data, footer=end)
        with memory_limit(1 << 30), pytest.raises(FormatError):
            content_on(storage)
