"""Parts of writers and of retired objects come back, and refuse what is not one."""

import pyarrow as pa
import pytest

from segstore_ds.errors import CorruptionError
from segstore_ds.format.parts.kinds import RETIRED, WRITERS
from segstore_ds.format.parts.rows import encode_rows
from segstore_ds.format.root import Retired, Writer


def test_rows_come_back():
    writers = {"etl": Writer("query", 4, 9, 5, 30, "AAECAwQFBgc="), "ärger": Writer("", 0, 2, 0, 0)}
    assert WRITERS.decode(WRITERS.encode(writers), where="x") == writers
    retired = (
        Retired("segment", "t/a", 3, 17),
        Retired("status", f"status/{3:020d}-segments-{'a' * 32}", 4, 18),
    )
    assert RETIRED.decode(RETIRED.encode(retired), where="x") == retired


def test_rows_that_hold_something_else_are_refused():
    """As those of a root are: paths, limits and fingerprints are checked."""
    path = f"status/{3:020d}-segments-{'a' * 32}"
    good = {"kind": "part", "path": path, "version": 3, "time_us": 7}
    wrongs = [
        {**good, "path": "../x"},
        {**good, "kind": "k" * 21},
        {**good, "version": -1},
        {**good, "version": None},
        {**good, "time_us": "x"},
        {**good, "path": b"\xff"},
        {name: good[name] for name in ("kind", "path", "version")},
    ]
    assert RETIRED.decode(encode_rows(rows_of(good)), where="x") == (Retired(*good.values()),)
    for wrong in wrongs:
        with pytest.raises(CorruptionError):
            RETIRED.decode(encode_rows(rows_of(wrong)), where="x")
    writer = {"owner": "", "batch_id": 1, "version": 2, "rows": 3, "end": 4, "fingerprint": ""}
    named = {**writer, "name": "etl"}
    assert WRITERS.decode(encode_rows(rows_of(named)), where="x") == {"etl": Writer("", 1, 2, 3, 4)}
    for wrong in ({**named, "fingerprint": "x"}, {**named, "owner": "o" * 1001}, writer):
        with pytest.raises(CorruptionError):
            WRITERS.decode(encode_rows(rows_of(wrong)), where="x")
    for body in (b"", b"{", encode_rows(rows_of(good))[:-9]):
        with pytest.raises(CorruptionError):
            RETIRED.decode(body, where="x")


def rows_of(row):
    return pa.RecordBatch.from_pylist([{k: _stored(v) for k, v in row.items()}])


def _stored(value):
    return value.encode() if isinstance(value, str) else value
