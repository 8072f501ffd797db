"""The times of segments: the bounds of the time column, and what later segments still bring."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from segstore_ds.commit.context import StreamContext
from segstore_ds.format.fields import parse_json
from segstore_ds.format.root import Root
from segstore_ds.format.statistics import ColumnStats, from_json
from segstore_ds.format.time_column import is_time, time_column_of
from segstore_ds.read.filter_literals import typed_array
from segstore_ds.status.epochs import epoch_schema
from segstore_ds.status.table_status import Run

TIME_FIELDS = [("time_min", pa.string()), ("time_max", pa.string()), ("watermark", pa.string())]


def segment_times(context: StreamContext, root: Root, start: int, end: int) -> list[pa.Array]:
    """Return `TIME_FIELDS` of the segments that hold events of a range, as columns.

    The watermark is the smallest time that a later segment still brings; null where none does, and
    where a later segment has no bounds. Without a time column all are null.
    """
    runs = context.status.runs(root, start, end, with_stats=True)
    count = sum(len(run.columns) for run in runs)
    schema = epoch_schema(context.status, root.epoch)
    name = time_column_of(root)
    if name is None or name not in schema.names or not is_time(schema.field(name).type):
        return [pa.nulls(count, pa.string())] * len(TIME_FIELDS)
    field = schema.field(name)
    found = list(_bounds(context, root, field, (start, root.tail)))
    columns = (
        [bounds and bounds.min for bounds in found[:count]],
        [bounds and bounds.max for bounds in found[:count]],
        _watermarks(found)[:count],
    )
    return [_texts(values, field.type) for values in columns]


def _bounds(
    context: StreamContext, root: Root, field: pa.Field, span: tuple[int, int]
) -> Iterator[ColumnStats | None]:
    """Yield the bounds of each segment: None if unknown, both None if it holds no time."""
    schemas = [epoch_schema(context.status, epoch) for epoch in root.epochs]
    for run in context.status.runs(root, *span, with_stats=True):
        facts = zip(run.load_stats(), run.columns.epochs.tolist(), strict=True)
        for row, (text, epoch) in enumerate(facts):
            yield _bounds_of(run, row, text, (field, schemas[epoch]))


def _bounds_of(
    run: Run, row: int, text: str | None, types: tuple[pa.Field, pa.Schema]
) -> ColumnStats | None:
    field, stored = types
    if field.name not in stored.names:
        return ColumnStats(None, None, int(run.columns.rows[row]))  # it appeared later: all null
    if text is None or not _comparable(stored.field(field.name).type, field.type):
        return None
    where = run.columns.path(row)
    value = parse_json(text.encode(), where=where)
    bounds = from_json(value, where=where, schema=stored, only=[field.name]).get(field.name)
    if bounds is None:
        return None
    known = bounds.nulls >= run.columns.rows[row] or None not in (bounds.min, bounds.max)
    return bounds if known else None


def _comparable(stored: pa.DataType, current: pa.DataType) -> bool:
    families = (t.is_integer, t.is_floating)
    return stored.equals(current) or any(is_of(stored) and is_of(current) for is_of in families)


def _watermarks(found: list[ColumnStats | None]) -> list[Any]:
    """Return the least time after each segment; None for none, and after what is unknown."""
    marks: list[Any] = []
    least: Any = None
    known = True
    for bounds in reversed(found):
        marks.append(least if known else None)
        known = known and bounds is not None
        if bounds is not None and bounds.min is not None:
            least = bounds.min if least is None else min(least, bounds.min)
    return marks[::-1]


def _texts(values: list[Any], data_type: pa.DataType) -> pa.Array:
    return typed_array(values, data_type).cast(pa.string())
