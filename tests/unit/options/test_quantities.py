"""Sizes and durations as texts: which are taken, what they mean, and how others are answered."""

import datetime as dt
from typing import Any

import pytest

from segstore_ds.errors import InvalidInputError
from segstore_ds.options.arguments import check_duration, check_size
from segstore_ds.options.quantities import parse_duration, parse_size
from segstore_ds.options.table import BY_NAME, parse_value


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("12", 12),
        ("12b", 12),
        ("1k", 1 << 10),
        ("1KB", 1 << 10),
        ("1KiB", 1 << 10),
        (" 64 m ", 64 << 20),
        ("10g", 10 << 30),
        ("10GiB", 10 << 30),
        ("2tb", 2 << 40),
    ],
)
def test_sizes_have_units_of_1024(text: str, number: int) -> None:
    assert parse_size(text) == number
    assert check_size("max_bytes", text) == number
    if number:
        assert parse_value(BY_NAME["partitionbytes"], text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [("0s", 0), ("90s", 90), ("15 m", 900), ("36H", 129_600), ("7d", 604_800), ("2w", 1_209_600)],
)
def test_durations_have_units(text: str, number: int) -> None:
    assert parse_duration(text) == number
    assert check_duration("max_age", text) == number
    assert check_duration("max_age", dt.timedelta(seconds=number)) == number
    assert check_duration("max_age", number) == number


@pytest.mark.parametrize(
    "value",
    [
        *("", "g", "-1g", "1.5g", "1 k i b", "1kk", "1ib", "10p", "7d", "\u0663g", "9999999t"),
        *(1.5, -1, True, 2**63, f"{2**63}", "9" * 5000, dt.timedelta(1)),
    ],
)
def test_what_is_no_size_is_told_what_is(value: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"max_bytes as a whole number of bytes.*'10g'"):
        check_size("max_bytes", value)


@pytest.mark.parametrize(
    "value",
    [
        *("", "7", "d", "-1d", "1.5h", "7d12h", "10g", "1y", "1ms", "\u0663d", "9" * 5000 + "d"),
        *(1.5, -1, True, 2**63, dt.timedelta(-1), dt.timedelta(milliseconds=1)),
    ],
)
def test_what_is_no_duration_is_told_what_is(value: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"max_age as a whole number of seconds.*'7d'"):
        check_duration("max_age", value)
