"""What must be true: a ledger of what was asked and acknowledged, and the judgements over it.

An event is a text that no other event has. The ledger knows each batch that an actor tried to
write, and how that ended: acknowledged with offsets, certainly not written, or unknown. Every read
is held against it when it returns, and the whole stream at the end.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field


class Violation(AssertionError):  # noqa: N818 - what a checker finds is no failure of its own
    """A promise was broken."""


@dataclass(eq=False)
class Batch:
    """One batch that somebody tries to write.

    Attributes:
        state: ``open`` while it is tried or its outcome is unknown, ``acked``, or ``failed`` if it
            is certainly not in the stream.
        start: Its first offset, once it is known.
        call: When it was first tried, in the ledger's order, and `answer` when it was acknowledged.
        floor: The tail that somebody knew of by then.
        drops: The offset that it moves the head to.
    """

    ids: tuple[str, ...]
    writer: str = ""
    state: str = "open"
    start: int | None = None
    call: int = 0
    answer: int | None = None
    floor: int = 0
    drops: int = 0


@dataclass(eq=False)
class Look:
    """Somebody asks where the stream begins and ends, and reads events of that version.

    Attributes:
        floor: The head and the tail that somebody knew of when it was asked.
        ends: The head and the tail of the answer.
        rows: Offsets and events that were read.
    """

    call: int
    floor: tuple[int, int]
    answer: int | None = None
    ends: tuple[int, int] = (0, 0)
    rows: list[tuple[int, str]] = field(default_factory=list)


@dataclass
class Ledger:
    """One stream's history as its users know it.

    Attributes:
        placed: Offset -> event, of all batches whose place is known.
        floor: No read that begins now may end below this tail.
        head: No read that begins now may begin below this offset.
        looks: What readers saw, for `history`.
        readers: How far each named reader is, and `retains` whether anybody asked to forget what
            all readers are done with.
        dropped: Somebody asked for the events before this offset to be dropped, whatever readers
            need.
        redacted: Key -> the least tail at the end of an acknowledged redaction.
        maybe_redacted: Keys whose values may be gone, since a redaction was tried.
    """

    name: str
    batches: list[Batch] = field(default_factory=list)
    placed: dict[int, str] = field(default_factory=dict)
    seen: dict[int, str] = field(default_factory=dict)
    floor: int = 0
    head: int = 0
    looks: list[Look] = field(default_factory=list)
    order: Iterator[int] = field(default_factory=itertools.count)
    readers: dict[str, int] = field(default_factory=dict)
    retains: bool = False
    dropped: int = 0
    redacted: dict[str, int] = field(default_factory=dict)
    maybe_redacted: set[str] = field(default_factory=set)

    @property
    def may_drop(self) -> int:
        """Up to where the head may be for any reason."""
        read = max(self.readers.values(), default=0) if self.retains else 0
        return max(self.dropped, read)

    def drop(self, cut: int) -> None:
        """Note that somebody asks for the events before a cut to be dropped."""
        self.dropped = max(self.dropped, cut)

    # --- writing -----------------------------------------------------------------------------

    def begin(self, ids: Sequence[str], *, writer: str = "") -> Batch:
        """Note a batch before it is given away."""
        batch = Batch(tuple(ids), writer, call=next(self.order), floor=self.floor)
        self.batches.append(batch)
        return batch

    def ack(self, batch: Batch, start: int, end: int) -> None:
        """Note that a batch was acknowledged; raises Violation."""
        if end - start != len(batch.ids):
            raise Violation(f"{self.name}: {len(batch.ids)} events got offsets [{start}, {end})")
        if batch.start not in (None, start):
            raise Violation(f"{self.name}: batch {batch.ids[:1]} lies at {batch.start} and {start}")
        if start < batch.floor:
            raise Violation(f"{self.name}: {batch.ids[:1]} at {start}, below {batch.floor}")
        batch.state, batch.start = "acked", start
        if batch.answer is None:
            batch.answer = next(self.order)
        for offset, event in enumerate(batch.ids, start):
            self._place(offset, event)
        self.floor = max(self.floor, end)
        self.head = max(self.head, batch.drops)

    def fail(self, batch: Batch) -> None:
        """Note that a batch is certainly not in the stream."""
        if batch.state == "open":
            batch.state = "failed"

    def _place(self, offset: int, event: str) -> None:
        for known in (self.placed.get(offset), self.seen.get(offset)):
            if known not in (None, event):
                raise Violation(f"{self.name}: offset {offset} holds {known!r} and {event!r}")
        self.placed[offset] = event

    # --- reading -----------------------------------------------------------------------------

    def ask(self) -> Look:
        """Note that somebody asks where the stream begins and ends."""
        return Look(next(self.order), (self.head, self.floor))

    def answer(self, look: Look, head: int, tail: int) -> None:
        """Note the answer; raises Violation if it is older than what was known before it."""
        look.answer, look.ends = next(self.order), (head, tail)
        if head < look.floor[0] or tail < look.floor[1]:
            raise Violation(f"{self.name}: [{head}, {tail}), but {look.floor} were known before")
        self.head, self.floor = max(self.head, head), max(self.floor, tail)
        self.looks.append(look)

    def read(self, rows: Iterable[tuple[int, str]]) -> None:
        """Hold offsets and events that were read against what is known of them."""
        for offset, event in rows:
            known = self.placed.get(offset) or self.seen.get(offset)
            if known is None:
                self.seen[offset] = event
            elif known != event:
                raise Violation(f"{self.name}: offset {offset} held {known!r}, now {event!r}")

    def check_values(
        self, rows: Iterable[tuple[int, str, str, str | None]], redacted: dict[str, int]
    ) -> None:
        """Hold the values of rows against redactions that were acknowledged before the read."""
        for offset, event, key, value in rows:
            if key in redacted and offset < redacted[key] and value is not None:
                raise Violation(f"{self.name}: {event!r} at {offset} still has its value {value!r}")
            whole = f"mail-of-{event}"
            if value is None and key not in self.maybe_redacted:
                raise Violation(f"{self.name}: {event!r} at {offset} lost its value")
            if value not in (None, whole):
                raise Violation(f"{self.name}: {event!r} at {offset} has the value {value!r}")

    def check_tail(self, floor: int, tail: int) -> None:
        """Hold a tail against what was acknowledged before it was asked for."""
        if tail < floor:
            raise Violation(f"{self.name}: tail {tail}, but {floor} was acknowledged before")

    # --- the end -----------------------------------------------------------------------------

    def judge(self, head: int, tail: int, events: Sequence[str]) -> None:
        """Hold the whole stream against all that was ever tried; raises Violation."""
        if len(events) != tail - head:
            raise Violation(f"{self.name}: {len(events)} events in [{head}, {tail})")
        self.check_tail(self.floor, tail)
        by_event: dict[str, Batch] = {}
        for batch in self.batches:
            by_event.update(dict.fromkeys(batch.ids, batch))
        place = 0
        found: dict[int, int] = {}
        while place < len(events):
            batch = by_event.get(events[place])
            if batch is None:
                raise Violation(f"{self.name}: nobody wrote {events[place]!r} at {head + place}")
            first = batch.ids.index(events[place])
            if first and place:
                raise Violation(f"{self.name}: {events[place]!r} without the events before it")
            rest = batch.ids[first:]
            if tuple(events[place : place + len(rest)]) != rest:
                raise Violation(
                    f"{self.name}: batch {batch.ids[0]!r} is not whole at {head + place}"
                )
            if batch.state == "failed":
                raise Violation(f"{self.name}: {batch.ids[0]!r} was refused, and is there")
            if id(batch) in found:
                raise Violation(f"{self.name}: {batch.ids[0]!r} is there twice")
            found[id(batch)] = start = head + place - first
            if batch.state == "acked" and batch.start != start:
                raise Violation(f"{self.name}: {batch.ids[0]!r} at {start}, not at {batch.start}")
            place += len(rest)
        if head > self.may_drop:
            raise Violation(
                f"{self.name}: the head is {head}; nobody asked for more than {self.may_drop}"
            )
        for batch in self.batches:
            if batch.state == "acked" and id(batch) not in found:
                assert batch.start is not None
                if batch.start + len(batch.ids) > head:
                    raise Violation(f"{self.name}: {batch.ids[0]!r} was acknowledged, and is gone")

    # --- for other checkers ------------------------------------------------------------------

    def history(self) -> list[dict[str, object]]:
        """Return what was asked and answered, as intervals of one order.

        An append without an answer may have its effect at any time after its call, or never; if it
        was seen, its offset is known. A look shows the head, the tail, and events of that version.
        """
        places = {event: offset for offset, event in (self.seen | self.placed).items()}
        operations: list[dict[str, object]] = []
        for batch in self.batches:
            if batch.state != "failed":
                known = [places[each] - n for n, each in enumerate(batch.ids) if each in places]
                operations.append(
                    {
                        "call": batch.call,
                        "return": batch.answer,
                        "kind": "append",
                        "head": batch.drops,
                        "events": batch.ids,
                        "start": known[0] if known else None,
                    }
                )
        operations.extend(
            {
                "call": look.call,
                "return": look.answer,
                "kind": "look",
                "head": look.ends[0],
                "tail": look.ends[1],
                "start": look.rows[0][0] if look.rows else None,
                "events": [event for _, event in look.rows],
            }
            for look in self.looks
        )
        return operations
