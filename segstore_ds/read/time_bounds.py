"""The times of segments: the bounds of the time column, and what later segments still bring."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types as t

from segstore_ds.format.root import Root
from segstore_ds.format.time_column import find_time_field
from segstore_ds.log.context import StreamContext
from segstore_ds.read.time_index import least_from, limits_of, time_index
from segstore_ds.status.epochs import epoch_schema

TIME_FIELDS = [("time_min", pa.string()), ("time_max", pa.string()), ("watermark", pa.string())]
_Flags = npt.NDArray[np.bool_]


def segment_times(context: StreamContext, root: Root, start: int, end: int) -> list[pa.Array]:
    """Return `TIME_FIELDS` of the segments that hold events of a range, as columns.

    The watermark is the smallest time that a later segment still brings; null where none does, and
    where a later segment has no bounds. Without a time column all are null.
    """
    runs = context.status.runs(root, start, end, with_stats=True)
    count = sum(len(run.columns) for run in runs)
    field = find_time_field(root, epoch_schema(context.status, root.epoch))
    if not count or field is None:
        return [pa.nulls(count, pa.string())] * len(TIME_FIELDS)
    low, high, known = _columns(context, root, field, start)
    timed = known & (low <= high)
    # Behind the last segment there is nothing, and that is known.
    none = limits_of(field.type)[1]
    least = np.append(least_from(low), none)[1:]
    sure = np.append(np.logical_and.accumulate(known[::-1])[::-1], True)[1:]
    some = np.append(np.logical_or.accumulate(timed[::-1])[::-1], False)[1:]
    columns = ((low, timed), (high, timed), (least, sure & some))
    return [_texts(values[:count], shown[:count], field.type) for values, shown in columns]


def _columns(
    context: StreamContext, root: Root, field: pa.Field, start: int
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], _Flags]:
    """Return the bounds of the segments from a start to the tail, and whether they are known."""
    schemas = dict(enumerate(epoch_schema(context.status, epoch) for epoch in root.epochs))
    parts = []
    for run in context.status.runs(root, start, root.tail, with_stats=True):
        index = time_index(context.status, run, field, schemas)
        rows = slice(run.first, run.first + len(run.columns))
        parts.append((index.low[rows], index.high[rows], index.known[rows]))
    low, high, known = (np.concatenate([part[place] for part in parts]) for place in range(3))
    return low, high, known


def _texts(values: npt.NDArray[Any], shown: _Flags, data_type: pa.DataType) -> pa.Array:
    found = pa.array(np.where(shown, values, 0), mask=~shown)
    if t.is_temporal(data_type):
        found = found.cast(pa.int32() if data_type.bit_width == 32 else pa.int64()).view(data_type)
    return found.cast(data_type).cast(pa.string())
