"""Unpack the layouts in which Arrow packs arrays: dictionaries, views, other lists.

Unpacked data may be far larger: a dictionary holds a long text once, and a plain column of texts or
bytes holds at most 2 GiB. A result that would not fit is refused before it is allocated, and
`unpacked_bytes` estimates beforehand into how many pieces a batch has to be cut.
"""

import pyarrow as pa
from pyarrow import types as t

from segstore_ds.errors import SchemaMismatchError
from segstore_ds.format import compute as pc

MOST_BYTES = (1 << 31) - 1  # the largest 32-bit offset of a plain column


class OversizeError(SchemaMismatchError):
    """A column is too large for its stored type, but fewer rows of it may fit."""


def decode_dictionary(values: pa.Array, indices: pa.Array, path: str) -> pa.Array:
    """Return a dictionary's values row by row; OversizeError if a column can't hold them."""
    values = without_views(values)
    check_size(_dictionary_bytes(values, indices), len(indices), path)
    return values.take(indices)


def plain_text(array: pa.Array, path: str) -> pa.Array:
    """Return texts or bytes without views; OversizeError if a plain column can't hold them."""
    array = without_views(array)
    size = _text_bytes(array) if _is_text(array.type) else array.nbytes
    check_size(size, len(array), path)
    if t.is_large_string(array.type) or t.is_large_binary(array.type):
        data = array.buffers()[2]
        if data is not None and data.size > MOST_BYTES:
            # Arrow's cast checks the end offset of a slice, not its length.
            return pa.concat_arrays([array])
    return array


def without_views(array: pa.Array) -> pa.Array:
    """Convert views of texts or bytes to the large layout, which Arrow's functions accept."""
    if t.is_string_view(array.type):
        return array.cast(pa.large_string())
    if t.is_binary_view(array.type):
        return array.cast(pa.large_binary())
    return array


def plain_list(array: pa.Array, path: str) -> pa.Array:
    """Return any kind of list with 32-bit offsets and without unreferenced elements.

    More elements than such a list holds are an OversizeError.
    """
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


def unpacked_bytes(array: pa.Array) -> int:
    """Estimate how many bytes an array takes once its dictionaries are unpacked."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if isinstance(array, pa.DictionaryArray):
        return _dictionary_bytes(without_views(array.dictionary), array.indices)
    if not is_packed(array.type):
        return int(array.nbytes)
    if t.is_struct(array.type):
        return sum(unpacked_bytes(array.field(place)) for place in range(array.type.num_fields))
    if t.is_map(array.type):
        entries = pa.concat_arrays([array])
        return unpacked_bytes(entries.keys) + unpacked_bytes(entries.items)
    return unpacked_bytes(array.flatten())


def is_packed(kind: pa.DataType) -> bool:
    """Tell whether a type may unpack to more bytes than its buffers: it holds a dictionary."""
    if t.is_dictionary(kind) or isinstance(kind, pa.BaseExtensionType):
        return True
    if not t.is_nested(kind) or t.is_union(kind) or t.is_run_end_encoded(kind):
        return False
    return any(is_packed(kind.field(place).type) for place in range(kind.num_fields))


def _dictionary_bytes(values: pa.Array, indices: pa.Array) -> int:
    if _is_text(values.type):
        lengths = pc.binary_length(values).cast(pa.int64())
        return int(pc.sum(lengths.take(indices)).as_py() or 0)
    return int(-(-values.nbytes // max(len(values), 1)) * len(indices))


def _text_bytes(array: pa.Array) -> int:
    return int(pc.sum(pc.binary_length(array).cast(pa.int64())).as_py() or 0)


def _is_text(kind: pa.DataType) -> bool:
    plain = t.is_string(kind) or t.is_binary(kind)
    return bool(plain or t.is_large_string(kind) or t.is_large_binary(kind))
