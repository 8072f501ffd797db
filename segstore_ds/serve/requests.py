"""What a client asks for: the JSON object of a Flight command or ticket."""

import json
from collections.abc import Mapping
from typing import Any

from segstore_ds.errors import InvalidInputError

# Field -> the types that its value may have. What a scan takes is checked by the scan.
_CUT = (int, str)
SCAN_FIELDS: Mapping[str, tuple[type, ...]] = {
    "stream": (str,),
    "start": _CUT,
    "end": _CUT,
    "columns": (list,),
    "filters": (str, list),
    "event_time": (list,),
    "offset_column": (str,),
    "commit_time_column": (str,),
    "as_of": _CUT,
    "limit": (int,),
}
FOLLOW_FIELDS: Mapping[str, tuple[type, ...]] = {
    "follow": (bool,),
    "timeout": (int, float, str),
    **{name: kinds for name, kinds in SCAN_FIELDS.items() if name not in ("end", "as_of", "limit")},
}
APPEND_FIELDS: Mapping[str, tuple[type, ...]] = {
    "stream": (str,),
    "rows": (int,),
    "writer_id": (str,),
    "batch_id": (int,),
    "merge_schema": (bool,),
}


def parse_request(
    text: bytes, fields: Mapping[str, tuple[type, ...]], *needed: str
) -> dict[str, Any]:
    """Return the fields of a JSON object; null is the same as a field that is not there.

    Raises:
        InvalidInputError: It is no such object, or a field is unknown, missing or of another type.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidInputError(
            "a request must be a JSON object", remedy=f"with fields of {', '.join(fields)}"
        )
    found = {name: value for name, value in found.items() if value is not None}
    for name, value in found.items():
        if name not in fields:
            raise InvalidInputError(
                "unknown field in a request", remedy=f"known are {', '.join(fields)}", field=name
            )
        wrong = isinstance(value, bool) and bool not in fields[name]
        if wrong or not isinstance(value, fields[name]):
            kinds = " or ".join(kind.__name__ for kind in fields[name])
            raise InvalidInputError(f"a field of a request is not {kinds}", field=name, value=value)
    columns = found.get("columns", [])
    if not all(isinstance(column, str) for column in columns):
        raise InvalidInputError("columns are not a list of names", columns=columns)
    for name in needed:
        if name not in found:
            raise InvalidInputError("a request lacks a field", field=name)
    if "event_time" in found:
        found["event_time"] = tuple(found["event_time"])
    return found


def is_follow(text: bytes) -> bool:
    """Tell whether a ticket asks for what will come, too."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.get("follow") is True
