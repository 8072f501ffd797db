"""The engine with one of its rules broken, to see that the simulation notices it.

A mutant replaces a function wherever the engine has it.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from segstore_ds.format.envelope import encode_envelope
from segstore_ds.log.newest import Base


@dataclass(frozen=True, slots=True)
class Mutant:
    """A broken rule: what is replaced, and by what.

    `target` is ``module:function`` or ``module:Class.method``; `make` gets the original.
    """

    name: str
    target: str
    make: Callable[[Any], Any]

    @contextmanager
    def broken(self) -> Iterator[None]:
        """Break the rule meanwhile."""
        module_name, _, path = self.target.partition(":")
        owner: Any = import_module(f"segstore_ds.{module_name}")
        *holders, attribute = path.split(".")
        for holder in holders:
            owner = getattr(owner, holder)
        original = vars(owner)[attribute]
        mutated = self.make(original)
        changed = [(owner, attribute)]
        if not holders:
            changed += [
                (module, name)
                for module in [*sys.modules.values()]
                if getattr(module, "__name__", "").startswith("segstore_ds") and module is not owner
                for name, value in [*vars(module).items()]
                if value is original
            ]
        for where, name in changed:
            setattr(where, name, mutated)
        try:
            yield
        finally:
            for where, name in changed:
                setattr(where, name, original)


def _one_try(_original: Any) -> Any:
    def add_or_read(self: Any, number: int, batch: Any) -> bytes | None:
        path = self.path(number)
        data = encode_envelope(self._encode(batch, path)) + self._codec.behind(batch)
        if self.storage.create(path, data):
            self._added = number, data
            return None
        return self._read(path) or b""

    return add_or_read


def _hint_is_trusted(original: Any) -> Any:
    def find_listed(files: Any, read: Any, start: int, *, damaged: bool) -> Any:
        data = files.read(start) if start else None
        if data is None:
            return original(files, read, start, damaged=damaged)
        return Base.found(read(start, data), data)

    return find_listed


def _no_first_look(original: Any) -> Any:
    def follow(self: Any) -> Any:
        return original(self) if self._base is None else self._base.root

    return follow


def _readers_are_ignored(original: Any) -> Any:
    def plan_retain(root: Any, runs: Any, policy: Any, **how: Any) -> Any:
        held = how.pop("held", ())
        plan = original(root, runs, policy, held=held, **how)
        return replace(plan, offset=root.tail) if held else plan

    return plan_retain


def _last_match_stays(original: Any) -> Any:
    def find_matches(job: Any, placed: Any) -> Any:
        found = original(job, placed)
        if found is not None:
            found[found.nonzero()[0][-1]] = False
        return found if found is not None and found.any() else None

    return find_matches


def _always(value: Any) -> Callable[[Any], Any]:
    """Make a function that gives the same answer whatever it is asked."""

    def make(_original: Any) -> Any:
        return lambda *_given, **_how: value

    return make


_ADD = "log.metadata_log:MetadataLog.add_or_read"
MUTANTS = (
    Mutant("a failed put counts as never made", _ADD, _one_try),
    Mutant("an open trusts the hint", "log.newest:find_listed", _hint_is_trusted),
    Mutant("a refresh does not look", "log.stream_log:StreamLog.refresh", _no_first_look),
    Mutant("a repeated batch is new", "status.writers:check_writer", _always(False)),
    Mutant("objects go without a grace", "status.deletable:Horizon.holder", _always("")),
    Mutant("retention ignores readers", "retention.retain:plan_retain", _readers_are_ignored),
    Mutant("a redaction leaves an event", "redact.rewrite:find_matches", _last_match_stays),
)
