"""Plans a redaction: what to look for in each epoch. Also has the values that it returns. Pure.

An event matches if it passes the filters and has a value in one of the columns, so redacted events
do not match again. Filters compare in the newest type of each column. After an overwrite with
another schema, an older epoch may have a type that can't be converted to it. There, every event
matches: all of them are below the head, so readers lose no value.
"""

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from segstore_ds.errors import InvalidInputError, SchemaMismatchError
from segstore_ds.format.record import is_text
from segstore_ds.format.redactions import MOST_REASON
from segstore_ds.format.schema.codec import decode_schema
from segstore_ds.format.schema.column_names import Names, named_schema
from segstore_ds.format.schema.widening import merge_type
from segstore_ds.read.filters.conditions import Condition, Filters, all_of, some_of
from segstore_ds.read.filters.given import FilterLike, parse_filters
from segstore_ds.read.prune import may_match
from segstore_ds.status.table_status import Run


@dataclass(frozen=True, slots=True)
class RedactRequest:
    """What a caller asks to redact."""

    filters: FilterLike | Filters = field(repr=False)
    columns: Sequence[str]
    reason: str  # what the stream keeps about it
    redact_id: str  # a call with the same id continues the redaction
    every: bool = False  # whether an empty filter, which matches every event, is allowed


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is looked for in the segments of one epoch; picklable."""

    schema: pa.Schema  # the types in which the filters compare
    columns: tuple[str, ...]  # the columns to redact that the epoch has
    filters: Filters = field(repr=False)
    stored: pa.Schema  # the epoch's own schema, of its statistics

    def may_match(self, run: Run) -> npt.NDArray[np.bool_]:
        """Tell for each segment of a run whether an event may match and have a value."""
        valued = [
            Filters((Condition(name, "is not null", None, self.schema.field(name).type),))
            for name in self.columns
        ]
        if not valued:
            return np.zeros(len(run.columns), np.bool_)
        filters = all_of([self.filters, some_of(valued)])
        return may_match(filters, self.schema, run.load_stats, run.columns.rows)


def plan_wanted(epochs: Mapping[int, str], request: RedactRequest) -> dict[int, Wanted]:
    """Check a request, and return what to look for in each epoch.

    `epochs` has their schema texts. The request may name any of their columns, also dropped ones.
    """
    schemas = {number: decode_schema(epochs[number]) for number in sorted(epochs)}
    fields: dict[str, pa.Field] = {}
    for schema in schemas.values():
        fields.update((each.name, each) for each in schema)
    newest = pa.schema(list(fields.values()))
    chosen = check_columns(request.columns, newest)
    filters = parse_filters(request.filters, newest)
    if not filters and not request.every:
        raise InvalidInputError(
            "there are no filters, so every event would lose its values",
            remedy='choose the events: filters=[["user", "==", "ada"]]',
        )
    return {each: _in_epoch(schema, newest, filters, chosen) for each, schema in schemas.items()}


def by_stored_names(
    epochs: Sequence[tuple[pa.Schema, Names]], request: RedactRequest
) -> RedactRequest:
    """Return a request with stored column names, if the stream has renamed columns.

    `epochs` are all of the stream, in order. If several columns had one name, filters use the
    present one, and all are redacted: a dropped column has values until compactions remove them.
    """
    if not any(names for _, names in epochs):
        return request
    last: dict[str, pa.Field] = {}
    for schema, names in epochs:
        last.update(zip(schema.names, named_schema(schema, names), strict=True))
    by_name: dict[str, list[str]] = {}
    for stored in sorted(last, key=lambda stored: stored not in epochs[-1][0].names):
        by_name.setdefault(last[stored].name, []).append(stored)
    known = pa.schema([last[each[0]] for each in by_name.values()])
    filters = parse_filters(request.filters, known)
    columns = [stored for name in check_columns(request.columns, known) for stored in by_name[name]]
    filters = filters.renamed({name: each[0] for name, each in by_name.items()})
    return replace(request, columns=columns, filters=filters)


def check_columns(columns: Sequence[str], schema: pa.Schema) -> tuple[str, ...]:
    """Return the columns to redact, each once; InvalidInputError if one can't be redacted."""
    if isinstance(columns, str) or not isinstance(columns, Sequence) or not columns:
        raise InvalidInputError(
            "columns is not a list of column names",
            remedy="give a list of texts",
            columns=columns,
        )
    known = {*schema.names}
    unknown = [name for name in columns if name not in known]
    if unknown:
        raise InvalidInputError("no such columns", columns=unknown, known=schema.names)
    return tuple(dict.fromkeys(columns))


def refuse_time_column(columns: Sequence[str], time_column: str | None) -> None:
    """Raise InvalidInputError if the time column is among the columns to redact."""
    if time_column in columns:
        raise InvalidInputError(
            "the time column can't be redacted, because cuts by time would move",
            remedy="redact other columns; or first call settings.update(time_column=None)",
            column=time_column,
        )


def check_reason(reason: str) -> str:
    """Return the reason of a redaction unchanged; InvalidInputError if it can't be stored."""
    if not is_text(reason) or len(reason) > MOST_REASON:
        raise InvalidInputError(
            f"the reason is not a text of at most {MOST_REASON} characters",
            remedy="give the number of the request, never the person: the reason is kept",
        )
    return reason


def _in_epoch(
    stored: pa.Schema, newest: pa.Schema, filters: Filters, columns: tuple[str, ...]
) -> Wanted:
    needed = dict.fromkeys((*columns, *filters.columns))
    schema = pa.schema([_compared(name, stored, newest) for name in needed])
    same = all(schema.field(name).type.equals(newest.field(name).type) for name in filters.columns)
    known = set(stored.names)
    held = tuple(name for name in columns if name in known)
    return Wanted(schema, held, filters if same else Filters(), stored)


def _compared(name: str, stored: pa.Schema, newest: pa.Schema) -> pa.Field:
    """Return a column with the type in which an epoch's values are compared."""
    wanted = newest.field(name)
    if name not in stored.names:
        return wanted
    own = stored.field(name)
    try:
        lifts = merge_type(wanted.type, own.type, name).equals(wanted.type)
    except SchemaMismatchError:
        lifts = False
    return wanted if lifts else own


BEYOND = (
    "older versions of objects, if the bucket keeps them: delete noncurrent versions there",
    "memory and read caches of other processes: restart those that read the events",
    "copies by segments or events, files written from reads, checkpoints, backups: redact each",
    "folders that the stream was once replicated to: delete them",
)
AGAIN = "the same call again"


@dataclass(frozen=True, slots=True)
class Left:
    """Something that may still hold redacted values.

    Attributes:
        where: The location of the stream, a replica, or a clone.
        what: What it is.
        why: Why it is still there, or what it waits for.
        call: What to call or do to delete it.
    """

    where: str
    what: str
    why: str
    call: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}: {self.why}; {self.call}"


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Which old values of a redaction are left.

    Attributes:
        done: Whether none are left in the stream, its replicas and its clones.
        due: When all that only waits can be deleted (by the store's clock, UTC); None if nothing
            waits.
        left: What may still hold old values.
        beyond: Other places that may hold them, which segstore can't reach.
    """

    done: bool
    due: dt.datetime | None
    left: tuple[Left, ...]
    beyond: tuple[str, ...] = BEYOND

    def __str__(self) -> str:
        if self.done:
            return "\n".join(["forgotten, as far as segstore reaches; also check", *self.beyond])
        due = f" before {self.due:%Y-%m-%dT%H:%M:%SZ}" if self.due else ""
        until = due or ": waiting does not delete what is left"
        return "\n".join([f"not forgotten{until}", *map(str, self.left)])


@dataclass(frozen=True, slots=True)
class Redacted:
    """What a redaction did, over all calls with its id.

    Attributes:
        redact_id: Its id.
        version: The first version without the values.
        tail: Events below this offset were checked; later ones were not.
        rows: How many events lost values.
        segments: How many segments were replaced.
        repeated: Whether an earlier call had finished it.
        forgotten: Which old values are left; None without `forget`.
    """

    redact_id: str
    version: int
    tail: int
    rows: int
    segments: int
    repeated: bool = False
    forgotten: Forgotten | None = None
