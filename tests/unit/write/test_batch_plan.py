"""What a task does with a batch: the table of its docstring, row by row."""

import pyarrow as pa
import pytest

from segstore_ds.write.batch_plan import (
    INLINE_COMMIT_BYTES,
    LIKELY_LARGER,
    PARQUET_ROWS,
    SURELY_LARGER,
    BatchRules,
    Way,
    plan_batch,
)
from segstore_ds.write.layout import Layout

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
