"""Tables of a stream's metadata: read once as batches, and shown by a notebook."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Self

import pyarrow as pa

from segstore_ds.observe.page import build_table

SHOWN_ROWS = 50


class Rows:
    """A metadata table: everything that a RecordBatchReader of pyarrow is, read as often as wanted.

    Anything that takes `__arrow_c_stream__` or batches takes it. Each reading begins with the first
    row; `next`, `read_next_batch` and what is like it go on from one call to the next.
    """

    def __init__(self, schema: pa.Schema, read: Callable[[], pa.RecordBatchReader]) -> None:
        self.schema = schema
        self._read = read
        self._going: pa.RecordBatchReader | None = None

    def _go_on(self) -> pa.RecordBatchReader:
        if self._going is None:
            self._going = self._read()
        return self._going

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._go_on() if name.startswith("read_next") else self._read(), name)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self._read())

    def __next__(self) -> pa.RecordBatch:
        return next(self._go_on())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of what was being read; the table may be read again."""
        if self._going is not None:
            self._going.close()
        self._going = None

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
