"""Plans on columns give exactly what plans on slices one by one give."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from segstore_ds.format.parts.columns import from_entries
from segstore_ds.format.root import SegmentEntry
from segstore_ds.read.plan import ReadTask, plan_tasks
from segstore_ds.status.slices import SliceTable
from segstore_ds.status.table_status import Run, Slice

SMALL = st.tuples(st.integers(1, 50), st.integers(1, 2000))
HUGE = st.tuples(st.integers(1, 2**40), st.integers(1, 2**45))


def claimed(piece: Slice) -> tuple[int, int]:
    """Return how many encoded bytes and rows a slice claims."""
    rows = min(piece.rows[1], piece.claim[1]) - max(piece.rows[0], piece.claim[0])
    return max(piece.entry.bytes * rows // piece.entry.rows, 1), rows


def split(piece: Slice, most_bytes: int, most_rows: int) -> Iterator[Slice]:
    first, last = piece.rows
    rows = last - first
    pieces = max(round(claimed(piece)[0] / most_bytes), -(-rows // most_rows), 1)
    pieces = min(pieces, rows)
    borders = [first + rows * number // pieces for number in range(1, pieces)]
    for claim in pairwise([0, *borders, piece.entry.rows]):
        yield replace(piece, claim=claim)


def pack(
    slices: Sequence[Slice],
    *,
    partition_bytes: int,
    partition_rows: int | None = None,
    min_partitions: int | None = None,
) -> list[ReadTask]:
    """Plan tasks as `plan_tasks` does, slice by slice and with Python's integers."""
    most_bytes, most_rows = partition_bytes, partition_rows or 1 << 62
    if min_partitions:
        total_bytes, total_rows = (
            sum(sizes) for sizes in zip((0, 0), *map(claimed, slices), strict=True)
        )
        most_bytes = max(1, min(most_bytes, -(-total_bytes // min_partitions)))
        most_rows = max(1, min(most_rows, -(-total_rows // min_partitions)))
    tasks, packed, used_bytes, used_rows = [], [], 0, 0
    for piece in (piece for slice_ in slices for piece in split(slice_, most_bytes, most_rows)):
        size, rows = claimed(piece)
        if packed and (used_bytes + size > most_bytes * 1.1 or used_rows + rows > most_rows * 1.1):
            tasks.append(ReadTask(tuple(packed)))
            packed, used_bytes, used_rows = [], 0, 0
        packed.append(piece)
        used_bytes += size
        used_rows += rows
    return [*tasks, ReadTask(tuple(packed))] if packed else tasks


@given(
    st.lists(st.lists(SMALL, min_size=1, max_size=12), max_size=4),
    st.integers(0, 200),
    st.integers(0, 200),
    st.fixed_dictionaries(
        {
            "partition_bytes": st.integers(1, 3000),
            "partition_rows": st.none() | st.integers(1, 60),
            "min_partitions": st.none() | st.integers(1, 12),
        }
    ),
)
def test_tasks_are_those_of_the_slices_one_by_one(parts, skip, drop, targets):
    placed, tables, offset, number = [], [], 0, 0
    end = sum(rows for part in parts for rows, _ in part) - drop
    for part in parts:
        entries = []
        for count, encoded in part:
            entries.append(SegmentEntry(number, f"t/{number}", count, encoded, 9, 7))
            number += 1
        run = Run(offset, from_entries(entries), list)
        for entry in entries:
            placed.append(Slice(offset, entry))
            offset += entry.rows
        if run.start < end and offset > skip and skip < end:
            tables.append(SliceTable.of_run(run.trimmed(skip, end), skip, end, None))
    table = SliceTable.join(tables)
    slices = [segment.cut(skip, end) for segment in placed if holds(segment, skip, end)]
    assert list(table) == slices
    assert plan_tasks(table, **targets) == pack(slices, **targets)


def holds(segment: Slice, start: int, end: int) -> bool:
    return max(segment.start, start) < min(segment.end, end)


KINDS = st.tuples(st.sampled_from(["arrow", "parquet"]), st.integers(0, 2))


@given(st.lists(KINDS, min_size=1, max_size=12), st.sets(st.integers(0, 2)))
def test_selected_and_other_slices_are_all(kinds, epochs):
    """As where Spark reads the files of some epochs, and tasks read all others."""
    entries = [
        SegmentEntry(epoch << 32 | number, f"t/{number}", 1, 1, 9, 7, format=form)
        for number, (form, epoch) in enumerate(kinds)
    ]
    table = SliceTable.of_run(Run(0, from_entries(entries), list), 0, len(kinds), None)
    fits = [form == "parquet" and epoch in epochs for form, epoch in kinds]
    for others in (False, True):
        found = table.select("parquet", epochs, others=others)
        wanted = [number for number, fit in enumerate(fits) if fit != others]
        assert [each.start for each in found] == wanted


@given(st.lists(HUGE, min_size=1, max_size=5), st.integers(2**40, 2**45))
def test_sizes_beyond_64_bits_are_packed_exactly(sizes, target):
    entries = [SegmentEntry(n, f"t/{n}", rows, size, 9, 7) for n, (rows, size) in enumerate(sizes)]
    run = Run(0, from_entries(entries), list)
    end = sum(rows for rows, _ in sizes)
    table = SliceTable.of_run(run, 0, end, None)
    assert plan_tasks(table, partition_bytes=target) == pack(table, partition_bytes=target)
