"""Tables of a stream's metadata: read once as batches, and shown by a notebook."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Self

import pyarrow as pa

from segstore_ds.picture.page import build_table
from segstore_ds.read.reader_records import SeenReader

SHOWN_ROWS = 50


class Rows:
    """A metadata table: everything that a RecordBatchReader of pyarrow is, read once, in order.

    Anything that takes `__arrow_c_stream__` or batches takes it. A notebook shows its first rows,
    for which it reads them again: nothing is taken from who reads.
    """

    def __init__(self, read: Callable[[], pa.RecordBatchReader]) -> None:
        self._again = read
        self._reader = read()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._reader, name)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self._reader)

    def __next__(self) -> pa.RecordBatch:
        return next(self._reader)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._reader.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return f"<Rows {', '.join(self._reader.schema.names)}>"

    def _repr_html_(self) -> str:
        batches = (batch.slice(0, SHOWN_ROWS + 1).to_pylist() for batch in self._again())
        return _table(row for rows in batches for row in rows)


class Readers(list[SeenReader]):
    """The named readers of a stream; a notebook shows them as a table."""

    def _repr_html_(self) -> str:
        return _table({"name": reader.name, **dataclasses.asdict(reader.record)} for reader in self)


def _table(rows: Iterable[Mapping[str, Any]]) -> str:
    found = list(islice(rows, SHOWN_ROWS + 1))
    return build_table(found[:SHOWN_ROWS]) + ("<p>...</p>" if len(found) > SHOWN_ROWS else "")
