"""Actors that read: looks at the tail, ranges, named readers and their members."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from sim_actor import Actor, read_rows
from sim_ledger import Violation

from segstore_ds.errors import SegstoreError, TruncatedError


class Reader(Actor):
    """Looks at the tail, and reads ranges in every way."""

    def step(self) -> None:
        look, redacted = self.ledger.ask(), dict(self.ledger.redacted)
        if self.chance.random() < 0.1:
            self.stream = self.open()
        else:
            self.stream.refresh()
        head, tail = self.stream.head, self.stream.tail
        self.ledger.answer(look, head, tail)
        start = self.chance.randrange(head, tail + 1) if self.chance.random() < 0.7 else head
        end = min(tail, start + self.chance.choice((1, 10, 1000)))
        rows = read_rows(self.stream, start, end)
        look.rows = [row[:2] for row in rows]
        self.ledger.read(look.rows)
        self.ledger.check_values(rows, redacted)


class Consumer(Actor):
    """Follows by a named reader: nothing may be left out, and at most the last batch repeated."""

    done = confirmed = 0  # up to where it got events, and up to where it surely published that
    anew = True  # it begins at the head, where others may have let it go
    follow: Any = None

    def begin(self) -> None:
        super().begin()
        self.follow = None

    def step(self) -> None:
        if self.follow is None or self.chance.random() < 0.05:
            try:
                self.follow = self.stream.follow(
                    self.name, timeout=0, offset_column="offset", columns=["id"]
                )
            except TruncatedError:
                self.skip()
                return
        given = 0  # up to where this loop got events
        for _ in range(self.chance.choice((1, 3, 50))):
            try:
                batch = next(self.follow, None)
            except TruncatedError:
                self.skip()
                return
            except SegstoreError:
                self.follow = None
                raise
            self.confirmed = max(self.confirmed, given)
            if batch is None:
                self.follow = None
                break
            offsets = batch.column("offset").to_pylist()
            gone = self.ledger.may_drop if self.anew else self.ledger.dropped
            if not self.confirmed <= offsets[0] <= max(self.done, gone):
                raise Violation(f"{self.name}: got {offsets[0]} after {self.done}")
            rows = zip(offsets, batch.column("id").to_pylist(), strict=True)
            self.ledger.read(rows)
            given, self.anew = offsets[-1] + 1, False
            self.done = self.ledger.readers[self.name] = max(self.done, given)

    def skip(self) -> None:
        """Go on at the head, if somebody asked for events to be dropped that were not read."""
        if self.ledger.dropped <= self.confirmed:
            raise Violation(f"{self.name}: events from {self.confirmed} on are gone, unasked")
        self.stream.refresh()
        self.stream.readers.release(self.name)
        self.anew = True
        self.stream.readers.register(self.name, start="head")
        self.done, self.follow = max(self.done, self.stream.head), None
        self.ledger.readers[self.name] = self.done

    def finish(self) -> None:
        self.stream.refresh()
        while self.done < self.stream.tail:
            self.step()


class Member(Actor):
    """One of those that share a named reader: together they miss nothing."""

    group = "team"
    follow: Any = None
    given: Sequence[int] = ()  # offsets of the batch that it has not done yet

    def begin(self) -> None:
        super().begin()
        self.follow, self.given = None, []

    def step(self) -> None:
        try:
            if self.follow is None:
                self.join()
            for _ in range(self.chance.choice((1, 3, 50))):
                began_us, batch = self.world.now_us, next(self.follow, None)
                self.confirm()
                if batch is None:
                    break
                offsets = batch.column("offset").to_pylist()
                for offset in offsets:
                    if self.life.confirmed.get(offset, began_us) < began_us:
                        raise Violation(f"{self.name}: got {offset}, which was done before")
                self.ledger.read(zip(offsets, batch.column("id").to_pylist(), strict=True))
                self.given = offsets
                self.life.shared.update(offsets)
                self.note_progress()
        except TruncatedError:
            self.skip()
        except SegstoreError:
            self.follow, self.given = None, []
            raise
        else:
            if self.chance.random() < 0.3:
                follow, self.follow, self.given = self.follow, None, []
                follow.close()

    def confirm(self) -> None:
        """Note that what it was given before is done: nobody may be given it anew from now on."""
        for offset in self.given:
            self.life.confirmed.setdefault(offset, self.world.now_us)
        self.given = []

    def join(self) -> None:
        """Become a member, perhaps the first."""
        self.follow = self.stream.follow(
            self.group,
            member=self.name,
            lease=self.chance.choice((5, 30, 600)),
            timeout=0,
            offset_column="offset",
            columns=["id"],
        )
        if self.life.anew:  # it begins at the head, which may have moved on
            rows = pa.table(self.stream.metadata("readers")).to_pylist()
            starts = [row["offset"] for row in rows if row["name"] == self.group]
            self.life.skipped = max([self.life.skipped, *filter(None, starts)])
            self.life.anew = False
            self.note_progress()

    def note_progress(self) -> None:
        """Note up to where all events were given to a member."""
        done = self.ledger.readers.get(self.group, 0)
        while done in self.life.shared or done < self.life.skipped:
            done += 1
        self.ledger.readers[self.group] = done

    def skip(self) -> None:
        """Begin anew at the head, if somebody asked for events to be dropped that were not read."""
        if not self.ledger.dropped:
            raise Violation(f"{self.name}: events are gone, and nobody asked")
        self.stream.refresh()
        self.life.anew = True
        try:
            self.stream.readers.release(self.group)
        finally:  # what others did until then may come again
            self.life.confirmed.clear()
        self.life.skipped = max(self.life.skipped, self.stream.head)
        self.note_progress()
        self.follow = None

    def finish(self) -> None:
        self.stream.refresh()
        self.life.skipped = max(self.life.skipped, min(self.stream.head, self.ledger.dropped))
        self.note_progress()
        while self.ledger.readers[self.group] < self.stream.tail:
            self.step()
            self.world.sleep(60 + 600 * self.chance.random())
            self.note_progress()
        if self.follow is not None:
            self.follow.close()
