"""A stream as a dataset of Arrow: events of one version, which each call reads again.

Arrow's own classes know only files and tables, so this is a class of segstore: `scanner`, which
libraries call, reads the stream. Functions of Arrow that read its inner dataset instead find a
missing file, whose name says what to do: they fail, and never return other events. Imported only
when it is used: Arrow's datasets import pandas if it is installed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset, fs

from segstore_ds.read.filters.expressions import columns_needed
from segstore_ds.read.scan import open_reader
from segstore_ds.stream.scan import Scan

Columns = Sequence[str] | Mapping[str, pc.Expression] | None


_INSIDE = (
    "(no file: a StreamDataset is read by its own methods; give to_table() to other functions)"
)


class StreamDataset(dataset.UnionDataset):  # type: ignore[misc]
    """Events of one version of a stream, in offset order; made by `Scan.to_dataset`.

    `scanner`, `to_table`, `to_batches`, `head`, `count_rows` and `filter` read only what they need.
    What Arrow does only with its own datasets (`join`, `sort_by`, `take`) needs a table of it.
    Picklable.
    """

    def __init__(self, read: Scan, expression: pc.Expression | None = None) -> None:
        form, disk = dataset.ParquetFileFormat(), fs.LocalFileSystem()
        nothing = form.make_fragment(_INSIDE, disk)
        inside = dataset.FileSystemDataset([nothing], read.schema, form, disk)
        super().__init__(read.schema, [inside])
        self._read, self._expression = read, expression

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._read, self._expression)

    def __repr__(self) -> str:
        return repr(self._read).replace("Scan", "StreamDataset", 1)

    def filter(self, expression: pc.Expression) -> "StreamDataset":
        """Return a dataset of the events that also satisfy an expression."""
        return type(self)(self._read, self._both(expression))

    def scanner(
        self,
        columns: Columns = None,
        filter: pc.Expression | None = None,  # noqa: A002 - as in Arrow's datasets
        **settings: Any,
    ) -> Any:
        """Return a scanner that reads once.

        Args:
            columns: Names, or expressions by name; None for all.
            filter: Which events.
            settings: Others of Arrow's scanner.
        """
        expression = self._both(filter)
        reader, rest = self._open(self._needed(columns), expression)
        if not isinstance(columns, Mapping):
            columns = list(self.schema.names if columns is None else columns)
        return dataset.Scanner.from_batches(reader, columns=columns, filter=rest, **settings)

    def count_rows(
        self,
        filter: pc.Expression | None = None,  # noqa: A002 - as in Arrow's datasets
        **settings: Any,
    ) -> int:
        """Return how many events satisfy an expression; without one no segment is read."""
        expression = self._both(filter)
        if expression is None:
            return self._read.count()
        reader, rest = self._open((), expression)
        if rest is None:
            return sum(batch.num_rows for batch in reader)
        return int(dataset.Scanner.from_batches(reader, filter=rest, **settings).count_rows())

    def _both(self, expression: pc.Expression | None) -> pc.Expression | None:
        if self._expression is None or expression is None:
            return self._expression if expression is None else expression
        return self._expression & expression

    def _needed(self, columns: Columns) -> tuple[str, ...]:
        if not isinstance(columns, Mapping):
            return tuple(self.schema.names if columns is None else columns)
        found = (columns_needed(value, self.schema) for value in columns.values())
        return tuple(dict.fromkeys(name for names in found for name in names))

    def _open(
        self, columns: Sequence[str], expression: pc.Expression | None
    ) -> tuple[pa.RecordBatchReader, pc.Expression | None]:
        """Read columns; also return the expression if it is still to be applied."""
        if expression is None:
            return open_reader(*self._read.plan_part(columns)), None
        needed = columns_needed(expression, self.schema)
        if {*needed} <= {*self._read.reading.columns}:
            return open_reader(*self._read.plan_part(columns, expression)), None
        return open_reader(*self._read.plan_part([*columns, *needed])), expression
