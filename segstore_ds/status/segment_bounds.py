"""The bounds of the time column in segments, from the statistics that the status has of them."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from segstore_ds.errors import CorruptionError
from segstore_ds.format.record import parse_json
from segstore_ds.format.statistics import ColumnStats, from_json

Texts = Sequence[str | None]


def segment_bounds(
    texts: Texts,
    epochs: Sequence[int],
    rows: Sequence[int],
    field: pa.Field,
    schemas: Mapping[int, pa.Schema],
    *,
    where: Callable[[int], str],
) -> list[ColumnStats | None]:
    """Return a column's bounds in segments: None if unknown, both None if there is no value.

    `texts` are the segments' statistics. `where` names the segment of a place, for errors.
    """
    found: list[ColumnStats | None] = []
    facts = zip(texts, _parse(texts, where), epochs, rows, strict=True)
    for place, (text, value, epoch, count) in enumerate(facts):
        schema = schemas[epoch]
        if field.name not in schema.names:
            found.append(ColumnStats(None, None, count))  # it appeared later: all null
        elif text is None or not _comparable(schema.field(field.name).type, field.type):
            found.append(None)
        else:
            stats = _read(value, schema, field.name, partial(where, place))
            found.append(None if stats is None else _settled(stats, count))
    return found


def _parse(texts: Texts, where: Callable[[int], str]) -> list[Any]:
    """Parse statistics all at once, which is several times faster; one by one to find an error."""
    joined = ",".join("null" if text is None else text for text in texts)
    try:
        values = parse_json(f"[{joined}]".encode("utf-8", "surrogatepass"), where="")
    except CorruptionError:
        values = []
    if len(values) == len(texts):
        return list(values)
    return [
        text and parse_json(text.encode("utf-8", "surrogatepass"), where=where(place))
        for place, text in enumerate(texts)
    ]


def _read(value: Any, schema: pa.Schema, name: str, where: Callable[[], str]) -> ColumnStats | None:
    """Return a column's statistics, checked; None if there are none of it."""
    parts: Any = value.get(name) if isinstance(value, dict) else None
    # Most are whole numbers, of which little needs checking.
    whole = isinstance(parts, list) and [type(part) for part in parts] == [int, int, int]
    if whole and parts[2] >= 0 and not t.is_floating(schema.field(name).type):
        return ColumnStats(*parts)
    return from_json(value, where=where(), schema=schema, only=(name,)).get(name)


def _settled(stats: ColumnStats, rows: int) -> ColumnStats | None:
    """Return bounds that are known, both None if there is no value; None if they are not known."""
    if stats.nulls >= rows:
        return ColumnStats(None, None, rows)
    return None if None in (stats.min, stats.max) else stats


def _comparable(stored: pa.DataType, current: pa.DataType) -> bool:
    families = (t.is_integer, t.is_floating)
    return stored.equals(current) or any(is_of(stored) and is_of(current) for is_of in families)
