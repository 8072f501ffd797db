"""Check that the offsets within an array stay within it, so that it can be read safely."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types as t

_OFFSETS: Mapping[Any, Any] = {
    **dict.fromkeys((t.is_string, t.is_binary, t.is_list, t.is_map), np.int32),
    **dict.fromkeys((t.is_large_string, t.is_large_binary, t.is_large_list), np.int64),
}
_RARE = (
    *(t.is_string_view, t.is_binary_view, t.is_list_view, t.is_large_list_view),
    *(t.is_fixed_size_list, t.is_run_end_encoded, t.is_union),
)


def check_offsets(array: pa.Array) -> None:
    """Check that offsets never decrease and that indices name values, also in nested arrays.

    After `array.validate()`, which checks only the end offsets and costs nothing, this is enough to
    read every value. Arrow's own full validation takes three times as long and also refuses strings
    that are not UTF-8. A failed check is a ValueError; a wrong view or run is a
    pyarrow.ArrowInvalid.
    """
    data_type = array.type
    if isinstance(array, pa.ExtensionArray):
        check_offsets(array.storage)
    elif t.is_dictionary(data_type):
        _check_indices(array)
        check_offsets(array.dictionary)
    elif t.is_struct(data_type):
        for place in range(data_type.num_fields):
            check_offsets(array.field(place))
    elif any(applies(data_type) for applies in _RARE):
        array.validate(full=True)
    else:
        width = next((width for applies, width in _OFFSETS.items() if applies(data_type)), None)
        if width is not None:
            _check_order(array, width)


def _check_order(array: pa.Array, width: Any) -> None:
    if not len(array):
        return
    # numpy, because calling Arrow's functions takes longer than checking a small frame.
    offsets, size = array.buffers()[1], np.dtype(width).itemsize
    ends: Any = np.frombuffer(offsets, width, len(array) + 1, size * array.offset)
    if (ends[1:] < ends[:-1]).any():
        raise ValueError(ends)
    for child in _children(array):
        check_offsets(child.slice(int(ends[0]), int(ends[-1] - ends[0])))


def _children(array: pa.Array) -> list[pa.Array]:
    if t.is_map(array.type):
        return [array.keys, array.items]
    nested = t.is_list(array.type) or t.is_large_list(array.type)
    return [array.values] if nested else []


def _check_indices(array: pa.DictionaryArray) -> None:
    # Indices of nulls mean nothing; Arrow's validation ignores them, too.
    indices = array.indices.drop_null() if array.null_count else array.indices
    if len(indices):
        places = indices.to_numpy(zero_copy_only=False)
        if places.min() < 0 or places.max() >= len(array.dictionary):
            raise ValueError(places)
