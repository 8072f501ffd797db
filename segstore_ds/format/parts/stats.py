"""Statistics of many segments as columns: bounds and null counts, a struct per column.

A column is named by its label, `kind:name`, as in fingerprints of batches. So bounds of one label
can be compared, whatever the epochs of their segments. A segment without bounds of a column has a
null there: nothing is known of it.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types as t

from segstore_ds.errors import CorruptionError
from segstore_ds.format import compute as pc
from segstore_ds.format.batch_fingerprint import label_of
from segstore_ds.format.parts.rows import Ints, decode_rows, encode_rows
from segstore_ds.format.record import build_json, is_text, parse_json
from segstore_ds.format.statistics import (
    EXACT_FLOAT,
    Bound,
    ColumnStats,
    bound_type,
    encode_bound,
    from_json,
)

_STORED: Mapping[str, pa.DataType] = {  # On disk, by the kind of a label.
    **dict.fromkeys(("int", "date", "time", "duration", "timestamp", "timestamp_ntz"), pa.int64()),
    **dict.fromkeys(("duration_ns", "timestamp_ns", "timestamp_ntz_ns"), pa.int64()),
    "float": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "bool": pa.bool_(),
    "decimal": pa.string(),
}
# What makes JSON of a stored bound, where it is not its own JSON.
_ENCODE: Mapping[str, Callable[[Any], Any]] = {
    "float": encode_bound,
    "binary": encode_bound,
    "decimal": lambda text: text and {"d": text},
}
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1

Texts = Sequence[str | None]
Schemas = Callable[[int], pa.Schema]


def labels_of(field: pa.Field) -> list[str]:
    """Return the labels that a column has in any epoch: a float may have been an integer.

    >>> labels_of(pa.field("x", pa.float64()))
    ['float:x', 'int:x']
    """
    label = label_of(field)
    both = [label, f"int:{field.name}" if t.is_floating(field.type) else None]
    return [each for each in both if each is not None]


def lacking_epochs(schemas: Mapping[int, pa.Schema], name: str) -> list[int]:
    """Return the epochs whose schema lacks a column: there its values are null."""
    return [number for number, schema in schemas.items() if schema.get_field_index(name) < 0]


@dataclass(frozen=True, slots=True, eq=False)
class StatsColumns:
    """Statistics of segments in offset order.

    Attributes:
        rows: The number of segments.
        columns: For each label a column of structs `min`, `max`, `nulls`.
    """

    rows: int
    columns: Mapping[str, pa.StructArray]

    def slice(self, start: int, end: int) -> "StatsColumns":
        """Return the segments ``[start, end)``."""
        columns = {
            label: column.slice(start, end - start) for label, column in self.columns.items()
        }
        return StatsColumns(end - start, columns)

    def column(self, field: pa.Field) -> pa.StructArray | None:
        """Return the statistics of a column as of its type now, whatever it was in older epochs."""
        found = [self.columns[label] for label in labels_of(field) if label in self.columns]
        if f"int:{field.name}" not in self.columns or not t.is_floating(field.type):
            return found[0] if found else None
        sides = zip(*map(_as_floats, found), strict=True)
        return pa.StructArray.from_arrays(
            [pc.coalesce(*side) for side in sides],
            fields=list(_struct(pa.float64())),
            mask=reduce(pc.and_, (column.is_null() for column in found)),
        )

    def within(self, most_bytes: int) -> "StatsColumns":
        """Return the columns that most segments have, as many as fit in memory of a size."""
        kept, size = dict[str, pa.StructArray](), 0
        for label in sorted(self.columns, key=lambda label: self.columns[label].null_count):
            size += self.columns[label].nbytes
            if size <= most_bytes:
                kept[label] = self.columns[label]
        return StatsColumns(self.rows, dict(sorted(kept.items())))

    def read(self, rows: Ints, labels: Iterable[str]) -> list[dict[str, ColumnStats]]:
        """Return the statistics of some segments by the names of their columns."""
        found: list[dict[str, ColumnStats]] = [{} for _ in rows]
        for label in labels:
            column = self.columns.get(label)
            if column is None:
                continue
            name = _name_of(label)
            decimal = label.startswith("decimal:")
            for known, cell in zip(found, column.take(pa.array(rows)).to_pylist(), strict=True):
                if cell is not None:
                    low, high = cell["min"], cell["max"]
                    if decimal:
                        low, high = (
                            None if text is None else Decimal(text) for text in (low, high)
                        )
                    known[name] = ColumnStats(low, high, cell["nulls"])
        return found

    def texts(self) -> list[str | None]:
        """Return the statistics of each segment as its entry has them."""
        found: list[dict[str, Any]] = [{} for _ in range(self.rows)]
        for label, column in self.columns.items():
            kind, _, name = label.partition(":")
            lows, highs, nulls = (side.to_pylist() for side in column.flatten())
            if encode := _ENCODE.get(kind):
                lows, highs = map(encode, lows), map(encode, highs)
            for own, low, high, count in zip(found, lows, highs, nulls, strict=True):
                if count is not None:
                    own[name] = [low, high, count]
        return [build_json(own).decode() if own else None for own in found]

    def joined(
        self, field: pa.Field, counts: Ints, absent: npt.NDArray[np.bool_]
    ) -> ColumnStats | None:
        """Return the statistics of a column of numbers over all segments; None if unknown.

        `counts` are the segments' events; `absent` segments lack the column: its values are null.
        """
        column = self.column(field)
        if column is None:
            return ColumnStats(None, None, int(counts.sum())) if absent.all() else None
        low, high, nulls = column.flatten()
        known = np.asarray(column.is_valid())
        empty = np.where(known, np.asarray(nulls.fill_null(0)), counts)
        valued = empty < counts
        bounded = np.asarray(low.is_valid()) & np.asarray(high.is_valid())
        if not (known | absent).all() or not (bounded | ~valued).all():
            return None
        rows = pa.array(valued & ~absent)
        bounds = pc.min(low.filter(rows)).as_py(), pc.max(high.filter(rows)).as_py()
        return ColumnStats(*bounds, int(empty.sum()))


def from_texts(texts: Texts, epochs: Sequence[int], schema_of: Schemas) -> StatsColumns:
    """Return the statistics of segments of some epochs; those that can't be read are unknown."""
    values, rows = _parse(texts), np.asarray(epochs, np.int64)
    found: dict[str, list[Any]] = {}
    for epoch in sorted(set(epochs)):
        own = np.flatnonzero(rows == epoch).tolist()
        objects = [value if isinstance(value := values[row], dict) else {} for row in own]
        if not any(objects):
            continue
        schema = schema_of(epoch)
        for name in sorted({name for value in objects for name in value}):
            place = schema.get_field_index(name)
            label = label_of(schema.field(place)) if place >= 0 else None
            if label is None:
                continue
            cells = found.setdefault(label, [None] * len(texts))
            for row, cell in zip(own, _cells(objects, name, schema), strict=True):
                cells[row] = cell
    columns = {label: _column(label, found[label]) for label in sorted(found)}
    return StatsColumns(len(texts), columns)


def _cells(objects: Sequence[Any], name: str, schema: pa.Schema) -> list[Any]:
    """Return what some segments say of a column, as `min`, `max` and `nulls`; None if unknown."""
    cells = [value.get(name) for value in objects]
    if _are_plain(cells, bound_type(schema.field(name).type)):
        return cells
    return [None if cell is None else _checked(cell, name, schema) for cell in cells]


def _are_plain(cells: Sequence[Any], kind: type | None) -> bool:
    """Tell whether cells are sound and need no conversion, as nearly all are, by loops in C."""
    if kind not in (int, float, str) or not {*map(type, cells)} <= {list, type(None)}:
        return False
    some = [cell for cell in cells if cell is not None]
    if not some or {*map(len, some)} != {3}:
        return not some
    lows, highs, nulls = zip(*some, strict=True)
    bounds = [bound for bound in (*lows, *highs) if bound is not None]
    if not {*map(type, bounds)} <= {kind} or {*map(type, nulls)} != {int}:
        return False
    limited = kind is int and bounds and not _LEAST <= min(bounds) <= max(bounds) <= _MOST
    unfit = limited or (kind is str and not is_text("".join(bounds)))
    return not unfit and 0 <= min(nulls) <= max(nulls) <= _MOST


def _checked(cell: Any, name: str, schema: pa.Schema) -> Any:
    try:
        stats = from_json({name: cell}, where="", schema=schema)[name]
    except CorruptionError:
        return None
    return _stored(stats.min), _stored(stats.max), min(stats.nulls, _MOST)


def _parse(texts: Texts) -> list[Any]:
    """Parse statistics all at once, which is several times faster; one by one if one is damaged."""
    try:
        joined = ",".join("null" if text is None else text for text in texts)
        values = parse_json(f"[{joined}]", where="")
        if len(values) == len(texts):
            return list(values)
    except CorruptionError:
        pass
    return [_parse_one(text) for text in texts]


def _parse_one(text: str | None) -> Any:
    try:
        return text and parse_json(text, where="")
    except CorruptionError:
        return None


def _column(label: str, cells: Sequence[Any]) -> pa.StructArray:
    stored = _STORED[label.partition(":")[0]]
    lows, highs, nulls = zip(*[cell or (None, None, None) for cell in cells], strict=True)
    return pa.StructArray.from_arrays(
        [pa.array(lows, stored), pa.array(highs, stored), pa.array(nulls, pa.int64())],
        fields=list(_struct(stored)),
        mask=pa.array([cell is None for cell in cells]),
    )


def _struct(stored: pa.DataType) -> pa.StructType:
    return pa.struct([("min", stored), ("max", stored), ("nulls", pa.int64())])


def _stored(bound: Bound | None) -> Any:
    """Return a bound as its column holds it; None, that is unknown, if that can't hold it."""
    if isinstance(bound, Decimal):
        return str(bound)
    if type(bound) is int and not _LEAST <= bound <= _MOST:
        return None
    return bound


def _name_of(label: str) -> str:
    return label.partition(":")[2]


def _as_floats(column: pa.StructArray) -> list[pa.Array]:
    """Return `min`, `max` and `nulls`, bounds of integers as floats; unknown where not exact."""
    *bounds, nulls = column.flatten()
    for side, bound in enumerate(bounds):
        if t.is_integer(bound.type):
            least, most = (pc.less_equal(-EXACT_FLOAT, bound), pc.less_equal(bound, EXACT_FLOAT))
            exact = pc.if_else(pc.and_(least, most), bound, pa.scalar(None, bound.type))
            bounds[side] = exact.cast(pa.float64())
    return [*bounds, nulls]


def concat(parts: Sequence[StatsColumns]) -> StatsColumns:
    """Join the statistics of several parts in order."""
    columns = {}
    for label in sorted({label for part in parts for label in part.columns}):
        kind = _struct(_STORED[label.partition(":")[0]])
        pieces = [
            part.columns[label] if label in part.columns else pa.nulls(part.rows, kind)
            for part in parts
        ]
        columns[label] = pa.concat_arrays(pieces)
    return StatsColumns(sum(part.rows for part in parts), columns)


def encode_stats(stats: StatsColumns) -> bytes:
    """Return the body of the statistics of a part."""
    return encode_rows(pa.RecordBatch.from_arrays([*stats.columns.values()], [*stats.columns]))


def decode_stats(body: bytes, *, rows: int, where: str) -> StatsColumns:
    """Decode the statistics of `rows` segments; columns of unknown kinds are passed over."""
    batch = decode_rows(body, None, where=where)
    columns = {}
    for label, column in zip(batch.schema.names, batch.columns, strict=True):
        stored = _STORED.get(label.partition(":")[0])
        if stored is not None:
            if not column.type.equals(_struct(stored)) or len(column) != rows:
                raise CorruptionError("statistics are of other segments", where=where, column=label)
            _check(label, column, where)
            columns[label] = column
    return StatsColumns(rows, columns)


def _check(label: str, column: pa.StructArray, where: str) -> None:
    """Raise CorruptionError for what no writer stores: NaN, no number, or no number of nulls."""
    low, high, nulls = column.flatten()
    wrong = nulls.null_count > column.null_count or (np.asarray(nulls.fill_null(0)) < 0).any()
    if label.startswith("float:"):
        wrong = wrong or any(
            bool(np.isnan(np.asarray(side.fill_null(0.0), np.float64)).any())
            for side in (low, high)
        )
    if label.startswith("decimal:"):
        texts = [text for side in (low, high) for text in side.to_pylist() if text is not None]
        wrong = wrong or not all(map(_is_decimal, texts))
    if wrong:
        raise CorruptionError("statistics cannot be read", where=where, column=label)


def _is_decimal(text: str) -> bool:
    try:
        return math.isfinite(Decimal(text))
    except ArithmeticError:
        return False
