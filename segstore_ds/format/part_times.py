"""Bounds of the time column for whole status parts, beside their rows in the root (FORMAT.md 3.1).

They lie in a field of their own, since rows are closed: a writer that does not know the field
carries it through, and says nothing of the parts that it makes. Parts never change, so what is said
of one stays true.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from segstore_ds.errors import CorruptionError
from segstore_ds.format.batch_fingerprint import kind_of
from segstore_ds.format.fields import build_json
from segstore_ds.format.root import PartRef, PartTimes, Root
from segstore_ds.format.statistics import ColumnStats, decode_bound, encode_bound
from segstore_ds.format.time_column import PROPERTY

_TYPES = {"int": int, "date": int, "timestamp": int, "timestamp_ntz": int, "float": float}


def label_of(field: pa.Field) -> str:
    """Return the kind and the name of a time column.

    >>> label_of(pa.field("ts", pa.timestamp("us", "UTC")))
    'timestamp:ts'
    """
    return f"{kind_of(field.type)}:{field.name}"


def times_of(field: pa.Field, found: Iterable[ColumnStats | None]) -> PartTimes:
    """Return the times of a part with segments of these bounds: None if unknown. Pure."""
    label = label_of(field)
    joined = join_times(
        [PartTimes(label, None if each is None else (each.min, each.max)) for each in found]
    )
    return joined or PartTimes(label, (None, None))


def join_times(found: Sequence[PartTimes | None]) -> PartTimes | None:
    """Return what is known of several parts together; None where one was not looked at. Pure."""
    known = [times for times in found if times is not None]
    if len(known) < len(found) or len({times.column for times in known}) != 1:
        return None
    bounds = [times.bounds for times in known if times.bounds != (None, None)]
    if None in bounds:
        return PartTimes(known[0].column, None)
    if not bounds:
        return known[0]
    lows, highs = zip(*(pair for pair in bounds if pair is not None), strict=True)
    return PartTimes(known[0].column, (min(lows), max(highs)))


def may_meet(times: PartTimes | None, label: str, window: tuple[Any, Any]) -> bool:
    """Tell whether a part may hold a time of a closed interval; None leaves an end open. Pure."""
    if times is None or times.bounds is None or times.column != label:
        return True
    (low, high), (start, end) = times.bounds, window
    return low is not None and (start is None or high >= start) and (end is None or low <= end)


def covers(times: PartTimes | None, found: PartTimes | None) -> bool:
    """Tell whether what a root says of a part holds for the times that it has. Pure."""
    if times is None or times.bounds is None or found is None or times.column != found.column:
        return True
    if found.bounds is None or found.bounds == (None, None):
        return found.bounds is not None
    (low, high), (least, most) = times.bounds, found.bounds
    return low is not None and bool(low <= least and most <= high)


def encode_times(root: Root) -> dict[str, dict[str, Any]]:
    """Return the root's field: column -> name of a part or list -> bounds, or null.

    Only those of the stream's time column: another column may be redacted.
    """
    found: dict[str, dict[str, Any]] = {}
    for ref in (*root.lists, *root.parts):
        if ref.times is not None:
            bounds = ref.times.bounds
            value = None if bounds is None else [encode_bound(bound) for bound in bounds]
            found.setdefault(ref.times.column, {})[ref.path] = value
    return {column: parts for column, parts in found.items() if _is_of(column, root)}


def attach_times(root: Root, value: Mapping[str, Any], *, where: str) -> Root:
    """Return a root whose parts know what its field says of them; the field is untrusted."""
    found: dict[str, PartTimes] = {}
    for column, parts in value.items():
        kind = _TYPES.get(column.partition(":")[0])
        if kind is None or not _is_of(column, root):
            continue
        if not isinstance(parts, dict):
            raise CorruptionError("times of parts cannot be read", where=where, column=column)
        for path, bounds in parts.items():
            found[path] = PartTimes(column, _decode(bounds, kind, where))

    def told(refs: Sequence[PartRef]) -> tuple[PartRef, ...]:
        return tuple(replace(ref, times=found.get(ref.path)) for ref in refs)

    return replace(root, lists=told(root.lists), parts=told(root.parts)) if found else root


def _is_of(label: str, root: Root) -> bool:
    return build_json(label.partition(":")[2]).decode() == root.properties.get(PROPERTY)


def _decode(value: Any, kind: type, where: str) -> tuple[Any, Any] | None:
    if value is None:
        return None
    if isinstance(value, list) and len(value) == 2:
        low, high = (decode_bound(bound, where=where) for bound in value)
        if low is None and high is None:
            return None, None
        if type(low) is type(high) is kind and not math.isnan(low) and low <= high:  # type: ignore[operator,arg-type]
            return low, high
    raise CorruptionError("times of a part cannot be read", where=where, times=value)
