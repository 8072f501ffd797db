"""Typed reading of JSON objects from stored metadata; anything unexpected is a CorruptionError.

Fields that no caller asks for are kept, so that unknown fields are carried through unchanged.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from segstore_ds.errors import CorruptionError

MAX_INT = 2**63 - 1
MAX_TIME_US = 253_402_300_799_999_999  # the end of the year 9999, the last that Python can show


def parse_json(body: bytes | str, *, where: str) -> Any:
    """Parse a JSON text from storage; invalid or too deeply nested text is a CorruptionError."""
    try:
        text = body if isinstance(body, str) else body.decode("utf-8", "surrogatepass")
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise CorruptionError("not valid JSON", where=where) from error


def _refuse_constant(name: str) -> None:
    # Python's parser accepts NaN and Infinity, which are not JSON.
    raise ValueError(name)


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def build_json(value: Any) -> bytes:
    """Return the canonical JSON of a value: sorted keys, no spaces, UTF-8.

    A value carried over from storage may be nested too deeply, or hold a number too large for a
    float; that is a CorruptionError.
    """
    try:
        try:
            return _dump(value, ascii_only=False).encode()
        except UnicodeEncodeError:
            # A lone surrogate, which JSON can escape and UTF-8 can't hold, is carried through, too.
            return _dump(value, ascii_only=True).encode()
    except RecursionError as error:
        raise CorruptionError("value is nested too deeply") from error
    except ValueError as error:
        raise CorruptionError("number is too large to be written") from error


def escape_text(value: Any) -> Any:
    r"""Write the lone surrogates of a text, which Arrow can't store, as backslash escapes.

    >>> escape_text("x\udce9"), escape_text(7)
    ('x\\udce9', 7)
    """
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def is_text(value: Any) -> bool:
    """Tell whether a value is a text that can be stored, that is, without lone surrogates."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def _dump(value: Any, *, ascii_only: bool) -> str:
    return json.dumps(
        value,
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=ascii_only,
        allow_nan=False,
    )


def parse_object(body: bytes, *, what: str, where: str) -> dict[str, Any]:
    """Parse a JSON object from storage; `what` names its content in errors."""
    value = parse_json(body, where=where)
    if not isinstance(value, dict):
        raise CorruptionError(f"blob holds no {what}", where=where)
    return value


def parse_cells(value: Any, columns: Sequence[str], *, where: str) -> "Fields":
    """Return the cells of a JSON row by the names of its columns.

    Cells after those are ignored: a newer writer put them there, and its writer feature keeps this
    version from writing rows without them.

    >>> parse_cells([1, 2, 3], ("a", "b"), where="").rest()
    {'a': 1, 'b': 2}
    """
    if not isinstance(value, list) or len(value) < len(columns):
        raise CorruptionError("not a row", where=where, columns=tuple(columns))
    return Fields(dict(zip(columns, value, strict=False)), where=where)


class Fields:
    """The fields of one JSON object, taken by name.

    `where` is the file and the place in it, for errors. Each method raises CorruptionError if the
    field is missing (and has no default), is of another type, or is out of range.
    """

    def __init__(self, value: Any, *, where: str) -> None:
        if not isinstance(value, dict):
            raise CorruptionError("not an object", where=where)
        self.where = where
        self._left = dict(value)

    def take(self, name: str) -> Any:
        """Take a field of any type."""
        try:
            return self._left.pop(name)
        except KeyError:
            raise CorruptionError("missing field", where=self.where, field=name) from None

    def has(self, name: str) -> bool:
        """Tell whether a field is there that was not taken yet."""
        return name in self._left

    def integer(self, name: str, *, least: int = 0, most: int = MAX_INT) -> int:
        """Take an int64 of at least `least` and at most `most`."""
        value = self.take(name)
        if type(value) is not int or not least <= value <= most:
            raise self._wrong(name, f"an integer from {least} to {most}")
        return value

    def time_us(self, name: str) -> int:
        """Take a time: microseconds since 1970, before the year 10000."""
        return self.integer(name, most=MAX_TIME_US)

    def optional_integer(self, name: str) -> int | None:
        """Take an int64 of at least 0, or null."""
        if self._left.get(name, 0) is None:
            self.take(name)
            return None
        return self.integer(name)

    def text(self, name: str, *, limit: int = 1 << 20) -> str:
        """Take a string of at most `limit` characters."""
        value = self.take(name)
        if not isinstance(value, str) or len(value) > limit:
            raise self._wrong(name, f"a string of at most {limit} characters")
        return value

    def optional_text(self, name: str, *, limit: int = 1 << 24) -> str | None:
        """Take a string, or None if the field is null."""
        if name in self._left and self._left[name] is None:
            del self._left[name]
            return None
        return self.text(name, limit=limit)

    def flag(self, name: str) -> bool:
        """Take a boolean."""
        value = self.take(name)
        if not isinstance(value, bool):
            raise self._wrong(name, "a boolean")
        return value

    def items(self, name: str) -> list[Any]:
        """Take a list."""
        value = self.take(name)
        if not isinstance(value, list):
            raise self._wrong(name, "a list")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """Take a list of strings."""
        value = self.items(name)
        if not all(isinstance(item, str) for item in value):
            raise self._wrong(name, "a list of strings")
        return tuple(value)

    def mapping(self, name: str) -> dict[str, Any]:
        """Take an object."""
        value = self.take(name)
        if not isinstance(value, dict):
            raise self._wrong(name, "an object")
        return value

    def texts_by_name(self, name: str) -> dict[str, str]:
        """Take an object of strings."""
        value = self.mapping(name)
        if not all(isinstance(item, str) for item in value.values()):
            raise self._wrong(name, "an object of strings")
        return value

    def rest(self) -> Mapping[str, Any]:
        """Return the fields that were not taken: those of a newer writer."""
        return self._left

    def _wrong(self, name: str, expected: str) -> CorruptionError:
        return CorruptionError(
            "field has an invalid value", where=self.where, field=name, expected=expected
        )


def check_known(names: Iterable[str], known: frozenset[str]) -> list[str]:
    """Return the names that are not known, sorted."""
    return sorted(set(names) - known)
