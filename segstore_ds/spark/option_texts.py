"""Options as texts, as Spark passes only those: users' options, and notes of our helpers."""

import base64
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from segstore_ds.errors import InvalidInputError
from segstore_ds.format.schema.conversion import number_of
from segstore_ds.options.table import BY_NAME, NOTES
from segstore_ds.stream.connector.reads import NAN, resolve_location

_OF_JOBS = frozenset({"operation", "copyfrom", "copymode", "copyid", "seal"})
_SPECIAL = {float("inf"): "Infinity", float("-inf"): "-Infinity"}
# How a filter's literal becomes JSON; types that are not named here are JSON's own.
_LITERALS: tuple[tuple[type | tuple[type, ...], Callable[[Any], Any]], ...] = (
    (Mapping, lambda value: {name: _as_json(inner) for name, inner in value.items()}),
    (str, lambda value: value),
    ((bytes, bytearray, memoryview), lambda value: base64.b64encode(value).decode()),
    ((date, time), lambda value: value.isoformat()),  # and datetime
    (timedelta, lambda value: number_of(value, pa.duration("us"))),  # which text filters take
    (Decimal, str),
    (float, lambda value: _SPECIAL.get(value, value) if value == value else NAN),  # noqa: PLR0124
    (Iterable, lambda value: [_as_json(inner) for inner in value]),
)


@dataclass(frozen=True, slots=True)
class HelperNotes:
    """What a helper tells the source: one hidden option, written and parsed only here."""

    # The hybrid scan reads the Parquet segments of these epochs itself.
    native_epochs: tuple[int, ...] = ()
    transaction: str | None = None  # id of a write, by which the helper then finds its commit
    # In a copy by events, the range of offsets that the helper has read for this write, and the
    # digest of its transformation.
    piece: tuple[int, int, str] | None = None

    def as_options(self) -> dict[str, str]:
        """Return the notes as options for Spark; none if there are no notes."""
        return {} if self == NO_NOTES else {NOTES: json.dumps(asdict(self))}

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "HelperNotes":
        """Return the notes among a source's options."""
        if NOTES not in options:
            return NO_NOTES
        value = json.loads(options[NOTES])
        piece = value["piece"] and tuple(value["piece"])
        return cls(tuple(value["native_epochs"]), value["transaction"], piece)


NO_NOTES = HelperNotes()


def asks_for_job(options: Mapping[str, str]) -> bool:
    """Tell whether options of a write, as Spark has them, may ask for a copy or a compaction."""
    return not _OF_JOBS.isdisjoint(name.lower() for name in options)


def as_location(url: str | os.PathLike[str]) -> str:
    """Return a location for Spark: as given, or its canonical form if only that is printable."""
    location, text = resolve_location(url), os.fspath(url)
    return text if text.isprintable() else location.url


def as_texts(options: Mapping[str, Any]) -> dict[str, str]:
    """Return options as texts, under their names in the table of options.

    Values may be Python's: lists, mappings, numbers, booleans, dates, times. None means that the
    option is not given.
    """
    texts = {}
    for name, value in options.items():
        known = BY_NAME.get(name.lower())
        if value is None:
            continue
        if isinstance(value, bool):
            text = str(value).lower()
        elif isinstance(value, Iterable) and not isinstance(value, str):
            text = _to_json(name, value)
        else:
            text = str(value)
        texts[known.name if known else name] = text
    return texts


def _to_json(name: str, value: Any) -> str:
    try:
        return json.dumps(_as_json(value))
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            "option has a wrong value",
            remedy="give texts, numbers, dates, times or bytes",
            option=name,
            reason=str(error),
        ) from error


def _as_json(value: Any) -> Any:
    for kinds, convert in _LITERALS:
        if isinstance(value, kinds):
            return convert(value)
    return value
