"""Segments that are merged or split within themselves: one stays one, with fewer or more frames."""

from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest
from faults import FaultStorage
from stream_kit import fresh_url

from segstore_ds.compact import plan as compact_plan
from segstore_ds.compact.plan import count_frames, plan_groups
from segstore_ds.compact.rewrite import frames_of, plan_job
from segstore_ds.options.arguments import CompactRules
from segstore_ds.read.segments import frame_stats, open_segment
from segstore_ds.status.table_status import Slice
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write import frame_rows
from segstore_ds.write.layout import Layout

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])


def events(start: int, end: int) -> pa.Table:
    """Return the events start to end."""
    return pa.table({"n": range(start, end), "s": [f"s{n}" for n in range(start, end)]}, SCHEMA)


@pytest.fixture
def storage() -> FaultStorage:
    """A storage that lists its calls."""
    return FaultStorage(open_storage(fresh_url()))


def fill(storage: FaultStorage, form: str = "arrow", *, rows: int = 100, each: int = 5) -> Stream:
    """Return a stream of one segment whose frames have `each` events."""
    stream = create_on(storage, SCHEMA, upkeep=None)
    layout = Layout(frame_rows=each, segment_format=form, inline_bytes=0)
    stream.append(events(0, rows), layout=layout)
    return stream


def counts(stream: Stream) -> list[int]:
    """Return the frames of each segment as its entry says; the footers have to agree."""
    entries = [
        placed.entry for placed in stream._context.status.segments(stream._log.root, 0, stream.tail)
    ]
    for entry in entries:
        frames = open_segment(stream._log.storage, entry).frames
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


@pytest.mark.parametrize("frame_rows", [3, 10, 49])
@pytest.mark.parametrize("each", [1, 6, 50])
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


class TestSplit:
    """A segment within its target whose frames pass theirs becomes one of more frames."""

    @pytest.mark.parametrize("form", ["arrow", "parquet"])
    def test_large_frames_of_one_segment_become_several(self, storage, form):
        """Planned from the status, without opening a footer; a second run does nothing."""
        stream = fill(storage, form, each=50)
        assert counts(stream) == [2]
        before = stream._log.root.entries[0]
        layout = Layout(segment_format=form, frame_rows=20)
        done = stream.compact(mode="split", layout=layout)
        assert (done.commits, done.segments_before, done.segments_after) == (1, 1, 1)
        assert (counts(stream), stream.tail) == ([6], 100)
        (after,) = stream._log.root.entries
        assert after.segment_id != before.segment_id
        assert (after.rows, after.stats) == (before.rows, before.stats)
        storage.calls.clear()
        for mode in ("split", "merge"):
            again = stream.compact(mode=mode, layout=layout)
            assert (again.commits, again.skipped) == (0, 0)
        assert not [call for call in storage.calls if "segments/" in call]
        assert stream.read().read_all() == events(0, 100)
        stream.verify().check()

    def test_merge_leaves_large_frames_alone(self, storage):
        stream = fill(storage, each=50)
        assert stream.compact(layout=Layout(frame_rows=20)).commits == 0

    def test_new_frames_have_statistics_and_filters_of_their_own(self, storage):
        """A reader passes over those that the index of the new object rules out."""
        stream = create_on(storage, SCHEMA, upkeep=None, key_columns=["s"])
        stream.append(events(0, 100), layout=Layout(inline_bytes=0, segment_format="arrow"))
        stream.compact(mode="split", layout=Layout(frame_rows=10, segment_format="arrow"))
        (entry,) = stream._log.root.entries
        segment = open_segment(storage, entry)
        assert all(frame.filters for frame in segment.frames)
        numbers = [
            (bounds.min, bounds.max)
            for piece in frame_stats(segment, entry)
            for label, bounds in piece.items()
            if label.endswith(":n")
        ]
        assert numbers == [(start, start + 9) for start in range(0, 100, 10)]
        assert stream.read(filters=[("s", "=", "s42")]).read_all() == events(42, 43)

    @pytest.mark.parametrize("frame_rows", [3, 10, 49])
    @pytest.mark.parametrize(("form", "each"), [("arrow", 1), ("parquet", 6), ("arrow", 50)])
    def test_a_split_leaves_no_frame_over_the_target(self, storage, form, each, frame_rows):
        stream = fill(storage, form, each=each)
        (before,) = counts(stream)
        layout = Layout(frame_rows=frame_rows, segment_format=form)
        done = stream.compact(mode="split", layout=layout)
        (after,) = counts(stream)
        assert (done.commits == 1) == (after > before) == (before * frame_rows < 100)
        frames = open_segment(storage, stream._log.root.entries[0]).frames
        assert done.commits == 0 or max(frame.rows for frame in frames) <= frame_rows
        again = stream.compact(mode="split", layout=layout)
        assert (again.commits, again.skipped, done.skipped) == (0, 0, 0)
        assert stream.read().read_all() == events(0, 100)

    def test_frames_are_split_by_size_and_a_large_row_stays_whole(self, storage, monkeypatch):
        """A row can't be cut: it is no reason to write the segment again."""
        texts = ["x" * 100] * 40 + ["y" * 50_000] + ["z" * 100] * 40
        rows = pa.table({"n": range(81), "s": texts}, SCHEMA)
        stream = create_on(storage, SCHEMA, upkeep=None)
        stream.append(rows, layout=Layout(inline_bytes=0, segment_format="arrow"))
        assert counts(stream) == [1]
        for module in (frame_rows, compact_plan):
            monkeypatch.setattr(module, "FRAME_BYTES", 2000)
        stream = open_on(storage)
        done = stream.compact(mode="split", layout=Layout(segment_format="arrow"))
        assert (done.commits, done.segments_before, done.segments_after) == (1, 1, 1)
        frames = open_segment(storage, stream._log.root.entries[0]).frames
        assert [frame.rows for frame in frames if frame.raw_bytes > 4000] == [1]
        again = stream.compact(mode="split", layout=Layout(segment_format="arrow"))
        assert (again.commits, again.skipped) == (0, 0)
        assert stream.read().read_all() == rows


def test_entry_without_counts_opens_the_footer(storage):
    """It was written before entries had them."""
    stream = fill(storage)
    (entry,) = stream._log.root.entries
    older = replace(entry, frames=0, frame_raws=0)
    job = plan_job(stream._context, stream._log.root, Layout())
    storage.calls.clear()
    assert count_frames(entry, partial(frames_of, job)) == (20, entry.frame_raws)
    assert storage.calls == []
    assert count_frames(older, partial(frames_of, job)) == (20, entry.frame_raws)
    assert len(storage.calls) == 1
    assert not plan_groups([Slice(0, older)], CompactRules())
    assert plan_groups([Slice(0, entry)], CompactRules())


def test_counts_are_kept_in_parts_and_commit_files(storage, monkeypatch):
    """They pass through spills and merges of parts, and a new handle reads them."""
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.rows", 3)
    stream = create_on(storage, SCHEMA, upkeep=None)
    for start in range(0, 100, 10):
        layout = Layout(frame_rows=5 - start // 50, inline_bytes=0, segment_format="arrow")
        stream.append(events(start, start + 10), layout=layout)
    assert stream._log.root.parts
    assert counts(open_on(storage)) == [2] * 5 + [3] * 5


def test_minor_leaves_a_segment_alone(storage):
    """Work after a commit is bounded by what was added."""
    stream = fill(storage)
    assert stream.compact(minor=(4, 3)).commits == 0
