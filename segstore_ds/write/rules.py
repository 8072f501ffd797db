"""Rules for appended events, which are checked when they are staged.

A rule holds for what is appended after it was set, not for older events: nobody can correct an
event of an append-only stream, so a rule that old events break could never be set. Therefore only
appends check rules; compactions, copies, restores and erasures do not.

A commit compares the rules by which its rows were checked with those of the root that it follows,
so an append that was planned before a rule can't break it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from os import PathLike, fspath
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types as t

from segstore_ds.errors import InvalidInputError
from segstore_ds.format.names import check_label
from segstore_ds.format.policies import Rules, build_rules, load_rules, rules_of
from segstore_ds.format.root import RULES_PROPERTY, Root
from segstore_ds.read.filters.conditions import Filters
from segstore_ds.read.filters.given import parse_filters
from segstore_ds.write.staged import Refused

TEXT_MOST = 16_384  # most characters of all rules of a stream: every commit file has them
_SHOWN = 100  # most characters of a value in an error
_CHANGE = "first change them with stream.settings.update(rules=...)"
_REMEDY = "correct it, or leave it out; stream.settings.rules has the rules"
_Broken = tuple[str, tuple[str, ...], pa.Array]  # a rule, its columns, and which rows keep it


@dataclass(frozen=True, slots=True)
class BoundRules:
    """The rules of a stream for batches of one schema; picklable."""

    text: str  # the property of the stream
    not_null: tuple[str, ...]  # columns, by their names in batches
    checks: tuple[tuple[str, Filters], ...]  # name and text of each check, and its filters
    dead_letters: str | None = None  # the location for rows that break a rule
    keyed: bool = False  # the write has a batch id, which dead letters need

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the rules name, each once."""
        found = [name for _, filters in self.checks for name in filters.columns]
        return tuple(dict.fromkeys([*self.not_null, *found]))

    def broken(self, batch: pa.RecordBatch) -> list[_Broken]:
        """Return the rules that some of the rows break."""
        found: list[_Broken] = [
            ("NOT NULL", (name,), batch.column(name).is_valid())
            for name in self.not_null
            if batch.column(name).null_count
        ]
        for rule, filters in self.checks:
            mask = filters.mask(batch)
            if mask is not None and mask.false_count:
                found.append((rule, filters.columns, mask.fill_null(True)))
        return found

    def check(
        self, batches: Iterable[pa.RecordBatch], first: int = 0, task: int = 0, remedy: str = ""
    ) -> None:
        """Raise InvalidInputError for the first row that breaks a rule; rows count from `first`."""
        if self.dead_letters is not None and not self.keyed:
            remedy = "; with writer_id and batch_id it would go to the dead letters"
        for batch in batches:
            if broken := self.broken(batch):
                row, rule, columns = min(
                    (mask.index(pa.scalar(False)).as_py(), rule, columns)
                    for rule, columns, mask in broken
                )
                values = [_shown(batch.column(name)[row]) for name in columns]
                one = len(columns) == 1
                raise InvalidInputError(
                    "an event breaks a rule of the stream",
                    remedy=_REMEDY + remedy,
                    row=first + row,
                    **({"task": task} if task else {}),
                    column=columns[0] if one else list(columns),
                    rule=rule,
                    value=values[0] if one else values,
                )
            first += batch.num_rows

    def split(
        self, batches: Sequence[pa.RecordBatch], first: int
    ) -> tuple[list[pa.RecordBatch], list[Refused]]:
        """Return the rows that break no rule, and the others with their reasons."""
        kept, refused = list[pa.RecordBatch](), list[Refused]()
        for batch in batches:
            sound = np.ones(batch.num_rows, bool)
            why = dict[int, str]()
            for rule, _, mask in self.broken(batch):
                keeps = mask.to_numpy(zero_copy_only=False)
                why |= dict.fromkeys(np.flatnonzero(sound & ~keeps).tolist(), rule)
                sound &= keeps
            if why:
                told = tuple([f"{rule}, row {first + row}" for row, rule in sorted(why.items())])
                refused.append((batch.filter(pa.array(~sound)), told))
            if sound.any():
                kept.append(batch.filter(pa.array(sound)) if why else batch)
            first += batch.num_rows
        return kept, refused


def _shown(value: pa.Scalar) -> Any:
    plain = not value.is_valid or (t.is_primitive(value.type) and not t.is_temporal(value.type))
    try:
        return value.as_py() if plain else str(value)[:_SHOWN]
    except (OverflowError, ValueError):  # a time that Python can't hold
        return f"{pa.array([value], value.type)}"[:_SHOWN]


def bind_rules(root: Root, schema: pa.Schema) -> BoundRules | None:
    """Return the rules of a stream for batches of a schema in normal form; None without rules."""
    text = root.properties.get(RULES_PROPERTY)
    return None if text is None else _bound(text, tuple(root.epoch.names.items()), schema)


@lru_cache(maxsize=64)
def _bound(text: str, names: tuple[tuple[str, str | None], ...], schema: pa.Schema) -> BoundRules:
    rules, called = load_rules(text), dict(names)
    not_null = tuple([called.get(name) or name for name in rules.not_null])
    if gone := {*not_null} - {*schema.names}:
        raise InvalidInputError(
            "a rule of the stream needs a column that would be gone",
            remedy=_CHANGE,
            columns=sorted(gone),
            rule="NOT NULL",
        )
    checks = {f"{name}: {check}": _parse(check, schema) for name, check in rules.checks.items()}
    return BoundRules(text, not_null, tuple(checks.items()), rules.dead_letters)


def _parse(check: str, schema: pa.Schema) -> Filters:
    try:
        return parse_filters(check, schema)
    except InvalidInputError as error:
        raise InvalidInputError(
            "a rule of the stream does not fit its columns", remedy=_CHANGE, rule=check
        ) from error


def parse_rules(
    given: Rules | Mapping[str, Any] | None, schema: pa.Schema, stored: Mapping[str, str]
) -> Rules:
    """Return the rules of a user, with `not_null` by `stored` names."""
    try:
        rules = given if isinstance(given, Rules) else Rules(**(given or {}))
        not_null, checks = tuple(rules.not_null), dict(rules.checks)
        letters = rules.dead_letters
        sound = isinstance(letters, str | PathLike | None) and not isinstance(rules.not_null, str)
        sound = sound and {*map(type, checks.values())} <= {str}
    except (TypeError, ValueError):
        sound = False
    if not sound:
        raise InvalidInputError(
            "not rules for what is appended",
            remedy="give {'not_null': ['user'], 'checks': {'positive': 'n > 0'}}, or one of both, "
            "and 'dead_letters': a location",
            rules=given,
        )
    for name in not_null:
        if name not in stored:
            raise InvalidInputError(
                "no such column in a rule",
                remedy="name columns, not fields of one",
                column=name,
                known=schema.names,
            )
    for name, check in checks.items():
        check_label(name, what="rule")
        if not parse_filters(check, schema):
            raise InvalidInputError("a check is empty", remedy="say what must hold", check=name)
    url = None if letters is None else fspath(letters)
    found = Rules(tuple(dict.fromkeys(stored[name] for name in not_null)), checks, url)
    if (size := len(build_rules(found) or "")) > TEXT_MOST:
        raise InvalidInputError("rules are too long", most=TEXT_MOST, characters=size)
    return found


def refuse_checked(root: Root, schema: pa.Schema, changed: Collection[str]) -> None:
    """Raise InvalidInputError if a check names a column that would change. Pure."""
    rules = rules_of(root)
    for name, check in rules.checks.items() if rules else ():
        if used := {*parse_filters(check, schema).columns} & {*changed}:
            raise InvalidInputError(
                "a rule of the stream names the column",
                remedy=_CHANGE,
                columns=sorted(used),
                rule=f"{name}: {check}",
            )
