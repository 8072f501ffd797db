"""Compaction comes to an end: whatever the frames take, a second call finds nothing to do."""

import os
import uuid

import pyarrow as pa
import pytest
from stream_kit import STAGED, objects

from segstore_ds.compact import plan as compact_plan
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write import task_writer
from segstore_ds.write.layout import Layout


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


@pytest.mark.parametrize(
    ("appended", "wanted"),
    [("arrow", "arrow"), ("arrow", "parquet"), ("parquet", "auto"), ("auto", "parquet")],
)
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
