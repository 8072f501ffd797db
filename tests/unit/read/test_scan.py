"""Scan: every row is claimed by one task, read once, and lifted to the schema of the plan."""

import pickle
import uuid
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segstore_ds.errors import (
    CorruptionError,
    InvalidInputError,
    MissingObjectError,
    SnapshotExpiredError,
    TruncatedObjectError,
)
from segstore_ds.format.arrow.index import FrameEntry
from segstore_ds.format.parts.columns import from_entries
from segstore_ds.format.root import SegmentEntry
from segstore_ds.read import segments
from segstore_ds.read.filters import parse_filters
from segstore_ds.read.plan import plan_frames, plan_tasks
from segstore_ds.read.scan import run_task
from segstore_ds.read.segments import plan_runs
from segstore_ds.status.slices import Slice, SliceTable
from segstore_ds.status.table_status import Run
from segstore_ds.storage import open_storage
from segstore_ds.stream import Stream, create_on
from segstore_ds.write.task_writer import Layout

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
NO_FILTERS = parse_filters(None, SCHEMA)


def plan(sizes: list[tuple[int, int]], start: int, end: int) -> SliceTable:
    """Return what to read of segments of (rows, bytes) that follow each other."""
    entries = [SegmentEntry(n, f"t/{n}", rows, size, 9, 7) for n, (rows, size) in enumerate(sizes)]
    end = min(end, sum(rows for rows, _ in sizes))
    if start >= end:
        return SliceTable()
    run = Run(0, from_entries(entries), list).trimmed(start, end)
    return SliceTable.of_run(run, start, end, None)


def claims(tasks) -> list[Slice]:
    return [piece for task in tasks for piece in task.slices]


def claimed_rows(piece: Slice) -> int:
    return min(piece.rows[1], piece.claim[1]) - max(piece.rows[0], piece.claim[0])


SIZES = st.lists(st.tuples(st.integers(1, 400), st.integers(1, 10_000)), min_size=1, max_size=8)


@st.composite
def scans(draw):
    """Segments with their frames, a range, and targets."""
    sizes = draw(SIZES)
    frames = []
    for rows, _ in sizes:
        cuts = draw(st.sets(st.integers(1, rows), max_size=6)) - {rows}
        frames.append([end - start for start, end in pairwise([0, *sorted(cuts), rows])])
    total = sum(rows for rows, _ in sizes)
    start = draw(st.integers(0, total))
    end = draw(st.integers(start, total))
    targets = {
        "partition_bytes": draw(st.integers(1, 20_000)),
        "partition_rows": draw(st.none() | st.integers(1, 500)),
        "min_partitions": draw(st.none() | st.integers(1, 50)),
    }
    return sizes, frames, start, end, targets


@given(scans())
@settings(deadline=None)
def test_every_row_of_the_range_is_read_by_one_task(scanned):
    """However the frames lie: a task takes those that start within its claim, clipped to rows."""
    sizes, frames, start, end, targets = scanned
    tasks = plan_tasks(plan(sizes, start, end), **targets)
    read = []
    for piece in claims(tasks):
        entries = [frame(rows) for rows in frames[piece.entry.segment_id]]
        for number, row in plan_frames(entries, piece, NO_FILTERS):
            entry = entries[number]
            first, last = max(row, piece.rows[0]), min(row + entry.rows, piece.rows[1])
            read += range(piece.start + first, piece.start + last)
    assert read == list(range(start, end))


def frame(rows: int, start: int = 0, size: int = 64) -> FrameEntry:
    return FrameEntry(
        start=start, bytes=size, rows=rows, crc=0, fingerprint="f", stats={}, raw_bytes=1
    )


@given(scans())
@settings(deadline=None)
def test_tasks_are_in_order_never_empty_and_near_their_targets(scanned):
    sizes, _, start, end, targets = scanned
    tasks = plan_tasks(plan(sizes, start, end), **targets)
    assert all(task.slices for task in tasks)
    assert all(claimed_rows(piece) > 0 for piece in claims(tasks))
    assert sum(map(claimed_rows, claims(tasks))) == end - start
    starts = [piece.start + piece.claim[0] for piece in claims(tasks)]
    assert starts == sorted(starts)
    wanted = targets["min_partitions"]
    if targets["partition_rows"]:
        most = targets["partition_rows"] * 1.1 + 1
        assert all(sum(map(claimed_rows, task.slices)) <= most for task in tasks)
    if wanted and tasks:
        assert len(tasks) >= min(wanted, end - start) / 2.2


@pytest.mark.parametrize(
    ("start", "end", "rows"),
    [
        (0, 60, [(0, 10), (0, 20), (0, 30)]),
        (5, 55, [(5, 10), (0, 20), (0, 25)]),
        (10, 30, [(0, 20)]),
        (12, 13, [(2, 3)]),
        (0, 0, []),
        (60, 60, []),
    ],
)
def test_slices_hold_the_rows_of_the_range(start, end, rows):
    slices = plan([(10, 1), (20, 1), (30, 1)], start, end)
    assert [piece.rows for piece in slices] == rows


@pytest.mark.parametrize(
    ("sizes", "target", "shape"),
    [
        ([(10, 100)] * 10, 1000, [10]),
        ([(10, 100)] * 10, 250, [2, 2, 2, 2, 2]),
        ([(10, 100)] * 10, 275, [3, 3, 3, 1]),
        ([(10, 100)] * 11, 1000, [11]),
        ([(100, 1000)], 250, [1, 1, 1, 1]),
        ([(100, 1000)], 100_000, [1]),
        ([(3, 1000)], 1, [1, 1, 1]),
        ([(10, 10), (100, 1000), (10, 10)], 500, [2, 2]),
    ],
)
def test_small_segments_are_packed_and_large_ones_split(sizes, target, shape):
    tasks = plan_tasks(plan(sizes, 0, 10**9), partition_bytes=target)
    assert [len(task.slices) for task in tasks] == shape


def test_frames_side_by_side_are_fetched_together():
    spans = [(n, (64 * n, 64 * n + 64)) for n in range(10)]
    assert [len(run) for run in plan_runs(spans, 64 * 4)] == [4, 4, 2]
    assert [len(run) for run in plan_runs(spans, 1)] == [1] * 10
    apart = [*spans[:3], *spans[5:]]
    assert [len(run) for run in plan_runs(apart, 1 << 20, gap_bytes=127)] == [3, 5]
    assert [len(run) for run in plan_runs(apart, 1 << 20, gap_bytes=128)] == [8]
    assert list(plan_runs([], 1)) == []


# --- reading what is stored -----------------------------------------------------------------------


def table(start: int, end: int) -> pa.Table:
    columns = {"n": range(start, end), "s": [f"s{n}" for n in range(start, end)]}
    return pa.table({name: list(values) for name, values in columns.items()}, SCHEMA)


@pytest.fixture
def stream() -> Stream:
    """1000 events in four segments; the second has frames of ten rows."""
    made = create_on(open_storage(f"memory://{uuid.uuid4().hex}"), SCHEMA)
    for start, frame_rows in ((0, 100), (250, 10), (500, 1000), (750, 7)):
        made.append(table(start, start + 250), layout=Layout(frame_rows=frame_rows))
    return made


def read(stream: Stream, *cuts, partition_rows: int | None = None, **options) -> pa.Table:
    reading = stream.plan_read(*cuts, **options)
    tasks = stream.plan_tasks(reading, partition_rows=partition_rows)
    reading, tasks = pickle.loads(pickle.dumps((reading, tasks)))  # noqa: S301 - our own
    batches = [batch for task in tasks for batch in run_task(reading, task)]
    assert all(batch.num_rows for batch in batches)
    return pa.Table.from_batches(batches, reading.result_schema)


@pytest.mark.parametrize("partition_rows", [None, 1, 9, 10, 11, 300])
@pytest.mark.parametrize(
    "cuts", [(0, 1000), (249, 251), (255, 256), (333, 777), (999, 1000), (400, 400)]
)
def test_any_range_in_tasks_of_any_size_gives_its_events(stream, cuts, partition_rows):
    assert read(stream, *cuts, partition_rows=partition_rows) == table(*cuts)


def test_offsets_and_segments_are_those_of_the_events(stream):
    got = read(stream, 245, 505, offset_column="o", segment_column="g", columns=["n"])
    assert got.column_names == ["n", "o", "g"]
    assert got["o"].to_pylist() == got["n"].to_pylist() == list(range(245, 505))
    assert got["g"].to_pylist() == [n // 250 for n in range(245, 505)]
    got = read(stream, filters=[["n", "in", [3, 333, 999]]], offset_column="o", columns=[])
    assert got.to_pydict() == {"o": [3, 333, 999]}


def test_a_filter_reads_only_frames_that_may_match(stream, monkeypatch):
    monkeypatch.setattr(segments, "WHOLE_OBJECT_BYTES", 0)
    storage = stream.storage
    storage.stats.reset()
    reading = stream.plan_read(filters=[["n", "==", 333]])
    (batch,) = [b for task in stream.plan_tasks(reading) for b in run_task(reading, task)]
    assert batch["n"].to_pylist() == [333]
    assert storage.stats.requests["get_range"] == 2  # one footer, one frame of ten rows


def test_large_segments_are_read_by_range_as_small_ones_whole(stream, monkeypatch):
    whole = read(stream)
    monkeypatch.setattr(segments, "WHOLE_OBJECT_BYTES", 0)
    monkeypatch.setattr(segments, "READ_BYTES", 1000)
    assert read(stream) == whole
    assert read(stream, 333, 777, partition_rows=9) == table(333, 777)


def test_older_epochs_are_lifted_to_the_schema_of_the_version(stream):
    before = stream.root
    stream.append(pa.table({"n": [1000], "x": [1.5]}), merge_schema=True)
    got = read(stream, 998, 1001)
    assert got.to_pylist() == [
        {"n": 998, "s": "s998", "x": None},
        {"n": 999, "s": "s999", "x": None},
        {"n": 1000, "s": None, "x": 1.5},
    ]
    assert read(stream, 998, 1001, columns=["x"])["x"].to_pylist() == [None, None, 1.5]
    assert read(stream, 998, 1001, filters=[["x", "is null"]])["n"].to_pylist() == [998, 999]
    assert read(stream, 998, 1001, filters=[["x", ">", 1.0]])["n"].to_pylist() == [1000]
    pinned = stream.plan_read(root=before)
    assert (pinned.end, pinned.result_schema) == (1000, SCHEMA)


def test_plan_keeps_its_version_when_the_handle_refreshes(stream):
    reading = stream.plan_read()
    other = stream.plan_read(0, 10)
    stream.overwrite(table(0, 3))
    tasks = stream.plan_tasks(reading)
    batches = [batch for task in tasks for batch in run_task(reading, task)]
    assert pa.Table.from_batches(batches) == table(0, 1000)
    with pytest.raises(InvalidInputError, match="bound to another stream or version"):
        stream.plan_tasks(other, root=stream.root)


# --- damage ---------------------------------------------------------------------------------------


def segment_path(stream: Stream, number: int) -> str:
    return f"segments/{stream.root.entries[number].path}"


@pytest.mark.parametrize("whole", [True, False])
def test_a_damaged_frame_is_named_and_hides_nothing_else(stream, monkeypatch, whole):
    if not whole:
        monkeypatch.setattr(segments, "WHOLE_OBJECT_BYTES", 0)
    path = segment_path(stream, 1)
    data = bytearray(stream.storage.get(path))
    data[200] ^= 1  # within the first frame of ten rows
    stream.storage.put(path, bytes(data))
    with pytest.raises(CorruptionError, match=path):
        read(stream)
    assert read(stream, 0, 250) == table(0, 250)
    assert read(stream, 260, 1000) == table(260, 1000)


@pytest.mark.parametrize("whole", [True, False])
def test_a_segment_that_is_cut_or_grown_is_noticed(stream, monkeypatch, whole):
    if not whole:
        monkeypatch.setattr(segments, "WHOLE_OBJECT_BYTES", 0)
    path = segment_path(stream, 2)
    data = stream.storage.get(path)
    stream.storage.put(path, data[:-1])
    with pytest.raises(TruncatedObjectError):
        read(stream, 500, 750)
    stream.storage.put(path, data[:100])
    with pytest.raises(TruncatedObjectError):
        read(stream, 500, 750)
    if whole:
        stream.storage.put(path, data + b"?")
        with pytest.raises(CorruptionError):
            read(stream, 500, 750)


def test_another_segments_bytes_are_noticed(stream):
    stream.storage.put(segment_path(stream, 2), stream.storage.get(segment_path(stream, 3)))
    with pytest.raises((CorruptionError, TruncatedObjectError)):
        read(stream, 500, 750)


def test_missing_segment_is_damage_and_dropped_is_expired(stream):
    path = segment_path(stream, 0)
    before = stream.root
    data = stream.storage.get(path)
    stream.storage.delete(path)
    with pytest.raises(MissingObjectError, match=path):
        read(stream, 0, 10)
    stream.storage.put(path, data)
    stream.overwrite(table(0, 1))
    stream.storage.delete(path)  # as a vacuum does after its grace
    with pytest.raises(SnapshotExpiredError, match=f"version={before.version}"):
        read(stream, 0, 10, root=before)
