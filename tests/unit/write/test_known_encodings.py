"""Encodings of small Parquet segments: one trial serves many tasks of a stream, until it ages."""

import random
import uuid

import pyarrow as pa
import pytest

from segstore_ds.format.names import build_token
from segstore_ds.format.root import SegmentEntry
from segstore_ds.format.segment import ARROW, PARQUET
from segstore_ds.read.segments import open_segment
from segstore_ds.storage import open_storage
from segstore_ds.write import known_encodings
from segstore_ds.write.batch_plan import PARQUET_ROWS
from segstore_ds.write.known_encodings import recall_encodings
from segstore_ds.write.layout import Layout
from segstore_ds.write.request import Target
from segstore_ds.write.task_writer import TaskWriter

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
LAYOUT = Layout(inline_bytes=1 << 10)


def events(rows: int, *, alike: bool = True) -> pa.RecordBatch:
    """Return rows with a few texts, or with a text of its own each."""
    draw = random.Random(rows)
    texts = [f"room {n % 7}" if alike else f"{draw.getrandbits(128):x}" for n in range(rows)]
    return pa.record_batch([pa.array(range(rows)), pa.array(texts)], schema=SCHEMA)


@pytest.fixture
def target() -> Target:
    """Where the tasks of one stream write."""
    storage = open_storage(f"memory://{uuid.uuid4().hex}")
    return Target(storage, SCHEMA, LAYOUT, build_token(1, "0123456789ab"))


def stage(target: Target, batch: pa.RecordBatch) -> SegmentEntry:
    """Stage a task of one batch, which has to be one segment."""
    [segment] = TaskWriter(target, 0, uuid.uuid4().hex[:8]).stage([batch]).segments
    return segment


def test_auto_is_parquet_from_ten_thousand_rows_on(target):
    assert stage(target, events(PARQUET_ROWS)).format == PARQUET
    assert stage(target, events(PARQUET_ROWS - 1)).format == ARROW


def test_rows_that_may_stay_inline_are_not_put_into_an_object(target):
    roomy = Target(target.storage, SCHEMA, Layout(inline_bytes=1 << 20), target.token)
    staged = TaskWriter(roomy, 0, "a").stage([events(PARQUET_ROWS)])
    assert (len(staged.frames), staged.segments) == (1, ())


def test_one_trial_serves_the_next_tasks(target):
    first = stage(target, events(PARQUET_ROWS))
    chosen = recall_encodings(target)
    second = stage(target, events(PARQUET_ROWS))
    assert chosen is not None
    assert recall_encodings(target) is chosen
    # The same rows in the same encodings are the same bytes.
    objects = [target.storage.get(f"segments/{one.path}") for one in (first, second)]
    assert objects[0] == objects[1]


def test_another_stream_has_its_own_trial(target):
    stage(target, events(PARQUET_ROWS))
    other = Target(open_storage(f"memory://{uuid.uuid4().hex}"), SCHEMA, LAYOUT, target.token)
    assert recall_encodings(other) is None


@pytest.mark.parametrize("first", [True, False])
def test_other_rows_end_the_choice(target, first):
    """Whether they take more bytes or fewer: an odd first batch does not decide for the others."""
    stage(target, events(PARQUET_ROWS, alike=first))
    chosen, other = recall_encodings(target), events(PARQUET_ROWS, alike=not first)
    segment = stage(target, other)
    assert recall_encodings(target) not in (None, chosen)
    found = open_segment(target.storage, segment).read_frame(0, schema=SCHEMA)
    assert found.equals(other)


def test_a_trial_serves_a_bounded_number_of_rows(target, monkeypatch):
    monkeypatch.setattr(known_encodings, "CHOICE_ROWS", 2 * PARQUET_ROWS)
    stage(target, events(PARQUET_ROWS))
    assert recall_encodings(target) is not None
    stage(target, events(PARQUET_ROWS))
    assert recall_encodings(target) is None
