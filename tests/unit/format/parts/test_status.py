"""Status parts and blobs come back, and refuse what is not one."""

import json

import pyarrow as pa
import pytest

from segstore_ds.errors import CorruptionError
from segstore_ds.format.parts.status import (
    PART_SCHEMA,
    decode_part,
    decode_retired,
    decode_writers,
    encode_part,
    encode_retired,
    encode_writers,
)
from segstore_ds.format.root import Retired, SegmentEntry, Writer

ENTRIES = (
    SegmentEntry(0, "token/a.arrow", 15, 1000, 100, 77, "arrow", '{"n":[1,2,0]}'),
    SegmentEntry(1 << 32 | 1, "token/b.arrow", 5, 900, 90, 78),
    SegmentEntry(2, "other/c.arrow", 2**40, 2**50, 1, 2**32 - 1, "parquet"),
)


def stream_of(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


def part_table(**changed) -> pa.Table:
    row = {"segment_id": 1, "path": "t/a", "rows": 1, "bytes": 9, "footer_bytes": 3,
           "footer_crc": 7, "format": "arrow", "stats": None}  # fmt: skip
    return pa.Table.from_pylist([row | changed], PART_SCHEMA)


@pytest.mark.parametrize("entries", [(), ENTRIES[:1], ENTRIES, ENTRIES * 300], ids=len)
def test_a_part_comes_back(entries):
    body = encode_part(entries)
    assert decode_part(body, where="x") == entries
    assert encode_part(entries) == body


def test_a_part_of_several_batches_is_one_list():
    tables = [part_table(), part_table(segment_id=2)]
    assert [
        entry.segment_id for entry in decode_part(stream_of(pa.concat_tables(tables)), where="x")
    ] == [1, 2]


@pytest.mark.parametrize(
    "changed",
    [
        {"path": "../x"},
        {"path": "/etc/passwd"},
        {"path": "t/../../x"},
        {"rows": 0},
        {"rows": -5},
        {"bytes": 0},
        {"footer_bytes": 0},
        {"segment_id": -1},
        {"footer_crc": -1},
    ],
)
def test_a_part_with_a_bad_entry_is_refused(changed):
    with pytest.raises(CorruptionError, match="status/7"):
        decode_part(stream_of(part_table(**changed)), where="status/7")


def test_a_part_with_other_columns_is_refused():
    table = part_table()
    for other in (
        table.append_column("more", pa.array([1])),
        table.drop_columns("stats"),
        table.select([*table.column_names[1:], table.column_names[0]]),
        table.cast(pa.schema([field.with_nullable(True) for field in PART_SCHEMA])),
    ):
        with pytest.raises(CorruptionError, match="wrong columns"):
            decode_part(stream_of(other), where="x")


def test_damaged_part_always_raises_a_format_error():
    body = encode_part(ENTRIES)
    for end in range(len(body)):
        try:
            assert decode_part(body[:end], where="x") in (ENTRIES, ())
        except CorruptionError:
            continue
    for place in range(0, len(body), 3):
        bad = bytearray(body)
        bad[place] ^= 0x55
        try:
            decode_part(bytes(bad), where="x")
        except CorruptionError:
            continue


def test_blobs_come_back():
    writers = {"etl": Writer("query", 4, 9, 5, 30, "AAECAwQFBgc="), "ärger": Writer("", 0, 2, 0, 0)}
    assert decode_writers(encode_writers(writers), where="x") == writers
    retired = (
        Retired("segment", "t/a", 3, 17),
        Retired("status", f"status/{3:020d}-part-{'a' * 32}", 4, 18),
    )
    assert decode_retired(encode_retired(retired), where="x") == retired


@pytest.mark.parametrize(
    "value", [None, 3, "x", [[]], {"a": []}, {"a": [1]}, [["segment", "../x", 1, 1]]]
)
def test_blobs_that_hold_something_else_are_refused(value):
    body = json.dumps(value).encode()
    with pytest.raises(CorruptionError):
        decode_retired(body, where="x")
    with pytest.raises(CorruptionError):
        decode_writers(body, where="x")
    with pytest.raises(CorruptionError):
        decode_writers(b"{", where="x")
