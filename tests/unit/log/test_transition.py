"""Rules between two roots: each is broken by one change, and each operation changes its own."""

from dataclasses import replace

import pytest

from segstore_ds.errors import InternalError
from segstore_ds.format.root import Epoch, HistoryRow, PartRef, Retired, Root, SegmentEntry, Writer
from segstore_ds.log.transition import (
    broken_by_operation,
    broken_invariants,
    broken_rules,
    check_transition,
)

DIGEST = "ab" * 16


def part(start: int, end: int) -> PartRef:
    return PartRef(f"status/{0:020d}-segments-{DIGEST}", start, end, 1, 10)


def entry(number: int, rows: int, epoch: int = 0) -> SegmentEntry:
    return SegmentEntry(epoch << 32 | number, f"t/{number}", rows, 10, 3, 7)


def rows(count: int) -> PartRef:
    return PartRef(f"status/{0:020d}-writers-{count:032x}", 0, 1, count, 10)


def row(version: int) -> HistoryRow:
    return HistoryRow(version, 900, "append", 0, 0)


OLD = Root(
    stream_id="s",
    version=7,
    transaction="t7",
    parent="t6",
    time_us=1000,
    operation="append",
    epochs=(Epoch(0, 0, "x", None), Epoch(1, 5, "y", None)),
    generation=3,
    head=4,
    tail=30,
    next_segment=9,
    log_start=2,
    staging_floor=3,
    parts=(part(0, 10), part(10, 20)),
    entries=(entry(5, 6), entry(6, 4, epoch=1)),
    retired=(Retired("segment", "t/1", 3, 500),),
    writers={"a": Writer("", 1, 3, 5, 10), "b": Writer("q", 2, 6, 4, 30)},
    reader_features=("r",),
    writer_features=("w",),
    dropped=True,
    history=tuple(map(row, range(8))),
    extra={"new": 1},
)
NEW = replace(
    OLD,
    version=8,
    operation="later",  # what an operation may change has tests of its own
    transaction="t8",
    parent="t7",
    time_us=1001,
    tail=33,
    next_segment=10,
    entries=(*OLD.entries, entry(9, 3)),
    history=(*OLD.history, row(8)),
    writers={**OLD.writers, "c": Writer("", 0, 8, 3, 33)},
)
SEALED = {"sealed": True, "tail": 30, "entries": OLD.entries, "writers": dict(OLD.writers)}

TRANSITIONS = {
    "the stream id stays": {"stream_id": "other"},
    "the generation never goes back": {"generation": 2},
    "a root names its parent": {"parent": "t6"},
    "a transaction is committed once": {"transaction": "t7"},
    "commit time never goes back": {"time_us": 999},
    "the head only grows": {"head": 3},
    "a dropped stream stays dropped": {"dropped": False},
    "segment numbers only grow": {"next_segment": 8, "entries": OLD.entries[:1], "tail": 26},
    "log_start only grows": {"log_start": 1},
    "the staging floor only grows": {"staging_floor": 2},
    "the staging floor is a past version": {"staging_floor": 9},
    "writers never shrink": {"writers": {"a": OLD.writers["a"]}},
    "reader features never vanish": {"reader_features": ()},
    "writer features never vanish": {"writer_features": ()},
    "unknown fields are carried through": {"extra": {}},
    "retired objects are kept": {"retired": ()},
}


def test_a_sound_transition_breaks_nothing():
    check_transition(OLD, NEW)
    assert [*broken_rules(OLD, NEW), *broken_invariants(OLD), *broken_invariants(NEW)] == []
    check_transition(replace(OLD, sealed=True), replace(NEW, **SEALED))
    check_transition(OLD, replace(NEW, **SEALED))
    same_time = replace(NEW, time_us=OLD.time_us)
    check_transition(OLD, same_time)


@pytest.mark.parametrize("rule", TRANSITIONS)
def test_one_broken_rule_is_named_alone(rule):
    new = replace(NEW, **TRANSITIONS[rule])
    assert rule in list(broken_rules(OLD, new))
    others = set(broken_rules(OLD, new)) - {rule}
    assert others <= {"the tail only grows"}  # fewer numbers mean fewer events
    with pytest.raises(InternalError, match=rule):
        check_transition(OLD, new)


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        (OLD, replace(NEW, version=9), "versions are dense"),
        (OLD, replace(NEW, version=7, log_start=2), "versions are dense"),
        (replace(OLD, tail=40), NEW, "the tail only grows"),
        (replace(OLD, sealed=True), replace(NEW, sealed=True), "a sealed stream keeps its tail"),
        (
            replace(OLD, sealed=True),
            replace(NEW, **SEALED | {"sealed": False}),
            "a sealed stream keeps its tail",
        ),
        (replace(OLD, version=1), replace(NEW, version=2), "log_start leaves the base"),
        (OLD, replace(NEW, epochs=OLD.epochs[:1]), "epochs only grow"),
        (OLD, replace(NEW, epochs=(OLD.epochs[0], Epoch(1, 6, "y", None))), "epochs only grow"),
    ],
)
def test_a_broken_rule_that_needs_a_past_of_its_own(old, new, rule):
    assert rule in list(broken_rules(old, new))
    with pytest.raises(InternalError):
        check_transition(old, new)


INVARIANTS = {
    "parts tile the range": {"parts": (part(0, 10), part(11, 20)), "tail": 33},
    "parts and entries end at the tail": {"tail": 34},
    "the head lies within what is listed": {"head": 34},
    "segment numbers are unique": {"entries": (entry(5, 6), entry(5, 4, epoch=1), entry(9, 3))},
    "segment numbers lie below the next": {"next_segment": 9},
    "epochs of segments exist": {"epochs": OLD.epochs[:1]},
    "log_start lies below the version": {"log_start": 8},
    "writers' batches lie before the tail": {"writers": {"c": Writer("", 0, 8, 3, 34)}},
}


@pytest.mark.parametrize("rule", INVARIANTS)
def test_one_broken_invariant_is_named_alone(rule):
    assert list(broken_invariants(replace(NEW, **INVARIANTS[rule]))) == [rule]


@pytest.mark.parametrize(
    ("before", "inline", "after", "kept"),
    [
        ((), 2, (2,), True),
        ((), 2, (), True),
        ((), 0, (2,), True),
        ((), 0, (1,), False),  # two of the root are gone, the part has room for one
        ((), 1, (), False),
        ((5,), 2, (5,), True),
        ((5,), 1, (5,), False),  # one of the root is gone, and no part is new
        ((5,), 0, (5, 2), True),
        ((5,), 0, (5, 1), False),
        ((5, 4), 2, (9,), True),
        ((5, 4), 2, (5,), False),  # one part is gone, and no part is new
        ((5, 4), 2, (6,), True),  # three writers had committed again
        ((5, 4), 2, (3,), False),
        ((5, 4), 2, (), False),
    ],
)
def test_writers_that_move_to_parts_are_counted(before, inline, after, kept):
    old = replace(OLD, writers_parts=tuple(map(rows, before)))
    writers = dict([*OLD.writers.items()][:inline])
    new = replace(NEW, writers=writers, writers_parts=tuple(map(rows, after)))
    assert ("writers never shrink" not in list(broken_rules(old, new))) is kept


def test_retired_objects_that_move_to_a_part_are_counted():
    assert not list(broken_rules(OLD, replace(NEW, retired=(), retired_parts=(rows(1),))))
    assert list(broken_rules(replace(OLD, retired_parts=(rows(3),)), replace(NEW, retired=())))


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
