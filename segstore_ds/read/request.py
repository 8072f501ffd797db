"""Planning a read: its arguments are checked against one version and become a `Reading`.

No segment is opened; `read/plan.py` finds those to read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from segstore_ds.errors import InvalidInputError
from segstore_ds.format.indexed_columns import time_field
from segstore_ds.format.root import Root
from segstore_ds.format.schema.column_names import named_schema, store_columns, stored_names
from segstore_ds.log.context import StreamContext
from segstore_ds.options import table as options
from segstore_ds.options.arguments import check_option
from segstore_ds.read.cuts import CutLike, check_range, parse_cut, resolve_cut, resolve_end
from segstore_ds.read.event_time import EventTime, time_conditions
from segstore_ds.read.filters.conditions import Condition, Filters
from segstore_ds.read.filters.given import FilterLike, parse_filters
from segstore_ds.read.plan import Reading
from segstore_ds.status.epochs import epoch_schema


@dataclass(frozen=True, slots=True)
class Among:
    """How a stream is read together with others: with the columns of all, and under its name.

    The stream's next epoch could have `schema`; `column` and `name` are as in `Reading.stream`.
    """

    schema: pa.Schema
    column: str
    name: str


def plan_reading(
    context: StreamContext,
    root: Root,
    start: CutLike = "head",
    end: CutLike = "tail",
    *,
    columns: Sequence[str] | None = None,
    filters: FilterLike | Filters = None,
    event_time: EventTime = None,
    offset_column: str | None = None,
    segment_column: str | None = None,
    commit_time_column: str | None = None,
    fail_on_data_loss: bool = True,
    read_cache_bytes: int = options.default("readCacheBytes"),
    among: Among | None = None,
) -> Reading:
    """Check the arguments of `Stream.scan` against a version; return the plan that tasks share."""
    first = resolve_cut(context, root, parse_cut(start))
    last = resolve_end(context, root, parse_cut(end), first)
    url = context.storage.url
    first, last = check_range(root, first, last, fail_on_data_loss=fail_on_data_loss, url=url)
    stored = epoch_schema(context.status, root.epoch)
    schema = named_schema(stored, root.epoch.names)
    within: tuple[Condition, ...] = ()
    if event_time is not None:
        field = time_field(root, stored)
        within = time_conditions(schema.field(stored.get_field_index(field.name)), event_time)
    extra: tuple[str | None, ...] = (offset_column, segment_column, commit_time_column)
    other_names, stream, known = stored_names(stored, root.epoch.names), None, schema
    if among is not None:
        # As if an epoch with all columns had just begun.
        schema, stream = among.schema, (among.column, among.name)
        kept = store_columns(schema, stored, root.epoch.names).names
        pairs = zip(schema.names, kept, strict=True)
        other_names = {name: one for name, one in pairs if one != name}
        extra, known = (*extra, among.column), schema.append(pa.field(among.column, pa.string()))
    parsed = Filters() if filters is None else parse_filters(filters, known)
    if among is not None:
        left = parsed.where(among.column, pa.array([among.name]))
        parsed, last = (parsed, first) if left is None else (left, last)
    if within:
        parsed = replace(parsed, conditions=(*within, *parsed.conditions))
    return Reading.of(
        context,
        root,
        start=first,
        end=last,
        schema=schema,
        columns=_check_columns(columns, extra, schema),
        filters=parsed,
        offset_column=offset_column,
        segment_column=segment_column,
        commit_time_column=commit_time_column,
        read_cache_bytes=check_option("read_cache_bytes", read_cache_bytes),
        stored=other_names,
        stream=stream,
    )


def _check_columns(
    columns: Sequence[str] | None, named: Sequence[str | None], schema: pa.Schema
) -> tuple[str, ...]:
    """Return the columns of the stream to read, after checking the names of all columns."""
    if columns is not None and (isinstance(columns, str) or not isinstance(columns, Sequence)):
        raise InvalidInputError(
            "not a list of column names", remedy="give columns as a list of texts", columns=columns
        )
    chosen = tuple(schema.names if columns is None else columns)
    extra = [name for name in named if name is not None]
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
