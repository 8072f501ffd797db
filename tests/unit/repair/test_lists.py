"""Lists of parts: what can be read of them, and how a lost one is found again."""

import uuid
from dataclasses import replace

import pytest

from segstore_ds.errors import MissingObjectError
from segstore_ds.format.root import Epoch, PartRef, Root
from segstore_ds.repair.rebuild_rest import told_list
from segstore_ds.status.table import Table, readable_parts
from segstore_ds.status.table_status import TableStatus
from segstore_ds.storage import open_storage

DIGEST = "a" * 32
ROOT = Root("s", 7, "t", "p", 0, "x", (Epoch(0, 0, "x", None),), tail=60)


def part(start: int, end: int, count: int = 1) -> PartRef:
    return PartRef(f"status/{start:020d}-segments-{DIGEST}", start, end, count, 9)


PARTS = tuple(part(start, start + 10) for start in range(0, 60, 10))


@pytest.fixture
def levels() -> Table:
    return TableStatus(open_storage(f"memory://{uuid.uuid4().hex}")).table


@pytest.fixture
def root(levels: Table) -> Root:
    """A root with two lists of two parts each, and two parts of its own."""
    lists = (levels.put_list(7, PARTS[:2]), levels.put_list(7, PARTS[2:4]))
    return replace(ROOT, lists=lists, parts=PARTS[4:])


def test_parts_of_a_damaged_list_are_skipped_and_reported(levels, root):
    assert tuple(readable_parts(levels, root)) == PARTS
    fresh = TableStatus(levels._store.storage)
    fresh.storage.delete(root.lists[0].path)
    reported = []
    found = readable_parts(fresh.table, root, lambda *problem: reported.append(problem))
    assert tuple(found) == PARTS[2:]
    ((path, error),) = reported
    assert path == root.lists[0].path
    assert isinstance(error, MissingObjectError)
    assert tuple(readable_parts(fresh.table, root)) == PARTS[2:]


def test_list_is_found_in_older_roots(root):
    newer = [part(0, 20), *PARTS[2:]]
    assert told_list(root.lists[1], [newer]) == PARTS[2:4]
    assert told_list(root.lists[0], [PARTS[:1], PARTS[1:3]]) == PARTS[:2]
    assert told_list(root.lists[0], []) is None


def test_parts_that_overlap_the_end_of_the_list_are_not_its_own(root):
    assert told_list(root.lists[0], [[PARTS[0], part(10, 40)]]) is None


def test_parts_with_another_number_of_rows_are_not_its_own(root):
    assert told_list(root.lists[0], [(part(0, 10), part(10, 20, count=2))]) is None
