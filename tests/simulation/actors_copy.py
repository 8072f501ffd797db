"""Actors that have whole streams come and go: copies, followers, a location let again and again."""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sim_actor import SCHEMA, Actor, read_rows, table_of
from sim_ledger import Batch, Ledger

from segstore_ds.errors import AlreadyExistsError, NotFoundError, SegstoreError
from segstore_ds.retention.drop import run_drop
from segstore_ds.stream.opening import create as create_on


class Operator(Actor):
    """Adds followers, and removes them; an addition that was interrupted is repeated."""

    pace = 10.0
    number = 0
    adds = False

    def step(self) -> None:
        url = f"{self.life.url}-copy-{self.number}"
        self.stream.refresh()
        if self.adds or url not in self.stream.followers:
            self.adds = True
            try:
                self.stream.followers.add(url)
            except AlreadyExistsError:
                self.number += 1  # it was removed long ago
            self.adds = False
        elif self.chance.random() < 0.2:
            self.stream.followers.remove(url)

    def finish(self) -> None:
        if self.adds:
            self.step()


class Copier(Actor):
    """Copies the stream in every way, checks the copy, and drops it or makes it independent."""

    pace = 20.0
    number = 0
    asked: tuple[str, str] | None = None
    done: bool = False
    floor = 0  # what was acknowledged when a copy was first asked for

    def step(self) -> None:
        if self.asked is None:
            self.number += 1
            self.floor = self.ledger.floor
            self.asked = f"c{self.number}", self.chance.choice(("clone", "segments", "events"))
            self.done = False
        name, mode = self.asked
        url = f"{self.life.url}-{name}"
        if not self.done:
            # A clone that failed goes on with the version that its pin holds.
            floor = self.floor if mode == "clone" else self.ledger.floor
            target: Any = self.storage(url)
            copied = self.stream.copy_to(target, copy_id=name, mode=mode)
            if not copied.repeated and mode != "events":
                self.ledger.check_tail(floor, copied.end)
            self.done = True
        try:
            copy = self.open(url)
        except NotFoundError:
            self.asked = None  # a process that was killed has dropped it
            return
        if mode == "clone" and self.chance.random() < 0.3:
            copy.materialize()
        rows = read_rows(copy, copy.head, copy.tail)
        if mode != "events":
            self.ledger.read(row[:2] for row in rows)
        if self.chance.random() < 0.5:
            self.life.foreign.plant(f"/stream-{name}", self.chance)
            run_drop(self.storage(url), confirm=url, clock=self.clock, client="")
            self.asked = None

    def expects(self, error: SegstoreError) -> bool:
        if "older than a redaction" in error.fact:
            self.asked = None  # what the first try pinned may not be cloned any more
            return True
        return False

    def finish(self) -> None:
        """Leave what is there: nobody waits for it."""


class Tenant(Actor):
    """Uses a stream that is dropped and created again, each time under the same location."""

    pace = 3.0
    number = 0

    def begin(self) -> None:
        self.stream = None

    def step(self) -> None:
        url, home = self.life.url + "-let", self.life.home
        try:
            if self.stream is None:
                self.stream = self.open(url)
            what = self.chance.random()
            if what < 0.06:
                home.leaving = True
                run_drop(self.storage(url), confirm=url, clock=self.clock, client="")
                home.left(self.world.now_us)
            elif what < 0.6:
                self.number += 1
                ids = (f"{self.name}:{self.number}:0",)
                began, batch = self.world.now_us, home.ledger.begin(ids)
                done = self.stream.append(table_of(ids, self.chance))
                home.acked(batch, done, began)
            else:
                self.stream.refresh()
                read_rows(self.stream, self.stream.head, self.stream.tail)
        except NotFoundError:
            self.stream = None
            with suppress(AlreadyExistsError):
                create_on(self.storage(url), SCHEMA, clock=self.clock)
        except SegstoreError:
            self.stream = None
            raise


@dataclass
class Home:
    """What tenants know of the location that they share: what was acknowledged since it was let."""

    ledger: Ledger
    since_us: int = 0
    kept: list[tuple[int, str]] = field(default_factory=list)
    leaving: bool = False

    def left(self, now_us: int) -> None:
        """Note that it was dropped: what was acknowledged before is gone."""
        self.since_us, self.leaving = now_us, False
        self.kept.clear()

    def acked(self, batch: Batch, done: Any, began_us: int) -> None:
        """Note an event that was acknowledged, if no drop can have come between."""
        batch.state = "acked"
        if began_us > self.since_us and not self.leaving:
            self.kept.append((done.start, batch.ids[0]))
