"""Status objects under two names: whichever read meets damage reads the twin, and says so once."""

import uuid
from dataclasses import replace
from typing import TypeVar

import pyarrow as pa
import pytest

from segstore_ds.errors import CorruptionError, MissingObjectError
from segstore_ds.format.names import both_names, twin_of
from segstore_ds.format.root import Epoch, PartRef, Root, SegmentEntry
from segstore_ds.format.schema.codec import encode_schema
from segstore_ds.status.table import readable_parts
from segstore_ds.status.table_status import TableStatus
from segstore_ds.storage import open_storage

T = TypeVar("T")

SCHEMA = encode_schema(pa.schema([("n", pa.int64())]))
ROOT = Root("s", 7, "t", "p", 0, "x", (Epoch(0, 0, SCHEMA, None),), tail=60)


@pytest.fixture
def status() -> TableStatus:
    return TableStatus(open_storage(f"memory://{uuid.uuid4().hex}"))


@pytest.fixture
def part(status: TableStatus) -> PartRef:
    """A part of two segments with statistics."""
    entries = [SegmentEntry(n, f"t/{n}.arrow", 5, 1, 1, 1, stats='{"n":[1,3,0]}') for n in (1, 2)]
    return status.put_part(ROOT, 0, entries)


def read_all(status: TableStatus, ref: PartRef) -> object:
    """Read a part by each of the ways to read one, without what is in memory."""
    fresh = TableStatus(status.storage)
    return fresh.table.columns(ref).rows.tolist(), fresh.table.stats(ref).texts()


@pytest.mark.parametrize("side", [0, 1])
def test_every_byte_of_one_name_may_be_wrong(status: TableStatus, part: PartRef, side: int) -> None:
    storage, path = status.storage, both_names(part.path)[side]
    right, data = read_all(status, part), status.storage.get(part.path)
    assert storage.get(twin_of(part.path)) == data
    wrong = [data[:n] for n in range(1, len(data), 7)]
    wrong += [data[:n] + bytes([data[n] ^ 1]) + data[n + 1 :] for n in range(0, len(data), 5)]
    for each in wrong:
        storage.put(path, each)
        assert read_all(status, part) == right
    storage.delete(path)
    assert read_all(status, part) == right
    assert TableStatus(storage).table.retired(part.path)


def test_loss_of_both_names_is_missing_only_where_both_are_gone(
    status: TableStatus, part: PartRef
) -> None:
    """A part that is damaged is not one that was deleted."""
    storage = status.storage
    storage.put(part.path, b"v1\n" + bytes(90))
    storage.delete(twin_of(part.path))
    for path in both_names(part.path):
        with pytest.raises(CorruptionError, match=part.path.rpartition("/")[2]):
            TableStatus(storage).table.retired(part.path)
        storage.put(path, b"v1\n" + bytes(90))
        storage.delete(twin_of(path))
    storage.delete(twin_of(part.path))
    storage.delete(part.path)
    assert TableStatus(storage).table.retired(part.path) == ()
    with pytest.raises(MissingObjectError):
        TableStatus(storage).table.retired(part.path, required=True)


def test_parts_of_a_list_that_is_lost_are_skipped_and_reported(status: TableStatus) -> None:
    parts = tuple(
        PartRef(f"status/{n:020d}-segments-{'a' * 32}", n, n + 10, 1, 9) for n in range(0, 60, 10)
    )
    lists = (status.table.put_list(7, parts[:2]), status.table.put_list(7, parts[2:4]))
    root = replace(ROOT, lists=lists, parts=parts[4:])
    assert tuple(readable_parts(status.table, root)) == parts
    for path in both_names(lists[0].path):
        status.storage.delete(path)
    reported = []
    fresh = TableStatus(status.storage)
    assert (
        tuple(readable_parts(fresh.table, root, lambda *each: reported.append(each))) == parts[2:]
    )
    ((path, error),) = reported
    assert (path, type(error)) == (lists[0].path, MissingObjectError)
