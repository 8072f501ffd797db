"""What callers hand in: Arrow data in any of its forms, and the key of an idempotent write."""

import itertools
import operator
import re
import weakref
from collections.abc import Generator, Iterable, Iterator
from typing import Any

import pyarrow as pa

from segstore_ds import options
from segstore_ds.errors import (
    FencedError,
    InternalError,
    InvalidInputError,
    SchemaMismatchError,
    SegstoreError,
    UnderReplicatedError,
)
from segstore_ds.format.arrow.offsets import check_offsets
from segstore_ds.options.arguments import check_option
from segstore_ds.status.writers import WriterKey

WRITER_ID_LIMIT = 200
_UNNAMED_INDEX = re.compile(r"__index_level_\d+__")
# After these the data may not be given again as it is.
_COMMITTED = (UnderReplicatedError, FencedError, InternalError)


# Readers and generators that an append took batches from, by identity. Other iterators (a `map`)
# can't be referred to weakly; read to their end they are refused for being empty.
_TAKEN: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()
_ONCE = "a reader or generator can be read only once: give the data again"


class ArrowInput:
    """Arrow data of a caller, in order.

    Args:
        schema: What the batches have.
        batches: The data.
        source: The caller's object if it may be one that can be read only once.
        taken: A batch was taken from it already.
    """

    def __init__(
        self,
        schema: pa.Schema,
        batches: Iterable[Any],
        *,
        source: object | None = None,
        taken: bool = False,
    ) -> None:
        refuse_unnamed_index(schema)
        self.schema = schema
        self._batches = batches
        self._source = source
        self._taken = taken

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Take the batches; once.

        Raises:
            InvalidInputError: Something is no batch.
            SchemaMismatchError: A batch has other columns than the first.
        """
        self._taken = True
        _remember(self._source)
        names = set(self.schema.names)
        for place, batch in enumerate(self._batches):
            if not isinstance(batch, pa.RecordBatch):
                raise InvalidInputError(
                    "not a batch",
                    remedy="give an iterable of pyarrow RecordBatches alone",
                    place=place,
                    type=type(batch).__name__,
                )
            if set(batch.schema.names) != names:
                raise SchemaMismatchError(
                    "batches have different columns",
                    remedy="give batches of one schema",
                    place=place,
                    columns=batch.schema.names,
                    first=self.schema.names,
                )
            yield _checked(batch, place)

    def explain(self, error: SegstoreError) -> None:
        """Add to an error that this input is used up, if it is; the same call can't be repeated."""
        if self._taken and self._source is not None and not isinstance(error, _COMMITTED):
            error.refuse_retry(f"the input is used up: {_ONCE}")


def _checked(batch: pa.RecordBatch, place: int) -> pa.RecordBatch:
    """Refuse a batch that points outside of its own memory: Arrow would read it, and crash."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            column.validate()
            check_offsets(column)
        except MemoryError:
            raise
        except (pa.ArrowException, ValueError) as error:
            raise InvalidInputError(
                "a column's memory is not what Arrow says it is",
                remedy="build it with Arrow's own functions, or see what array.validate(full=True) "
                "says",
                column=name,
                place=place,
            ) from error
    return batch


def as_input(data: Any) -> ArrowInput:
    """Return whatever holds Arrow data as schema and batches.

    Takes nothing from a reader. From a generator it takes the first batch, which alone tells the
    schema.

    Args:
        data: A Table, RecordBatch, RecordBatchReader, iterable of batches, or anything with
            `__arrow_c_stream__` or `__arrow_c_array__`.

    Raises:
        InvalidInputError: It is none of these, an iterable without a batch, or a reader or
            generator that was given before.
    """
    if data is not None and _TAKEN.get(id(data)) is data:
        raise InvalidInputError("the input is used up", remedy=_ONCE, type=type(data).__name__)
    if isinstance(data, pa.RecordBatchReader):
        return ArrowInput(data.schema, data, source=data)
    if isinstance(data, pa.RecordBatch):
        return ArrowInput(data.schema, [data])
    if isinstance(data, pa.Table):
        # Arrow's interface takes no deep nesting, and says so in no words.
        return ArrowInput(data.schema, data.to_batches())
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        return _of_interface(data)
    return _of_iterable(data)


def _of_interface(data: Any) -> ArrowInput:
    try:
        if hasattr(data, "__arrow_c_stream__"):
            reader = pa.RecordBatchReader.from_stream(data)
        else:
            batch = pa.record_batch(data)
            return ArrowInput(batch.schema, [batch])
    except MemoryError:
        raise
    except pa.ArrowException as error:
        raise _not_arrow(data) from error
    # What has no length is a query or a stream, and nobody can tell which.
    return ArrowInput(reader.schema, reader, source=None if hasattr(data, "__len__") else data)


def _of_iterable(data: Any) -> ArrowInput:
    batches = iter(data) if isinstance(data, Iterable) else iter(())
    source = data if batches is data else None
    first = next(batches, None)
    if not isinstance(first, pa.RecordBatch):
        raise _not_arrow(data)
    _remember(source)
    return ArrowInput(first.schema, itertools.chain([first], batches), source=source, taken=True)


def _not_arrow(data: Any) -> InvalidInputError:
    return InvalidInputError(
        "not Arrow data",
        remedy="give a pyarrow Table, RecordBatch or RecordBatchReader, a non-empty iterable "
        "of batches that was not read yet, or a DataFrame of pandas or Polars, with one type of "
        "value per column",
        type=type(data).__name__,
    )


def _remember(source: object | None) -> None:
    if isinstance(source, pa.RecordBatchReader | Generator):
        _TAKEN[id(source)] = source


def refuse_unnamed_index(schema: pa.Schema) -> None:
    """Refuse an index of pandas that would become a column called `__index_level_0__`.

    Nobody asked for it, but its values may be all that tells rows apart: the caller decides.

    Raises:
        SchemaMismatchError: There is such an index.
    """
    unnamed = [name for name in schema.names if _UNNAMED_INDEX.fullmatch(name)]
    if unnamed and b"pandas" in (schema.metadata or {}):
        raise SchemaMismatchError(
            "an index of pandas has no name",
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
    """Return the idempotence key of a writer id and a batch id, or None where neither is given.

    Raises:
        InvalidInputError: Only one is given, one is out of range, or `on_repeat` is unknown.
    """
    check_option("on_repeat", on_repeat)
    if (writer_id is None) != (batch_id is None):
        raise InvalidInputError(
            "a writer id and a batch id go together",
            remedy="give both, or neither",
            writer_id=writer_id,
            batch_id=batch_id,
        )
    if writer_id is None or batch_id is None:
        return None
    batch_id = as_integer(batch_id, "batch_id")
    if not isinstance(writer_id, str):
        raise InvalidInputError("not a writer id", remedy="give a text", writer_id=writer_id)
    if not 0 < len(writer_id) <= WRITER_ID_LIMIT or not 0 <= batch_id < 2**63:
        raise InvalidInputError(
            "writer id or batch id is out of range",
            remedy=f"give 1 to {WRITER_ID_LIMIT} characters and an integer from 0",
            writer_id=writer_id,
            batch_id=batch_id,
        )
    return WriterKey(writer_id, batch_id, owner, takeover, on_repeat=on_repeat)


def as_integer(value: object, name: str) -> int:
    """Return a whole number of Python's or numpy's as Python's own.

    Raises:
        InvalidInputError: It is something else, a float or a truth among them.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None:
        raise InvalidInputError("not a whole number", remedy="give an int", name=name, value=value)
    return number
