"""Converts lines of JSON to Arrow data, and infers column types for JSON and CSV.

Each line is one object; errors name its number. A column gets a type that fits all its rows.
Nothing is rounded: integers beyond 64 bits become decimals, or text if the column has fractions.
"""

import codecs
import decimal
import io
import json
import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, BinaryIO, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as pa_json
from pyarrow import types as t

from segstore_ds.cli.show import from_json

_LONG = re.compile(rb"(?<![\d.])\d{16,}(?![\d.eE])")
_EXACT = 1 << 53  # a double rounds whole numbers from here on
_NESTED = 5000  # Arrow's parser overflows the stack at some 15,000 levels
_NO_JSON = (  # Arrow's are among them
    *(ArithmeticError, AttributeError, KeyError, NotImplementedError, RecursionError),
    *(TypeError, ValueError),
)


def open_json(source: BinaryIO, schema: Any, *, whole: bool, block_bytes: int) -> Any:
    """Open JSON lines with the types of a schema; `whole` reads twice, to infer other types."""
    schema = pa.schema([]) if schema is None else schema
    if whole:
        typed = pa.schema([field for field in schema if field.type != pa.null()])
        schema = _join_types(source, typed, block_bytes)
        source.seek(0)
    blocks = _whole_lines(source, block_bytes)
    begun = next(blocks, None if len(schema) else (1, b""))
    if begun is None:  # no events
        return schema.empty_table().to_reader()
    first = _parse_lines(*begun, schema)

    def batches() -> Iterator[Any]:
        for table in chain([first], (_parse_lines(*block, first.schema) for block in blocks)):
            if table.schema != first.schema:
                late = {*table.column_names} - {*first.column_names}
                raise pa.ArrowInvalid(f"the first rows lack columns of later ones: {sorted(late)}")
            yield from table.to_batches()

    return pa.RecordBatchReader.from_batches(first.schema, batches())


def _join_types(source: BinaryIO, schema: Any, block_bytes: int) -> Any:
    """Return a schema with further columns of any line added, of types that fit all lines."""
    kinds = dict[str, Any]()
    for line, lines in _whole_lines(source, block_bytes):
        table = _parse_lines(line, lines, schema)
        texts = [f.with_type(untimed(f.type)) for f in table.schema if f.name not in schema.names]
        if pa.schema(texts) != pa.schema(list(table.schema)[len(schema) :]):
            table = _parse_lines(line, lines, pa.schema([*schema, *texts]))
        for field in texts:
            found = timed(table[field.name].combine_chunks())
            try:
                kinds[field.name] = joined(kinds.get(field.name, pa.null()), found)
            except ValueError as error:
                where = f"field {field.name!r}, from line {line} on"
                raise pa.ArrowInvalid(f"{where}: {error}") from error
    return pa.schema([*schema, *kinds.items()])


def _whole_lines(source: BinaryIO, block_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file, some at a time, with the number of the first of them."""
    rest, line = b"", 1
    while data := source.read(block_bytes):
        lines, end, rest = (rest + data).rpartition(b"\n")
        if lines.strip():
            yield line, lines
        line += lines.count(b"\n") + len(end)
    if rest.strip():
        yield line, rest


def _parse_lines(first: int, lines: bytes, schema: Any) -> Any:
    """Return lines of JSON as a table; those that Arrow's parser refuses are parsed here."""
    lines = lines.removeprefix(codecs.BOM_UTF8)
    begun = lines.startswith(b"{") + lines.count(b"\n{")
    # Arrow's parser does not decode base64 or check UTF-8, makes 1e400 infinite, drops zones, takes
    # numbers for dates and times, and crashes if null comes first and in deep nesting.
    plain = begun == lines.count(b"\n") + (not lines.endswith(b"\n"))
    if plain and not _is_deep(lines) and not any(_has_bytes(f.type) for f in schema):
        with suppress(pa.ArrowException, RecursionError, UnicodeError):
            lines.decode()
            texts = pa.schema([field.with_type(untimed(field.type)) for field in schema])
            read, parse = pa_json.ReadOptions(), pa_json.ParseOptions(explicit_schema=texts)
            read.block_size = len(lines) + 1
            found = pa_json.read_json(io.BytesIO(lines), read, parse)
            largest = max(
                (_largest(column.combine_chunks()) for column in found.columns), default=0
            )
            exact = largest < _EXACT or (largest < math.inf and not _LONG.search(lines))
            if len(found) == begun and exact:
                kinds = {f.name: f.type for f in schema if f.type != untimed(f.type)}
                return found.cast(
                    pa.schema(
                        [f.with_type(_retimed(f.type, kinds.get(f.name))) for f in found.schema]
                    )
                )
    try:
        rows = _objects(first, lines)
        kinds = {field.name: field.type for field in schema}
        names = [*dict.fromkeys(chain(kinds, *rows.values()))]
        columns = [
            column_of(((line, row.get(name)) for line, row in rows.items()), name, kinds.get(name))
            for name in names
        ]
    except _NO_JSON as error:
        raise pa.ArrowInvalid(f"not lines of JSON: {error}") from error
    return pa.table(columns, names=names)


def _is_deep(lines: bytes) -> bool:
    """Tell whether a line may be nested more deeply than Arrow's parser can take."""
    start = 0
    while len(lines) - start > _NESTED:
        end = lines.rfind(b"\n", start, start + _NESTED)  # after lines that are too short for it
        if end < 0:
            end = lines.find(b"\n", start)
            end = len(lines) if end < 0 else end
            if lines.count(b"{", start, end) + lines.count(b"[", start, end) > _NESTED:
                return True
        start = end + 1
    return False


def _objects(first: int, lines: bytes) -> dict[int, dict[str, Any]]:
    """Return the objects in lines of JSON by their lines' numbers."""
    rows = {}
    for line, text in enumerate(lines.split(b"\n"), first):
        if text.strip():
            try:
                row = json.loads(text, object_pairs_hook=_object, parse_float=_Number)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"line {line}: {error}") from error
            if not isinstance(row, dict):
                raise ValueError(f"line {line}: each line has to be an object")
            rows[line] = row
    if not rows:
        raise ValueError("each line has to be an object")
    return rows


class _Number(float):
    """A double that knows all digits of its text, as a decimal needs them."""

    _text: str

    def __new__(cls, text: str) -> Self:
        """Raise ValueError for a number that a double makes infinite."""
        made = super().__new__(cls, text)
        made._text = text
        if math.isinf(made):
            raise ValueError(f"{text} is beyond the range of a double")
        return made

    def __str__(self) -> str:
        return self._text


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a name occurs twice in an object")
    return made


def column_of(cells: Iterable[tuple[int, Any]], name: str, kind: Any) -> Any:
    """Return values, given with their lines' numbers, as an array; infers a missing type."""
    cells = list(cells)
    try:
        return _array_of([value for _, value in cells], kind)
    except _NO_JSON:
        if kind is None and _kinds(cells) == {"float", "int"}:
            return column_of(cells, name, pa.float64())
    # The first line with which the values so far don't make an array.
    last = bisect_left(cells, True, key=lambda cell: _error_of(cells, cell[0], kind) is not None)
    line, kinds = cells[last][0], sorted(_kinds(cells[: last + 1]))
    mixed = kind is None and len(kinds) > 1
    error = f"both {' and '.join(kinds)}" if mixed else _error_of(cells, line, kind)
    raise pa.ArrowInvalid(f"line {line}, field {name!r}: {error}")


def _kinds(cells: list[tuple[int, Any]]) -> set[str]:
    """Return the names of the types of values that are not null."""
    found = {float if isinstance(value, float) else type(value) for _, value in cells}
    return {kind.__name__ for kind in found - {type(None)}}


def _error_of(cells: list[tuple[int, Any]], last: int, kind: Any) -> Any:
    try:
        _array_of([value for line, value in cells if line <= last], kind)
    except _NO_JSON as error:
        return error
    return None


def _array_of(values: list[Any], kind: Any) -> pa.Array:
    if kind is not None:
        return pa.array([from_json(value, kind) for value in values], kind)
    made = pa.array([*map(_whole, values)])
    if t.is_decimal256(made.type):
        raise ValueError("a whole number has more than 38 digits")
    return made


def _whole(value: Any) -> Any:
    large = type(value) is int and not -(1 << 63) <= value < 1 << 63
    return decimal.Decimal(value) if large else value


def _has_bytes(kind: Any) -> bool:
    inner = (kind.field(place).type for place in range(kind.num_fields))
    return bool(kind == pa.binary() or any(map(_has_bytes, inner)))


def _largest(column: Any) -> float:
    """Return the absolute value of the largest double in a column; it may be a rounded integer.

    A float of 32 bits that may be one counts as infinite.
    """
    if t.is_struct(column.type):
        return max(map(_largest, column.flatten()), default=0)
    if t.is_list(column.type):
        return _largest(column.flatten())
    if not t.is_floating(column.type):
        return 0
    most = pc.max(pc.abs(column)).as_py() or 0
    return math.inf if t.is_float32(column.type) and most >= 1 << 24 else most


_WHOLE = r"^[+-]?[0-9]+$"
_INFINITE = r"(?i)^[+-]?inf(inity)?$"
_TIME = r"^([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?$"
_LARGE = pa.decimal128(38, 0)
_TIMES = tuple(pa.timestamp(unit, zone) for unit in ("us", "ns") for zone in (None, "UTC"))
_OF_CSV = (
    *(pa.int64(), pa.bool_(), pa.date32(), pa.time64("ns"), *_TIMES),
    *(_LARGE, pa.float64(), pa.string()),
)


def types_of_texts(batches: Iterable[pa.RecordBatch], names: list[str]) -> pa.Schema:
    """Return the first type that fits all texts of each column; null for a column of nulls."""
    left = [_OF_CSV for _ in names]
    seen = [False for _ in names]
    for batch in batches:
        for place, column in enumerate(batch.columns):
            texts = pc.utf8_trim_whitespace(column.drop_null())
            seen[place] |= len(texts) > 0
            left[place] = tuple([kind for kind in left[place] if _fit(texts, kind)])
    kinds = [
        kinds[0] if any_text else pa.null() for kinds, any_text in zip(left, seen, strict=True)
    ]
    return pa.schema([*zip(names, kinds, strict=True)])


def _fit(texts: pa.Array, kind: pa.DataType) -> bool:
    if t.is_string(kind):
        return True
    if t.is_time(kind):
        return bool(pc.all(pc.match_substring_regex(texts, _TIME)).as_py())
    whole = t.is_integer(kind) or t.is_decimal(kind)
    if whole and not pc.all(pc.match_substring_regex(texts, _WHOLE)).as_py():
        return False  # Arrow takes 0x10 and 1e3, too
    try:
        floats_of(texts, kind) if t.is_floating(kind) else texts.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def floats_of(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return texts as floats; ArrowInvalid if a whole number is rounded or any made infinite."""
    found = texts.cast(kind)
    whole = pc.match_substring_regex(texts, _WHOLE)
    given, made = texts.filter(whole), found.filter(whole)
    exact = pc.or_(  # an export writes the fewest digits that give a float again
        pc.equal(made.cast(_LARGE), given.cast(_LARGE)), pc.equal(made.cast(pa.string()), given)
    )
    infinite = pc.match_substring_regex(texts.filter(pc.is_inf(found)), _INFINITE)
    if not all(pc.all(each, min_count=0).as_py() for each in (exact, infinite)):
        raise pa.ArrowInvalid(f"not exact as {kind}")
    return found


def timed(column: pa.Array) -> pa.DataType:
    """Return a column's type, with a type of times for fields whose texts are all times."""
    kind = column.type
    if t.is_struct(kind):
        inner = [timed(column.field(place)) for place in range(kind.num_fields)]
        return pa.struct([*zip([field.name for field in kind], inner, strict=True)])
    if t.is_list(kind):
        return pa.list_(timed(column.flatten()))
    if not t.is_string(kind) or column.null_count == len(column):
        return kind
    texts = column.drop_null()
    return next((time for time in _TIMES if _fit(texts, time)), kind)


def untimed(kind: pa.DataType) -> pa.DataType:
    """Return a type with strings in place of timestamps, dates and times of day."""
    if t.is_struct(kind):
        return pa.struct([(field.name, untimed(field.type)) for field in kind])
    if t.is_list(kind):
        return pa.list_(untimed(kind.value_type))
    return pa.string() if t.is_temporal(kind) and not t.is_duration(kind) else kind


def _retimed(found: pa.DataType, kind: pa.DataType | None) -> pa.DataType:
    """Return a type of `untimed` texts with the times that another type has, and all its fields."""
    if kind is not None and t.is_struct(found) and t.is_struct(kind):
        kinds = {field.name: field.type for field in kind}
        inner = [(field.name, _retimed(field.type, kinds.get(field.name))) for field in found]
        return pa.struct(inner)
    if kind is not None and t.is_list(found) and t.is_list(kind):
        return pa.list_(_retimed(found.value_type, kind.value_type))
    return kind if kind is not None and t.is_string(found) else found


def joined(kind: pa.DataType, other: pa.DataType) -> pa.DataType:  # noqa: PLR0911 - a line per pair
    """Return a type for values of two types; ValueError if there is none."""
    if kind.equals(other) or t.is_null(other):
        return kind
    if t.is_null(kind):
        return other
    if t.is_struct(kind) and t.is_struct(other):
        fields = {field.name: field.type for field in kind}
        for field in other:
            fields[field.name] = joined(fields.get(field.name, pa.null()), field.type)
        return pa.struct([*fields.items()])
    if t.is_list(kind) and t.is_list(other):
        return pa.list_(joined(kind.value_type, other.value_type))
    both = {kind, other}
    if both <= {*_TIMES, pa.string()}:
        zones = {getattr(each, "tz", "") for each in both}
        return pa.timestamp("ns", *zones) if len(zones) == 1 else pa.string()
    if both == {pa.int64(), pa.float64()}:
        return pa.float64()
    if all(t.is_integer(each) or t.is_decimal(each) for each in both):
        return _LARGE
    raise ValueError(f"{other} and before {kind}")
