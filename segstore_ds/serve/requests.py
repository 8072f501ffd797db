"""What a call of a client may do, and what it asks for.

Bearer tokens are the lines of a file, each with the right to read or to write. A Flight command or
ticket is a JSON object.
"""

import hmac
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyarrow import flight

from segstore_ds.errors import InvalidInputError

RIGHTS = ("read", "write")  # who may write may also read
MIDDLEWARE = "segstore"
# Field -> the types that its value may have. The scan itself checks the values.
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


class Caller(flight.ServerMiddleware):  # type: ignore[misc]
    """What one call may do."""

    def __init__(self, right: str) -> None:
        self.right = right


class Tokens(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Checks the header `authorization: Bearer TOKEN` of each call.

    Without tokens, everyone may do everything that the server offers.
    """

    def __init__(self, tokens: Sequence[tuple[str, bytes]]) -> None:
        super().__init__()
        self._tokens = tokens

    def start_call(self, _info: flight.CallInfo, headers: Mapping[str, list[str]]) -> Caller:
        """Return the caller, or raise FlightUnauthenticatedError."""
        if not self._tokens:
            return Caller("write")
        given = {name.lower(): values for name, values in headers.items()}
        scheme, _, token = given.get("authorization", [""])[0].partition(" ")
        # Every token is compared, in constant time, so the time reveals nothing about them.
        right = ""
        for allowed, known in self._tokens:
            if hmac.compare_digest(token.strip().encode(), known) and scheme.lower() == "bearer":
                right = allowed
        if not right:
            raise flight.FlightUnauthenticatedError(
                "give a token of this server in the header 'authorization: Bearer TOKEN'"
            )
        return Caller(right)


def read_tokens(path: Path) -> list[tuple[str, bytes]]:
    """Return right and token of each line `read TOKEN` or `write TOKEN`; errors show no token."""
    tokens = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or words[0] not in RIGHTS:
            raise InvalidInputError(
                "a line of the file of tokens is not 'read TOKEN' or 'write TOKEN'",
                file=str(path),
                line=number,
            )
        tokens.append((words[0], words[1].encode()))
    if not tokens:
        raise InvalidInputError("the file of tokens has no token", file=str(path))
    return tokens


def parse_request(
    text: bytes, fields: Mapping[str, tuple[type, ...]], *needed: str
) -> dict[str, Any]:
    """Return the fields of a JSON object; null is the same as a field that is not there."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidInputError(
            "a request is not a JSON object", remedy=f"its fields may be {', '.join(fields)}"
        )
    found = {name: value for name, value in found.items() if value is not None}
    for name, value in found.items():
        if name not in fields:
            raise InvalidInputError(
                "unknown field in a request", remedy=f"use one of {', '.join(fields)}", field=name
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
    """Tell whether a ticket asks to follow a stream."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.get("follow") is True
