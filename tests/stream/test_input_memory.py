"""Arrow data whose offsets lead out of its memory: refused, where Arrow would end the process."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import segstore_ds as segstore
from segstore_ds.errors import InvalidInputError

BYTES = pa.py_buffer(b"abc")


def wrong_arrays() -> list[pa.Array]:
    """Return arrays that Arrow's quick validation lets pass when they are made."""

    def made(kind: pa.DataType, offsets: list[int], size: type, *rest: object) -> pa.Array:
        buffer = pa.py_buffer(np.array(offsets, size))
        if rest:
            return pa.Array.from_buffers(kind, 3, [None, buffer], children=list(rest))
        return pa.Array.from_buffers(kind, 3, [None, buffer, BYTES])

    text = made(pa.string(), [0, 3, 1, 3], np.int32)
    numbers = pa.array([1, 2, 3])
    indices = pa.array([0, 10**8, 0], pa.int32())
    return [
        text,
        made(pa.string(), [0, 10**9, 5, 3], np.int32),
        made(pa.binary(), [0, 3, 1, 3], np.int32),
        made(pa.large_string(), [0, 2**40, 3, 3], np.int64),
        made(pa.list_(pa.int64()), [0, 10**8, 3, 3], np.int32, numbers),
        made(pa.large_list(pa.int64()), [0, 2**40, 3, 3], np.int64, numbers),
        made(pa.list_(pa.string()), [0, 1, 2, 3], np.int32, text),
        pa.StructArray.from_arrays([text], names=["inner"]),
        pa.DictionaryArray.from_arrays(indices, pa.array(["a"]), safe=False),
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], pa.int8()), text),
    ]


def run() -> None:
    """Append each of them, in a process of its own."""
    for number, array in enumerate(wrong_arrays()):
        batch = pa.RecordBatch.from_arrays([array], names=["x"])
        for kind in ("arrow", "parquet"):
            stream = segstore.create(f"memory://{uuid.uuid4().hex}", batch.schema)
            layout = segstore.Layout(segment_format=kind)
            with pytest.raises(InvalidInputError, match=r"memory.*column='x'"):
                stream.append(batch, layout=layout)
            with pytest.raises(InvalidInputError, match=r"memory.*column='x'"):
                stream.appender(layout=layout).append(batch)
            assert stream.refresh().tail == 0
        print(number)  # noqa: T201 - for the test


def test_out_of_bounds_offsets_are_refused() -> None:
    """By appends and appenders, in both formats; nothing is committed."""
    checkout = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, __file__], env=checkout, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout.split()) == len(wrong_arrays())


if __name__ == "__main__":
    run()
