"""Imports libraries of data frames when they are used, and refuses what they can't hold."""

from importlib import import_module
from typing import Any

import pyarrow as pa

from segstore_ds.errors import InvalidInputError
from segstore_ds.format.arrow.offsets import check_offsets


def load(name: str) -> Any:
    """Import a library that a caller needs; the error says how to install it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise InvalidInputError(
            f"{name} is not installed", remedy=f"pip install {name}", library=name
        ) from error


def check_texts(batch: pa.RecordBatch) -> None:
    """Refuse texts that are not UTF-8, as Spark may write them: Polars would panic."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            check_offsets(column, texts=True)
        except UnicodeError as error:
            raise InvalidInputError(
                "a text is not UTF-8, and Polars can't hold it",
                remedy="leave the column out, or read the events with stream.read()",
                column=name,
            ) from error
