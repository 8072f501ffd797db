"""Checks that the offsets of an array are valid, and that texts are UTF-8."""

from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import lib
from pyarrow import types as t

from segstore_ds.format.schema.codec import type_id_of

FEW_ROWS = 64
# Sets of type ids, because calls such as `is_list` take longer than checking a small frame.
_PLAIN = frozenset(
    (
        *(lib.Type_INT8, lib.Type_INT16, lib.Type_INT32, lib.Type_INT64, lib.Type_BOOL),
        *(lib.Type_FLOAT, lib.Type_DOUBLE, lib.Type_DATE32, lib.Type_TIMESTAMP),
        *(lib.Type_STRING, lib.Type_BINARY),
    )
)
_NARROW = frozenset((lib.Type_STRING, lib.Type_BINARY, lib.Type_LIST, lib.Type_MAP))
_TEXTS = frozenset((lib.Type_STRING, lib.Type_LARGE_STRING))
_LISTS = frozenset((lib.Type_LIST_VIEW, lib.Type_LARGE_LIST_VIEW, lib.Type_FIXED_SIZE_LIST))
_WIDE = frozenset((lib.Type_LARGE_STRING, lib.Type_LARGE_BINARY, lib.Type_LARGE_LIST))
_RARE = frozenset(
    (
        *(lib.Type_STRING_VIEW, lib.Type_BINARY_VIEW, lib.Type_LIST_VIEW, lib.Type_LARGE_LIST_VIEW),
        *(lib.Type_FIXED_SIZE_LIST, lib.Type_RUN_END_ENCODED),
        *(lib.Type_SPARSE_UNION, lib.Type_DENSE_UNION),
    )
)


def is_sound(batch: pa.RecordBatch) -> bool:
    """Tell whether a batch passes all checks, if it has few rows and plain columns; else False.

    For such batches Arrow's full validation takes a tenth of the time of `check_offsets`.
    """
    if batch.num_rows > FEW_ROWS or not _PLAIN.issuperset(map(type_id_of, batch.schema.types)):
        return False
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def check_offsets(array: pa.Array, *, texts: bool = False) -> None:
    """Check that offsets never decrease and that indices are in range, also in nested arrays.

    After `array.validate()`, which checks only the end offsets and costs nothing, it is then safe
    to read every value. Arrow's own full validation takes three times as long, and also refuses
    strings that are not UTF-8, as this does only with `texts`. Raises ValueError, UnicodeError for
    a string, and pyarrow.ArrowInvalid for a wrong view or run.
    """
    kind = array.type.id
    if kind in _NARROW:
        _check_order(array, np.int32, texts=texts)
    elif kind in _WIDE:
        _check_order(array, np.int64, texts=texts)
    elif isinstance(array, pa.ExtensionArray):
        check_offsets(array.storage, texts=texts)
    elif kind == lib.Type_DICTIONARY:
        _check_indices(array)
        check_offsets(array.dictionary, texts=texts)
    elif kind == lib.Type_STRUCT:
        for place in range(array.type.num_fields):
            check_offsets(array.field(place), texts=texts)
    elif kind in _RARE:
        array.validate(full=True)
        if texts:
            _check_rare(array)


def _check_order(array: pa.Array, width: Any, *, texts: bool) -> None:
    if not len(array):
        return
    # With numpy: calls of Arrow's functions take longer than checking a small frame.
    buffers, size = array.buffers(), np.dtype(width).itemsize
    ends: Any = np.frombuffer(buffers[1], width, len(array) + 1, size * array.offset)
    if (ends[1:] < ends[:-1]).any():
        raise ValueError(ends)
    if texts and array.type.id in _TEXTS and ends[-1] > ends[0]:
        # Most texts are ASCII, and checking that costs a twentieth of Arrow's check.
        data = np.frombuffer(buffers[2], np.int8, int(ends[-1] - ends[0]), int(ends[0]))
        if data.min() < 0:
            _check_text(array)
    for child in _children(array):
        check_offsets(child.slice(int(ends[0]), int(ends[-1] - ends[0])), texts=texts)


def _check_text(array: pa.Array) -> None:
    binary = pa.binary() if t.is_string(array.type) else pa.large_binary()
    try:
        array.view(binary).cast(array.type)  # takes half as long as full validation
    except pa.ArrowInvalid as error:
        raise UnicodeError(str(error)) from error


def _check_rare(array: pa.Array) -> None:
    """Check the texts that full validation of rare layouts leaves out."""
    if t.is_string_view(array.type):
        _check_text(array.cast(pa.large_string()))
    elif array.type.id in _LISTS:
        check_offsets(array.flatten(), texts=True)


def _children(array: pa.Array) -> list[pa.Array]:
    if t.is_map(array.type):
        return [array.keys, array.items]
    nested = t.is_list(array.type) or t.is_large_list(array.type)
    return [array.values] if nested else []


def _check_indices(array: pa.DictionaryArray) -> None:
    # Ignore indices of nulls, as Arrow's validation does.
    indices = array.indices.drop_null() if array.null_count else array.indices
    if len(indices):
        places = indices.to_numpy(zero_copy_only=False)
        if places.min() < 0 or places.max() >= len(array.dictionary):
            raise ValueError(places)
