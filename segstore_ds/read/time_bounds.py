"""The times of segments: the bounds of the time column, and what later segments still bring."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types as t

from segstore_ds.format.indexed_columns import find_time_field
from segstore_ds.format.root import Root
from segstore_ds.log.context import StreamContext
from segstore_ds.read.prune import limits_of, time_bounds
from segstore_ds.read.table_columns import texts
from segstore_ds.status.epochs import epoch_schema

TIME_FIELDS = texts("time_min", "time_max", "watermark")
_Flags = npt.NDArray[np.bool_]


def segment_times(context: StreamContext, root: Root, start: int, end: int) -> list[pa.Array]:
    """Return `TIME_FIELDS` of the segments that hold events of a range, as columns.

    The watermark is the smallest time that a later segment still brings; null where none does, and
    where a later segment has no bounds. Without a time column all are null.
    """
    listed = context.status.runs(root, start, end, with_stats=True)
    count = sum(len(run.columns) for run in listed)
    field = find_time_field(root, epoch_schema(context.status, root.epoch))
    if not count or field is None:
        return [pa.nulls(count, pa.string())] * len(TIME_FIELDS)
    schemas = dict(enumerate(epoch_schema(context.status, epoch) for epoch in root.epochs))
    runs = list(context.status.runs(root, start, root.tail, with_stats=True))
    low, high, known = time_bounds(runs, field, schemas)
    timed = known & (low <= high)
    # Behind the last segment there is nothing, and that is known.
    none = limits_of(field.type)[1]
    least = np.append(np.minimum.accumulate(low[::-1])[::-1], none)[1:]
    sure = np.append(np.logical_and.accumulate(known[::-1])[::-1], True)[1:]
    some = np.append(np.logical_or.accumulate(timed[::-1])[::-1], False)[1:]
    columns = ((low, timed), (high, timed), (least, sure & some))
    return [_texts(values[:count], shown[:count], field.type) for values, shown in columns]


def _texts(values: npt.NDArray[Any], shown: _Flags, data_type: pa.DataType) -> pa.Array:
    found = pa.array(np.where(shown, values, 0), mask=~shown)
    if t.is_temporal(data_type):
        found = found.cast(pa.int32() if data_type.bit_width == 32 else pa.int64()).view(data_type)
    return found.cast(data_type).cast(pa.string())
