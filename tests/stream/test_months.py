"""Columns of year-month intervals, which pyarrow passes on and can't look at."""

import ctypes
from pathlib import Path

import pyarrow as pa
import pytest

import segstore_ds as segstore
from segstore_ds.errors import InvalidInputError


class _CSchema(ctypes.Structure):
    """Arrow's C data interface of a type."""


_Release = ctypes.CFUNCTYPE(None, ctypes.POINTER(_CSchema))
_CSchema._fields_ = [
    ("format", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    ("metadata", ctypes.c_char_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("children", ctypes.c_void_p),
    ("dictionary", ctypes.c_void_p),
    ("release", _Release),
    ("private_data", ctypes.c_void_p),
]


@_Release
def _release(schema):
    schema.contents.release = _Release()


def months_type() -> pa.DataType:
    """Return the type, which pyarrow has no name for."""
    made = _CSchema(b"tiM", b"", None, 2, 0, None, None, _release, None)
    return pa.DataType._import_from_c(ctypes.addressof(made))


def with_months(numbers: pa.RecordBatch, column: str) -> pa.RecordBatch:
    """Return a batch in which a column of int32 is one of intervals."""
    fields = [f.with_type(months_type()) if f.name == column else f for f in numbers.schema]
    _, array = numbers.__arrow_c_array__()
    return pa.RecordBatch._import_from_c_capsule(pa.schema(fields).__arrow_c_schema__(), array)


ROWS = pa.record_batch(
    {"n": [1, 2, 3], "m": pa.array([14, None, -1], pa.int32()), "s": ["a", "b", None]}
)


def test_intervals_are_stored_as_numbers_of_months(tmp_path: Path) -> None:
    given = with_months(ROWS, "m")
    with pytest.raises(KeyError):
        given.column("m")  # which is why nobody can read them as what they are
    stream = segstore.create(tmp_path / "s", given.schema)
    table = pa.Table.from_batches([given, given])
    for data in (given, table, table.to_reader()):
        stream.append(data)
    assert stream.schema.field("m").type == pa.int32()
    assert stream.read().read_all()["m"].to_pylist() == [14, None, -1] * 5
    found = stream.read(filters="m > 12").read_all()
    assert found["n"].to_pylist() == [1] * 5
    stream.verify().check()


def test_intervals_inside_of_a_column_are_refused_by_name(tmp_path: Path) -> None:
    schema = pa.schema([("c", pa.list_(months_type()))])
    with pytest.raises(InvalidInputError, match=r"'c\.element'"):
        segstore.create(tmp_path / "s", schema)
