"""What a notebook shows of a stream: tables of its metadata, and its picture."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from segstore_ds.observe.description import Description
from segstore_ds.observe.page import build_cell, build_page, build_table

SHOWN_ROWS = 50


class Rows:
    """A metadata table: what a RecordBatchReader of pyarrow is, read as often as wanted.

    Anything that takes `__arrow_c_stream__` or batches takes it. Each reading begins with the first
    row.
    """

    def __init__(self, schema: pa.Schema, read: Callable[[], pa.RecordBatchReader]) -> None:
        self.schema = schema
        self._read = read

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "read_next")):
            raise AttributeError(name)
        return getattr(self._read(), name)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self._read())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._read().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return f"<Rows {', '.join(self.schema.names)}>"

    def _repr_html_(self) -> str:
        batches = (batch.slice(0, SHOWN_ROWS + 1).to_pylist() for batch in self._read())
        return show_rows(row for rows in batches for row in rows)


def show_rows(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the first rows of a table as HTML."""
    found = list(islice(rows, SHOWN_ROWS + 1))
    return build_table(found[:SHOWN_ROWS]) + ("<p>...</p>" if len(found) > SHOWN_ROWS else "")


@dataclass(frozen=True, slots=True)
class Picture:
    """What a stream was when it was made by `Stream.picture`; a notebook shows it."""

    found: Description

    def to_html(self) -> str:
        """Return a page, which needs no server and no network.

        It has the picture that a notebook shows, the history, tables of the newest commits and
        segments, and what holds storage.
        """
        return build_page(self.found)

    def _repr_html_(self) -> str:
        return build_cell(self.found.figures.url, lambda: self.found)
