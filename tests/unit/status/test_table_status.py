"""The table status: what outgrows the root moves out, and is found again."""

import uuid
from dataclasses import replace
from random import Random

import pytest
from stream_kit import ROOT_BYTES

from segstore_ds.errors import CorruptionError, FormatError, MissingObjectError
from segstore_ds.format import names
from segstore_ds.format.envelope import encode_envelope
from segstore_ds.format.root import (
    Epoch,
    HistoryRow,
    PartRef,
    Retired,
    Root,
    SegmentEntry,
    Writer,
    encode_root,
)
from segstore_ds.log.transition import broken_invariants, check_transition
from segstore_ds.status import store
from segstore_ds.status.epochs import SCHEMA_INLINE_BYTES
from segstore_ds.status.history import begin_history
from segstore_ds.status.slices import SliceTable
from segstore_ds.status.table import RETIRED, SEGMENTS, WRITERS, Slot
from segstore_ds.status.table_status import (
    TableStatus,
    placed_entries,
)
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


def grow(root: Root, segments: int, *, rows: int = 10) -> Root:
    """Return the root with segments appended."""
    first = root.next_segment
    entries = [SegmentEntry(first + n, f"t/{first + n}", rows, 99, 9, 5) for n in range(segments)]
    return replace(
        root,
        entries=(*root.entries, *entries),
        next_segment=first + segments,
        tail=root.tail + segments * rows,
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


def test_entries_spill_beyond_the_soft_limit(status):
    root = grow(EMPTY, SEGMENTS.rows)
    assert status.tidy(root, SLOT) is root
    root = status.tidy(grow(root, 1), SLOT)
    assert root.entries == ()
    assert [(part.start, part.end, part.count) for part in root.parts] == [(0, 650, 65)]
    assert not list(broken_invariants(root))


def test_retried_attempt_spills_only_above_the_hard_limit(status):
    slot = replace(SLOT, attempt=1)
    root = grow(EMPTY, SEGMENTS.hard)
    assert status.tidy(root, slot) is root
    assert status.tidy(grow(root, 1), slot).entries == ()


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


@pytest.mark.parametrize("start", range(20, 46, 5))
def test_entries_of_a_range_are_as_those_of_its_runs(status, start):
    root = replace(grow(EMPTY, 4), tail=60)
    for end in range(start, 61, 5):
        runs = status.runs(root, start, end)
        tables = [SliceTable.of_run(run, start, end, None) for run in runs]
        assert placed_entries(root, start, end) == SliceTable.join(tables)


def test_only_the_parts_of_the_range_are_read(status):
    root = EMPTY
    for _ in range(4):
        root = step(root, status.tidy(grow(root, 70), SLOT))
    again = fresh(status)
    again.storage.stats.reset()
    list(again.segments(root, root.tail - 5, root.tail))
    list(again.segments(root, root.tail - 15, root.tail))
    assert again.storage.stats.requests == {"get_range": 1}


def test_part_merges_keep_every_segment(status):
    root, most_parts, merges = EMPTY, 0, 0
    for _ in range(300):
        root = step(root, status.tidy(grow(root, SEGMENTS.rows + 1), SLOT))
        while paths := status.table.due(root):
            merged = status.table.merge(root, paths, SLOT)
            assert merged is not None
            assert {item.path for item in merged.retired[len(root.retired) :]} == set(paths)
            root = step(root, status.tidy(merged, SLOT))
            merges += 1
        most_parts = max(most_parts, len(root.parts))
    assert merges > 300 // SEGMENTS.fan_in
    assert most_parts < 4 * SEGMENTS.fan_in
    assert [number for _, _, number in offsets(fresh(status), root, 0, root.tail)] == list(
        range(300 * (SEGMENTS.rows + 1))
    )
    assert len(encode_root(root)) < ROOT_BYTES


def part(place: int, segments: int) -> PartRef:
    return PartRef(f"status/{place:020d}-part-{'a' * 32}", place, place + 1, segments, 9)


@pytest.mark.parametrize(
    ("sizes", "merged"),
    [
        ([65] * 9, 0),
        ([65] * 10, 10),
        ([65] * 11, 10),
        ([600] + [65] * 10, 10),
        ([65] * 10 + [600], 0),
        ([65] * 9 + [600], 0),
        ([160] * 10, 10),
        ([160] * 9 + [161], 0),
        ([1000] * 10, 10),
        ([6500] * 10, 10),
        ([6600] * 10, 0),
        ([40_000] * 10, 0),
        ([], 0),
    ],
)
def test_the_newest_parts_of_one_size_are_due(status, sizes, merged):
    root = replace(EMPTY, parts=tuple(part(n, size) for n, size in enumerate(sizes)))
    paths = status.table.due(root)
    assert (paths or ()) == tuple(part.path for part in root.parts[len(sizes) - merged :])[
        : merged or 0
    ]


def test_a_merge_of_parts_that_are_no_longer_there_is_none(status):
    root = EMPTY
    for _ in range(3):
        root = step(root, status.tidy(grow(root, 70), SLOT))
    first, second, third = (part.path for part in root.parts)
    assert status.table.merge(root, (first, third), SLOT) is None
    assert status.table.merge(root, (second, third, "status/x"), SLOT) is None
    assert status.table.merge(replace(root, parts=root.parts[1:]), (first, second), SLOT) is None
    merged = status.table.merge(root, (second, third), SLOT)
    assert merged is not None
    assert [(part.start, part.end) for part in merged.parts] == [(0, 700), (700, 2100)]


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


def test_retired_objects_move_to_parts(status):
    retired = tuple(Retired("segment", f"t/{n}", 1, 2) for n in range(RETIRED.rows + 1))
    root = step(EMPTY, status.tidy(replace(EMPTY, retired=retired), SLOT))
    assert root.retired == ()
    assert [part.count for part in root.retired_parts] == [len(retired)]
    assert fresh(status).retired.part(root.retired_parts[0]) == retired
    assert [*fresh(status).retired.all(root)] == [*retired]


def test_a_big_schema_moves_to_a_blob(status):
    small = status.put_epoch(0, 0, 0, "s" * 10, None)
    assert (small.schema, small.blob) == ("s" * 10, None)
    text = "s" * SCHEMA_INLINE_BYTES
    big = status.put_epoch(0, 1, 5, text, '{"x":1}')
    assert (big.schema, big.since) == (None, 5)
    assert fresh(status).schema_texts(big) == (text, '{"x":1}')
    assert fresh(status).schema_texts(small) == ("s" * 10, None)


def test_a_root_stays_small_whatever_grows(status):
    root = EMPTY
    for number in range(600):
        writers = {
            **root.writers,
            f"a writer with a long name {number}": Writer("q" * 30, 0, 0, 0, 0),
        }
        retired = (*root.retired, Retired("segment", f"t/{number}", 1, 2))
        grown = replace(grow(root, 3), writers=writers, retired=retired)
        root = step(root, status.tidy(grown, replace(SLOT, attempt=number % 3)))
        assert len(encode_root(root)) < ROOT_BYTES


# --- damage ---------------------------------------------------------------------------------------


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


def test_bad_status_object_is_named_in_the_error(status):
    root = status.tidy(grow(EMPTY, 70), SLOT)
    other = status.tidy(grow(EMPTY, 71), SLOT)
    path, storage = root.parts[0].path, status.storage
    whole = storage.get(path)
    for bad in (whole[:-1], whole[:40], whole[:-1] + b"?", storage.get(other.parts[0].path)):
        for name in names.both_names(path):
            storage.put(name, bad)
        with pytest.raises(FormatError, match=path):
            fresh(status).table.entries(root.parts[0])
    for name in names.both_names(path):
        storage.delete(name)
    with pytest.raises(MissingObjectError, match=path):
        fresh(status).table.entries(root.parts[0])


def test_a_blob_of_another_kind_is_no_schema(status):
    writers = {f"w{n}": Writer("", 0, 0, 0, 0) for n in range(WRITERS.rows + 1)}
    (blob,) = status.tidy(replace(EMPTY, writers=writers), SLOT).writers_parts
    with pytest.raises(CorruptionError, match="another kind"):
        status.schema_texts(Epoch(0, 0, None, None, blob))
    with pytest.raises(CorruptionError, match="epoch has no schema"):
        status.schema_texts(Epoch(0, 0, None, None, None))


def test_memory_is_bounded(status):
    root = EMPTY
    for _ in range(store._CACHED_OBJECTS + 20):
        root = status.tidy(grow(root, 65), SLOT)
    assert len(status._store._cache._values) <= store._CACHED_OBJECTS


# --- lists of parts -------------------------------------------------------------------------------


@pytest.fixture
def tiny_lists(monkeypatch):
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.rows", 1)
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.parts", 4)
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.listed", 4)


def listed(status: TableStatus, steps: int = 20) -> Root:
    root = EMPTY
    for _ in range(steps):
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
def test_the_tail_needs_no_list_and_a_place_in_the_middle_one(status):
    root = listed(status)
    again = fresh(status)
    again.storage.stats.reset()
    list(again.segments(root, root.tail - 1, root.tail, with_stats=False))
    assert again.storage.stats.requests == {"get_range": 1}
    list(again.segments(root, 100, 101, with_stats=False))
    assert again.storage.stats.requests == {"get_range": 2, "get": 1}


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


@pytest.mark.usefixtures("tiny_lists")
def test_a_part_whose_segments_are_of_no_epoch_is_damaged(status):
    root = listed(status)
    with pytest.raises(CorruptionError, match="unknown epoch"):
        list(status.segments(replace(root, epochs=()), 0, root.tail))


def test_parts_in_lists_are_replaced(monkeypatch, status):
    """The lists that held them are opened and retired with them; no other row is lost."""
    for name, value in {"rows": 1, "parts": 2, "listed": 2, "fan_in": 50}.items():
        monkeypatch.setattr(RETIRED, name, value)
    root, items = EMPTY, [Retired("segment", f"t/{n}", n, n) for n in range(16)]
    for first in range(0, 16, 2):
        root = replace(root, retired=(*root.retired, *items[first : first + 2]))
        root = replace(status.tidy(root, SLOT), version=first)
    table, kept = status.retired, [*status.retired.all(root)]
    assert len(root.retired_lists) > 2
    parts = [*table.parts(root)]
    half = table.put(0, table.part(parts[3])[:1])
    changed = table.replace(root, SLOT, {parts[3].path: [half], parts[4].path: []})
    gone = [table.part(parts[3])[1], *table.part(parts[4])]
    retired = [*changed.retired[len(root.retired) :]]
    assert [*table.all(replace(changed, retired=()))] == [
        item for item in kept if item not in gone and item not in root.retired
    ]
    assert changed.retired_lists == root.retired_lists[:1]
    assert {item.path for item in retired} == {
        *(ref.path for ref in root.retired_lists[1:]),
        parts[3].path,
        parts[4].path,
    }
    assert table.replace(root, SLOT, {}) is root
