"""Checks arguments of Python where they are given, so that a wrong one is named at the call."""

import math
import operator
import re
from collections.abc import Iterable
from typing import Any, SupportsFloat

from segstore_ds.errors import InvalidInputError
from segstore_ds.options.parsing import BY_NAME

MOST = 2**63 - 1


def check_whole(name: str, value: Any, *, least: int = 0, optional: bool = False) -> Any:
    """Return a whole number of Python's or NumPy's as Python's own; None where it is optional.

    Raises:
        InvalidInputError: It is something else, a float or a truth among them, or out of range.
    """
    if optional and value is None:
        return None
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= MOST:
        none = ", or None" if optional else ""
        raise InvalidInputError(
            "not a whole number in range",
            remedy=f"give {name} as an int of at least {least}{none}",
            **{name: value},
        )
    return number


def check_seconds(name: str, value: Any, *, positive: bool = False) -> None:
    """Refuse what no time can be reckoned from: not a number, negative, or without an end.

    Raises:
        InvalidInputError: It is one of these, or zero where it has to be positive.
    """
    number = isinstance(value, SupportsFloat) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0 or (positive and value == 0):
        least = "above 0" if positive else "from 0"
        raise InvalidInputError(
            "not a number of seconds",
            remedy=f"give {name} as a finite number {least}",
            **{name: value},
        )


def check_option(name: str, value: Any) -> Any:
    """Return an argument that is an option of the table under its name in Python.

    Raises:
        InvalidInputError: It is not of the option's kind, or out of range.
    """
    option = BY_NAME[name.replace("_", "")]
    if value is None and option.default is None:
        return None
    if option.kind in ("int", "bytes"):
        return check_whole(name, value, least=option.least, optional=option.default is None)
    if option.kind == "choice":
        if value not in option.choices:
            remedy = f"give {name} as one of {', '.join(option.choices)}"
            raise InvalidInputError("no such choice", remedy=remedy, **{name: value})
        return value
    names = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else None
    if names is None or not all(isinstance(each, str) for each in names):
        raise InvalidInputError(
            "not names of columns", remedy=f"give {name} as a list of texts", **{name: value}
        )
    return names


def snake(name: str) -> str:
    """Return an option's name as Python has it.

    >>> snake("mergeSchema")
    'merge_schema'
    """
    return re.sub("([A-Z])", r"_\1", name).lower()
