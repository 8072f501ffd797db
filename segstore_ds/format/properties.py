"""The properties that name columns: a row each in `PROPERTIES`, and what goes by these rows.

A property names a column as it is stored, and one that no epoch has any more as it was called.
What renames, drops or copies columns asks the rows, so it need not know a property by its name.
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from segstore_ds.errors import FormatError, InvalidInputError
from segstore_ds.format.indexed_columns import KEY_COLUMNS
from segstore_ds.format.record import build_json, parse_json
from segstore_ds.format.redactions import EXPIRY_PROPERTY, refuse_kept
from segstore_ds.format.root import RULES_PROPERTY, TIME_COLUMN, Root

# On disk: the property with the key of a table of newest events. Never change.
LATEST_PROPERTY = "latest"


@dataclass(frozen=True, slots=True)
class Property:
    """A property whose value is the name of a column, or a list or dicts of such values.

    Attributes:
        name: Its name, as stored.
        keys: Under which a dict in its value has columns.
        inherited: Whether clones and copies have it, too.
        refuse: Raises InvalidInputError where a root may not get it.
        remedy: What a user calls so that it needs a column no more.
    """

    name: str
    keys: tuple[str, ...] = ()
    inherited: bool = False
    refuse: Callable[[Root], None] = lambda _: None
    remedy: str = "first change it with stream.settings.update({}=...)"

    def parse(self, properties: Mapping[str, str]) -> Any:
        """Return its value, None without one; CorruptionError if it is not JSON."""
        text = properties.get(self.name)
        return None if text is None else parse_json(text, where=f"property {self.name}")

    def renamed(self, value: Any, rename: Callable[[str], str]) -> Any:
        """Return a value with other names of columns, each once in a list."""
        if isinstance(value, str):
            return rename(value)
        if isinstance(value, list):
            found = [self.renamed(each, rename) for each in value]
            return [each for place, each in enumerate(found) if each not in found[:place]]
        if isinstance(value, dict):
            held = {key: value[key] for key in self.keys if value.get(key)}
            return {**value, **{key: self.renamed(each, rename) for key, each in held.items()}}
        return value


_REMOVE = "first remove that table with stream.published.remove_latest()"
LATEST = Property(LATEST_PROPERTY, ("key", "tombstone"), remedy=_REMOVE)
PROPERTIES = (
    Property(TIME_COLUMN, inherited=True),
    Property(KEY_COLUMNS, inherited=True),
    Property(EXPIRY_PROPERTY, ("column",), refuse=refuse_kept),
    Property(RULES_PROPERTY, ("not_null",), inherited=True),
    LATEST,
)


def inherited_properties(
    source: Root, names: Mapping[str, str | None] = MappingProxyType({})
) -> dict[str, str]:
    """Return the properties of a stream that a clone or a copy of it has, too.

    `names` are those by which a copy stores columns, if they are others.
    """
    inherited = {each.name for each in PROPERTIES if each.inherited} & {*source.properties}
    kept = {name: source.properties[name] for name in inherited}
    return _renamed(kept, lambda stored: names.get(stored) or stored)[0]


def refuse_needed(root: Root, drop: Collection[str]) -> None:
    """Raise InvalidInputError if a property needs a column that would be dropped. Pure."""

    def refuse(each: Property, stored: str) -> str:
        if (name := root.epoch.names.get(stored, stored)) in drop:
            raise InvalidInputError(
                "a setting of the stream needs the column",
                remedy=each.remedy.format(each.name),
                column=name,
                setting=each.name,
            )
        return stored

    for each in PROPERTIES:
        each.renamed(each.parse(root.properties), partial(refuse, each))


def follow_columns(
    properties: Mapping[str, str], before: Mapping[str, str], after: Mapping[str, str]
) -> Mapping[str, str]:
    """Return properties as they name columns once an epoch is followed by another one. Pure.

    `before` and `after` have the names of the epochs' columns, by their stored names. A column that
    both have is the same. For one that is gone a property keeps the name, and takes the column that
    has the name then.

    >>> kept = follow_columns({"time_column": '"a"'}, {"a": "at"}, {"n": "n"})
    >>> dict(follow_columns(kept, {"n": "n"}, {"n": "at"}))
    {'time_column': '"n"'}

    Raises:
        InvalidInputError: What would be the name of a column that is gone is another column, or the
            values of the time column would expire.
    """
    texts, values = _renamed(properties, partial(_follow, before, after))
    time = values.get(TIME_COLUMN)
    if time in after and any(rule["column"] == time for rule in values.get(EXPIRY_PROPERTY) or ()):
        raise InvalidInputError(
            "the values of the time column would expire",
            remedy="first change one of them with stream.settings.update(...)",
            column=after[str(time)],
        )
    return texts


def _follow(before: Mapping[str, str], after: Mapping[str, str], one: str) -> str:
    name, stored = before.get(one, one), {name: each for each, name in after.items()}
    if (one in before and one in after) or stored.get(name) == one:
        return one
    if name not in stored and name in after:
        raise InvalidInputError(
            "a setting of the stream needs a column that would be gone",
            remedy="first change it with stream.settings.update(...)",
            column=name,
        )
    return stored.get(name, name)


def _renamed(
    properties: Mapping[str, str], rename: Callable[[str], str]
) -> tuple[dict[str, str], dict[str, Any]]:
    """Return properties with other names of columns: all texts, and the values that name some."""
    texts, values = dict(properties), dict[str, Any]()
    for each in PROPERTIES:
        with suppress(FormatError):  # whoever needs it says so
            value = each.parse(properties)
            values[each.name] = each.renamed(value, rename)
            if values[each.name] != value:
                texts[each.name] = build_json(values[each.name]).decode()
    return texts, values
