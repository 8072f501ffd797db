"""Bounds of the time column for whole status parts, beside their rows in the root (FORMAT.md 3.1).

They lie in a field of their own, since rows are closed: a writer that does not know the field
carries it through, and says nothing of the parts that it makes. Parts never change, so what is said
of one stays true.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from segstore_ds.errors import CorruptionError
from segstore_ds.format.batch_fingerprint import kind_of
from segstore_ds.format.record import build_json, from_json
from segstore_ds.format.statistics import ColumnStats, decode_bound, encode_bound

_TYPES = {"int": int, "date": int, "timestamp": int, "timestamp_ntz": int, "float": float}


@dataclass(frozen=True, slots=True)
class PartTimes:
    """What is known of the times of a part's events.

    Attributes:
        column: The kind and the name of the time column, as in fingerprints of batches.
        bounds: What no time is outside of, both None if no event has a time; None if not known.
    """

    column: str
    bounds: tuple[Any, Any] | None


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


def encode_times(
    found: Iterable[tuple[str, PartTimes | None]], column: str | None
) -> dict[str, dict[str, Any]]:
    """Return the root's field: column -> name of a part or list -> bounds, or null.

    Only those of the time column, given as the property says it: another column may be redacted.
    """
    told: dict[str, dict[str, Any]] = {}
    for path, times in found:
        if times is not None and _is_of(times.column, column):
            bounds = times.bounds
            value = None if bounds is None else [encode_bound(bound) for bound in bounds]
            told.setdefault(times.column, {})[path] = value
    return told


def decode_times(value: Any, column: str | None, *, where: str) -> dict[str, PartTimes]:
    """Return what the root's field says, by the name of the part or list; it is untrusted."""
    found: dict[str, PartTimes] = {}
    for label, parts in from_json(dict[str, Any], value, where=where).items():
        kind = _TYPES.get(label.partition(":")[0])
        if kind is None or not _is_of(label, column):
            continue
        for path, bounds in from_json(dict[str, Any], parts, where=where).items():
            found[path] = PartTimes(label, _decode(bounds, kind, where))
    return found


def _is_of(label: str, column: str | None) -> bool:
    return build_json(label.partition(":")[2]).decode() == column


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
