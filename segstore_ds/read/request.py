"""A request to read, and the plan that is made of it against one version."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from segstore_ds import options
from segstore_ds.errors import InvalidInputError
from segstore_ds.format.indexed_columns import key_columns_of, time_field
from segstore_ds.format.root import Root
from segstore_ds.log.context import StreamContext
from segstore_ds.options.arguments import check_option
from segstore_ds.read.cuts import CutLike, parse_cut, resolve_cuts, take_range
from segstore_ds.read.event_time import EventTime, time_conditions
from segstore_ds.read.filter_input import FilterLike, parse_filters
from segstore_ds.read.filters import Filters
from segstore_ds.read.plan import Reading
from segstore_ds.read.prune import looks_up
from segstore_ds.status.epochs import epoch_schema
from segstore_ds.status.inline import with_inline


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """What a caller asks to read, built once at the door; nothing is checked yet.

    Attributes:
        start: The cut of the first event.
        end: The cut after the last event.
        columns: The columns of the stream to return, in order; None for all.
        filters: What returned rows must satisfy.
        event_time: The half-open interval of the time column to return; None for all events.
        offset_column: The name of an extra column with offsets, or None.
        segment_column: The name of an extra column with segment ids, or None.
        commit_time_column: The name of an extra column with commit times, or None.
        fail_on_data_loss: False starts at the head if the start is below it.
        read_cache_bytes: What the process's read cache may hold, in bytes; 0 reads without it.
    """

    start: CutLike = "head"
    end: CutLike = "tail"
    columns: Sequence[str] | None = None
    filters: FilterLike | Filters = None
    event_time: EventTime = None
    offset_column: str | None = None
    segment_column: str | None = None
    commit_time_column: str | None = None
    fail_on_data_loss: bool = True
    read_cache_bytes: int = options.default("readCacheBytes")


def plan_reading(context: StreamContext, root: Root, request: ReadRequest) -> Reading:
    """Check a request against a version and return the plan that all its tasks share.

    Raises:
        InvalidInputError: A cut, a column or a filter is not valid, or two columns have one name;
            or there is no time column to read an interval of.
        PositionError: A cut beyond the tail, or a position of another stream or generation.
        TruncatedError: The start is below the head.
    """
    url = context.storage.url
    cuts = (parse_cut(cut) for cut in (request.start, request.end))
    first, last = resolve_cuts(context, root, *cuts)
    strict = request.fail_on_data_loss
    first, last = take_range(root, first, last, fail_on_data_loss=strict, url=url)
    schema = epoch_schema(context.status, root.epoch)
    filters = parse_filters(request.filters, schema)
    if request.event_time is not None:
        within = time_conditions(time_field(root, schema), request.event_time)
        filters = replace(filters, conditions=(*within, *filters.conditions))
    return Reading(
        storage=with_inline(context.storage, root),
        stream_id=root.stream_id,
        version=root.version,
        start=first,
        end=last,
        epochs={epoch.number: context.status.schema_texts(epoch)[0] for epoch in root.epochs},
        schema=schema,
        columns=_check_columns(request, schema),
        filters=filters,
        offset_column=request.offset_column,
        segment_column=request.segment_column,
        commit_time_column=request.commit_time_column,
        mirrors=context.log.seams.mirrors(root),
        read_cache_bytes=check_option("read_cache_bytes", request.read_cache_bytes),
        looks_up=looks_up(filters, key_columns_of(root)),
    )


def _check_columns(request: ReadRequest, schema: pa.Schema) -> tuple[str, ...]:
    """Return the columns of the stream to read, after checking the names of all columns."""
    columns = request.columns
    if columns is not None and (isinstance(columns, str) or not isinstance(columns, Sequence)):
        raise InvalidInputError(
            "not a list of column names", remedy="give columns as a list of texts", columns=columns
        )
    chosen = tuple(schema.names if columns is None else columns)
    asked = (request.offset_column, request.segment_column, request.commit_time_column)
    extra = [name for name in asked if name is not None]
    if not all(isinstance(name, str) and name for name in extra):
        raise InvalidInputError("not a column name", remedy="give a text", names=extra)
    known = {*schema.names}
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise InvalidInputError("no such columns", columns=unknown, known=schema.names)
    if len({*chosen, *extra}) != len(chosen) + len(extra) or {*extra} & known:
        raise InvalidInputError(
            "a column name would occur twice",
            remedy="choose another name",
            columns=list(chosen),
            extra=extra,
        )
    return chosen
