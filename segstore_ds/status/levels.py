"""Levels: when parts are merged, and when their list leaves the root. Pure.

Entries spill to parts of some 64 segments; ten parts of one size become one of the next; a part of
32,768 segments or more is final. Parts that are final and old move, in groups, to lists of up to
1,024 parts. So a root names few parts and few lists, however many segments there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Sized(Protocol):
    """What has a name and a number of rows: a part of the status or of the history."""

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
        fan_in: How many parts of one level make one of the next.
        final: A part with so many rows is not merged any more; a merged part has at most twice it.
    """

    smallest: int
    fan_in: int
    final: int

    def level(self, size: int) -> int:
        """Return the level of a part with so many rows."""
        level, limit = 0, self.smallest
        while size > limit:
            level, limit = level + 1, limit * self.fan_in
        return level


def plan_merge(parts: Sequence[Sized], rules: MergeRules) -> tuple[str, ...] | None:
    """Choose neighbouring parts to merge, or None when nothing is due.

    The newest parts of one level are merged when there are enough of them. Parts of odd sizes (of
    large commits) may keep smaller ones apart; when too many have gathered, the neighbours with the
    fewest rows are merged whatever their levels.

    Returns:
        Their names, in order.
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
    """Return where `paths` stand side by side in `listed`, or None where they don't.

    >>> find_run(["a", "b", "c"], ["b", "c"]), find_run(["a", "x", "b"], ["a", "b"])
    (1, None)
    """
    if not paths or paths[0] not in listed:
        return None
    first = listed.index(paths[0])
    return first if list(listed[first : first + len(paths)]) == list(paths) else None
