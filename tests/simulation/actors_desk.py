"""Actors of a stream whose readers are shared by key, or have dead letters.

Each group is the members of one named reader, who know together what each of them heard. So an
event is *done* where the next batch was asked for without an error, and *tried* where that began.
Some events are poison: whoever gets one may die of it.
"""

from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any
from zlib import crc32

import pyarrow as pa
from actors_upkeep import Keeper
from actors_write import Appender
from sim_actor import SCHEMA, Actor, key_of, read_rows
from sim_ledger import Ledger, Violation
from sim_world import Killed, Process

from segstore_ds.errors import (
    AlreadyExistsError,
    LeaseLostError,
    NotFoundError,
    ReaderConflictError,
    SegstoreError,
    TruncatedError,
)
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.stream import Stream

URL, DEAD = "memory://desk", "memory://desk-dead"
COUNTED = "given out "  # how the reason of a letter begins that nobody rejected


@dataclass(eq=False)
class Hand:
    """A batch that a member was given, when, and when it first asked for the next one."""

    events: dict[int, str]
    given_us: int
    asked_us: int | None = None


@dataclass(eq=False)
class Group:
    """What the members of a reader know.

    Attributes:
        key: By which columns they share, `dead` where their dead letters are, `most` how often a
            batch is given out, and `without` the key whose events they leave out.
        tried: What may be done, or dead; `settled` what surely is, and since when that is known.
        done: What was surely done, and never rejected.
        rejected: What was surely rejected, and why.
        open: Key -> what was given to a member that did not try to get it done.
        passed: Of that, what a later event of the key was given after: it must be dead.
        turns: Key -> who surely held it, from when until when.
    """

    name: str
    key: list[str] | None
    dead: str | None
    most: int
    without: str
    given: Counter[int] = field(default_factory=Counter)
    tried: set[int] = field(default_factory=set)
    settled: dict[int, int] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    rejected: dict[int, str] = field(default_factory=dict)
    reasons: set[str] = field(default_factory=set)
    open: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    passed: set[int] = field(default_factory=set)
    newest: Counter[str] = field(default_factory=Counter)
    turns: defaultdict[str, list[tuple[int, int, str]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def give(self, hand: Hand, asked_us: int) -> None:
        """Note a batch; `asked_us` is when it was asked for. Raises Violation."""
        for offset, event in hand.events.items():
            key = key_of(event)
            if key == self.without:
                raise Violation(f"{self.name}: got {event!r}, which it left out")
            if self.settled.get(offset, asked_us) < asked_us:
                raise Violation(f"{self.name}: got {offset}, which was done before")
            self.given[offset] += 1
            if self.dead and self.given[offset] > self.most:
                raise Violation(f"{self.name}: got {offset} {self.given[offset]} times")
            if self.key:
                self._check_order(offset, key, hand)
            if offset not in self.tried:
                self.open[key].add(offset)

    def _check_order(self, offset: int, key: str, hand: Hand) -> None:
        first = self.given[offset] == 1
        if first and offset < self.newest[key]:
            raise Violation(f"{self.name}: {offset} of {key} came after {self.newest[key]}")
        self.newest[key] = max(self.newest[key], offset)
        left = {each for each in self.open[key] - hand.events.keys() if each < offset}
        if left and not self.dead:
            raise Violation(f"{self.name}: {offset} of {key} came before {min(left)} was done")
        self.passed |= left

    def attempt(self, hand: Hand) -> None:
        """Note that a batch may be done, or dead, from now on."""
        self.tried |= hand.events.keys()
        for offset, event in hand.events.items():
            self.open[key_of(event)].discard(offset)

    def settle(self, hand: Hand, member: str, now_us: int) -> None:
        """Note that a batch surely is done, or dead; raises Violation."""
        if again := hand.events.keys() & self.settled.keys():
            raise Violation(f"{self.name}: {min(again)} is done by {member}, and was before")
        self.settled.update(dict.fromkeys(hand.events, now_us))
        assert hand.asked_us is not None
        for key in sorted({key_of(event) for event in hand.events.values()} if self.key else ()):
            for since_us, until_us, other in self.turns[key]:
                if other != member and since_us < hand.asked_us and hand.given_us < until_us:
                    raise Violation(f"{self.name}: {other} and {member} held {key} at once")
            self.turns[key].append((hand.given_us, hand.asked_us, member))


class Desk:
    """What is known of the stream, and of the readers that it has."""

    def __init__(self) -> None:
        self.ledger = Ledger("desk")
        self.groups: dict[str, Group] = {}
        self.ready = False

    def group(self, name: str, chance: Random) -> Group:
        """Return what the members of a reader know, who share it as is drawn."""
        if name not in self.groups:
            key = name == "keys" or chance.random() < 0.3
            dead = name == "letters" or chance.random() < 0.5
            self.groups[name] = Group(
                name,
                ["key"] if key else None,
                DEAD if dead else None,
                chance.choice((2, 3, 5)),
                chance.choice(("", "", "kim")),
            )
        return self.groups[name]

    def letters(self, stream: Stream | None) -> dict[str, dict[int, dict[str, Any]]]:
        """Return the dead letters of each reader, by offset; raises Violation."""
        found: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in self.groups}
        rows = [] if stream is None else stream.read(end=stream.tail).read_all().to_pylist()
        for row in rows:
            group, offset = self.groups[row["_reader"]], row["_offset"]
            if offset in found[group.name]:
                raise Violation(f"{group.name}: {offset} is dead twice")
            found[group.name][offset] = row
            counted = row["_reason"].startswith(COUNTED)
            if row["_deliveries"] < (group.most if counted else 1):
                raise Violation(f"{group.name}: {offset} is dead too early: {row}")
            if not counted and row["_reason"] not in group.reasons:
                raise Violation(f"{group.name}: nobody rejected {offset}: {row}")
            if row["_stream"] != URL or not row["_member"].startswith(group.name):
                raise Violation(f"{group.name}: a letter of somebody else: {row}")
            if (
                row["email"] not in (None, f"mail-of-{row['id']}")
                or key_of(row["id"]) != row["key"]
            ):
                raise Violation(f"{group.name}: a letter is not what the event was: {row}")
            self.ledger.read([(offset, row["id"])])
        return found

    def check_passed(
        self, upto: dict[str, int], letters: dict[str, dict[int, dict[str, Any]]]
    ) -> None:
        """Raise Violation unless all events before a reader's position were done, or are dead."""
        for name, position in upto.items():
            group = self.groups[name]
            for offset in range(position):
                event = self.ledger.placed.get(offset) or self.ledger.seen.get(offset)
                if event is None and group.without:
                    continue  # gone before anybody read it: it may have been left out
                left_out = event is not None and key_of(event) == group.without
                if not left_out and offset not in group.tried | letters[name].keys():
                    raise Violation(f"{name}: {offset} is passed, and nobody did it")

    def judge(self, stream: Stream, dead: Stream | None) -> None:
        """Hold what the members heard against what is there in the end; raises Violation."""
        letters = self.letters(dead)
        self.ledger.retains = True
        for group in self.groups.values():
            mine = letters[group.name]
            if twice := group.done & mine.keys():
                raise Violation(f"{group.name}: {min(twice)} is done, and dead")
            if lost := (group.passed | group.rejected.keys()) - mine.keys():
                raise Violation(f"{group.name}: {min(lost)} is in no dead letter")
            for offset, reason in group.rejected.items():
                if mine[offset]["_reason"] != reason:
                    raise Violation(f"{group.name}: rejected as {reason!r}: {mine[offset]}")
        self.ledger.readers = positions(stream)
        self.check_passed(self.ledger.readers, letters)
        if dead is not None and not (report := dead.verify()).ok:
            raise Violation(f"verify of dead letters: {report.problems[:3]}")


class _AtDesk(Actor):
    troupe = "desk"
    share = 0.9

    def begin(self) -> None:
        self.desk = self.life.state(Desk)
        self.ledger, self.url = self.desk.ledger, URL
        if not self.desk.ready:
            with suppress(AlreadyExistsError):
                create_on(self.storage(), SCHEMA, clock=self.clock)
            for name in sorted(
                {each.reader for each in self.life.actors if isinstance(each, Worker)}
            ):
                self.join(self.desk.group(name, self.world.chance_of(f"group {name}"))).close()
            self.desk.ready = True
        super().begin()

    def join(self, group: Group) -> Any:
        """Become a member of a reader."""
        dead = {} if not group.dead else {"dead_letters": group.dead, "max_deliveries": group.most}
        return self.open().follow(
            group.name,
            member=self.name,
            key=group.key,
            lease=self.chance.choice((5, 30, 600)),
            # A delay counts anew for whoever joins: in the end somebody stays for longer.
            timeout=1000 if self.life.ending else self.chance.choice((0, 5, 60)),
            poll_s=60.0 if self.life.ending else 5.0,
            offset_column="offset",
            columns=["id"],
            filters=[["key", "!=", group.without]] if group.without else None,
            max_rows=self.chance.choice((2, 5, None)),
            **dead,
        )

    def dead(self) -> Stream | None:
        """Open the dead letters, if there are any."""
        with suppress(NotFoundError):
            return self.open(DEAD)
        return None

    def look(self) -> None:
        """Note what nobody may have read yet: an append of unknown outcome, and left out."""
        stream = self.open()
        self.ledger.read(row[:2] for row in read_rows(stream, stream.head, stream.tail))

    def judge(self, process: Process) -> None:
        if self is next(each for each in self.life.actors if isinstance(each, _AtDesk)):
            self.process = process
            self.look()
            self.desk.judge(self.open(), self.dead())
            self.life.judge_stream(process, URL, self.ledger)


class DeskWriter(_AtDesk, Appender):
    """Appends to it."""


class DeskKeeper(_AtDesk, Keeper):
    """Looks after it: retention passes no event that is neither done nor dead."""

    def retain(self) -> None:
        self.look()
        super().retain()
        stream = self.open()
        upto = positions(stream)
        if stream.head > min(upto.values()):
            raise Violation(f"the head is {stream.head}, and readers are at {upto}")
        self.desk.check_passed(upto, self.desk.letters(self.dead()))


class Worker(_AtDesk):
    """A member of a reader: it gets events done, rejects them, gives them back, or dies."""

    pace = 2.0
    follow: Any = None
    hand: Hand | None = None
    number = 0

    @property
    def reader(self) -> str:
        """Which reader it shares."""
        return self.name.partition("-")[0]

    def begin(self) -> None:
        super().begin()
        self.group = self.desk.group(self.reader, self.world.chance_of(f"group {self.reader}"))
        self.follow = self.hand = None

    def step(self) -> None:
        try:
            if self.follow is None:
                self.follow = self.join(self.group)
            for _ in range(self.chance.choice((1, 3, 20))):
                if not self.take():
                    return
                self.deal()
                if self.follow is None:
                    return
        except TruncatedError as error:
            raise Violation(f"{self.name}: events are gone, and nobody asked") from error
        except SegstoreError as error:
            if isinstance(error, LeaseLostError):
                self.hand = None
            elif isinstance(error, ReaderConflictError) or self.chance.random() < 0.5:
                self.follow = self.hand = None
            raise

    def take(self) -> bool:
        """Ask for the next batch: the one in hand is done then."""
        hand, asked_us = self.hand, self.world.now_us
        self.life.operations += 1
        if hand is not None:
            self.group.attempt(hand)
            hand.asked_us = hand.asked_us or asked_us
        batch = next(self.follow, None)
        if hand is not None:
            self.group.settle(hand, self.name, self.world.now_us)
            self.group.done |= hand.events.keys()
        self.hand = None
        if batch is None:
            self.follow = None
            return False
        offsets, events = batch.column("offset").to_pylist(), batch.column("id").to_pylist()
        if sorted({*offsets}) != offsets:
            raise Violation(f"{self.name}: got the offsets {offsets}")
        self.ledger.read(zip(offsets, events, strict=True))
        self.hand = Hand(dict(zip(offsets, events, strict=True)), self.world.now_us)
        self.group.give(self.hand, asked_us)
        return True

    def deal(self) -> None:
        """Do something with the batch in hand."""
        assert self.hand is not None
        if self.life.ending:
            return
        self.world.sleep(self.chance.choice((0.0, 0.0, 1.0, 40.0)) * self.chance.random())
        bad = [row for row, each in enumerate(self.hand.events.values()) if is_poison(each)]
        what = self.chance.random()
        if bad and what < 0.5:
            self.suffer()
        elif what < 0.6:
            self.follow.renew()
        elif what < 0.7 and self.group.dead:
            self.insist(lambda: self.reject(bad))
        elif what < 0.8:
            delay = self.chance.choice((0, 0, 10, 900))
            self.insist(lambda: self.follow.give_back(delay=delay))
            self.hand = None
        elif what < 0.85:
            follow, self.follow, self.hand = self.follow, None, None
            follow.close()

    def suffer(self) -> None:
        """End as a program that fails: at once, or only with its loop."""
        if self.chance.random() < 0.5:
            self.follow = self.hand = None
            return
        assert self.process is not None
        self.process.kill()
        raise Killed

    def reject(self, bad: list[int]) -> None:
        """Reject the batch in hand, or rows of it."""
        hand, group, now_us = self.hand, self.group, self.world.now_us
        assert hand is not None
        if hand.asked_us is None:
            self.number += 1
            hand.asked_us = now_us
        reason = f"{self.name}.{self.starts} finds it bad, {self.number}"
        group.reasons.add(reason)
        group.attempt(hand)
        self.follow.reject(reason, rows=bad or None)
        group.settle(hand, self.name, self.world.now_us)
        picked = [each for row, each in enumerate(hand.events) if row in bad or not bad]
        group.rejected.update(dict.fromkeys(picked, reason))
        group.done |= hand.events.keys() - {*picked}
        self.hand = None

    def insist(self, work: Any) -> None:
        """Try twice what sends the batch in hand away; after that nobody knows where it is."""
        try:
            work()
        except (LeaseLostError, ReaderConflictError):
            raise
        except SegstoreError:
            self.world.sleep(self.chance.random())
            try:
                work()
            except SegstoreError:
                self.follow = self.hand = None
                raise

    def finish(self) -> None:
        while positions(self.stream)[self.reader] < self.stream.refresh().tail:
            self.step()
            self.world.sleep(60 + 600 * self.chance.random())
        if self.follow is not None:
            self.follow.close()


def positions(stream: Stream) -> dict[str, int]:
    """Return up to where each reader has everything done, as the stream shows it."""
    rows = pa.table(stream.metadata("readers")).to_pylist()
    return {row["name"]: row["offset"] for row in rows}


def is_poison(event: str) -> bool:
    """Tell whether who gets an event may die of it."""
    return crc32(event.encode()) % 17 == 0


CAST: dict[str, type[Actor]] = {
    "desk-write": DeskWriter,
    "desk-keep": DeskKeeper,
    "letters-1": Worker,
    "letters-2": Worker,
    "letters-3": Worker,
    "keys-1": Worker,
    "keys-2": Worker,
    "keys-3": Worker,
}
