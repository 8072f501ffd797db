"""What each operation may change."""

from dataclasses import replace

import pytest

from segstore_ds.errors import InternalError
from segstore_ds.format.root import PartRef, Retired
from segstore_ds.log.transition import broken_by_operation, check_transition
from unit.log.test_transition import NEW, OLD, part

SAME = replace(OLD, version=8, transaction="t8", parent="t7")
CHANGES = {
    "head": 5,
    "tail": 33,
    "next_segment": 10,
    "epochs": OLD.epochs[:1],
    "sealed": True,
    "log_start": 3,
    "staging_floor": 4,
    "tags": {"a": [5, 8, 1]},
    "properties": {"retention": "{}"},
    "generation": 4,
    "reader_features": ("column-names",),
    "writer_features": ("column-names",),
}
MAY = {
    "append": {"tail", "next_segment", "epochs", "reader_features"},
    "overwrite": {"tail", "next_segment", "epochs", "reader_features", "head"},
    "truncate": {"head"},
    "seal": {"sealed"},
    "tag": {"tags"},
    "untag": {"tags"},
    "purge": {"log_start"},
    "upkeep": {"log_start", "staging_floor"},
    "reader": set(),
    "merge": set(),
    "set-properties": {"properties", "writer_features"},
    "change-schema": {"epochs", "reader_features", "writer_features"},
    "restore": {"tail", "next_segment", "epochs", "reader_features", "head"},
    "drop": {"head", "sealed", "staging_floor"},
    "repair": set(CHANGES),
    "of a later version": set(CHANGES),
}


@pytest.mark.parametrize("operation", MAY)
def test_operation_changes_what_is_its_own_and_nothing_else(operation):
    for field, value in CHANGES.items():
        new = replace(SAME, operation=operation, **{field: value})
        allowed = field in MAY[operation]
        wanted = [] if allowed else [f"{operation} leaves {field} alone"]
        assert list(broken_by_operation(OLD, new)) == wanted


def test_commit_that_changes_more_is_not_written():
    check_transition(OLD, replace(NEW, operation="append"))
    with pytest.raises(InternalError, match="append leaves head alone"):
        check_transition(OLD, replace(NEW, operation="append", head=5))


def test_what_leaves_the_list_is_retired():
    """A part or a segment that is no longer listed, and not retired, would never be deleted."""
    first, second = named(0, 10), named(10, 20)
    old = replace(OLD, parts=(first, second))
    dropped = replace(SAME, operation="truncate", head=12, parts=(second,))
    assert list(broken_by_operation(old, dropped)) == [
        f"a part that is dropped is retired: {first.path}"
    ]
    retired = (*OLD.retired, Retired("part", first.path, 8, 1))
    assert list(broken_by_operation(old, replace(dropped, retired=retired))) == []
    retired = (*retired, Retired("part", second.path, 8, 1))
    lost = replace(SAME, operation="overwrite", head=26, parts=(), entries=OLD.entries[1:])
    assert list(broken_by_operation(old, replace(lost, retired=retired))) == [
        f"a segment that is dropped is retired: {OLD.entries[0].path}"
    ]
    spilled = replace(SAME, operation="append", entries=(), parts=(first, second, named(20, 30)))
    assert list(broken_by_operation(old, spilled)) == []
    moved = replace(lost, retired=(), retired_parts=(named(0, 10),))
    assert list(broken_by_operation(old, moved)) == []


def named(start: int, end: int) -> PartRef:
    return replace(part(start, end), path=f"status/{start:020d}-segments-{'cd' * 16}")
