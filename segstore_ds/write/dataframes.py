"""DataFrames of pandas and Polars as Arrow data: no value changes; an error names its column.

Both libraries export their frames as an Arrow C stream. But Polars exports the addresses of Python
objects, and pandas cuts off nanoseconds of times in columns of objects.
"""

from typing import Any

import pyarrow as pa

from segstore_ds.errors import InvalidInputError
from segstore_ds.format.schema.conversion import in_nanoseconds, to_array

_ERRORS = (pa.ArrowException, ArithmeticError, TypeError, ValueError, AttributeError)


def refuse_objects(frame: Any) -> None:
    """Raise InvalidInputError for a Polars DataFrame with columns of Python objects."""
    schema = getattr(frame, "schema", {})
    names = [name for name, kind in schema.items() if str(kind) == "Object"]
    if names:
        raise InvalidInputError(
            "a column of Polars holds Python objects",
            remedy="make texts of them: pl.Series([str(value) for value in column])",
            columns=names,
        )


def explain_polars(frame: Any) -> InvalidInputError | None:
    """Return the error for a Polars DataFrame with types that Arrow lacks; None if it has none."""
    names = [name for name in getattr(frame, "columns", ()) if _fails(frame.select(name))]
    return (
        InvalidInputError(
            "a column of Polars has no Arrow type",
            remedy="cast it, as to pl.Decimal(38, 0) or pl.String",
            columns=names,
        )
        if names
        else None
    )


def from_pandas(frame: Any) -> pa.Table:
    """Return a pandas DataFrame as a table, with its index, as pandas itself exports it."""
    try:
        table = pa.RecordBatchReader.from_stream(frame).read_all()
        for place, field in enumerate(table.schema):
            if in_nanoseconds(field.type) != field.type:
                values = _values(frame, place)
                if values.dtype == object:
                    column = to_array(values.to_numpy(), from_pandas=True)
                    table = table.set_column(place, field.name, column)
    except MemoryError:
        raise
    except _ERRORS as error:
        raise _explain(frame) from error
    return table


def _values(frame: Any, place: int) -> Any:
    """Return the values of a column of a frame's table, where the levels of the index are last."""
    levels = place - frame.shape[1]
    return frame.iloc[:, place] if levels < 0 else frame.index.get_level_values(levels)


def _explain(frame: Any) -> InvalidInputError:
    twins = [str(name) for name in frame.columns[frame.columns.duplicated()]]
    if twins:
        return InvalidInputError("a name occurs twice", remedy="rename all but one", names=twins)
    columns = [frame.iloc[:, [place]].reset_index(drop=True) for place in range(frame.shape[1])]
    bad = next(filter(_fails, columns), frame.index.to_frame())
    dtype = str(bad.dtypes.iloc[0])
    remedy = "store values of one type: 64-bit numbers, Decimals, texts in UTF-8 or times; or texts"
    return InvalidInputError(
        "a column of pandas has no Arrow type",
        remedy="store df[column].sparse.to_dense()"
        if dtype.startswith("Sparse")
        else f"{remedy} of all values, as df[column].map(str)",
        column=str(bad.columns[0]),
        type=dtype,
    )


def _fails(frame: Any) -> bool:
    try:
        pa.RecordBatchReader.from_stream(frame)
    except MemoryError:
        raise
    except _ERRORS:
        return True
    return False
