"""Expressions of Arrow as filters: Arrow itself applies them, so they mean the same as in pyarrow.

They differ from other filters only in NaN, which Arrow does not order. Rows for which an expression
is null are dropped. pyarrow shows the structure of an expression only in its serialized form: as
lines of text, beside the constants.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from segstore_ds.errors import InvalidInputError
from segstore_ds.read.filters.conditions import SWAPPED, Filters
from segstore_ds.read.filters.implied import UNKNOWN, Node, columns_of, implied_filters

_LINE = re.compile(r"(call|end|field_ref|nested_field_ref|literal|options): '(.*)'")
_OPERATORS = {
    "and_kleene": "and",
    "and": "and",
    "or_kleene": "or",
    "or": "or",
    "invert": "not",
    "equal": "==",
    "not_equal": "!=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
}


@dataclass(frozen=True, slots=True, eq=False)
class Expression:
    """An expression that was bound to a stream's schema once; picklable."""

    expression: pc.Expression = field(repr=False)
    schema: pa.Schema  # the columns that it needs, in normal form

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


def bind(expression: pc.Expression, schema: pa.Schema) -> Filters:
    """Check an expression against a schema, and return it with the conditions that it implies."""
    node, names = _understand(expression, schema)
    try:
        _filter(expression, no_rows(schema))
    except pa.ArrowException as error:
        raise _not_valid(expression, error) from error
    own = pa.schema([field for field in schema if field.name in names])
    return replace(implied_filters(node, schema), expressions=(Expression(expression, own),))


def columns_needed(expression: pc.Expression, schema: pa.Schema) -> list[str]:
    """Return the columns that an expression names, in the schema's order."""
    _, found = _understand(expression, schema)
    return [name for name in schema.names if name in found]


def _understand(expression: pc.Expression, schema: pa.Schema) -> tuple[Node, set[str]]:
    """Return an expression as a node, and the columns that it names."""
    try:
        node = _parse(expression, schema)
        return node, columns_of(node)
    except RecursionError:  # Arrow nests deeper than Python recurses
        return (UNKNOWN,), {*schema.names}


def _parse(expression: pc.Expression, schema: pa.Schema) -> Node:
    try:
        _, (serialized,) = expression.__reduce__()
    except pa.ArrowNotImplementedError as error:  # pyarrow serializes only names
        raise InvalidInputError(
            "an expression names a column by its position",
            remedy="name it: pyarrow.compute.field('user')",
            filters=_text(expression),
        ) from error
    with pa.ipc.open_file(serialized) as file:
        constants = file.get_batch(0)
    shown = constants.schema.to_string(truncate_metadata=False)
    lines = shown.partition("-- schema metadata --\n")[2].split("\n")
    found = [_LINE.fullmatch(line) for line in lines]
    if any("\n" in name for name in schema.names) or not all(found):
        return (UNKNOWN, *(("column", name) for name in schema.names))
    tokens = iter([(match[1], match[2]) for match in found if match])
    node = _read(tokens, constants, schema)
    return node or (UNKNOWN,)


def _read(
    tokens: Iterator[tuple[str, str]], constants: pa.RecordBatch, schema: pa.Schema
) -> Node | None:
    """Return the next node; None at the end of a call."""
    kind, value = next(tokens)
    match kind:
        case "field_ref":
            return ("column", value)
        case "nested_field_ref":
            path = [next(tokens)[1] for _ in range(int(value))]
            return (UNKNOWN, ("column", path[0]))
        case "literal":
            return ("value", constants.column(int(value)))
        case "options":
            return ("options", constants.column(int(value))[0])
        case "call":
            arguments = [*iter(partial(_read, tokens, constants, schema), None)]
            return _call(value, arguments, schema)
    return None


def _call(name: str, arguments: list[Node], schema: pa.Schema) -> Node:
    match name, arguments:
        case "is_in", [column, ("options", options)] if not _floats(column, schema):
            return ("in", column, ("value", options["value_set"].values), True)
        case "starts_with", [column, ("options", options)] if not options["ignore_case"].as_py():
            return ("starts with", column, ("value", pa.array([options["pattern"].as_py()])))
        case "is_null", [column, ("options", options)] if not options["nan_is_null"].as_py():
            return ("is null", column)
        case "is_valid", [column]:
            return ("not", ("is null", column))
    op = _OPERATORS.get(name, UNKNOWN)
    node = (op, *(each for each in arguments if each[0] != "options"))
    floats = [each for each in arguments if _floats(each, schema)]
    if op in SWAPPED and op not in {"==", "!="} and floats:
        return ("and", node, ("not", ("is nan", floats[0])))  # our NaN is above every number
    return node


def _floats(node: Node, schema: pa.Schema) -> bool:
    place = schema.get_field_index(node[1]) if node[0] == "column" else -1
    return place >= 0 and t.is_floating(schema.field(place).type)


def _text(expression: pc.Expression) -> str:
    try:
        return str(expression)[:200]
    except UnicodeDecodeError:  # pyarrow cuts a long text within a character
        return "(not printable)"


def no_rows(fields: Iterable[pa.Field]) -> pa.RecordBatch:
    """Return a batch of some columns without a row."""
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


def _not_valid(expression: pc.Expression, error: pa.ArrowException) -> InvalidInputError:
    return InvalidInputError(
        "an expression does not fit the stream",
        remedy="use columns of the stream and literals of their types",
        filters=_text(expression),
        reason=str(error).partition("\n")[0],
    )
