"""Plans a redaction: which bytes of each epoch and which segments; and what it returns. Pure.

An event matches if it passes the filters and one of the columns is not null in it, so that nothing
matches what was redacted. Filters compare in the newest type of each column. An older epoch may
hold such a column in a type that can't be converted to it, after an overwrite with another schema:
there every event matches. All of them lie below the head, where no reader can miss a value.
"""

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from segstore_ds.errors import InvalidInputError, SchemaMismatchError
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
    reason: str  # what the stream remembers about it
    redact_id: str  # the same again is the same redaction
    every: bool = False  # without filters every event is meant


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is looked for in the segments of one epoch; picklable."""

    schema: pa.Schema  # the types in which the filters compare
    columns: tuple[str, ...]  # those of the redacted columns that the epoch has
    filters: Filters = field(repr=False)
    stored: pa.Schema  # the epoch's schema, of its statistics

    def may_match(self, run: Run) -> npt.NDArray[np.bool_]:
        """Tell of each segment of a run whether an event may match and have a value."""
        valued = [
            Filters((Condition(name, "is not null", None, self.schema.field(name).type),))
            for name in self.columns
        ]
        if not valued:
            return np.zeros(len(run.columns), np.bool_)
        asked = all_of([self.filters, some_of(valued)])
        return may_match(asked, self.schema, run.load_stats, run.columns.rows)


def plan_wanted(epochs: Mapping[int, str], request: RedactRequest) -> dict[int, Wanted]:
    """Check what is to be redacted, and return what that means in each epoch.

    `epochs` holds schema texts; columns of the newest one and dropped ones of older ones count.
    """
    schemas = {number: decode_schema(epochs[number]) for number in sorted(epochs)}
    fields: dict[str, pa.Field] = {}
    for schema in schemas.values():
        fields.update((each.name, each) for each in schema)
    newest = pa.schema(list(fields.values()))
    chosen = check_columns(request.columns, newest)
    asked = parse_filters(request.filters, newest)
    if not asked and not request.every:
        raise InvalidInputError(
            "no filters: every event would lose its values",
            remedy='say which events: filters=[["user", "==", "ada"]]',
        )
    return {number: _in_epoch(schema, newest, asked, chosen) for number, schema in schemas.items()}


def by_stored_names(
    epochs: Sequence[tuple[pa.Schema, Names]], request: RedactRequest
) -> RedactRequest:
    """Return a request with the stored names of its columns, wherever the stream has two names.

    `epochs` are all of the stream, in order. Of several columns of one name filters mean the one
    that is there, and all of them are redacted: dropped ones have values until compactions drop
    them.
    """
    if not any(names for _, names in epochs):
        return request
    last: dict[str, pa.Field] = {}
    for schema, names in epochs:
        last.update(zip(schema.names, named_schema(schema, names), strict=True))
    found: dict[str, list[str]] = {}
    for stored in sorted(last, key=lambda stored: stored not in epochs[-1][0].names):
        found.setdefault(last[stored].name, []).append(stored)
    known = pa.schema([last[each[0]] for each in found.values()])
    filters = parse_filters(request.filters, known)
    columns = [stored for name in check_columns(request.columns, known) for stored in found[name]]
    asked = filters.renamed({name: each[0] for name, each in found.items()})
    return replace(request, columns=columns, filters=asked)


def check_columns(columns: Sequence[str], schema: pa.Schema) -> tuple[str, ...]:
    """Return the columns to redact, each once; InvalidInputError if one can't be redacted."""
    if isinstance(columns, str) or not isinstance(columns, Sequence) or not columns:
        raise InvalidInputError(
            "not a list of column names", remedy="give columns as a list of texts", columns=columns
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
            "the time column can't be redacted: cuts would move",
            remedy="redact other columns; or first end it with settings.update(time_column=None)",
            column=time_column,
        )


def check_reason(reason: str) -> str:
    """Return the reason of a redaction unchanged; InvalidInputError if it can't be stored."""
    try:
        fits = isinstance(reason, str) and len(reason.encode()) <= MOST_REASON
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise InvalidInputError(
            f"not a reason of at most {MOST_REASON} bytes",
            remedy="name your request's number, never the person: the reason is kept",
        )
    return reason


def _in_epoch(
    stored: pa.Schema, newest: pa.Schema, asked: Filters, columns: tuple[str, ...]
) -> Wanted:
    needed = dict.fromkeys((*columns, *asked.columns))
    schema = pa.schema([_compared(name, stored, newest) for name in needed])
    same = all(schema.field(name).type.equals(newest.field(name).type) for name in asked.columns)
    known = set(stored.names)
    held = tuple(name for name in columns if name in known)
    return Wanted(schema, held, asked if same else Filters(), stored)


def _compared(name: str, stored: pa.Schema, newest: pa.Schema) -> pa.Field:
    """Return the column in the type in which an epoch's values of it are compared."""
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
    "older versions of objects, where the bucket keeps them: delete noncurrent versions there",
    "memory and read caches of other processes: restart what read the events",
    "copies by segments or events, files written from reads, checkpoints, backups: redact each",
    "folders that the stream was once replicated to: delete them",
)
AGAIN = "the same call again"


@dataclass(frozen=True, slots=True)
class Left:
    """Something that may still hold redacted values.

    Attributes:
        where: The location of the stream, of a folder that replicates it, or of a clone.
        what: What it is.
        why: What it waits for.
        call: The call that ends it.
    """

    where: str
    what: str
    why: str
    call: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}: {self.why}; {self.call}"


@dataclass(frozen=True, slots=True)
class Forgotten:
    """How far a redaction's old values are gone.

    Attributes:
        done: Nothing is left of them in the stream, where it is replicated, and in its clones.
        due: When what only waits can go, by the store's clock; None once nothing waits.
        left: What may still hold them.
        beyond: What no call of segstore reaches, if there is any.
    """

    done: bool
    due: dt.datetime | None
    left: tuple[Left, ...]
    beyond: tuple[str, ...] = BEYOND

    def __str__(self) -> str:
        if self.done:
            return "\n".join(["forgotten, as far as segstore reaches; look after", *self.beyond])
        until = f" before {self.due}" if self.due else ": no wait ends what is left"
        return "\n".join([f"not forgotten{until}", *map(str, self.left)])


@dataclass(frozen=True, slots=True)
class Redacted:
    """What a redaction did, over all calls with its id.

    Attributes:
        redact_id: Its id.
        version: The first version without the values.
        tail: Every event below this offset was looked at; later ones were not.
        rows: How many events lost values.
        segments: How many segments were replaced.
        repeated: Whether it was done before this call.
        forgotten: How far its old values are gone, if that was asked for.
    """

    redact_id: str
    version: int
    tail: int
    rows: int
    segments: int
    repeated: bool = False
    forgotten: Forgotten | None = None
