"""Checks options and their values against the table; errors say how to correct them."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from segstore_ds.errors import InvalidInputError
from segstore_ds.options.quantities import parse_duration, parse_size
from segstore_ds.options.table import FOREIGN, NOTES, PEERS, TABLE, Option

_WHOLE = re.compile(r"\s*[0-9]+\s*")

BY_NAME: Mapping[str, Option] = {option.name.lower(): option for option in TABLE}
# Keys that Spark itself adds to a source's options, and our internal one.
_SPARKS_OWN = frozenset(
    {"paths", "checkpointlocation", "queryname", "location", "provider", "owner", "comment"}
    | {"external", "collation", "serialization.format", "is_managed_location"}
    | {"__datetime_rebase_mode", NOTES}
)


def default(name: str) -> Any:
    """Return an option's default."""
    return BY_NAME[name.lower()].default


def parse_options(given: Mapping[str, Any], scope: str, *others: str) -> dict[str, Any]:
    """Return the options of a read or a write with typed values, and defaults filled in.

    Names in `given` may have any case; Spark's own keys are ignored. `scope` is `READ`, `WRITE`,
    `STREAM_READ` or `STREAM_WRITE`. `others` are further allowed scopes, for a caller that does not
    know yet which one applies. The result has a value for every option of the scopes, under its
    name in the table. The errors name the nearest known option, the scope where an option belongs,
    or our name for another system's option.
    """
    scopes = {scope, *others}
    parsed = {option.name: option.default for option in TABLE if scopes & {*option.scopes}}
    for name, value in given.items():
        key = name.lower()
        if key in _SPARKS_OWN or key.startswith(("option.", "spark.")):
            continue
        option = BY_NAME.get(key)
        if option is None:
            raise _unknown(name, scope, scopes)
        if not scopes & {*option.scopes}:
            raise InvalidInputError(
                f"option belongs to a {option.scopes[0]}, not to a {scope}",
                remedy=f"remove it from the {scope}",
                option=option.name,
            )
        if value is not None:
            parsed[option.name] = parse_value(option, value)
    return parsed


def parse_value(option: Option, value: Any) -> Any:
    """Return one option's value typed, or raise InvalidInputError if it is not valid."""
    match option.kind:
        case "bool":
            return _boolean(option, value)
        case "int" | "bytes" | "age" | "version":
            return _number(option, value)
        case "list":
            return _names(option, value)
        case "json":
            return _json_object(option, value)
        case "choice":
            words = {choice.lower(): choice for choice in option.choices}
            word = str(value).strip().lower()
            if word not in words:
                raise _wrong(option, value, "one of " + ", ".join(option.choices))
            return words[word]
    if not isinstance(value, str | int) or value == "":
        raise _wrong(option, value, "a text that is not empty")
    return str(value)


def _unknown(name: str, scope: str, scopes: set[str]) -> InvalidInputError:
    import difflib  # noqa: PLC0415 - for an error alone

    key = name.lower()
    if key in FOREIGN:
        return InvalidInputError(
            "option belongs to another system", remedy=FOREIGN[key], option=name
        )
    peer = PEERS.get(key)
    if peer is not None:
        return InvalidInputError(
            "option belongs to another system", remedy=f"use {peer}", option=name
        )
    known = {option.name.lower(): option.name for option in TABLE if scopes & {*option.scopes}}
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    remedy = f"did you mean {known[near[0]]}?" if near else f"known: {', '.join(known.values())}"
    return InvalidInputError("unknown option", remedy=remedy, option=name, scope=scope)


def _wrong(option: Option, value: Any, expected: str) -> InvalidInputError:
    shown = "..." if option.kind == "json" else value
    return InvalidInputError(
        "option has a wrong value", remedy=f"give {expected}", option=option.name, value=shown
    )


def _boolean(option: Option, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word not in ("true", "false"):
        raise _wrong(option, value, "true or false")
    return word == "true"


def _number(option: Option, value: Any) -> int | str:
    expected = f"an integer of at least {option.least}"
    if option.kind == "bytes":
        expected += ", with k, m, g or t for powers of 1024"
    elif option.kind == "version":
        expected += ", or tag:NAME"
    elif option.kind == "age":
        expected = "an age such as 15m, with one of the units s, m, h, d and w"
    if isinstance(value, bool):
        raise _wrong(option, value, expected)
    text = str(value)
    if option.kind == "version" and text.startswith("tag:"):
        return text
    if option.kind == "age":
        number = parse_duration(text)
    else:
        number = parse_size(text) if option.kind == "bytes" or _WHOLE.fullmatch(text) else None
    if number is None or not option.least <= number < 2**63:
        raise _wrong(option, value, expected)
    return number


def _names(option: Option, value: Any) -> tuple[str, ...]:
    found: Sequence[Any]
    if not isinstance(value, str):
        found = list(value)
    elif value.lstrip().startswith("["):
        try:
            found = json.loads(value)
        except ValueError as error:
            raise _wrong(option, value, "a comma list or a JSON array of names") from error
    else:
        found = [part.strip() for part in value.split(",")]
    if not (found or value == "[]") or not all(isinstance(name, str) and name for name in found):
        raise _wrong(option, value, "a comma list or a JSON array of names")
    if len(set(found)) != len(found):
        raise _wrong(option, value, "each name once")
    return tuple(found)


def _json_object(option: Option, value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            # No cause: it would quote the text, which may contain a secret.
            raise _wrong(option, value, "a JSON object") from None
    if not isinstance(value, Mapping):
        raise _wrong(option, value, "a JSON object")
    return dict(value)
