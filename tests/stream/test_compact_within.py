"""Segments that no neighbour joins are merged within themselves, if their frames at least halve."""

import threading
import uuid
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from faults import FaultStorage
from wrapped_storage import WrappedStorage

from segstore_ds.compact.plan import plan_groups
from segstore_ds.compact.rewrite import TINY_THREADS, frames_of, plan_job
from segstore_ds.options.compaction import CompactRules
from segstore_ds.read.segments import open_segment
from segstore_ds.status.table_status import PlacedSegment
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream import Stream, create_on, open_on
from segstore_ds.write.layout import Layout

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])


def events(start: int, end: int) -> pa.Table:
    """Return the events start to end."""
    return pa.table({"n": range(start, end), "s": [f"s{n}" for n in range(start, end)]}, SCHEMA)


@pytest.fixture
def storage() -> FaultStorage:
    """A storage that lists its calls."""
    return FaultStorage(open_storage(f"memory://{uuid.uuid4().hex}"))


def fill(storage: FaultStorage, form: str = "arrow", *, rows: int = 100, each: int = 5) -> Stream:
    """Return a stream of one segment whose frames have `each` events."""
    stream = create_on(storage, SCHEMA, upkeep=None)
    layout = Layout(frame_rows=each, segment_format=form, inline_bytes=0)
    stream.append(events(0, rows), layout=layout)
    return stream


def counts(stream: Stream) -> list[int]:
    """Return the frames of each segment as its entry says; the footers have to agree."""
    entries = [placed.entry for placed in stream._status.segments(stream.root, 0, stream.tail)]
    for entry in entries:
        frames = open_segment(stream.storage, entry).frames
        assert entry.frames == len(frames)
        raw = sum(frame.raw_bytes for frame in frames)
        assert (entry.frame_raws - 1) << 16 < raw <= entry.frame_raws << 16
    return [entry.frames for entry in entries]


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_many_tiny_frames_of_one_segment_become_few(storage, form):
    """Planned from the status, without opening a footer; a second run does nothing."""
    stream = fill(storage, form)
    assert counts(stream) == [20]
    done = stream.compact(layout=Layout(segment_format=form))
    assert (done.commits, done.segments_before, done.segments_after) == (1, 1, 1)
    assert counts(stream) == [1]
    storage.calls.clear()
    again = stream.compact(layout=Layout(segment_format=form))
    assert (again.commits, again.skipped) == (0, 0)
    assert not [call for call in storage.calls if "segments/" in call]
    assert stream.read().read_all() == events(0, 100)
    stream.verify().check()


def test_what_stitch_joined_is_merged_later(storage):
    """Also where it fills its target, so that no neighbour joins it."""
    stream = create_on(storage, SCHEMA, upkeep=None)
    for start in range(0, 400, 10):
        stream.append(
            events(start, start + 10), layout=Layout(inline_bytes=0, segment_format="arrow")
        )
    stream.compact(mode="stitch", target_rows=200)
    stitched = counts(stream)
    assert len(stitched) == 2
    assert sum(stitched) > 8
    done = stream.compact(target_rows=200)
    assert (done.groups, done.segments_before, done.segments_after) == (2, 2, 2)
    assert counts(stream) == [1, 1]
    assert stream.compact(target_rows=200).commits == 0
    assert stream.compact(mode="stitch", target_rows=200).commits == 0
    assert stream.read().read_all() == events(0, 400)
    stream.verify().check()


@pytest.mark.parametrize("frame_rows", [3, 7, 10, 49, 64])
@pytest.mark.parametrize("each", [1, 5, 6, 50])
def test_frames_at_least_halve_or_the_segment_stays(storage, frame_rows, each):
    """Whatever the sizes: what was written is not written again."""
    stream = fill(storage, each=each)
    (before,) = counts(stream)
    layout = Layout(frame_rows=frame_rows)
    done = stream.compact(layout=layout)
    (after,) = counts(stream)
    assert (done.commits == 1) == (after != before)
    assert after == before or 2 * after <= before
    assert done.skipped == 0
    again = stream.compact(layout=layout)
    assert (again.commits, again.skipped) == (0, 0)
    assert stream.read().read_all() == events(0, 100)


def test_entry_without_counts_opens_the_footer(storage):
    """It was written before entries had them."""
    stream = fill(storage)
    (entry,) = stream.root.entries
    older = replace(entry, frames=0, frame_raws=0)
    job = plan_job(stream._context, stream.root, CompactRules(), Layout())
    storage.calls.clear()
    assert frames_of(job, entry) == (20, entry.frame_raws)
    assert storage.calls == []
    assert frames_of(job, older) == (20, entry.frame_raws)
    assert len(storage.calls) == 1
    assert not plan_groups([PlacedSegment(0, older)], CompactRules())
    assert plan_groups([PlacedSegment(0, entry)], CompactRules())


def test_counts_are_kept_in_parts_and_commit_files(storage, monkeypatch):
    """They pass through spills and merges of parts, and a new handle reads them."""
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.rows", 3)
    stream = create_on(storage, SCHEMA, upkeep=None)
    for start in range(0, 100, 10):
        layout = Layout(frame_rows=5 - start // 50, inline_bytes=0, segment_format="arrow")
        stream.append(events(start, start + 10), layout=layout)
    assert stream.root.parts
    assert counts(open_on(storage)) == [2] * 5 + [3] * 5


def test_minor_leaves_a_segment_alone(storage):
    """Work after a commit is bounded by what was added."""
    stream = fill(storage)
    assert stream.compact(minor=(4, 3)).commits == 0


class _Meeting(WrappedStorage):
    """A storage whose reads of segments wait until as many are under way as a merge begins."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self._met = threading.Barrier(TINY_THREADS)

    def around(self, verb: str, path: str, work: Any) -> Any:
        if verb == "get" and path.startswith("segments/"):
            self._met.wait(timeout=60)
        return work()


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_tiny_segments_are_fetched_at_once_and_joined(storage, form):
    """In offset order, whichever comes first."""
    stream = create_on(storage, SCHEMA, upkeep=None)
    count = 3 * TINY_THREADS
    for place in range(count):
        layout = Layout(segment_format=form, inline_bytes=0)
        stream.append(events(place * 100, place * 100 + 100), layout=layout)
    done = open_on(_Meeting(storage)).compact(layout=Layout(frame_rows=1000, segment_format=form))
    assert (done.segments_before, done.segments_after) == (count, 1)
    assert stream.read().read_all() == events(0, count * 100)
    (entry,) = (placed.entry for placed in stream._status.segments(stream.root, 0, stream.tail))
    frames = open_segment(stream.storage, entry).frames
    assert [frame.rows for frame in frames] == [1000, 1000, 400]
