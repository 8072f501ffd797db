"""Checks of Python arguments, made in the call that gets them, so that errors name them."""

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, SupportsFloat

from segstore_ds.errors import InvalidInputError
from segstore_ds.options.quantities import DURATIONS_TAKEN, SIZES_TAKEN, parse_duration, parse_size
from segstore_ds.options.table import (
    BY_NAME,
    COMPACT_MODES,
    MERGE,
    TABLE,
    TARGET_BYTES,
    TARGET_ROWS,
)

MOST = 2**63 - 1

Progress = Callable[[int, int], None]
"""Gets how much is done, and the total: of events, or for `maintain` of objects. If it raises, the
work stops as after any failure, and may be repeated."""


def unheard(_done: int, _total: int) -> None:
    """Ignore progress."""


def check_whole(name: str, value: Any, *, least: int = 0, optional: bool = False) -> Any:
    """Return a Python or NumPy integer as an int, or None if `optional`.

    Refuses other types, also bool and float, and values below `least` or above `MOST`.
    """
    if optional and value is None:
        return None
    number = whole(value)
    if number is None or not least <= number <= MOST:
        none = ", or None" if optional else ""
        raise InvalidInputError(
            "not an integer in range",
            remedy=f"give {name} as an int of at least {least}{none}",
            **{name: value},
        )
    return number


def whole(value: Any) -> int | None:
    """Return a Python or NumPy integer as an int; None for anything else, also for a bool."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def check_seconds(name: str, value: Any, *, positive: bool = False) -> None:
    """Refuse a duration that is not a finite number of at least 0 (above 0 if `positive`)."""
    number = isinstance(value, SupportsFloat) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0 or (positive and value == 0):
        least = "above 0" if positive else "from 0"
        raise InvalidInputError(
            "not a number of seconds",
            remedy=f"give {name} as a finite number {least}",
            **{name: value},
        )


def check_size(name: str, value: Any) -> int | None:
    """Return a size in bytes, given as an integer or a text; None stays None."""
    number = parse_size(value) if isinstance(value, str) else value
    return _quantity(name, value, number, f"give {name} as {SIZES_TAKEN}")


def check_duration(name: str, value: Any) -> int | None:
    """Return a duration in seconds, given as an integer, text or timedelta; None stays None."""
    number: Any = parse_duration(value) if isinstance(value, str) else value
    if isinstance(value, timedelta):
        whole, rest = divmod(value, timedelta(seconds=1))
        number = None if rest else whole
    return _quantity(name, value, number, f"give {name} as {DURATIONS_TAKEN}")


def check_timeout(name: str, value: Any) -> float | None:
    """Return a duration in seconds, which may have a fraction; None stays None."""
    if isinstance(value, float):
        check_seconds(name, value)
        return value
    return check_duration(name, value)


def _quantity(name: str, given: Any, number: Any, remedy: str) -> int | None:
    if given is None:
        return None
    amount = whole(number)
    if amount is None or not 0 <= amount <= MOST:
        raise InvalidInputError("not a size or a duration in range", remedy=remedy, **{name: given})
    return amount


def check_option(name: str, value: Any) -> Any:
    """Return an argument after the check of its option in the table; `name` is the Python name."""
    option = BY_NAME[name.replace("_", "")]
    if value is None and option.default is None:
        return None
    if option.kind in ("int", "bytes"):
        return check_whole(name, value, least=option.least, optional=option.default is None)
    if option.kind == "choice":
        if value not in option.choices:
            remedy = f"give {name} as one of {', '.join(option.choices)}"
            raise InvalidInputError("unknown value", remedy=remedy, **{name: value})
        return value
    names = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else None
    if names is None or not all(isinstance(column, str) for column in names):
        raise InvalidInputError(
            "not a list of column names", remedy=f"give {name} as a list of texts", **{name: value}
        )
    return names


def snake(name: str) -> str:
    """Return the Python name of an option.

    >>> snake("mergeSchema")
    'merge_schema'
    """
    return re.sub("([A-Z])", r"_\1", name).lower()


def arguments_of(parsed: Mapping[str, Any], call: str) -> dict[str, Any]:
    """Return the parsed options that are arguments of a call (`OPEN`, `PLAN` or `SPLIT`)."""
    return {snake(one.name): parsed[one.name] for one in TABLE if one.call == call}


# How many small segments make a medium one (a third of the target), and medium ones a large one.
MINOR = (4, 3)


@dataclass(frozen=True, slots=True)
class CompactRules:
    """The targets of a compaction."""

    mode: str = MERGE  # ``merge``, ``stitch`` or ``split``
    target_rows: int = TARGET_ROWS  # most events of an output
    target_bytes: int = TARGET_BYTES  # most encoded bytes of an output
    # None selects every run within the targets. ``(small, medium)`` selects only runs at least
    # twice as large as their largest input, with at least `small` inputs if the run stays below a
    # third of the target, else at least `medium`. So an event is rewritten a logarithmic number of
    # times, however often compaction runs.
    minor: tuple[int, int] | None = None
    # Most encoded bytes of all inputs together, newest runs first; None for no limit.
    budget_bytes: int | None = None

    def __post_init__(self) -> None:
        """Raise InvalidInputError if a target or threshold is out of range, or the mode unknown."""
        if self.mode not in COMPACT_MODES:
            raise InvalidInputError(
                "unknown compaction mode",
                remedy=f"use one of {', '.join(COMPACT_MODES)}",
                mode=self.mode,
            )
        check_whole("target_rows", self.target_rows, least=1)
        check_whole("target_bytes", self.target_bytes, least=1)
        check_whole("budget_bytes", self.budget_bytes, least=1, optional=True)
        if self.minor is not None:
            if not isinstance(self.minor, tuple | list) or len(self.minor) != len(MINOR):
                raise InvalidInputError(
                    "not a pair of thresholds",
                    remedy="give minor as two integers, such as (4, 3)",
                    minor=self.minor,
                )
            for threshold in self.minor:
                check_whole("minor", threshold, least=2)

    @property
    def most_bytes(self) -> int:
        """Most encoded bytes of one run."""
        return min(self.target_bytes, self.budget_bytes or self.target_bytes)
