"""Types for the columns of CSV and of JSON lines, which have none: those that all their rows have.

Nothing is rounded: whole numbers beyond 64 bits become decimals, or stay text beside fractions.
"""

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

_WHOLE = r"^[+-]?[0-9]+$"
_TIME = r"^([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?$"
_LARGE = pa.decimal128(38, 0)
_TIMES = tuple(pa.timestamp(unit, zone) for unit in ("us", "ns") for zone in (None, "UTC"))
_OF_CSV = (
    *(pa.int64(), pa.bool_(), pa.date32(), pa.time64("ns"), *_TIMES),
    *(_LARGE, pa.float64(), pa.string()),
)


def types_of_texts(batches: Iterable[pa.RecordBatch], names: list[str]) -> pa.Schema:
    """Return the first type of each column that all its texts have; null for a column of nulls."""
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
    whole = pc.match_substring_regex(texts, _WHOLE)
    if (t.is_integer(kind) or t.is_decimal(kind)) and not pc.all(whole).as_py():
        return False  # Arrow takes 0x10 and 1e3, too
    try:
        found = texts.cast(kind)
        if t.is_floating(kind):
            return bool(found.filter(whole).cast(_LARGE).equals(texts.filter(whole).cast(_LARGE)))
    except pa.ArrowInvalid:
        return False
    return True


def timed(column: pa.Array) -> pa.DataType:
    """Return a column's type with times for the texts in it that are all times."""
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
    """Return a type with texts for its times."""
    if t.is_struct(kind):
        return pa.struct([(field.name, untimed(field.type)) for field in kind])
    if t.is_list(kind):
        return pa.list_(untimed(kind.value_type))
    return pa.string() if t.is_timestamp(kind) else kind


def joined(kind: pa.DataType, other: pa.DataType) -> pa.DataType:  # noqa: PLR0911 - a line per pair
    """Return the type of values of two types; ValueError if there is none."""
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
