"""Cuts by the time of events: the first event at or after a moment, and the last before it."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from segstore_ds import options
from segstore_ds.format.root import Root
from segstore_ds.format.time_column import time_field
from segstore_ds.log.context import StreamContext
from segstore_ds.read.event_time import time_conditions
from segstore_ds.read.filters import Filters
from segstore_ds.read.plan import Reading, ReadTask, plan_range
from segstore_ds.read.prune import part_test
from segstore_ds.read.scan import run_task
from segstore_ds.status.epochs import epoch_schema
from segstore_ds.status.inline import with_inline
from segstore_ds.status.slices import EXACT_LIMIT, Slice
from segstore_ds.status.table_status import TableStatus

_OFFSET = "offset"
_LAST_ROWS = 65_536  # what is read at once to find the last event before a moment


def resolve_event_time(context: StreamContext, root: Root, moment: str, *, end: bool) -> int:
    """Return the offset of a moment among the events that a root shows.

    As a start it is the offset of the first event at or after the moment, or the tail; as an end
    the offset behind the last event before it, or the head. Bounds tell which parts, segments and
    frames may hold that event. Where they are exact, one part and one frame are read, or a few
    small ones.

    Raises:
        InvalidInputError: The stream has no time column, or the moment does not fit it.
        FormatError: A segment that may hold the event is damaged.
    """
    schema = epoch_schema(context.status, root.epoch)
    field = time_field(root, schema)
    conditions = time_conditions(field, (None, moment) if end else (moment, None))
    reading = Reading(
        storage=with_inline(context.storage, root),
        stream_id=root.stream_id,
        version=root.version,
        start=root.head,
        end=root.tail,
        epochs={epoch.number: context.status.schema_texts(epoch)[0] for epoch in root.epochs},
        schema=pa.schema([field]),
        columns=(),
        filters=Filters(conditions),
        offset_column=f"{field.name}_{_OFFSET}",
        mirrors=context.log.seams.mirrors(root),
        read_cache_bytes=options.default("readCacheBytes"),
    )
    spans = _spans(context.status, root, reading)
    for start, stop in reversed(list(spans)) if end else spans:
        found = _search(context.status, root, replace(reading, start=start, end=stop), last=end)
        if found is not None:
            return found + 1 if end else found
    return root.head if end else root.tail


def _spans(status: TableStatus, root: Root, reading: Reading) -> Iterator[tuple[int, int]]:
    """Yield the ranges of the parts that may hold the event, and of what the root itself lists."""
    wanted = part_test(reading.filters, reading.schema)
    for part in status.table.parts(root, root.head, root.tail, wanted):
        yield max(part.start, root.head), part.end
    yield max(root.inline_start, root.head), root.tail


def _search(status: TableStatus, root: Root, reading: Reading, *, last: bool) -> int | None:
    """Return the offset of the first or the last match in the range of a read."""
    slices = plan_range(status, root, reading)
    if last:
        # A slice is read forwards: of a large one only the last frames are needed.
        slices = slices.exact().split(EXACT_LIMIT, _LAST_ROWS)
    edges = (_edge(reading, part, last=last) for part in (reversed(slices) if last else slices))
    return next((edge for edge in edges if edge is not None), None)


def _edge(reading: Reading, part: Slice, *, last: bool) -> int | None:
    """Return the offset of the first or the last match in a slice; None without a match."""
    found: Any = None
    for batch in run_task(reading, ReadTask((part,))):
        found = batch.column(0)[-1 if last else 0]
        if not last:
            break
    return None if found is None else int(found.as_py())
