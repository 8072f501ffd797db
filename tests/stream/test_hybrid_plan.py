"""What another engine reads is left out of a plan, and nothing else is."""

from dataclasses import replace

import pyarrow as pa
import pytest
from stream_kit import snapshot

import segstore_ds as segstore
from segstore_ds.read.plan import plan_range
from segstore_ds.read.scan import run_task

FORMATS = ("parquet", "arrow", "parquet", "arrow")


@pytest.fixture
def stream(tmp_path) -> segstore.Stream:
    """Four segments of five events: three of epoch 1, then one of epoch 2."""
    made = segstore.create(str(tmp_path / "s"), pa.schema([("n", pa.int64())]))
    for place, form in enumerate(FORMATS):
        layout = segstore.Layout(inline_bytes=0, segment_format=form)
        columns = {"n": range(place * 5, place * 5 + 5)}
        if place == 3:
            columns["m"] = columns["n"]
        made.append(pa.table(columns), layout=layout, merge_schema=True)
    return made


def test_select_divides_the_slices(stream):
    slices = plan_range(stream._context.status, stream._log.root, snapshot(stream).plan(3, 18))
    first, last = (piece.entry.epoch for piece in (slices[0], slices[-1]))
    assert first < last
    both = (first, last)
    native = slices.select("parquet", both)
    rest = slices.select("parquet", both, others=True)
    assert [(piece.start, piece.rows) for piece in native] == [(0, (3, 5)), (10, (0, 5))]
    assert [(piece.start, piece.rows) for piece in rest] == [(5, (0, 5)), (15, (0, 3))]
    assert len(slices.select("parquet", ())) == 0
    assert slices.select("parquet", (), others=True) == slices
    assert [piece.start for piece in slices.select("arrow", (last,))] == [15]


def test_plan_leaves_out_given_parquet_segments(stream):
    reading = replace(
        snapshot(stream).plan(3, 18), native_epochs=tuple(e.number for e in stream._log.root.epochs)
    )
    batches = [
        batch for task in snapshot(stream).tasks(reading) for batch in run_task(reading, task)
    ]
    found = [n for batch in batches for n in batch.column("n").to_pylist()]
    assert found == [*range(5, 10), *range(15, 18)]
