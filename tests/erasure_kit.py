"""Searches every byte of every object for a value, as stored and decoded by FORMAT.md alone."""

import io
import struct
from collections.abc import Iterator

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from segstore_ds.storage import open_storage

NEEDLE = "ada.lovelace@example"


def _envelopes(data: bytes) -> Iterator[bytes]:
    """Yield the bodies of envelopes, and what lies behind the last one."""
    while data.startswith(b"v1\n"):
        line, _, rest = data[3:].partition(b"\n")
        codec, stored, raw, _ = line.split(b" ")
        body, data = rest[: int(stored)], rest[int(stored) :]
        yield body if codec == b"plain" else pa.decompress(body, int(raw), "zstd", asbytes=True)
    yield from _frames(data)


def _frames(data: bytes) -> Iterator[bytes]:
    """Yield the events of frames that lie one behind the other."""
    source = pa.BufferReader(data)
    while source.tell() < len(data):
        with pa.ipc.open_stream(source) as reader:
            yield str(reader.read_all().to_pydict()).encode()
        source.seek(-(-source.tell() // 64) * 64)


def decoded(path: str, data: bytes) -> Iterator[bytes]:
    """Yield an object as it is stored, and what it says decoded."""
    yield data
    if path.endswith(".parquet") and data.endswith(b"PAR1"):  # a crash may leave the beginning
        file = pq.ParquetFile(io.BytesIO(data))
        yield str(file.read().to_pydict()).encode()
        groups = (file.metadata.row_group(n) for n in range(file.metadata.num_row_groups))
        yield str([group.to_dict() for group in groups]).encode()
    elif path.endswith(".arrow"):
        place, length, raw = struct.unpack_from("<QII", data, len(data) - 40)
        yield pa.decompress(data[place : place + length], raw, "zstd", asbytes=True)
        yield from _frames(data[64:place])
    elif path.endswith(".avro"):
        yield str(list(fastavro.reader(io.BytesIO(data)))).encode()
    elif path.startswith(("log/0", "status/", "twins/")):
        yield from _envelopes(data)


def holders(url: str, needle: str = NEEDLE) -> list[str]:
    """Return the objects of a folder that hold a value, as stored or decoded."""
    storage = open_storage(url)
    found = {info.path: storage.get(info.path) for info in storage.list("")}
    return sorted(
        path
        for path, data in found.items()
        if any(needle.encode() in text for text in decoded(path, data))
    )
