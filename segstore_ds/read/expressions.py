"""Filters as expressions of Arrow: evaluated on decoded batches, pruned by Arrow's own rules.

An expression means what it means in pyarrow: only NaN's place differs from other filters, since
Arrow compares it with nothing. Rows for which it is null are dropped. pyarrow does not tell what an
expression consists of. So its columns are those without which it can't be bound to the schema, and
what statistics exclude is asked from Arrow's datasets: a fragment is left out there if the
expression can't be true under what is guaranteed of the fragment's rows.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib import import_module

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from segstore_ds.errors import InvalidInputError
from segstore_ds.format.statistics import ColumnStats, Stats, bound_type, in_type
from segstore_ds.read.filter_literals import typed_array

# How pyarrow shows a call without a column in a serialized expression: a constant that it computes.
_COMPUTED = re.compile(r"call: '\w+'\n(?:(?:literal|options): '\d+'\n)*end: ")


@dataclass(frozen=True, slots=True, eq=False)
class Expression:
    """An expression that was bound to a stream's schema once; picklable.

    Attributes:
        expression: The expression.
        schema: The columns that it needs, in normal form.
        pruned_by_bounds: False if a constant of it may be NaN. Arrow's pruning takes every column
            with an upper bound to be below NaN, so that its negation would lose rows.
    """

    expression: pc.Expression = field(repr=False)
    schema: pa.Schema
    pruned_by_bounds: bool

    def may_match(self, stats: Stats, rows: int) -> bool:
        """Return False only if no row satisfies the expression."""
        known = [
            guarantee
            for column in self.schema
            if column.name in stats
            for guarantee in _guarantees(
                column, stats[column.name], rows, bounded=self.pruned_by_bounds
            )
        ]
        if not known:
            return True
        guarantee = known[0]
        for other in known[1:]:
            guarantee &= other
        # Loaded when it is used: it loads pandas if that is there.
        datasets = import_module("pyarrow.dataset")
        form = datasets.ParquetFileFormat()
        fragment = form.make_fragment(_NO_FILE, partition_expression=guarantee)
        fragments = datasets.FileSystemDataset([fragment], self.schema, form)
        try:
            return any(True for _ in fragments.get_fragments(filter=self.expression))
        except pa.ArrowException:
            # Where it computes with constants, an expression may fail as it would on rows.
            return True

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that satisfy the expression, in order; `batch` itself if all do."""
        try:
            kept = _filter(self.expression, batch)
        except pa.ArrowException as error:
            raise _not_valid(self.expression, error) from error
        if kept.num_rows == batch.num_rows:
            return batch
        batches = kept.combine_chunks().to_batches()
        return batches[0] if batches else batch.slice(0, 0)


_NO_FILE = pa.py_buffer(b"")


def bind(expression: pc.Expression, schema: pa.Schema) -> Expression:
    """Check an expression against a schema, and find out which columns it needs."""
    try:
        _, (serialized,) = expression.__reduce__()
    except pa.ArrowNotImplementedError as error:  # it serializes names alone
        raise InvalidInputError(
            "an expression names a column by its place",
            remedy="name it: pyarrow.compute.field('user')",
            filters=_text(expression),
        ) from error
    try:
        _filter(expression, no_rows(schema))
    except pa.ArrowException as error:
        raise _not_valid(expression, error) from error
    needed = pa.schema(_needed(expression, list(schema), []))
    return Expression(expression, needed, not _may_hold_nan(serialized))


def _may_hold_nan(serialized: pa.Buffer) -> bool:
    """Tell whether a constant of an expression is NaN, or is computed and so may be NaN."""
    with pa.ipc.open_file(serialized) as file:
        constants = file.get_batch(0)
    nan = any(
        t.is_floating(each.type) and pc.any(pc.is_nan(each)).as_py() for each in constants.columns
    )
    shown = constants.schema.to_string(truncate_metadata=False)
    return nan or _COMPUTED.search(shown) is not None


def _text(expression: pc.Expression) -> str:
    try:
        return str(expression)[:200]
    except UnicodeDecodeError:  # pyarrow cuts a long text within a character
        return "(not printable)"


def _needed(
    expression: pc.Expression, fields: Sequence[pa.Field], rest: Sequence[pa.Field]
) -> list[pa.Field]:
    """Return those of `fields` that an expression needs beside `rest`, by halving them."""
    if not fields or _binds(expression, rest):
        return []
    if len(fields) == 1:
        return [*fields]
    half = len(fields) // 2
    left = _needed(expression, fields[:half], [*fields[half:], *rest])
    return left + _needed(expression, fields[half:], [*left, *rest])


def _binds(expression: pc.Expression, fields: Sequence[pa.Field]) -> bool:
    try:
        _filter(expression, no_rows(fields))
    except pa.ArrowException:
        return False
    return True


def no_rows(fields: Iterable[pa.Field]) -> pa.RecordBatch:
    """Return a batch of columns without a row."""
    schema = pa.schema(list(fields))
    return pa.record_batch([pa.array([], each.type) for each in schema], schema=schema)


def _filter(expression: pc.Expression, batch: pa.RecordBatch) -> pa.Table:
    """Return the rows of a batch that satisfy an expression, in order: by one thread."""
    acero = import_module("pyarrow.acero")
    source = acero.TableSourceNodeOptions(pa.Table.from_batches([batch]))
    steps = [
        acero.Declaration("table_source", source),
        acero.Declaration("filter", acero.FilterNodeOptions(expression)),
    ]
    return acero.Declaration.from_sequence(steps).to_table(use_threads=False)


def _guarantees(
    column: pa.Field, stats: ColumnStats, rows: int, *, bounded: bool
) -> list[pc.Expression]:
    """Return what statistics say of a column's rows, in the forms that Arrow simplifies by."""
    values = pc.field(column.name)
    if stats.nulls >= rows:
        return [values.is_null()]
    stats, kind = in_type(stats, column.type), bound_type(column.type) if bounded else None
    found = []
    if stats.min is not None and type(stats.min) is kind:
        found.append(values >= typed_array([stats.min], column.type)[0])
    if stats.max is not None and type(stats.max) is kind:
        found.append(values <= typed_array([stats.max], column.type)[0])
    if stats.nulls:
        return [each | values.is_null() for each in found]
    # Without bounds a column of floats may hold NaN, which `is_null` can be asked to count.
    return found or ([] if t.is_floating(column.type) else [values.is_valid()])


def _not_valid(expression: pc.Expression, error: pa.ArrowException) -> InvalidInputError:
    return InvalidInputError(
        "an expression does not fit the stream",
        remedy="use columns of the stream and literals of their types",
        filters=_text(expression),
        reason=str(error).partition("\n")[0],
    )
