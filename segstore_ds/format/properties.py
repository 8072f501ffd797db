"""The properties that name columns, in one table, and how they follow changes of columns.

A property has the stored name of a column, and for a column that is gone the name that callers
used. Code that renames, drops or copies columns uses the table, and knows no property by name.
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

# On disk: the property with the key columns of a published latest table. Never change.
LATEST_PROPERTY = "latest"
# On disk: the id of the stream of which a stream holds the newest events. Never change.
LATEST_OF = "latest_of"


@dataclass(frozen=True, slots=True)
class Property:
    """A property whose value is the name of a column, or a list or dicts of such values.

    Attributes:
        name: Its stored name.
        keys: The keys of columns, if its value is a dict or a list of dicts.
        inherited: Whether clones and copies have it, too.
        refuse: Raises InvalidInputError if a root may not get it.
        remedy: What a user has to call before a column can be dropped.
    """

    name: str
    keys: tuple[str, ...] = ()
    inherited: bool = False
    refuse: Callable[[Root], None] = lambda _: None
    remedy: str = "first change it with stream.settings.update({}=...)"

    def parse(self, properties: Mapping[str, str]) -> Any:
        """Return its value or None; CorruptionError if it is not JSON."""
        text = properties.get(self.name)
        return None if text is None else parse_json(text, where=f"property {self.name}")

    def renamed(self, value: Any, rename: Callable[[str], str]) -> Any:
        """Return a value with its columns renamed, without duplicates in lists."""
        if isinstance(value, str):
            return rename(value)
        if isinstance(value, list | tuple):
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
    """Return the properties of a stream that a clone or a copy inherits.

    `names` has the names under which a copy stores columns, if they differ.
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
    """Return properties with the names of columns after a new epoch. Pure.

    `before` and `after` have the names of the epochs' columns, by their stored names. A column that
    both have is the same. For a column that is gone a property keeps its name, and later means the
    column that gets this name.

    >>> kept = follow_columns({"time_column": '"a"'}, {"a": "at"}, {"n": "n"})
    >>> dict(follow_columns(kept, {"n": "n"}, {"n": "at"}))
    {'time_column': '"n"'}

    Raises:
        InvalidInputError: The name of a column that is gone is the stored name of another one, or
            the values of the time column would expire.
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
    """Return properties with columns renamed: the texts of all, and the values of `PROPERTIES`."""
    texts, values = dict(properties), dict[str, Any]()
    for each in PROPERTIES:
        with suppress(FormatError):  # raised again by whoever uses the property
            value = each.parse(properties)
            values[each.name] = each.renamed(value, rename)
            if values[each.name] != value:
                texts[each.name] = build_json(values[each.name]).decode()
    return texts, values
