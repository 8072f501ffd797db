"""Events as frames of other libraries, all of them in memory; each library is loaded when used."""

from importlib import import_module
from typing import Any

import pyarrow as pa

from segstore_ds.errors import InvalidInputError
from segstore_ds.format.arrow.offsets import check_offsets


def load(name: str) -> Any:
    """Import a library that a caller needs; an error says how to get it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise InvalidInputError(
            f"{name} is not installed", remedy=f"pip install {name}", library=name
        ) from error


def to_pandas(reader: pa.RecordBatchReader) -> Any:
    """Return the rest of a reader as a pandas DataFrame."""
    load("pandas")
    return reader.read_pandas()


def to_polars(reader: pa.RecordBatchReader) -> Any:
    """Return the rest of a reader as a Polars DataFrame."""
    polars, table = load("polars"), reader.read_all()
    for batch in table.to_batches():
        check_texts(batch)
    return polars.from_arrow(table)


def check_texts(batch: pa.RecordBatch) -> None:
    """Refuse texts that are not UTF-8, as Spark may write them: Polars would panic."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            check_offsets(column, texts=True)
        except UnicodeError as error:
            raise InvalidInputError(
                "a text is not UTF-8, and Polars can't hold it",
                remedy="leave the column out, or take the events with read()",
                column=name,
            ) from error


def to_duckdb(reader: pa.RecordBatchReader, connection: Any) -> Any:
    """Return the rest of a reader as a DuckDB relation, of the default connection if None."""
    return (connection or load("duckdb")).from_arrow(reader.read_all())
