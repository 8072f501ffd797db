"""Batches are cut into frames by rows and by bytes, however unequal their rows are."""

import uuid

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.write import frame_rows
from segstore_ds.write.frame_rows import split_batch
from segstore_ds.write.layout import Layout


@given(
    st.lists(st.sampled_from([0, 1, 10, 300, 5000]), max_size=60),
    st.integers(1, 40),
    st.integers(1, 6000),
)
def test_pieces_are_within_both_limits(widths: list[int], rows: int, size: int) -> None:
    """All rows in order; only a single row may be larger than was asked for."""
    batch = pa.record_batch({"b": pa.array([b"x" * width for width in widths], pa.binary())})
    pieces = list(split_batch(batch, rows, size))
    assert sum(piece.num_rows for piece in pieces) == len(widths)
    assert pa.Table.from_batches(pieces, batch.schema) == pa.Table.from_batches([batch])
    assert all(0 < piece.num_rows <= rows for piece in pieces)
    assert all(piece.nbytes <= size or piece.num_rows == 1 for piece in pieces)


def test_frames_of_skewed_rows_are_as_large_as_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of tiny rows, then a few large ones: no frame holds more than a large row more."""
    monkeypatch.setattr(frame_rows, "FRAME_BYTES", 10_000)
    stream = create_on(
        open_storage(f"memory://{uuid.uuid4().hex}"), pa.schema([("b", pa.binary())])
    )
    rows = [b"x"] * 9990 + [bytes(20_000)] * 10
    stream.append(pa.table({"b": rows}), layout=Layout(inline_bytes=0))
    frames = stream.metadata("frames").read_all()
    sizes = list(zip(frames["rows"].to_pylist(), frames["raw_bytes"].to_pylist(), strict=True))
    assert all(size <= 10_500 for count, size in sizes if count > 1)
    assert [count for count, size in sizes if size > 10_500] == [1] * 10
