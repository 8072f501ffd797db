"""Arrow segments that somebody crafted, with right checksums: typed errors, little memory."""

import struct
import zlib
from dataclasses import replace

import pyarrow as pa
import pytest
import zstandard
from crash_kit import SCHEMA, content_on, events
from limits import memory_limit
from malicious_kit import BODIES, MEMORY, NEWEST, attack, plant, put_back

from segstore_ds.errors import FormatError
from segstore_ds.format.arrow.frame import encode_frame
from segstore_ds.format.arrow.segment import ArrowEncoder
from segstore_ds.format.root import encode_root
from segstore_ds.format.schema.codec import fingerprint
from segstore_ds.storage import Storage
from segstore_ds.stream.opening import open as open_on

pytestmark = pytest.mark.slow


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
