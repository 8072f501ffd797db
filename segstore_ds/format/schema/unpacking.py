"""Unpacks arrays in Arrow's other layouts: dictionaries, views, other kinds of lists.

Unpacked data may be far larger: dictionaries and views store a repeated text once, and a plain
column of texts or bytes can have at most 2 GiB. A result that would not fit is refused before it is
allocated, and `unpacked_sizes` shows where a batch has to be cut.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types as t

from segstore_ds.errors import SchemaMismatchError
from segstore_ds.format import compute as pc

MOST_BYTES = (1 << 31) - 1  # the largest 32-bit offset of a plain column


class OversizeError(SchemaMismatchError):
    """A column is too large for its stored type, but fewer rows of it may fit."""


def decode_dictionary(values: pa.Array, indices: pa.Array, path: str) -> pa.Array:
    """Return a dictionary's values row by row; OversizeError if they do not fit."""
    values = without_views(values)
    sizes = unpacked_sizes(values)
    if sizes.max(initial=0.0) * len(indices) > MOST_BYTES:
        check_size(int(_coded(sizes, indices).sum()), len(indices), path)
    return values.take(indices)


def plain_text(array: pa.Array, path: str) -> pa.Array:
    """Return texts or bytes without views; OversizeError if they do not fit into a plain column."""
    array = without_views(array)
    size = _text_bytes(array) if _is_text(array.type) else array.nbytes
    check_size(size, len(array), path)
    if t.is_large_string(array.type) or t.is_large_binary(array.type):
        data = array.buffers()[2]
        if data is not None and data.size > MOST_BYTES:
            # Copy: Arrow's cast of a slice checks its end offset, not its length.
            return pa.concat_arrays([array])
    return array


def without_views(array: pa.Array) -> pa.Array:
    """Convert views of texts or bytes to the large layout, which all Arrow functions accept."""
    if t.is_string_view(array.type):
        return array.cast(pa.large_string())
    if t.is_binary_view(array.type):
        return array.cast(pa.large_binary())
    return array


def plain_list(array: pa.Array, path: str) -> pa.Array:
    """Return any kind of list as one with 32-bit offsets and only its own elements."""
    if t.is_list(array.type) and not is_part(array):
        return array
    lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int64())
    ends = pc.cumulative_sum(lengths)
    most = ends[-1].as_py() if len(ends) else 0
    check_size(most, len(array), path)
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends]).cast(pa.int32())
    kind = pa.list_(array.type.value_field)
    mask = array.is_null() if array.null_count else None
    return pa.ListArray.from_arrays(offsets, array.flatten(), type=kind, mask=mask)


def is_part(array: pa.Array) -> bool:
    """Tell whether a list or map is a slice of a larger child array."""
    children = array.keys if t.is_map(array.type) else array.values
    ends = array.offsets
    return bool(len(children) != ends[-1].as_py() - ends[0].as_py())


def check_size(size: int, rows: int, path: str) -> None:
    """Raise OversizeError if a plain column can't hold `size` bytes or elements."""
    if size > MOST_BYTES:
        raise OversizeError(
            "a column is too large for its stored type",
            remedy="write fewer rows at a time, or shorter values",
            column=path,
            rows=rows,
            size=size,
        )


def unpacked_sizes(array: pa.Array) -> npt.NDArray[np.float64]:
    """Return the unpacked bytes of each row of an array whose offsets are valid.

    As floats, because nested dictionaries may unpack to more than 64 bits can count.
    """
    kind, rows = array.type, len(array)
    if (width := _width(kind)) is not None:
        return np.full(rows, width)
    if isinstance(array, pa.ExtensionArray):
        return unpacked_sizes(array.storage)
    if isinstance(array, pa.DictionaryArray):
        known = unpacked_sizes(array.dictionary)
        sizes = _coded(known, array.indices)
        sizes[:1] += known.sum()  # `decode_dictionary` first converts all values from views
        return sizes
    if t.is_union(kind) or t.is_run_end_encoded(kind):
        sizes = np.full(rows, array.nbytes / max(rows, 1))
    elif t.is_nested(kind):
        sizes = _struct_sizes(array) if t.is_struct(kind) else _list_sizes(array)
    elif _is_view(kind):
        views: Any = np.frombuffer(array.buffers()[1], np.int32).reshape(-1, 4)
        sizes = views[array.offset : array.offset + rows, 0].astype(np.float64)
    else:
        sizes = np.array(pc.binary_length(array), np.float64)
    if array.null_count:
        sizes[array.is_null().to_numpy(zero_copy_only=False)] = 0.0
    return sizes


def _struct_sizes(array: pa.Array) -> npt.NDArray[np.float64]:
    fields = [unpacked_sizes(array.field(place)) for place in range(array.type.num_fields)]
    sizes: npt.NDArray[np.float64] = np.sum(fields, axis=0)
    return sizes


def _list_sizes(array: pa.Array) -> npt.NDArray[np.float64]:
    kind, rows = array.type, len(array)
    if t.is_fixed_size_list(kind):
        starts = (np.arange(rows) + array.offset) * kind.list_size
        ends = starts + kind.list_size
    elif _is_view(kind):
        starts = array.offsets.to_numpy().astype(np.int64)
        ends = starts + array.sizes.to_numpy()
    else:
        starts, ends = array.offsets.to_numpy()[:-1], array.offsets.to_numpy()[1:]
    first, last = (int(starts.min()), int(ends.max())) if rows else (0, 0)
    sizes = np.zeros(rows)
    for values in (array.keys, array.items) if t.is_map(kind) else (array.values,):
        if (width := _width(values.type)) is not None:
            sizes += (ends - starts) * width
        else:
            upto = np.zeros(last - first + 1)
            np.cumsum(unpacked_sizes(values.slice(first, last - first)), out=upto[1:])
            sizes += upto[ends - first] - upto[starts - first]
    return sizes


def _width(kind: pa.DataType) -> float | None:
    """Return the bytes of every value; None if values differ.

    Values of type null take no memory now, but eight bytes each when they get a type.
    """
    if t.is_null(kind):
        return 8.0
    if t.is_fixed_size_list(kind):
        below = _width(kind.value_type)
        return None if below is None else below * kind.list_size
    if t.is_struct(kind):
        widths = [_width(kind.field(place).type) for place in range(kind.num_fields)]
        return None if None in widths else 1.0 + sum(width or 0.0 for width in widths)
    plain = t.is_primitive(kind) or t.is_decimal(kind) or t.is_fixed_size_binary(kind)
    return kind.bit_width / 8 if plain else None


def _coded(known: npt.NDArray[np.float64], indices: pa.Array) -> npt.NDArray[np.float64]:
    if indices.null_count:
        indices = pc.fill_null(indices.cast(pa.int64()), len(known))
    sizes: npt.NDArray[np.float64] = np.append(known, 0.0)[indices.to_numpy()]
    return sizes


def is_packed(kind: pa.DataType) -> bool:
    """Tell whether unpacked values may be larger than the buffers: dictionaries, views, nulls."""
    if t.is_null(kind) or t.is_dictionary(kind) or _is_view(kind):
        return True
    if isinstance(kind, pa.BaseExtensionType):
        return True
    if not t.is_nested(kind) or t.is_union(kind) or t.is_run_end_encoded(kind):
        return False
    return any(is_packed(kind.field(place).type) for place in range(kind.num_fields))


def _is_view(kind: pa.DataType) -> bool:
    texts = t.is_string_view(kind) or t.is_binary_view(kind)
    return bool(texts or t.is_list_view(kind) or t.is_large_list_view(kind))


def _text_bytes(array: pa.Array) -> int:
    return int(pc.sum(pc.binary_length(array).cast(pa.int64())).as_py() or 0)


def _is_text(kind: pa.DataType) -> bool:
    plain = t.is_string(kind) or t.is_binary(kind)
    return bool(plain or t.is_large_string(kind) or t.is_large_binary(kind))
