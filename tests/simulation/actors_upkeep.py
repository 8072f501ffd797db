"""Actors that look after a stream: compaction, maintenance, retention, truncation, redaction."""

from contextlib import suppress

from sim_actor import KEYS, Actor
from sim_ledger import Violation

from segstore_ds.errors import NotFoundError, TruncatedError


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

    def finish(self) -> None:
        if self.asked is not None:
            self.step()
