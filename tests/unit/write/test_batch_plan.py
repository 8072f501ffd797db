"""What a task does with a batch: the table of its docstring, row by row."""

import random
import uuid

import pyarrow as pa
import pytest

from segstore_ds.format.names import build_token
from segstore_ds.format.root import SegmentEntry
from segstore_ds.format.segment import ARROW, PARQUET
from segstore_ds.read.segments import open_segment
from segstore_ds.storage import open_storage
from segstore_ds.write import batch_plan
from segstore_ds.write.batch_plan import (
    INLINE_COMMIT_BYTES,
    LIKELY_LARGER,
    PARQUET_ROWS,
    SURELY_LARGER,
    BatchRules,
    Way,
    plan_batch,
    recall_encodings,
)
from segstore_ds.write.layout import Layout
from segstore_ds.write.request import Target
from segstore_ds.write.task_writer import TaskWriter

SCHEMA = pa.schema([("n", pa.int64())])
LIMIT = 1000
LIKELY, SURELY = LIKELY_LARGER * LIMIT, SURELY_LARGER * LIMIT


@pytest.mark.parametrize(
    ("rows", "size", "encoded", "more", "ways"),
    [
        # Encoded frames stay inline up to the limit.
        (1, LIMIT, True, False, (Way.INLINE, Way.INLINE)),
        (1, LIMIT, True, True, (Way.INLINE, Way.INLINE)),
        (1, LIMIT + 1, True, False, (Way.ARROW, Way.PARQUET)),
        (PARQUET_ROWS, LIMIT + 1, True, False, (Way.ARROW, Way.PARQUET)),
        (1, LIMIT + 1, True, True, (Way.PARQUET, Way.PARQUET)),
        # Few rows at the end of a task are encoded, whatever their size.
        (PARQUET_ROWS - 1, SURELY + 1, False, False, (Way.INLINE, Way.INLINE)),
        # Many rows that are the whole task.
        (PARQUET_ROWS, LIKELY, False, False, (Way.INLINE, Way.INLINE)),
        (PARQUET_ROWS, LIKELY + 1, False, False, (Way.PARQUET, Way.PARQUET)),
        # Rows of which more follow.
        (1, SURELY, False, True, (Way.INLINE, Way.INLINE)),
        (PARQUET_ROWS, SURELY, False, True, (Way.INLINE, Way.INLINE)),
        (1, SURELY + 1, False, True, (Way.PARQUET, Way.PARQUET)),
    ],
)
def test_every_case(rows, size, encoded, more, ways):
    """With `auto` and with `parquet`, and where Parquet is out of the question."""
    for form, expected in zip(("auto", "parquet"), ways, strict=True):
        rules = BatchRules(LIMIT, form, SCHEMA)
        assert plan_batch(rules, rows, size, encoded=encoded, more=more) is expected
    for rules in (
        BatchRules(LIMIT, "arrow", SCHEMA),
        BatchRules(LIMIT, "hot", SCHEMA),
        BatchRules(LIMIT, "auto", SCHEMA, readable=True),
        BatchRules(LIMIT, "parquet", SCHEMA, readable=True),
    ):
        arrow = Way.ARROW if encoded and size > LIMIT else Way.INLINE
        assert plan_batch(rules, rows, size, encoded=encoded, more=more) is arrow


def test_without_inline_rows_nothing_is_encoded_for_parquet():
    for more, auto in ((True, Way.PARQUET), (False, Way.INLINE)):
        assert plan_batch(BatchRules(0, "auto", SCHEMA), 1, 1, more=more) is auto
        assert plan_batch(BatchRules(0, "parquet", SCHEMA), 1, 1, more=more) is Way.PARQUET
    assert plan_batch(BatchRules(0, "auto", SCHEMA), 1, 1, encoded=True) is Way.ARROW


def test_tasks_share_the_inline_bytes_of_a_commit():
    roomy = Layout(inline_bytes=INLINE_COMMIT_BYTES)
    shares = [
        BatchRules.of(roomy, SCHEMA, task, readable=False).inline_bytes for task in (0, 1, 7, 9999)
    ]
    assert shares == [INLINE_COMMIT_BYTES // part for part in (1, 2, 8, 10_000)]
    assert BatchRules.of(Layout(), SCHEMA, 0, readable=False).inline_bytes == Layout().inline_bytes


NAMED = pa.schema([("n", pa.int64()), ("s", pa.string())])
LAYOUT = Layout(inline_bytes=1 << 10)


def events(rows: int, *, alike: bool = True) -> pa.RecordBatch:
    """Return rows with a few texts, or with a text of its own each."""
    draw = random.Random(rows)
    texts = [f"room {n % 7}" if alike else f"{draw.getrandbits(128):x}" for n in range(rows)]
    return pa.record_batch([pa.array(range(rows)), pa.array(texts)], schema=NAMED)


@pytest.fixture
def target() -> Target:
    """Where the tasks of one stream write."""
    storage = open_storage(f"memory://{uuid.uuid4().hex}")
    return Target(storage, NAMED, LAYOUT, build_token(1, "0123456789ab"))


def stage(target: Target, batch: pa.RecordBatch) -> SegmentEntry:
    """Stage a task of one batch, which has to be one segment."""
    [segment] = TaskWriter(target, 0, uuid.uuid4().hex[:8]).stage([batch]).segments
    return segment


def test_auto_is_parquet_from_ten_thousand_rows_on(target):
    assert stage(target, events(PARQUET_ROWS)).format == PARQUET
    assert stage(target, events(PARQUET_ROWS - 1)).format == ARROW


def test_rows_that_may_stay_inline_are_not_put_into_an_object(target):
    roomy = Target(target.storage, NAMED, Layout(inline_bytes=1 << 20), target.token)
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
    other = Target(open_storage(f"memory://{uuid.uuid4().hex}"), NAMED, LAYOUT, target.token)
    assert recall_encodings(other) is None


@pytest.mark.parametrize("first", [True, False])
def test_other_rows_end_the_choice(target, first):
    """Whether they take more bytes or fewer: an odd first batch does not decide for the others."""
    stage(target, events(PARQUET_ROWS, alike=first))
    chosen, other = recall_encodings(target), events(PARQUET_ROWS, alike=not first)
    segment = stage(target, other)
    assert recall_encodings(target) not in (None, chosen)
    found = open_segment(target.storage, segment).read_frame(0, schema=NAMED)
    assert found.equals(other)


def test_a_trial_serves_a_bounded_number_of_rows(target, monkeypatch):
    monkeypatch.setattr(batch_plan, "CHOICE_ROWS", 2 * PARQUET_ROWS)
    stage(target, events(PARQUET_ROWS))
    assert recall_encodings(target) is not None
    stage(target, events(PARQUET_ROWS))
    assert recall_encodings(target) is None
