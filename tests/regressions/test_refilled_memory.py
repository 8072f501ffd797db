"""What an append or a generator's `next` has handed over: the caller may fill that memory again."""

import uuid
from collections import deque
from collections.abc import Iterator

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import segstore_ds as segstore
from segstore_ds.errors import InvalidInputError, SchemaMismatchError

SCHEMA = pa.schema([("n", pa.int64())])
LAYOUTS = [
    segstore.Layout(),
    segstore.Layout(segment_format="arrow", inline_bytes=0, frame_rows=8),
    segstore.Layout(segment_format="parquet", inline_bytes=0, frame_rows=8),
]
TRUTH = [n for n in range(5) for _ in range(3)]


def made(schema: pa.Schema = SCHEMA) -> segstore.Stream:
    """Return a new stream."""
    return segstore.create(f"memory://{uuid.uuid4().hex}", schema)


def refilled() -> Iterator[pa.RecordBatch]:
    """Yield one array again and again, filled with other numbers."""
    numbers = np.zeros(3, "int64")
    for n in range(5):
        numbers[:] = n
        yield pa.record_batch({"n": numbers})


def read(stream: segstore.Stream) -> list[int]:
    """Return the stream's numbers."""
    return stream.refresh().read().read_all()["n"].to_pylist()


def append_in_one_appender(stream: segstore.Stream, layout: segstore.Layout) -> None:
    with stream.appender(layout=layout) as appender:
        for batch in refilled():
            appender.append(batch)


def append_whole_to_an_appender(stream: segstore.Stream, layout: segstore.Layout) -> None:
    with stream.appender(layout=layout) as appender:
        appender.append(refilled())


def append_by_a_task(stream: segstore.Stream, layout: segstore.Layout) -> None:
    job = stream.plan_write(SCHEMA, layout=layout)
    task = job.open_task(0, "a")
    for batch in refilled():
        task.append(batch)
    stream.commit(job, [task.finish()])


def append_by_a_whole_task(stream: segstore.Stream, layout: segstore.Layout) -> None:
    job = stream.plan_write(SCHEMA, layout=layout)
    stream.commit(job, [job.stage(0, "a", refilled())])


WRITES = [
    lambda stream, layout: stream.append(refilled(), layout=layout),
    lambda stream, layout: stream.append(
        pa.RecordBatchReader.from_batches(SCHEMA, refilled()), layout=layout
    ),
    lambda stream, layout: stream.overwrite(refilled(), layout=layout),
    append_in_one_appender,
    append_whole_to_an_appender,
    append_by_a_task,
    append_by_a_whole_task,
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=["inline", "arrow", "parquet"])
def test_a_generator_may_fill_one_array_again(layout):
    """Through every call that takes batches."""
    for number, write in enumerate(WRITES):
        write(stream := made(), layout)
        assert read(stream) == TRUTH, number


def test_a_frame_may_be_changed_between_appends():
    """Of pandas, whose arrays say that they can't be written, and of Polars over NumPy."""
    stream, frame, numbers = made(), pd.DataFrame({"n": [1, 2]}), np.array([3, 4])
    with stream.appender() as appender:
        appender.append(frame)
        frame.loc[:, "n"] = 0
        appender.append(pl.DataFrame({"n": numbers}))
        numbers[:] = 0
    assert read(stream) == [1, 2, 3, 4]


@pytest.mark.parametrize("merge_schema", [False, True])
def test_a_generator_may_fill_one_event_again(merge_schema):
    """And the list, the bytes and the array inside it, also of columns that the stream lacks."""
    kinds = {"raw": pa.binary(), "tags": pa.list_(pa.int64()), "many": pa.list_(pa.int64())}
    schema = SCHEMA if merge_schema else pa.schema([("n", pa.int64()), *kinds.items()])

    def events() -> Iterator[dict]:
        event = {"n": 0, "raw": bytearray(1), "tags": [0], "many": np.zeros(1, "int64")}
        for n in range(3):
            event["n"] = event["tags"][0] = event["raw"][0] = event["many"][0] = n
            yield event

    stream = made(schema)
    stream.append(events(), merge_schema=merge_schema)
    if not merge_schema:
        with stream.appender() as appender:
            appender.append(events())
    truth = [{"n": n, "raw": bytes([n]), "tags": [n], "many": [n]} for n in range(3)]
    times = 1 if merge_schema else 2
    assert stream.refresh().read().read_all().to_pylist() == truth * times
    found = segstore.create(f"memory://{uuid.uuid4().hex}", like=events())
    assert found.schema.names == ["n", "raw", "tags", "many"]


def test_values_that_are_views_of_other_memory_are_copied():
    """Collections of a known column while another is new, and Arrow's scalars of a new one."""
    memory, queue = np.zeros(1, "int64"), deque([0])
    inner = pa.array(memory)
    scalars = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), inner)
    names = ["arrow", "queue", "polars"]

    def events() -> Iterator[dict]:
        for n in range(3):
            memory[0] = queue[0] = n
            series = pl.Series(memory)
            yield {"arrow": inner, "queue": queue, "polars": series, "n": n, "new": scalars[0]}

    stream = made(pa.schema([(name, pa.list_(pa.int64())) for name in names]))
    stream.append(events(), merge_schema=True)
    truth = [{**{name: [n] for name in names}, "n": n, "new": [n]} for n in range(3)]
    assert stream.refresh().read().read_all().to_pylist() == truth


@pytest.mark.parametrize("value", [frozenset((1,)), range(2), {"a": 1}.keys(), deque([1])])
def test_a_generator_may_give_what_a_list_may(value):
    """A copy is of the same type: it is not accepted where the value itself is refused."""
    for events in ([{"n": 1, "new": value}], iter([{"n": 1, "new": value}])):
        with pytest.raises(SchemaMismatchError, match="no common type: column='new'"):
            made().append(events, merge_schema=True)


def test_events_read_back_may_be_written_to():
    """What an appender gave out is not what it commits: of each place where events wait."""
    layout = segstore.Layout(compression="none", frame_rows=4)
    with (stream := made()).appender(layout=layout) as appender:
        for n in range(6):
            appender.append(pa.record_batch({"n": [n]}))
        appender.append({"n": 6})
        for batch in appender.read():
            memory = batch.column(0).buffers()[1]
            if memory.is_mutable:
                np.frombuffer(memory, np.uint8)[:] = 9
        assert appender.read().read_all()["n"].to_pylist() == list(range(7))
    assert read(stream) == list(range(7))


def test_no_events_are_as_an_empty_table():
    """Given as a container or a generator; what may have been read already is refused."""
    stream = made()
    for empty in ([], (), deque(), {}.values(), (event for event in ())):
        assert stream.append(empty).rows == 0
    with stream.appender() as appender:
        assert appender.append([]) == appender.next_place == 0
    used = (event for event in [{"n": 2}])
    stream.append(list(used))
    for consumed in (used, map(dict, []), ""):
        with pytest.raises(InvalidInputError, match="not read yet"):
            stream.append(consumed)
    assert read(stream) == [2]
    assert stream.overwrite([]).rows == 0
    assert read(stream) == []
