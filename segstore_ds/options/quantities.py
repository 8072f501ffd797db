"""Parses sizes, durations and times, and makes texts of unknown origin safe to print.

A control character or a bidirectional mark in data, a name or an error could move the cursor, forge
a line or reorder the text, on a terminal, in JSON and in HTML. Only this module decides what is
escaped.
"""

import html
import json
import re
import unicodedata
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, TypeVar

Size = int | str
Duration = int | str | timedelta

SIZES_TAKEN = (
    "a whole number of bytes, or a text such as '10g': k, m, g and t are powers of 1024, with or "
    "without b or ib"
)
DURATIONS_TAKEN = (
    "a whole number of seconds, a timedelta of whole seconds, or a text such as '7d' with one of "
    "the units s, m, h, d and w"
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TEXT = re.compile(r"\s*([0-9]{1,20})\s*([a-z]*)\s*", re.ASCII | re.IGNORECASE)
# Python parses at most six fractional digits and silently drops the rest.
_TOO_FINE = re.compile(r"[.,]\d{7,}")
_POWERS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_BYTES = {f"{letter}{rest}": by for letter, by in _POWERS.items() for rest in ("", "b", "ib")}
_BYTES |= {"": 1, "b": 1}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


def with_unit(size: int) -> str:
    """Return a number of bytes in the largest unit that fits.

    >>> with_unit(999), with_unit(1_000_000), with_unit(25_440_000)
    ('999 B', '1.0 MB', '25.4 MB')
    """
    if size < 1000:
        return f"{size} B"
    number = float(size)
    for unit in ("kB", "MB", "GB"):
        number /= 1000
        if number < 1000:
            return f"{number:.1f} {unit}"
    return f"{number / 1000:.1f} TB"


def size_text(size: int) -> str:
    """Return a number of bytes as `parse_size` takes it, in the largest unit that divides it.

    >>> size_text(10 << 30), size_text(1000), size_text(0)
    ('10g', '1000', '0')
    """
    unit = next((unit for unit in "tgmk" if size and size % _POWERS[unit] == 0), "")
    return f"{size // _BYTES[unit]}{unit}"


def duration_text(seconds: int) -> str:
    """Return a duration as `parse_duration` takes it, in the largest unit up to days.

    >>> duration_text(604_800), duration_text(5400), duration_text(0)
    ('7d', '90m', '0s')
    """
    unit = next((unit for unit in "dhm" if seconds and seconds % _SECONDS[unit] == 0), "s")
    return f"{seconds // _SECONDS[unit]}{unit}"


def parse_size(text: str) -> int | None:
    """Return the number of bytes in a text, or None if it is not a size.

    >>> parse_size("10g"), parse_size(" 64 KiB"), parse_size("7"), parse_size("1.5g")
    (10737418240, 65536, 7, None)
    """
    return _parse(text, _BYTES)


def parse_duration(text: str) -> int | None:
    """Return the number of seconds in a text, or None; a number without a unit is not a duration.

    >>> parse_duration("7d"), parse_duration("36 H"), parse_duration("7")
    (604800, 129600, None)
    """
    return _parse(text, _SECONDS)


_Moment = TypeVar("_Moment", datetime, date, time)


def parse_moment(kind: type[_Moment], text: str) -> _Moment:
    """Parse a text in ISO 8601; ValueError also if it is finer than microseconds.

    >>> parse_moment(datetime, "2026-11-20T10:00:00.5"), parse_moment(time, "10:00")
    (datetime.datetime(2026, 11, 20, 10, 0, 0, 500000), datetime.time(10, 0))
    """
    if _TOO_FINE.search(text):
        raise ValueError(text)
    return kind.fromisoformat(text)


def to_moment(time_us: int) -> datetime:
    """Return microseconds since 1970 as a time in UTC, at most the latest that Python has.

    >>> to_moment(1_500_000).isoformat(), to_moment(1 << 62).year
    ('1970-01-01T00:00:01.500000+00:00', 9999)
    """
    try:
        return _EPOCH + timedelta(microseconds=time_us)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def _parse(text: str, units: Mapping[str, int]) -> int | None:
    match = _TEXT.fullmatch(text)
    if match is None or match[2].lower() not in units:
        return None
    return int(match[1]) * units[match[2].lower()]


def printable(text: str) -> str:
    r"""Return a text with control characters, line ends and bidirectional marks escaped.

    >>> printable("a\x1b[31m\u202e é")
    'a\\x1b[31m\\u202e é'
    """
    return _escape(text, lambda char: char.encode("unicode_escape").decode())


def printable_json(value: Any) -> str:
    r"""Return a value as one printable line of JSON.

    >>> printable_json({"é": "\x9b\u202e"})
    '{"é": "\\u009b\\u202e"}'
    """
    text = json.dumps(value, ensure_ascii=False)
    return _escape(text, lambda char: json.dumps(char)[1:-1])  # such characters are within strings


def printable_html(text: str) -> str:
    r"""Return a text, printable and escaped, for HTML and SVG.

    >>> printable_html("<b>\x07")
    '&lt;b&gt;\\x07'
    """
    return html.escape(printable(text))


def _escape(text: str, escaped: Callable[[str], str]) -> str:
    if text.isprintable():
        return text
    # Python counts wider and narrower spaces as not printable, but they do no harm.
    kept = (char.isprintable() or unicodedata.category(char) == "Zs" for char in text)
    return "".join(char if keep else escaped(char) for char, keep in zip(text, kept, strict=True))
