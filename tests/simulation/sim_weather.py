"""Spells of bad weather: faults that last, such as a full disk or a store that throttles."""

import errno
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from sim_world import HOUR_US, Process

if TYPE_CHECKING:
    from simulation import Life

# Kind -> how many hours pass between two of them, on average.
SPELLS = {
    "full": 6.0,  # writes fail: no space is left
    "refused": 8.0,  # requests fail: the credentials have expired
    "throttled": 6.0,  # most requests fail: the store asks its clients to slow down
    "jump": 3.0,  # a clock is set ahead or back, and right again later
}
FOLDERS = ("/", "/", "/stream/", "/stream-copy-")
LASTS_S = (20.0, 300.0, 3600.0, 3 * 3600.0)
JUMPS_S = (-7200.0, -400.0, 200.0, 400.0, 7200.0, 200_000.0)


@dataclass(frozen=True, slots=True)
class Spell:
    """What goes wrong with requests below a folder."""

    kind: str
    folder: str

    def strike(self, verb: str, full: str, chance: Random) -> OSError | None:
        """Return the failure of a request, which then has no effect; None if it is spared."""
        if not full.startswith(self.folder):
            return None
        if self.kind == "refused":
            return PermissionError(errno.EACCES, "simulated: access denied", full)
        if self.kind == "throttled" and chance.random() < 0.8:
            return OSError(errno.EBUSY, "simulated: please reduce your request rate", full)
        if self.kind == "full" and verb in ("create", "put", "copy") and chance.random() < 0.8:
            return OSError(errno.ENOSPC, "simulated: no space left on device", full)
        return None


class Weather:
    """The spells of a life, drawn kind by kind: without one of them the others stay as they are."""

    def __init__(self, life: "Life") -> None:
        self.life = life
        self.world = life.world
        self.faults = life.store.faults

    def forecast(self) -> None:
        """Let the kinds of spells begin at their times."""
        for kind in SPELLS:
            if kind in self.faults.kinds:
                self._wait(kind, self.world.chance_of(f"weather {kind}"))

    def calm(self) -> None:
        """End what goes on."""
        self.faults.spells.clear()
        for process in self.world.processes:
            process.jump_us = 0

    def _wait(self, kind: str, chance: Random) -> None:
        wait_us = int(chance.expovariate(1 / SPELLS[kind]) * HOUR_US)
        self.world.at(self.world.now_us + wait_us, lambda: self._begin(kind, chance))

    def _begin(self, kind: str, chance: Random) -> None:
        if self.life.ending:
            return
        self._wait(kind, chance)
        lasts_s = chance.choice(LASTS_S) * chance.random()
        if kind == "jump":
            alive = [each for each in self.world.processes if each.threads]
            struck = chance.choice(alive or self.world.processes)
            jump_us = int(1e6 * chance.choice(JUMPS_S))
            self._jump(struck, jump_us)
            self._end(lasts_s, lambda: self._jump(struck, 0))
        else:
            spell = Spell(kind, chance.choice(FOLDERS))
            self.world.note(f"{kind} below {spell.folder}")
            self.faults.spells.append(spell)
            self._end(lasts_s, lambda: self._clear(spell))
        self.faults.count(kind)

    def _end(self, after_s: float, end: Callable[[], None]) -> None:
        self.world.at(self.world.now_us + int(after_s * 1e6), end)

    def _clear(self, spell: Spell) -> None:
        if spell in self.faults.spells:
            self.faults.spells.remove(spell)

    def _jump(self, process: Process, jump_us: int) -> None:
        self.world.note(f"the clock of {process.name} is off by {jump_us / 1e6:.0f} s")
        process.jump_us = jump_us
        process.jumped = process.jumped or bool(jump_us)
