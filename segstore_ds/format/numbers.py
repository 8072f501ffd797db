"""Columns of integers as numpy arrays and back, by their memory.

Arrow's own conversions of Python's and numpy's values import pandas where it is installed, which
takes a short-lived process a quarter of a second of CPU.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def as_numbers(column: pa.Array) -> npt.NDArray[Any]:
    """Return the values of a column of integers, without a copy; it holds no null."""
    dtype = np.dtype(column.type.to_pandas_dtype())
    if not len(column):
        return np.zeros(0, dtype)
    data = column.buffers()[1]
    return np.frombuffer(data, dtype, len(column), column.offset * dtype.itemsize)


def as_column(values: npt.NDArray[Any]) -> pa.Array:
    """Return integers as a column of their type, without a copy where they lie side by side."""
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, data])


def text_column(texts: Sequence[str]) -> pa.Array:
    """Return texts as a column."""
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    data = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), data)
