"""The table status: what outgrows the root moves out, and is found again."""

import uuid
from dataclasses import replace
from random import Random

import pytest
from stream_kit import ROOT_BYTES

from segstore_ds.errors import CorruptionError, FormatError
from segstore_ds.format.envelope import encode_envelope
from segstore_ds.format.root import (
    Epoch,
    HistoryRow,
    PartRef,
    Root,
    SegmentEntry,
    Writer,
    encode_root,
)
from segstore_ds.log.transition import check_transition
from segstore_ds.status.history import begin_history
from segstore_ds.status.slices import SliceTable
from segstore_ds.status.table import SEGMENTS, WRITERS, Slot
from segstore_ds.status.table_status import TableStatus, slices_of_entries
from segstore_ds.storage import open_storage

HISTORY = f"status/{0:020d}-history-{'a' * 32}"
EMPTY = begin_history(Root("s", 0, "t0", "", 0, "create", (Epoch(0, 0, "x", None),)))
SLOT = Slot(1, 17, 0)


@pytest.fixture
def status() -> TableStatus:
    return TableStatus(open_storage(f"memory://{uuid.uuid4().hex}"))


def fresh(status: TableStatus) -> TableStatus:
    """A table status that has nothing in memory."""
    return TableStatus(status.storage)


def grow(root: Root, segments: int) -> Root:
    """Return the root with segments of ten events appended."""
    first = root.next_segment
    entries = [SegmentEntry(first + n, f"t/{first + n}", 10, 99, 9, 5) for n in range(segments)]
    return replace(
        root,
        entries=(*root.entries, *entries),
        next_segment=first + segments,
        tail=root.tail + segments * 10,
    )


def step(root: Root, changed: Root) -> Root:
    """Commit a change without storage, checked as a commit is."""
    new = replace(
        changed,
        version=root.version + 1,
        parent=root.transaction,
        transaction=f"t{root.version + 1}",
        history=(HistoryRow(root.version + 1, 0, "append", 0, 0),),
        history_parts=(PartRef(HISTORY, 0, root.version + 1, root.version + 1, 9),),
    )
    check_transition(root, new)
    return new


def offsets(status: TableStatus, root: Root, start: int, end: int) -> list[tuple[int, int, int]]:
    placed = status.segments(root, start, end)
    return [(segment.start, segment.end, segment.entry.segment_id) for segment in placed]


def test_segments_of_any_range_are_found_in_parts_and_inline(status):
    root = EMPTY
    for _ in range(5):
        root = step(root, status.tidy(grow(root, 40), SLOT))
    assert len(root.parts) == 2
    assert len(root.entries) == 40
    for start, end in [(0, 2000), (0, 1), (9, 11), (790, 810), (795, 1605), (1999, 2000), (5, 5)]:
        expected = [
            (n * 10, n * 10 + 10, n) for n in range(200) if n * 10 < end and n * 10 + 10 > start
        ]
        assert offsets(fresh(status), root, start, end) == (expected if start < end else [])


def test_part_merges_keep_every_segment(status):
    root, most_parts, merges = EMPTY, 0, 0
    for _ in range(120):
        root = step(root, status.tidy(grow(root, SEGMENTS.rows + 1), SLOT))
        while paths := status.table.due(root):
            merged = status.table.merge(root, paths, SLOT)
            assert merged is not None
            assert {item.path for item in merged.retired[len(root.retired) :]} == set(paths)
            root = step(root, status.tidy(merged, SLOT))
            merges += 1
        most_parts = max(most_parts, len(root.parts))
    assert merges > 120 // SEGMENTS.fan_in
    assert most_parts < 4 * SEGMENTS.fan_in
    assert [number for _, _, number in offsets(fresh(status), root, 0, root.tail)] == list(
        range(120 * (SEGMENTS.rows + 1))
    )
    assert len(encode_root(root)) < ROOT_BYTES


def test_writers_spill_and_come_back(status):
    """300 writers, then the spilled ones again: none is lost, none is counted twice."""
    root = EMPTY
    for number in range(WRITERS.rows + 50):
        writers = {**root.writers, f"w{number}": Writer("", 0, number, 0, 0)}
        root = step(root, status.tidy(replace(root, writers=writers), SLOT))
    assert len(root.writers) <= WRITERS.rows
    assert sum(part.count for part in root.writers_parts) + len(root.writers) == WRITERS.rows + 50
    known = fresh(status)
    for number in range(WRITERS.rows + 50):
        assert known.writers.find(root, f"w{number}").version == number
    assert known.writers.find(root, "unknown") is None
    assert known.storage.stats.requests["get"] == 1
    for number in range(200):  # they commit again: inline, and newer than in the part
        writers = {**root.writers, f"w{number}": Writer("", 1, root.version + 1, 0, 0)}
        root = step(root, status.tidy(replace(root, writers=writers), SLOT))
    assert len(root.writers_parts) == WRITERS.fan_in == 2
    merged = status.writers.merge(root, status.writers.due(root), SLOT)
    names = {*status.writers.part(root.writers_parts[0])}
    (part,) = merged.writers_parts
    assert part.count == len(names | {*status.writers.part(root.writers_parts[1])})
    root = step(root, merged)
    known = fresh(status)
    found = [known.writers.find(root, f"w{number}").batch_id for number in range(WRITERS.rows + 50)]
    assert found == [1] * 200 + [0] * (WRITERS.rows - 150)
    assert any(item.path.count("-writers-") for item in root.retired)


def test_writers_with_long_names_spill_by_their_bytes(status):
    """No number of names, however long, makes the root large; the newest stay in it."""
    root = EMPTY
    for number in range(300):
        writer = Writer(random_text(number), 0, number, 0, 0)
        writers = {**root.writers, f"{number} {random_text(-number)}": writer}
        root = step(root, status.tidy(replace(root, writers=writers), SLOT))
        assert len(encode_envelope(encode_root(root))) < ROOT_BYTES
        assert not root.writers or max(writer.version for writer in root.writers.values()) == number
    known = fresh(status)
    for number in (0, 150, 299):
        assert known.writers.find(root, f"{number} {random_text(-number)}").version == number


def random_text(seed):
    """Return text of the greatest length that an id may have, which does not compress."""
    chars = Random(seed)
    return "".join(chr(chars.randrange(0x4E00, 0x9FFF)) for _ in range(190))


def test_schemas_share_the_room_in_the_root(status):
    """Many small schemas count as a big one: what does not fit is in objects of its own."""
    epochs = []
    for number in range(200):
        text = random_text(number)[:100] * 8
        epochs.append(status.put_epoch(0, number, 0, text, None, beside=epochs))
    inline = [epoch for epoch in epochs if epoch.schema is not None]
    assert inline == epochs[: len(inline)]
    assert 10 < len(inline) < 20
    assert len(encode_envelope(encode_root(replace(EMPTY, epochs=tuple(epochs))))) < 32 << 10
    known = fresh(status)
    assert [known.schema_texts(epoch)[0][:50] for epoch in epochs] == [
        random_text(number)[:50] for number in range(200)
    ]


def test_a_part_that_contradicts_the_root_is_corruption(status):
    root = status.tidy(grow(EMPTY, 70), SLOT)
    (ref,) = root.parts
    for wrong in (replace(ref, count=69), replace(ref, end=ref.end - 1), replace(ref, start=1)):
        with pytest.raises(CorruptionError, match="contradicts the root"):
            fresh(status).table.entries(wrong)
    other = replace(ref, path=f"{ref.path[:-32]}{32 * 'f'}")
    status.storage.put(other.path, status.storage.get(ref.path))
    with pytest.raises(CorruptionError, match="wrong digest"):
        fresh(status).table.entries(other)


@pytest.fixture
def tiny_lists(monkeypatch):
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.rows", 1)
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.parts", 4)
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.listed", 4)


def listed(status: TableStatus) -> Root:
    root = EMPTY
    for _ in range(20):
        root = step(root, status.tidy(grow(root, 2), SLOT))
    return root


@pytest.mark.usefixtures("tiny_lists")
def test_parts_that_outgrow_the_root_move_to_lists(status):
    root = listed(status)
    assert [len(status.table.members(ref)) for ref in root.lists] == [4, 4, 4, 4, 2]
    assert len(root.parts) == 2
    again = fresh(status)
    assert len(list(again.table.parts(root))) == 20
    assert offsets(again, root, 0, root.tail) == [(n * 10, n * 10 + 10, n) for n in range(40)]
    assert offsets(again, root, 95, 101) == [(90, 100, 9), (100, 110, 10)]
    lists = {item.path for item in root.retired}
    assert len(lists) == 4  # those that were filled up since


@pytest.mark.usefixtures("tiny_lists")
def test_a_head_within_a_list_retires_the_parts_below_it(status):
    root = listed(status)
    before = [part.path for part in status.table.parts(root)]
    moved = step(root, status.tidy(replace(root, head=115), SLOT))
    kept = [part.path for part in status.table.parts(moved)]
    assert kept == before[5:]
    gone = moved.retired[len(root.retired) :]
    assert [item.path for item in gone if item.kind == "part"] == before[:5]
    assert len([item for item in gone if item.kind == "status"]) == 2
    assert moved.listed_start == 100
    assert status.tidy(moved, SLOT) is moved
    ended = step(moved, status.tidy(replace(moved, head=moved.tail - 1), SLOT))
    assert not ended.lists


@pytest.mark.usefixtures("tiny_lists")
def test_a_list_that_contradicts_the_root_is_corruption(status):
    root = listed(status)
    first = root.lists[0]
    for wrong in (
        replace(first, count=5),
        replace(first, start=10),
        replace(first, end=70),
        replace(first, last_us=1),
        replace(first, path=root.lists[1].path),
    ):
        with pytest.raises(FormatError):
            fresh(status).table.members(wrong)


@pytest.mark.parametrize("start", range(20, 46, 5))
def test_entries_of_a_range_are_as_those_of_its_runs(status, start):
    root = replace(grow(EMPTY, 4), tail=60)
    for end in range(start, 61, 5):
        runs = status.runs(root, start, end)
        tables = [SliceTable.of_run(run, start, end, None) for run in runs]
        assert slices_of_entries(root, start, end) == SliceTable.join(tables)


def part(place: int, segments: int) -> PartRef:
    return PartRef(f"status/{place:020d}-part-{'a' * 32}", place, place + 1, segments, 9)


@pytest.mark.usefixtures("tiny_lists")
def test_lists_behind_a_replaced_part_are_inline_and_fold_again(status):
    """Those before it are not read."""
    root = listed(status)
    parts = [*status.table.parts(root)]
    paths = [part.path for part in parts]
    again = fresh(status)
    again.storage.stats.reset()
    opened = again.table.replace(root, SLOT, {paths[6]: [parts[6]]}, start=130)
    assert again.storage.stats.requests == {"get": len(root.lists) - 1}
    assert [index.end for index in opened.lists] == [80]
    assert [part.path for part in status.table.parts(opened)] == paths
    folded = step(root, status.tidy(opened, SLOT))
    assert [part.path for part in status.table.parts(folded)] == paths
    assert len(folded.parts) <= 4


@pytest.mark.usefixtures("tiny_lists")
def test_a_part_whose_segments_are_of_no_epoch_is_damaged(status):
    root = listed(status)
    with pytest.raises(CorruptionError, match="unknown epoch"):
        list(status.segments(replace(root, epochs=()), 0, root.tail))
