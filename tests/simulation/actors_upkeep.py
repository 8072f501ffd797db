"""Actors that look after a stream: compaction, maintenance, retention, truncation, redaction."""

from contextlib import suppress
from typing import TYPE_CHECKING

from sim_actor import KEYS, Actor
from sim_ledger import Violation

from segstore_ds.errors import (
    InvalidInputError,
    NotFoundError,
    SegstoreError,
    SnapshotExpiredError,
    TruncatedError,
)

if TYPE_CHECKING:
    from simulation import Life

ROOTS = ("/stream", "/shape", "/bucket/lapse", "/pair-0")


class Keeper(Actor):
    """Looks after the stream: compaction, maintenance, retention, tags."""

    pace = 4.0

    def step(self) -> None:
        what = self.chance.choice((self.compact, self.maintain, self.retain, self.tag, self.verify))
        what()

    def compact(self) -> None:
        mode = self.chance.choice(("merge", "merge", "stitch", "split"))
        self.stream.compact(mode=mode, target_rows=self.chance.choice((10, 100, 10_000)))

    def maintain(self) -> None:
        how = self.chance.choice(({}, {"keep": "1h"}, {"keep": "1h", "grace": "24h"}))
        self.stream.maintain(**how)

    def retain(self) -> None:
        self.ledger.retains = True
        self.stream.retain()  # what every live reader is done with

    def tag(self) -> None:
        with suppress(NotFoundError, TruncatedError):
            self.stream.tags.set(self.chance.choice("ab"), move=True)

    def verify(self) -> None:
        assert self.process is not None
        spoiled = self.process.spoiled
        report = self.stream.verify()
        if not report.ok and self.process.spoiled == spoiled:
            raise Violation(f"verify: {report.problems[:3]}")


class Truncater(Actor):
    """Truncates now and then, whatever readers need."""

    pace = 30.0

    def step(self) -> None:
        self.stream.refresh()
        cut = self.chance.randrange(self.stream.head, self.stream.tail + 1)
        cut = min(cut, self.stream.head + 50)
        self.ledger.drop(cut)
        self.stream.truncate(cut)
        self.ledger.head = max(self.ledger.head, cut)


class Redactor(Actor):
    """Redacts the values of a key; an interrupted call goes on under its id."""

    pace = 30.0
    number = 0
    asked: tuple[str, str] | None = None

    def step(self) -> None:
        if self.asked is None:
            self.number += 1
            self.asked = self.chance.choice(KEYS), f"r{self.number}"
        key, name = self.asked
        self.ledger.maybe_redacted.add(key)
        done = self.stream.redact([["key", "==", key]], columns=["email"], redact_id=name)
        bound = max(self.ledger.redacted.get(key, 0), done.tail)
        self.ledger.redacted[key], self.asked = bound, None

    def expects(self, error: SegstoreError) -> bool:
        return isinstance(error, InvalidInputError) and "tags keep versions" in error.fact

    def finish(self) -> None:
        if self.asked is not None:
            self.step()


class Curator(Actor):
    """Has tags keep versions: what these held is read from them whatever happens later."""

    pace = 8.0
    number = 0
    asked = left = ""

    def __init__(self, life: "Life", name: str) -> None:
        super().__init__(life, name)
        self.kept: dict[str, list[dict[str, object]]] = {}

    def step(self) -> None:
        self.stream.refresh()
        if self.asked or (not self.kept and self.chance.random() < 0.5):
            self.keep()
        elif self.kept:
            name = self.chance.choice([*self.kept])
            if name != self.left:
                self.look(name)
            if name == self.left or self.chance.random() < 0.4:
                self.give_up(name)

    def keep(self) -> None:
        """Keep the newest version; after an error, look whether the tag is there."""
        if not self.asked:
            self.number += 1
            self.asked = f"kept-{self.number}"
        floor = self.ledger.floor
        if self.asked not in self.stream.tags:
            self.stream.tags.set(self.asked, keep=True)
            self.ledger.check_tail(floor, self.stream.refresh().tags[self.asked].offset)
        self.kept[self.asked] = self.read(self.asked)
        self.asked = ""

    def read(self, name: str) -> list[dict[str, object]]:
        """Return what a tag keeps."""
        columns = ["id", "key", "email"]
        try:
            scan = self.stream.scan(as_of=f"tag:{name}", columns=columns, offset_column="offset")
            rows: list[dict[str, object]] = scan.to_arrow().to_pylist()
        except (NotFoundError, SnapshotExpiredError) as error:
            raise Violation(f"the tag {name} keeps nothing") from error
        self.ledger.read((int(str(row["offset"])), str(row["id"])) for row in rows)
        return rows

    def look(self, name: str) -> None:
        """Hold what a tag keeps against what it kept at first; raises Violation."""
        if (rows := self.read(name)) != self.kept[name]:
            raise Violation(f"the tag {name} kept {self.kept[name][:3]}, and shows {rows[:3]}")

    def give_up(self, name: str) -> None:
        self.left = name  # perhaps, until it is repeated
        with suppress(NotFoundError):
            self.stream.tags.delete(name)
        del self.kept[name]

    def expects(self, error: SegstoreError) -> bool:
        return (
            isinstance(error, InvalidInputError) and "the stream has expiring values" in error.fact
        )

    def finish(self) -> None:
        """Give up what is kept: redactions wait for that."""
        self.stream.refresh()
        if self.asked in self.stream.tags:
            self.kept[self.asked] = self.read(self.asked)
        self.asked = ""
        for name in [*self.kept]:
            if name != self.left:
                self.look(name)
            self.give_up(name)


class Stranger(Actor):
    """Puts objects of nobody into the folders of streams."""

    pace = 20.0

    def begin(self) -> None:
        """Open nothing."""

    def step(self) -> None:
        roots = [root for root in ROOTS if f"{root}/log/{0:020d}" in self.life.store.objects]
        self.life.foreign.plant(self.chance.choice([*roots, "/stream"]), self.chance)
