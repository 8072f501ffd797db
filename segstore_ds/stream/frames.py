"""Events as frames of other libraries, all of them in memory; each library is loaded when used."""

from importlib import import_module
from typing import Any

import pyarrow as pa

from segstore_ds.errors import InvalidInputError


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
    return load("polars").from_arrow(reader.read_all())


def to_duckdb(reader: pa.RecordBatchReader, connection: Any) -> Any:
    """Return the rest of a reader as a DuckDB relation, of the default connection if None."""
    return (connection or load("duckdb")).from_arrow(reader.read_all())
