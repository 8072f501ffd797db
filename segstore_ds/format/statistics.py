"""Statistics: the bounds of frames, segments and parts, and the two ways in which they are stored.

In entries, in references to parts and in footers they are JSON: for each piece an object of
`[min, max, nulls]` by label. For the segments of a part they are Arrow: for each label a column of
structs. Bounds of other columns are unknown. All bytes are untrusted.
"""

import base64
import binascii
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types as t

from segstore_ds.errors import CorruptionError
from segstore_ds.format.bounds import Bound, Bounds, Piece, as_floats, label_of, labels_of
from segstore_ds.format.parts.rows import Ints, decode_rows, encode_rows
from segstore_ds.format.record import build_json, parse_json

Flags = npt.NDArray[np.bool_]

ENTRY_STATS_BYTES = 600  # most bytes of one segment's statistics in the root
_PLAIN = frozenset((type(None), bool, int, str))  # types of bounds that are JSON values
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_ERRORS = (KeyError, TypeError, ValueError, InvalidOperation, binascii.Error)


def encode_piece(piece: Piece) -> dict[str, list[Any]]:
    """Return statistics as JSON values: ``{label: [min, max, nulls]}``."""
    return {
        label: [
            low if type(low) in _PLAIN else encode_bound(low),
            high if type(high) in _PLAIN else encode_bound(high),
            nulls,
        ]
        for label, (low, high, nulls) in piece.items()
    }


def encode_bound(bound: Bound | None) -> Any:
    """Return a bound, never NaN, as a JSON value: bytes as base64, decimals as text."""
    if isinstance(bound, bytes):
        return base64.b64encode(bound).decode("ascii")
    if isinstance(bound, Decimal) or (isinstance(bound, float) and math.isinf(bound)):
        return str(bound)
    return bound


def build_text(piece: Piece) -> str | None:
    """Return statistics as JSON text; None if there are none."""
    return build_json(encode_piece(piece)).decode() if piece else None


def entry_stats(piece: Piece) -> str | None:
    """Return a segment's statistics as JSON text, with the first columns that fit in an entry."""
    found = encode_piece(piece)
    whole = build_json(found)
    if len(whole) + len(found) < ENTRY_STATS_BYTES:  # all fit, as the loop below counts
        return whole.decode() if found else None
    kept: dict[str, Any] = {}
    used = 2
    for label, value in found.items():
        used += len(build_json({label: value}))
        if used > ENTRY_STATS_BYTES:
            break
        kept[label] = value
    return build_json(kept).decode() if kept else None


def parse_piece(text: str | None, *, where: str) -> dict[str, Bounds]:
    """Parse the statistics of an entry or of a reference to a part."""
    return {} if text is None else decode_piece(_parse(text, where=where), where=where)


def decode_piece(value: Mapping[str, Any], *, where: str) -> dict[str, Bounds]:
    """Parse what `encode_piece` returned; skip columns of unknown kinds."""
    found: dict[str, Bounds] = {}
    for label, cell in value.items():
        kind = _KINDS.get(label.partition(":")[0])
        if kind is None:
            continue
        load = kind.load
        try:
            low, high, nulls = cell
            if type(nulls) is not int or not 0 <= nulls <= _MOST:
                raise TypeError(nulls)
            low, high = low if low is None else load(low), high if high is None else load(high)
        except _ERRORS:
            raise CorruptionError(
                "stored statistics cannot be read", where=where, column=label
            ) from None
        found[label] = Bounds(low, high, nulls)
    return found


def _parse(text: str, *, where: str) -> dict[str, Any]:
    # Lone surrogates pass here: `decode_piece` refuses them with the column's name.
    value = parse_json(text.encode("utf-8", "surrogatepass"), where=where)
    if type(value) is not dict:
        raise CorruptionError("stored statistics cannot be read", where=where)
    return value


def _whole_number(value: Any) -> int:
    if type(value) is not int or not _LEAST <= value <= _MOST:
        raise TypeError(value)
    return value


def _float(value: Any) -> float:
    if type(value) is not float or not math.isfinite(value):
        return {"inf": math.inf, "-inf": -math.inf}[value]
    return value


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError(value)
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(value)
    value.encode()  # a lone surrogate is a ValueError
    return value


def _decimal(value: Any) -> Decimal:
    number = Decimal(_text(value))
    if not number.is_finite():
        raise ValueError(value)
    return number


class _Kind(NamedTuple):
    """How bounds of a kind are stored: as an Arrow type, and as JSON that `load` parses."""

    stored: pa.DataType
    load: Callable[[Any], Bound]


_NUMBER = _Kind(pa.int64(), _whole_number)
_KINDS: Mapping[str, _Kind] = {  # On disk, by the kind of a label. Never change; add a new one.
    **dict.fromkeys(("int", "date", "time", "duration", "timestamp", "timestamp_ntz"), _NUMBER),
    **dict.fromkeys(("duration_ns", "timestamp_ns", "timestamp_ntz_ns"), _NUMBER),
    "float": _Kind(pa.float64(), _float),
    "string": _Kind(pa.string(), _text),
    "binary": _Kind(pa.binary(), lambda text: base64.b64decode(_text(text), validate=True)),
    "bool": _Kind(pa.bool_(), _boolean),
    "decimal": _Kind(pa.string(), _decimal),
}


class Column(NamedTuple):
    """Bounds of one column over several pieces; unknown where `nulls` is null."""

    min: pa.Array
    max: pa.Array
    nulls: pa.Array


@dataclass(frozen=True, slots=True, eq=False)
class Stats:
    """Statistics of several pieces in order: frames of a segment, segments, or parts."""

    rows: int  # the number of pieces
    columns: Mapping[str, Column] | None  # by label, if they are stored as Arrow
    # If they are stored as JSON: the object of each piece, or None.
    values: Sequence[Mapping[str, Any] | None] = ()
    where: str | None = None  # the place of the JSON, for errors; None: unreadable is unknown

    @classmethod
    def of_texts(cls, texts: Sequence[str | None], *, where: str | None = None) -> Self:
        """Return statistics that are stored as JSON text."""
        if where is None:
            return cls(len(texts), None, _parse_all(texts))
        values = [None if text is None else _parse(text, where=where) for text in texts]
        return cls(len(texts), None, values, where)

    def slice(self, start: int, end: int) -> "Stats":
        """Return the pieces ``[start, end)``."""
        if self.columns is None:
            return Stats(end - start, None, self.values[start:end], self.where)
        columns = {
            label: Column(*(side.slice(start, end - start) for side in column))
            for label, column in self.columns.items()
        }
        return Stats(end - start, columns)

    def bounds(self, field: pa.Field, rows: Sequence[int]) -> Iterator[Bounds | None]:
        """Yield the bounds of a column in some pieces, in its current type; None if unknown."""
        sides = [self._bounds(label, rows) for label in labels_of(field)] or [[None] * len(rows)]
        for found in zip(*sides, strict=True):
            own = found[0]
            yield as_floats(found[1]) if own is None and found[1:] and found[1] else own

    def _bounds(self, label: str, rows: Sequence[int]) -> list[Bounds | None]:
        if self.columns is None:
            return [self._value(row, label) for row in rows]
        column = self.columns.get(label)
        if column is None:
            return [None] * len(rows)
        sides = [side.take(pa.array(rows, pa.int64())).to_pylist() for side in column]
        if label.startswith("decimal:"):
            sides[:2] = ([x if x is None else Decimal(x) for x in side] for side in sides[:2])
        cells = zip(*sides, strict=True)
        return [None if nulls is None else Bounds(low, high, nulls) for low, high, nulls in cells]

    def _value(self, row: int, label: str) -> Bounds | None:
        cell = (self.values[row] or {}).get(label)
        try:
            found = {} if cell is None else decode_piece({label: cell}, where=self.where or "")
            return found.get(label)
        except CorruptionError:
            if self.where is None:
                return None
            raise

    def _labels(self) -> list[str]:
        if self.columns is not None:
            return [*self.columns]
        found = {label for value in self.values for label in value or ()}
        return sorted(label for label in found if label.partition(":")[0] in _KINDS)

    def pieces(self) -> list[dict[str, Bounds]]:
        """Return the statistics of each piece."""
        if self.columns is None and self.where is not None:
            return [decode_piece(value or {}, where=self.where) for value in self.values]
        found: list[dict[str, Bounds]] = [{} for _ in range(self.rows)]
        for label in self._labels():
            for own, bounds in zip(found, self._bounds(label, range(self.rows)), strict=True):
                if bounds is not None:
                    own[label] = bounds
        return found

    def texts(self) -> list[str | None]:
        """Return the statistics of each piece as JSON text."""
        found: list[dict[str, Any]] = [{} for _ in range(self.rows)]
        for label, column in (self.as_columns().columns or {}).items():
            lows, highs, nulls = (side.to_pylist() for side in column)
            if label.startswith(("float:", "binary:")):
                lows, highs = map(encode_bound, lows), map(encode_bound, highs)
            for own, *cell in zip(found, lows, highs, nulls, strict=True):
                if cell[2] is not None:
                    own[label] = cell
        return [build_json(own).decode() if own else None for own in found]

    def as_columns(self) -> "Stats":
        """Return the same statistics as columns."""
        if self.columns is not None:
            return self
        every = range(self.rows)
        found = {label: self._bounds(label, every) for label in self._labels()}
        known = {label: bounds for label, bounds in found.items() if any(bounds)}
        return Stats(self.rows, {label: _as_column(label, known[label]) for label in known})

    def column(self, field: pa.Field) -> Column | None:
        """Return the bounds of a column in its current type, also of older epochs, or None."""
        found, own = {*labels_of(field)} & {*self._labels()}, label_of(field) or ""
        if not found:
            return None
        if self.columns is not None and found == {own}:
            return self.columns[own]
        return _as_column(own, self.bounds(field, range(self.rows)))

    def within(self, most_bytes: int) -> "Stats":
        """Return the columns that fit in `most_bytes`, preferring those that most pieces have."""
        kept, size, columns = dict[str, Column](), 0, self.as_columns().columns or {}
        for label in sorted(columns, key=lambda label: columns[label].nulls.null_count):
            size += sum(side.nbytes for side in columns[label])
            if size <= most_bytes:
                kept[label] = columns[label]
        return Stats(self.rows, dict(sorted(kept.items())))

    def numbers(
        self, field: pa.Field, counts: Ints, absent: Flags | None = None
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any], Ints, Flags]:
        """Return minimums, maximums and null counts of a column of numbers, and which are known.

        `counts` are the pieces' events. Pieces in `absent` lack the column: its values are null. If
        a piece has no values, its minimum is above its maximum.
        """
        least, most = limits_of(field.type)
        nothing = np.zeros(self.rows, np.bool_) if absent is None else absent
        column = self.column(field)
        if column is None:
            low, high = np.full(self.rows, least), np.full(self.rows, most)
            nulls, known = np.zeros(self.rows, np.int64), nothing
        else:
            low, high = np.array(column.min.fill_null(least)), np.array(column.max.fill_null(most))
            nulls = np.asarray(column.nulls.fill_null(0))
            known = np.asarray(column.min.is_valid()) & np.asarray(column.max.is_valid())
        nulls = np.where(nothing, counts, nulls)
        empty = nulls >= counts
        low[empty], high[empty] = most, least
        return low, high, nulls, known | empty

    def joined(self, field: pa.Field, counts: Ints, absent: Flags) -> Bounds | None:
        """Return the bounds of a column of numbers over all pieces; None if unknown."""
        low, high, nulls, known = self.numbers(field, counts, absent)
        if not known.all():
            return None
        valued, count = nulls < counts, int(nulls.sum())
        if not valued.any():
            return Bounds(None, None, count)
        return Bounds(low[valued].min().item(), high[valued].max().item(), count)


def limits_of(data_type: pa.DataType) -> tuple[Any, Any]:
    """Return the least and the greatest possible bound of a column of numbers."""
    return (-math.inf, math.inf) if t.is_floating(data_type) else (_LEAST, _MOST)


def absent_in(epochs: Ints, schemas: Mapping[int, pa.Schema], name: str) -> Flags:
    """Tell for each segment whether the schema of its epoch lacks a column."""
    lacking = [number for number, schema in schemas.items() if schema.get_field_index(name) < 0]
    return np.isin(epochs, lacking)


def _parse_all(texts: Sequence[str | None]) -> list[Mapping[str, Any] | None]:
    """Parse statistics all at once, which is faster; one by one if one is damaged."""
    with suppress(CorruptionError):
        joined = ",".join("null" if text is None else text for text in texts)
        values = parse_json(f"[{joined}]", where="")
        if len(values) == len(texts):
            return [value if type(value) is dict else None for value in values]
    return [None if text is None else _parse_or_none(text) for text in texts]


def _parse_or_none(text: str) -> Mapping[str, Any] | None:
    with suppress(CorruptionError):
        return _parse(text, where="")
    return None


def _as_column(label: str, bounds: Iterable[Bounds | None]) -> Column:
    stored = _KINDS[label.partition(":")[0]].stored
    lows, highs, nulls = zip(*[each or (None, None, None) for each in bounds], strict=True)
    if label.startswith("decimal:"):
        lows, highs = (tuple(map(encode_bound, side)) for side in (lows, highs))
    return Column(pa.array(lows, stored), pa.array(highs, stored), pa.array(nulls, pa.int64()))


def concat(parts: Sequence[Stats]) -> Stats:
    """Join the statistics of several parts in order."""
    given = [(part.rows, part.as_columns().columns or {}) for part in parts]
    columns = {}
    for label in sorted({label for _, each in given for label in each}):
        stored = _KINDS[label.partition(":")[0]].stored
        pieces = [
            each.get(label) or Column(*(pa.nulls(n, kind) for kind in (stored, stored, pa.int64())))
            for n, each in given
        ]
        columns[label] = Column(*map(pa.concat_arrays, zip(*pieces, strict=True)))
    return Stats(sum(part.rows for part in parts), columns)


def encode_stats(stats: Stats) -> bytes:
    """Return the body of the statistics of a part."""
    columns = stats.as_columns().columns or {}
    arrays = [
        pa.StructArray.from_arrays([*column], [*Column._fields]) for column in columns.values()
    ]
    return encode_rows(pa.RecordBatch.from_arrays(arrays, [*columns]))


def decode_stats(body: bytes, *, rows: int, where: str) -> Stats:
    """Decode the statistics of `rows` segments; skip columns of unknown kinds."""
    batch = decode_rows(body, None, where=where)
    columns = {}
    for label, column in zip(batch.schema.names, batch.columns, strict=True):
        kind = _KINDS.get(label.partition(":")[0])
        if kind is not None:
            stored = pa.struct([("min", kind.stored), ("max", kind.stored), ("nulls", pa.int64())])
            if not column.type.equals(stored) or len(column) != rows:
                fact = "statistics do not match the segments of their part"
                raise CorruptionError(fact, where=where, column=label)
            columns[label] = _checked(label, Column(*column.flatten()), where)
    return Stats(rows, columns)


def _checked(label: str, column: Column, where: str) -> Column:
    """Return a column; CorruptionError for values that no writer stores, such as NaN."""
    wrong = bool((np.asarray(column.nulls.fill_null(0)) < 0).any())
    for side in column[:2]:
        if label.startswith("float:"):
            wrong = wrong or bool(np.isnan(np.asarray(side.fill_null(0.0))).any())
        elif label.startswith("decimal:"):
            wrong = wrong or not _are_decimals(side.to_pylist())
    if wrong:
        raise CorruptionError("statistics cannot be read", where=where, column=label)
    return column


def _are_decimals(texts: Collection[str | None]) -> bool:
    try:
        return all(text is None or _decimal(text).is_finite() for text in texts)
    except (InvalidOperation, ValueError):
        return False
