"""Compaction comes to an end: whatever the frames take, a second call finds nothing to do."""

import os
import uuid
from dataclasses import replace

import pyarrow as pa
import pytest
from stream_kit import STAGED, objects

from segstore_ds.compact import plan as compact_plan
from segstore_ds.compact.commit import Replacement, is_gain
from segstore_ds.compact.plan import plan_groups
from segstore_ds.format.root import SegmentEntry
from segstore_ds.options.arguments import CompactRules
from segstore_ds.status.table_status import PlacedSegment
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write import task_writer
from segstore_ds.write.layout import Layout

FORMATS = ("arrow", "parquet", "auto")


def make_unequal(wanted: str) -> tuple[Stream, pa.Table]:
    """Return a stream whose first rows take sixty bytes each and whose others take none."""
    stream = create_on(
        open_storage(f"memory://{uuid.uuid4().hex}"), pa.schema([("b", pa.binary())])
    )
    layout = Layout(inline_bytes=0, frame_rows=1000, segment_format=wanted)
    noise = [os.urandom(60) for _ in range(1000)]
    batches = [noise, [b"same" * 15] * 1000, [b"same" * 15] * 500]
    for rows in batches:
        stream.append(pa.table({"b": rows}), layout=layout)
    return stream, pa.table({"b": [value for rows in batches for value in rows]})


@pytest.mark.parametrize("wanted", FORMATS)
@pytest.mark.parametrize("appended", FORMATS)
def test_what_was_merged_is_not_merged_again(appended: str, wanted: str) -> None:
    """By its first frame the second one would look twice as large as it is."""
    stream, events = make_unequal(appended)
    done = stream.compact(
        target_bytes=100_000, layout=Layout(frame_rows=1000, segment_format=wanted)
    )
    assert (done.commits, done.segments_after) == (1, 1)
    again = stream.compact(
        target_bytes=100_000, layout=Layout(frame_rows=1000, segment_format=wanted)
    )
    assert (again.commits, again.bytes_written) == (0, 0)
    assert stream.read().read_all() == events
    stream.verify().check()


def _replacement(inputs: list[str], outputs: list[str]) -> Replacement:
    staged = tuple(SegmentEntry(0, f"t/{form}", 1, 1, 1, 0, form) for form in outputs)
    places = tuple((number, f"t/{number}.{form}") for number, form in enumerate(inputs))
    return Replacement(0, places, len(inputs), 0, staged)


@pytest.mark.parametrize(
    ("inputs", "outputs", "gain"),
    [
        (["arrow", "arrow"], ["arrow"], True),
        (["parquet", "parquet"], ["arrow"], True),
        (["arrow"] * 3, ["parquet"] * 2, True),
        (["arrow", "arrow"], ["parquet", "parquet"], True),
        (["arrow", "parquet"], ["parquet"] * 3, True),
        (["parquet", "parquet"], ["parquet", "parquet"], False),
        (["parquet", "parquet"], ["parquet"] * 3, False),
        (["arrow", "arrow"], ["arrow", "parquet"], False),
        (["arrow"], ["arrow", "arrow"], True),
        (["arrow"], ["parquet"], False),
        (["arrow", "arrow"], [], False),
    ],
)
def test_what_changes_nothing_is_no_gain(
    inputs: list[str], outputs: list[str], *, gain: bool
) -> None:
    """Fewer segments, or none of Arrow left, or the pieces of a split."""
    assert is_gain(_replacement(inputs, outputs)) is gain


def test_full_footers_end_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has as many column chunks as a segment may have is left as it is."""
    monkeypatch.setattr(compact_plan, "MOST_FOOTER_BYTES", 100)
    sizes = [30, 30, 40, 1, 99, 2, 98]
    entries = [SegmentEntry(n, f"t/{n}.parquet", 1, 200, size, 0) for n, size in enumerate(sizes)]
    placed = [PlacedSegment(n, entry) for n, entry in enumerate(entries)]
    groups = plan_groups(placed, CompactRules())
    assert [[segment.entry.segment_id for segment in group.inputs] for group in groups] == [
        [0, 1, 2],
        [3, 4],
        [5, 6],
    ]
    halves = [replace(segment, entry=replace(segment.entry, footer_bytes=51)) for segment in placed]
    assert plan_groups(halves, CompactRules()) == []


def test_merges_end_where_a_segment_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes out may be several full segments; then nothing is done any more."""
    monkeypatch.setattr(task_writer, "MOST_PIECES", 30)  # three frames of five columns
    schema = pa.schema([(f"c{place}", pa.int64()) for place in range(5)])
    stream = create_on(open_storage(f"memory://{uuid.uuid4().hex}"), schema)
    for start in range(0, 100, 10):
        rows = pa.table([pa.array(range(start, start + 10))] * 5, schema=schema)
        stream.append(rows, layout=STAGED)
    layout = Layout(frame_rows=10, segment_format="parquet")
    done = stream.compact(layout=layout)
    assert (done.commits, [entry.rows for entry in stream._log.root.entries]) == (
        1,
        [30, 30, 30, 10],
    )
    before = objects(stream._log.storage, "segments")
    again = stream.compact(layout=layout)
    assert (again.commits, again.skipped) == (0, 1)
    assert objects(stream._log.storage, "segments") == before
    # In earnest the footers of such segments say before that there is nothing to be gained.
    full = max(entry.footer_bytes for entry in stream._log.root.entries)
    monkeypatch.setattr(compact_plan, "MOST_FOOTER_BYTES", full)
    assert stream.compact(layout=layout).bytes_written == 0
    assert stream.read().read_all()["c3"].to_pylist() == list(range(100))
    stream.verify().check()


def test_the_largest_footers_are_below_what_a_run_may_have() -> None:
    """The limit of a plan is below that of a segment, whatever its columns are called."""
    schema = pa.schema([(f"{place:x}", pa.bool_()) for place in range(2000)])
    writer = Layout(compression="none").parquet_encoder(schema, [])
    writer.start()
    batch = pa.record_batch([pa.array([True])] * 2000, schema=schema)
    for _ in range(8):
        writer.add(batch)
    pieces = writer.pieces
    end, _ = writer.finish()
    assert len(end) * task_writer.MOST_PIECES / pieces > compact_plan.MOST_FOOTER_BYTES
