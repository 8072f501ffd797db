"""Input from callers: Arrow data in any form, and the key of an idempotent write."""

import os
import re
import weakref
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from itertools import chain, pairwise
from types import GeneratorType
from typing import Any, Protocol, Self, TypeAlias

import pyarrow as pa

from segstore_ds.errors import (
    FencedError,
    InternalError,
    InvalidInputError,
    SchemaMismatchError,
    SegstoreError,
    UnderReplicatedError,
)
from segstore_ds.format.arrow.offsets import FEW_ROWS, check_offsets, is_sound
from segstore_ds.format.schema.codec import MONTHS, months_as_numbers, type_id_of
from segstore_ds.options import table as options
from segstore_ds.options.arguments import check_option, check_whole
from segstore_ds.status.writers import ERROR, WriterKey
from segstore_ds.write.dataframes import explain_polars, from_pandas, refuse_objects
from segstore_ds.write.event_rows import (
    EventRows,
    check_events,
    few_rows,
    own_copy,
    table_of,
    with_new_columns,
    with_wider_columns,
)


class ArrowStream(Protocol):
    """A Table or reader of pyarrow, a DataFrame of pandas or Polars, a stream, a scan."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Export the rows."""


class ArrowArray(Protocol):
    """A RecordBatch of pyarrow."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> object:
        """Export the rows."""


class LazyFrame(Protocol):
    """A query of Polars."""

    def collect_schema(self) -> Any:
        """Return the columns."""

    def collect(self) -> Any:
        """Run the query."""


class Relation(Protocol):
    """A query of DuckDB, whose types don't say that it is an `ArrowStream`."""

    def to_arrow_table(self) -> Any:
        """Run the query."""


class WithSchema(Protocol):
    """An object with a stored schema, which may have to be read."""

    @property
    def schema(self) -> pa.Schema:
        """The columns."""


# What `as_input` takes. To a type checker, untyped libraries such as pyarrow match all of these.
Data: TypeAlias = (
    ArrowStream
    | ArrowArray
    | LazyFrame
    | Relation
    | Mapping[str, Any]
    | Iterable[Mapping[str, Any] | ArrowArray]
)

PART_BYTES, PART_ROWS = 32 << 20, 1 << 20  # least size of a part that a thread of its own encodes
WRITER_ID_LIMIT = 200
_UNNAMED_INDEX = re.compile(r"__index_level_\d+__")
# After these errors the data may be committed, so the caller must not simply pass it again.
_COMMITTED = (UnderReplicatedError, FencedError, InternalError)


# Readers and generators that an append has read from, by `id`. Other iterators (a `map`) have no
# weak references; when they are exhausted, they are refused as empty.
_TAKEN: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()
_NOTHING = object()
_ONCE = "a reader or generator can be read only once: pass the data again"


class ArrowInput:
    """A caller's Arrow data; `source` is the caller's object if it may be readable only once."""

    def __init__(
        self,
        schema: pa.Schema,
        batches: Iterable[Any],
        *,
        source: object | None = None,
        checked: bool = False,
    ) -> None:
        if schema.metadata:
            refuse_unnamed_index(schema)
        self._has_months = MONTHS in map(type_id_of, schema.types)
        self.schema = _plain(schema) if self._has_months else schema
        self._batches = batches
        self._source = source
        self._taken = False
        self._checked = checked  # nobody else has made the batches

    def once(self, source: object | None) -> Self:
        """Note that the caller's object was already read from."""
        self._source, self._taken = source, True
        return self

    @property
    def lent(self) -> bool:
        """True if a batch's memory may change when the next one is requested, as by a generator."""
        return not isinstance(self._batches, list)

    @property
    def rows(self) -> int:
        """How many rows are in memory."""
        return sum([batch.num_rows for batch in self._batches]) if not self.lent else 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches, once; all must be RecordBatches with the columns of the first."""
        self._taken = True
        _remember(self._source)
        names = set(self.schema.names)
        for place, batch in enumerate(self._batches):
            if not isinstance(batch, pa.RecordBatch):
                raise InvalidInputError(
                    "not a batch",
                    remedy="give an iterable of pyarrow RecordBatches, and of nothing else",
                    batch=place,
                    type=type(batch).__name__,
                )
            if not batch.schema.equals(self.schema) and set(batch.schema.names) != names:
                raise SchemaMismatchError(
                    "batches have different columns",
                    remedy="give batches of one schema",
                    batch=place,
                    columns=batch.schema.names,
                    first=self.schema.names,
                )
            yield check_batch(_plain_batch(batch) if self._has_months else batch, place)

    def few(self) -> pa.RecordBatch | None:
        """Return all rows, checked, if they are few, in memory and in one batch."""
        held = self._batches if isinstance(self._batches, list) and not self._has_months else []
        if len(held) != 1 or not 0 < held[0].num_rows <= FEW_ROWS:
            return None
        return held[0] if self._checked else check_batch(held[0], 0)

    def parts(self, most: int) -> list[Self]:
        """Return the rows in even parts, at most `most` and one per core.

        There is one part if the rows are few, or not in memory. Rows count as well as bytes, since
        the buffers of a slice are those of its whole array.
        """
        held = self._batches if isinstance(self._batches, list) and not self._has_months else []
        rows = sum([batch.num_rows for batch in held])
        size = sum([batch.get_total_buffer_size() for batch in held])
        count = min(most, rows // PART_ROWS, size // PART_BYTES)
        if count < 2 or (count := min(count, os.cpu_count() or 1)) < 2:
            return [self]
        table = pa.Table.from_batches(held, self.schema)
        borders = [rows * place // count for place in range(count + 1)]
        slices = [table.slice(start, end - start) for start, end in pairwise(borders)]
        return [type(self)(self.schema, part.to_batches()) for part in slices]

    def explain(self, error: SegstoreError) -> None:
        """Mark an error as not retryable with the same input, if the input is used up."""
        if self._taken and self._source is not None and not isinstance(error, _COMMITTED):
            error.refuse_retry(f"the input was already consumed: {_ONCE}")


def _plain(schema: pa.Schema) -> pa.Schema:
    return pa.schema(map(months_as_numbers, schema), schema.metadata)


def _plain_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose year-month intervals are numbers of months.

    pyarrow has no class for arrays of such intervals: it can pass them on, but not read them.
    """
    _, array = batch.__arrow_c_array__()
    schema = _plain(batch.schema).__arrow_c_schema__()
    return pa.RecordBatch._import_from_c_capsule(schema, array)  # noqa: SLF001 - of PyCapsules


def check_batch(batch: pa.RecordBatch, place: int) -> pa.RecordBatch:
    """Refuse a batch with invalid offsets, which could crash Arrow, or with invalid UTF-8."""
    if is_sound(batch):
        return batch
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            column.validate()
            check_offsets(column, texts=True)
        except MemoryError:
            raise
        except UnicodeError as error:
            raise InvalidInputError(
                "a text is not UTF-8",
                remedy="correct the bytes, or store them in a column of type binary",
                column=name,
                batch=place,
            ) from error
        except (pa.ArrowException, ValueError) as error:
            raise InvalidInputError(
                "a column's memory does not match its Arrow type",
                remedy="build it with Arrow's own functions, or see what array.validate(full=True) "
                "says",
                column=name,
                batch=place,
            ) from error
    return batch


def as_input(
    data: Any, target: WithSchema | None = None, *, new_columns: bool = False
) -> ArrowInput:
    """Return Arrow data of any form as schema and batches.

    `data` is a Table, RecordBatch, RecordBatchReader, iterable of batches, or anything with
    `__arrow_c_stream__` or `__arrow_c_array__`; a lazy frame, which is collected; or a dict or an
    iterable of dicts: events of the schema of `target`, with `new_columns` also with other columns.
    An empty container or new generator means no events. This call reads nothing from a reader,
    but the first batch from a generator, because only that has the schema.
    """
    # Not through Arrow's C interface, which refuses deep nesting without an explanation.
    if isinstance(data, pa.RecordBatch | pa.Table):
        whole = isinstance(data, pa.RecordBatch)
        return ArrowInput(data.schema, [data] if whole else data.to_batches())
    if data is not None and _TAKEN.get(id(data)) is data:
        raise InvalidInputError(
            "the input was already consumed", remedy=_ONCE, type=type(data).__name__
        )
    if isinstance(data, Mapping):
        return _of_events([data], target, new_columns=new_columns)
    held = isinstance(data, list | tuple)
    if not held and is_lazy(data):
        data = data.collect()
    if isinstance(data, pa.RecordBatchReader):
        return ArrowInput(data.schema, data, source=data)
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        return _of_interface(data)
    unread = held or _is_unread(data)
    items = iter(data) if isinstance(data, Iterable) else iter(())
    source = data if items is data else None
    first = next(items, _NOTHING)
    if isinstance(first, Mapping) or (first is _NOTHING and unread and target is not None):
        if source is not None:
            _remember(source)
        events = chain([] if first is _NOTHING else [first], items)
        found = _of_events(data if held else events, target, new_columns=new_columns)
        return found if source is None else found.once(source)
    if not isinstance(first, pa.RecordBatch):
        raise _not_arrow(data)
    _remember(source)
    return ArrowInput(first.schema, chain([first], items)).once(source)


def _is_unread(data: Any) -> bool:
    """Tell whether nothing was read from data before: of iterators only a generator shows it."""
    if isinstance(data, Iterator):
        return isinstance(data, GeneratorType) and data.gi_frame is not None
    return isinstance(data, Collection) and not isinstance(data, str | bytes)


def is_lazy(data: Any) -> bool:
    """Tell whether data is a Polars query, which has no rows before it is collected."""
    return hasattr(data, "collect") and hasattr(data, "collect_schema")


def _of_events(
    events: Iterable[Any], target: WithSchema | None, *, new_columns: bool
) -> ArrowInput:
    if target is not None and not new_columns:
        return _of_rows(events, target.schema)
    # All values of a column are needed for its type, so copy what a generator may change.
    events = events if isinstance(events, list | tuple) else [*map(own_copy, events)]
    if target is None:
        return ArrowInput((table := table_of(events)).schema, table.to_batches())
    schema = with_new_columns(target.schema, events)
    try:
        return _of_rows(events, schema)
    except SchemaMismatchError:
        return _of_rows(events, with_wider_columns(schema, events))


def _of_rows(events: Iterable[Any], schema: pa.Schema) -> ArrowInput:
    few = few_rows(events, schema) if isinstance(events, list | tuple) else None
    if few is not None:
        return ArrowInput(schema, [few], checked=True)
    rows, batches = EventRows(schema), list[pa.RecordBatch]()
    for event in check_events(events):
        rows.add(event)
        if rows.full:
            batches.append(rows.peek())
            rows.clear()
    return ArrowInput(rows.schema, [*batches, rows.peek()])


def schema_of(data: Any) -> pa.Schema:
    """Return the schema of data in any form that `as_input` takes, or of a stream."""
    if is_lazy(data):
        data = data.head(0).collect()
    found = data if isinstance(data, pa.Schema) else getattr(data, "schema", None)
    if isinstance(found, pa.Schema):
        return found
    found = as_input(data).schema
    untyped = [field.name for field in found if pa.types.is_null(field.type)]
    if untyped:
        raise InvalidInputError(
            "no value says the type of a column",
            remedy="give a value that is not null, or a pyarrow Schema",
            columns=untyped,
        )
    return found


def _of_interface(data: Any) -> ArrowInput:
    if hasattr(data, "scan") and hasattr(data, "tail"):  # a stream
        data = data.scan()
    if hasattr(data, "to_reader"):  # a scan: its errors would lose their type in a C stream
        reader = data.to_reader()
        return ArrowInput(reader.schema, reader)
    if hasattr(data, "memory_usage") and hasattr(data, "columns"):
        table = from_pandas(data)
        return ArrowInput(table.schema, table.to_batches())
    if hasattr(data, "estimated_size"):
        refuse_objects(data)
    try:
        if hasattr(data, "__arrow_c_stream__"):
            reader = pa.RecordBatchReader.from_stream(data)
        else:
            batch = pa.record_batch(data)
            return ArrowInput(batch.schema, [batch])
    except MemoryError:
        raise
    except pa.ArrowException as error:
        polars = explain_polars(data) if hasattr(data, "estimated_size") else None
        raise polars or _not_arrow(data) from error
    # The rows of a DataFrame are in memory, so `parts` may divide them.
    if hasattr(data, "estimated_size"):
        return ArrowInput(reader.schema, list(reader))
    # Data without a length may be a query, which can be repeated, or a stream: assume a stream.
    return ArrowInput(reader.schema, reader, source=None if hasattr(data, "__len__") else data)


def _not_arrow(data: Any) -> InvalidInputError:
    return InvalidInputError(
        "not Arrow data",
        remedy="give a pyarrow Table, RecordBatch or RecordBatchReader, a non-empty iterable "
        "of batches that was not read yet, a DataFrame of pandas or Polars, with one type of "
        "value per column, or events as dicts",
        type=type(data).__name__,
    )


def _remember(source: object | None) -> None:
    if isinstance(source, pa.RecordBatchReader | Generator):
        _TAKEN[id(source)] = source


def refuse_unnamed_index(schema: pa.Schema) -> None:
    """Raise SchemaMismatchError for a pandas index that would become `__index_level_0__`.

    The caller may not want that column, but it may be all that identifies a row, so the caller has
    to decide.
    """
    if b"pandas" not in (schema.metadata or {}):
        return
    unnamed = [name for name in schema.names if _UNNAMED_INDEX.fullmatch(name)]
    if unnamed:
        raise SchemaMismatchError(
            "a pandas index has no name",
            remedy="leave it out with df.reset_index(drop=True), or make it a column with "
            "df.rename_axis('name').reset_index()",
            columns=unnamed,
        )


def writer_key(
    writer_id: str | None,
    batch_id: int | None,
    *,
    takeover: bool,
    owner: str = "",
    on_repeat: str = options.default("onRepeat"),
) -> WriterKey | None:
    """Return the idempotence key of a writer id and a batch id; None if neither is given."""
    if writer_id is None and batch_id is None and not takeover and on_repeat == ERROR:
        return None
    check_option("on_repeat", on_repeat)
    if (writer_id is None) != (batch_id is None):
        raise InvalidInputError(
            "writer id and batch id must be given together",
            remedy="give both, or neither",
            writer_id=writer_id,
            batch_id=batch_id,
        )
    if writer_id is None or batch_id is None:
        raise InvalidInputError(
            "on_repeat and takeover need a writer",
            remedy="give writer_id and batch_id too, or leave these two out",
            on_repeat=on_repeat,
            takeover=takeover,
        )
    batch_id = check_whole("batch_id", batch_id)
    if not isinstance(writer_id, str) or not 0 < len(writer_id) <= WRITER_ID_LIMIT:
        raise InvalidInputError(
            "not a writer id",
            remedy=f"give a text of 1 to {WRITER_ID_LIMIT} characters",
            writer_id=writer_id,
        )
    return WriterKey(writer_id, batch_id, owner, takeover, on_repeat=on_repeat)
