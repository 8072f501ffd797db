"""Actors of a stream whose followers become primaries: two must never both acknowledge.

The stream moves from folder to folder. Whoever writes believes in a folder until it hears that
another one took over, as programs do whose configuration is old.
"""

from contextlib import suppress

from sim_actor import SCHEMA, Actor, maybe_committed, read_rows, table_of
from sim_ledger import Batch, Ledger, Violation
from sim_world import Process

from segstore_ds.errors import AlreadyExistsError, FencedError, SegstoreError
from segstore_ds.stream.opening import create as create_on


class Pair:
    """What its operators know of the stream: where it is, and which folders hold all of it.

    Attributes:
        primary: The folder that was promoted last.
        term: How many promotions there were, and `terms` the one that a folder was last part of.
        followers: The folders that surely follow the primary, by the number of the addition.
        promoting: The follower whose promotion began and has not returned.
    """

    def __init__(self) -> None:
        self.ledger = Ledger("pair")
        self.primary = "memory://pair-0"
        self.term = self.folders = self.changes = 0
        self.terms = {self.primary: 0}
        self.followers: dict[str, int] = {}
        self.promoting = ""
        self.acked: dict[int, int] = {}  # offset -> the term in which it was acknowledged


class _Of(Actor):
    troupe = "pair"
    share = 0.9

    def begin(self) -> None:
        self.pair = self.life.state(Pair)
        self.ledger = self.pair.ledger
        self.url = self.pair.primary
        if not self.pair.term:
            with suppress(AlreadyExistsError):
                create_on(self.storage(self.url), SCHEMA, clock=self.clock)
        self.stream = self.open(self.url)

    def expects(self, error: SegstoreError) -> bool:
        # A folder that was left has fewer commits than the followers that it remembers.
        left = self.url != self.pair.primary and "commits that were in the log" in error.fact
        return left or isinstance(error, FencedError)

    def move(self) -> None:
        """Open the stream where the operators say that it is now."""
        url = self.pair.primary
        self.stream = self.open(url)
        self.url = url


class PairWriter(_Of):
    """Appends to the folder that it believes in; every other batch is repeated until it is done."""

    number = 0
    batch: Batch | None = None

    def begin(self) -> None:
        super().begin()
        if self.batch is not None and not self.batch.writer:
            self.batch = None  # nobody knows what became of it

    def step(self) -> None:
        if self.batch is None:
            self.number += 1
            ids = tuple(f"{self.name}:{self.number}:{n}" for n in range(self.chance.choice((1, 3))))
            writer = self.name if self.number % 2 else ""
            self.batch = self.ledger.begin(ids, writer=writer)
        batch, term = self.batch, self.pair.terms[self.url]
        known = {"writer_id": self.name, "batch_id": self.number} if batch.writer else {}
        try:
            done = self.stream.append(table_of(batch.ids), layout=self.a_layout(), **known)
        except SegstoreError as error:
            if not batch.writer:
                self.batch = None
                if not maybe_committed(error):
                    self.ledger.fail(batch)
            if isinstance(error, FencedError):
                self.move()
            raise
        self.batch = None
        self.ledger.ack(batch, done.start, done.end)
        for offset in range(done.start, done.end):
            self.pair.acked.setdefault(offset, term)

    def finish(self) -> None:
        self.move()
        if self.batch is not None:
            self.step()


class PairReader(_Of):
    """Reads any of the folders: each holds what was acknowledged when it was part of the stream."""

    def step(self) -> None:
        pair = self.pair
        url = self.chance.choice([url for url, term in pair.terms.items() if term >= 0])
        floor, term, added = self.ledger.floor, pair.terms[url], pair.followers.get(url)
        stream = self.open(url)
        if added is not None and added == pair.followers.get(url):
            self.ledger.check_tail(floor, stream.tail)
        for offset, event, *_ in read_rows(stream, stream.head, stream.tail):
            known = self.ledger.placed.get(offset, event)
            if known != event and pair.acked[offset] <= term:
                raise Violation(f"{url}: {event!r} at {offset}, acknowledged was {known!r}")


class PairOperator(_Of):
    """Adds and removes followers, and promotes one; its picture of the stream may be old."""

    pace = 2.0

    def step(self) -> None:
        what = self.chance.random()
        if what < 0.2:
            self.move()
        elif what < 0.5:
            self.add()
        elif what < 0.65:
            self.remove()
        elif what < 0.9 and not self.pair.promoting and self.pair.followers:
            self.pair.promoting = self.chance.choice([*self.pair.followers])
            self.promote()
        else:
            self.stream.refresh().compact(target_rows=100)

    def add(self) -> None:
        pair = self.pair
        if self.chance.random() < 0.5 or len(pair.terms) > 6:
            url = self.chance.choice([*pair.terms])
        else:
            pair.folders += 1
            url = f"memory://pair-{pair.folders}"
        if url in (self.url, pair.primary, *pair.followers):
            return
        pair.changes += 1
        change, term, pair.terms[url] = pair.changes, pair.terms[self.url], -1
        try:
            self.stream.followers.add(url)
        except AlreadyExistsError:
            return  # its history is another one
        if pair.primary == self.url and pair.changes == change:
            pair.terms[url] = term
            if not pair.promoting:
                pair.followers[url] = change

    def remove(self) -> None:
        named = self.stream.refresh().followers
        if named:
            url = self.chance.choice(named)
            # Who removes one must not promote it: no removal begins once a promotion has.
            if url not in self.pair.followers or not self.pair.promoting:
                self.pair.changes += 1
                self.pair.followers.pop(url, None)
                self.stream.followers.remove(url)

    def promote(self) -> None:
        """Promote; only one follower is ever tried, until it has worked."""
        pair, url, floor = self.pair, self.pair.promoting, self.ledger.floor
        stream = self.open(url)
        stream.followers.promote()
        if pair.promoting == url:  # else another operator ended it
            pair.primary, pair.promoting, pair.followers = url, "", {}
            pair.term += 1
            pair.changes += 1
            pair.terms[url] = pair.term
            self.ledger.check_tail(floor, stream.refresh().tail)

    def finish(self) -> None:
        if self.pair.promoting:
            self.promote()

    def judge(self, process: Process) -> None:
        if self.name == "pair-op-1":
            self.life.judge_stream(process, self.pair.primary, self.ledger)


CAST: dict[str, type[Actor]] = {
    "pair-write-1": PairWriter,
    "pair-write-2": PairWriter,
    "pair-read": PairReader,
    "pair-op-1": PairOperator,
    "pair-op-2": PairOperator,
}
