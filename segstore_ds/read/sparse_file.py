"""Fetched parts of a segment as a file in memory, for engines that read only files.

What was not fetched is a hole, which takes no memory and reads as zeros: never as a page of
Parquet.
"""

import os
import tempfile
from typing import IO, Any

from segstore_ds.read.decode import Fetched


def open_sparse(fetched: Fetched) -> IO[bytes]:
    """Return a file with what was fetched and with the end of the segment, each at its place."""
    index: Any = fetched.segment.index
    file = _open_empty()
    for number, buffers in fetched.data.items():
        spans = index.spans(number, fetched.columns)
        for (start, _), data in zip(spans, buffers, strict=True):
            file.seek(start)
            file.write(data)
    file.seek(index.object_bytes - len(index.end))
    file.write(index.end)
    file.seek(0)  # which flushes, too
    return file


def _open_empty() -> IO[bytes]:
    if hasattr(os, "memfd_create"):  # on Linux
        return os.fdopen(os.memfd_create("segstore"), "w+b")
    return tempfile.TemporaryFile()
