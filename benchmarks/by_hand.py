"""The least that a small append has to do, by hand: what no code around it can save."""

import hashlib
import json
import os
import zlib
from pathlib import Path

import pyarrow as pa
import zstandard

from segstore_ds.format.inline import join_frames
from segstore_ds.format.root import Root, encode_root


class ByHand:
    """Appends batches to a folder, each with a record as long as the root of a real stream.

    Encoded rows with a checksum; the record encoded, parsed, compared, compressed and with a
    digest; all that in a file which is durable before it gets a free name, and so is the name.
    Nothing is planned or looked up, and nothing spills, merges or is kept for the next append.
    """

    def __init__(self, folder: Path, root: Root) -> None:
        folder.mkdir()
        self._folder, self._frames = folder, join_frames(root.entries)
        self._record = json.loads(encode_root(root))
        self._zstd = zstandard.ZstdCompressor(level=3)

    def append(self, batch: pa.RecordBatch, number: int) -> None:
        """Append a batch as the file of a number."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        frame = sink.getvalue()
        self._record |= {"version": number, "crc": zlib.crc32(frame)}
        body = json.dumps(self._record, separators=(",", ":"))
        if json.loads(body) != self._record:
            raise ValueError(body)
        stored = self._zstd.compress(body.encode())
        digest = hashlib.blake2b(stored, digest_size=16).digest()
        temporary = self._folder / f".{number}"
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.writev(file, [digest, stored, self._frames, frame])
        os.fsync(file)
        os.close(file)
        (self._folder / f"{number:020d}").hardlink_to(temporary)
        folder = os.open(self._folder, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        temporary.unlink()
