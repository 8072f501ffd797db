"""What a task gathers for a frame keeps no more alive than itself, whatever it is a slice of."""

import uuid
from collections.abc import Iterator

import pyarrow as pa
import pytest

import segstore_ds as segstore
from segstore_ds.write.frame_rows import HELD_TIMES
from segstore_ds.write.job import WriteJob
from segstore_ds.write.layout import FEW_BYTES

SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("s", pa.string()),
        ("l", pa.list_(pa.struct([("x", pa.string())]))),
        ("m", pa.map_(pa.string(), pa.int64())),
        ("b", pa.bool_()),
        ("o", pa.null()),
    ]
)
ROWS = 10_000


SLICES = 40


def large(place: int) -> pa.RecordBatch:
    """Return a batch of a megabyte, the same for the same number."""
    rows = range(place, place + ROWS)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(rows),
            pa.array([f"text {row}" for row in rows]),
            pa.array([[{"x": str(row)}] for row in rows], SCHEMA.field("l").type),
            pa.array([{"k": row} for row in rows], SCHEMA.field("m").type),
            pa.array([row % 2 == 0 for row in rows]),
            pa.nulls(ROWS),
        ],
        schema=SCHEMA,
    )


def slices() -> Iterator[pa.RecordBatch]:
    """Return an event of each of some large batches."""
    for place in range(SLICES):
        yield large(place).slice(place, 1)


@pytest.fixture
def stream() -> segstore.Stream:
    """An empty stream."""
    return segstore.create(f"memory://{uuid.uuid4().hex}", SCHEMA)


def held_by(job: WriteJob, *batches: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Return what a task holds after it has taken batches."""
    writer = job.open_task(0, "a")
    for batch in batches:
        writer.take(batch)
    held = list(writer._gathered.batches)
    writer.abort()
    return held


@pytest.mark.slow
def test_slices_let_their_batches_go(stream: segstore.Stream) -> None:
    """A generator of slices, and an appender that is given one after another."""
    before = pa.total_allocated_bytes()
    one = large(0).get_total_buffer_size()
    most = 0

    def watched() -> Iterator[pa.RecordBatch]:
        nonlocal most
        for piece in slices():
            yield piece
            most = max(most, pa.total_allocated_bytes() - before)

    stream.append(watched())
    assert most < 6 * one
    before = pa.total_allocated_bytes()
    with stream.appender(flush_seconds=None) as appender:
        for piece in slices():
            appender.append(piece)
        del piece
        assert pa.total_allocated_bytes() - before < 2 * one
        expected = [piece.to_pylist()[0] for piece in slices()]
        assert appender.read().read_all().to_pylist() == expected
    assert stream.refresh().read().read_all().to_pylist() == expected * 2


def test_what_a_task_holds_is_little_more_than_its_rows(stream: segstore.Stream) -> None:
    """For slices of every length; memory that never changes is copied only where it is worth it."""
    batch = large(0)
    job = stream.plan_write(SCHEMA)
    for rows in (1, 10, ROWS // 3, 2 * ROWS // 3, ROWS):
        [held] = held_by(job, batch.slice(7, rows))
        assert held.equals(batch.slice(7, rows))
        size = held.get_total_buffer_size()
        assert size <= max(HELD_TIMES * held.nbytes, FEW_BYTES)
        copied = held["n"].buffers()[1].address != batch["n"].buffers()[1].address
        assert copied == (rows < ROWS // 2)


def test_only_what_stays_of_a_large_batch_is_copied(stream: segstore.Stream) -> None:
    """Its other pieces are encoded at once."""
    batch = large(0)
    layout = segstore.Layout(frame_rows=ROWS // 8)
    before = pa.total_allocated_bytes()
    [held] = held_by(stream.plan_write(SCHEMA, layout=layout), batch)
    assert held.num_rows == ROWS // 8
    assert held.equals(batch.slice(ROWS - ROWS // 8))
    assert pa.total_allocated_bytes() - before < batch.nbytes
