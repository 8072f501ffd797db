"""An allocation that fails says nothing of what is stored: it is never taken for damage.

Arrow's error for it is a MemoryError and one of Arrow's own errors at once.
"""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import segstore_ds
from segstore_ds.format.arrow.frame import decode_frame, encode_frame
from segstore_ds.format.parquet import segment
from segstore_ds.format.parquet.writer import can_store
from segstore_ds.format.schema.codec import decode_schema, encode_schema
from segstore_ds.write.event_rows import EventRows
from segstore_ds.write.layout import Layout

BATCH = pa.record_batch({"n": pa.array([1, 2, 3], pa.int64())})


@pytest.fixture
def out_of_memory(monkeypatch):
    """Return a function that makes a function of Arrow's fail, as it does without memory."""

    def fail(module, name):
        monkeypatch.setattr(module, name, no_memory)

    return fail


def no_memory(*_, **__):
    raise pa.ArrowMemoryError("malloc of size 4294967296 failed")


def test_schema_is_not_called_unfit_for_parquet():
    """The answer is remembered: from then on this process would write Arrow."""
    schema = pa.schema([("asked_here_alone", pa.int64())])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pq, "write_table", no_memory)
        with pytest.raises(MemoryError):
            can_store(schema)
    assert can_store(schema)


def test_schema_is_not_called_damaged(out_of_memory):
    # Of no other test: what was decoded once is kept, and asks for no memory.
    text = encode_schema(pa.schema([("decoded_here_alone", pa.int64())]))
    out_of_memory(pa.ipc, "read_schema")
    with pytest.raises(MemoryError):
        decode_schema(text)


def test_value_is_not_called_unfit(out_of_memory):
    rows = EventRows(pa.schema([("t", pa.timestamp("us", tz="UTC"))]))
    out_of_memory(pa, "array")
    with pytest.raises(MemoryError):
        rows.add({"t": 1})


@pytest.mark.parametrize(
    ("form", "module", "name"),
    [
        ("arrow", pa.ipc, "open_stream"),
        ("parquet", segment, "ParquetReader"),
        ("parquet", pq, "read_metadata"),
    ],
)
def test_salvage_leaves_nothing_out_for_want_of_memory(
    out_of_memory, tmp_path: Path, form, module, name
):
    """`skip_damaged` is for damage: sound events that can't be read now would be lost for good."""
    stream = segstore_ds.create(str(tmp_path / "s"), BATCH.schema)
    stream.append(
        pa.Table.from_batches([BATCH]), layout=Layout(segment_format=form, inline_bytes=0)
    )
    out_of_memory(module, name)
    with pytest.raises(MemoryError):
        segstore_ds.salvage(str(tmp_path / "s"), str(tmp_path / "new"), skip_damaged=True)


def test_arrows_error_is_both():
    assert issubclass(pa.ArrowMemoryError, MemoryError)
    assert issubclass(pa.ArrowMemoryError, pa.ArrowException)


def test_frame_is_not_called_damaged(out_of_memory):
    frame = encode_frame(BATCH, compression="zstd", compression_level=None, stats_columns=[])
    out_of_memory(pa.ipc, "open_stream")
    with pytest.raises(MemoryError):
        decode_frame(frame.data, rows=3, schema=BATCH.schema, columns=None, where="w")
