"""Levels: when parts are merged, and which neighbours. Pure.

Entries spill to parts of about 64 segments. Ten parts of one level are merged into one of the next.
A part of 32,768 segments or more is final. Old final parts move, in groups, to lists of up to 1,024
parts. So a root names few parts and few lists, however many segments the stream has.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Sized(Protocol):
    """A part of the status or of the history: it has a name and a number of rows."""

    @property
    def path(self) -> str:
        """Its name."""

    @property
    def size(self) -> int:
        """How many segments or versions it lists."""


@dataclass(frozen=True, slots=True)
class MergeRules:
    """When parts are merged.

    Attributes:
        smallest: Most rows of a part of the lowest level.
        fan_in: How many parts of one level are merged into one of the next.
        final: A part with this many rows or more is not merged any more; a merged part has at most
            twice as many.
    """

    smallest: int
    fan_in: int
    final: int

    def level(self, size: int) -> int:
        """Return the level of a part with `size` rows."""
        level, limit = 0, self.smallest
        while size > limit:
            level, limit = level + 1, limit * self.fan_in
        return level


def plan_merge(parts: Sequence[Sized], rules: MergeRules) -> tuple[str, ...] | None:
    """Return the names of neighbouring parts to merge, in order, or None when nothing is due.

    The newest parts are merged when `fan_in` of them are of one level. Parts of odd sizes, from
    large commits, can separate smaller ones. When too many small parts have accumulated, the
    neighbours with the fewest rows in total are merged, whatever their levels.
    """
    fan_in = rules.fan_in
    run = parts[-fan_in:]
    one_level = len({rules.level(part.size) for part in run}) == 1
    if len(run) == fan_in and one_level and _fits(run, rules):
        return tuple(part.path for part in run)
    small = sum(1 for part in parts if part.size < rules.final)
    if small <= 4 * fan_in:
        return None
    runs = (parts[first : first + fan_in] for first in range(len(parts) - fan_in + 1))
    fitting = [run for run in runs if _fits(run, rules)]
    if not fitting:
        return None
    best = min(fitting, key=lambda run: sum(part.size for part in run))
    return tuple(part.path for part in best)


def _fits(run: Sequence[Sized], rules: MergeRules) -> bool:
    return (
        all(part.size < rules.final for part in run)
        and sum(part.size for part in run) <= 2 * rules.final
    )


def find_run(listed: Sequence[str], paths: Sequence[str]) -> int | None:
    """Return where `paths` appear side by side in `listed`, or None where they don't.

    >>> find_run(["a", "b", "c"], ["b", "c"]), find_run(["a", "x", "b"], ["a", "b"])
    (1, None)
    """
    if not paths or paths[0] not in listed:
        return None
    first = listed.index(paths[0])
    return first if list(listed[first : first + len(paths)]) == list(paths) else None
