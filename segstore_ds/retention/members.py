"""A member of a shared reader: it reads ranges that only it has leased, and commits them.

Each record is created exclusively under the next number. So a lease is given once, and a record
that removes an expired lease ends it for everybody: the member's next record follows that one, does
not have its lease, and commits nothing.

No two machines' clocks are compared. A member's lease expires when another member has seen it
unchanged for its duration on its own boot clock; the exclusive create proves that it is still
unchanged. Clocks decide who reads an event again, never whether one is lost.

A member that counts deliveries names each batch in the record before it gives the batch out. So the
next member knows how often it was given out, even if members crashed on it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from segstore_ds.errors import InvalidInputError, LeaseLostError, ReaderConflictError
from segstore_ds.format import names
from segstore_ds.format.reader_record import MEMBERS_LIMIT, Delivery, Lease, ReaderRecord, Span
from segstore_ds.format.root import Root
from segstore_ds.log.context import StreamContext
from segstore_ds.options.arguments import check_duration
from segstore_ds.options.quantities import Duration
from segstore_ds.read.cuts import Cut
from segstore_ds.read.reader_records import SeenReader, newest_record
from segstore_ds.retention.key_share import (
    KeyBasis,
    Turn,
    basis_of,
    bucket_of,
    bucket_starts,
    most_buckets,
    rebased,
    shared_by,
    turn_of,
)
from segstore_ds.retention.leases import (
    Progress,
    advanced,
    barred_letters,
    deliveries_in,
    free_range,
    joined,
    left,
    named_before,
    returned,
    waiting,
)
from segstore_ds.retention.readers import Claim, NamedReader, claim_name

_RENEWALS = 3  # of a lease in its duration
_LOOKS = 30  # in that duration, to see what others gave back


class MemberReader(NamedReader):
    """A named reader's handle of one member, with its range of events `[offset, end)`.

    Events of the range below `offset` are done. By key the range is that of its `turn`, and counts
    for these buckets. `left` says that it has no lease.
    """

    def __init__(
        self,
        context: StreamContext,
        seen: SeenReader,
        confirmed_s: float,
        member: str,
        *,
        writes_letters: bool,
        key: Sequence[str],
    ) -> None:
        super().__init__(context, seen, confirmed_s)
        self.member, self._key = member, [*key]
        self._basis = KeyBasis()  # by which events are picked, as of the turn
        self._writes_letters = writes_letters  # counts deliveries, and writes dead letters
        self._lease = seen.record.members[member]
        self.turn = Turn()
        self._picked = self._given = frozenset[int]()  # buckets of the batch picked, and given out
        self._new_first = False  # whether new events come next, since the last turn was a delivery
        self._starts = np.zeros(0, np.int64)  # where each bucket is read from, in this turn
        self._watched: dict[str, tuple[tuple[str, int], float]] = {}
        self._delayed: dict[tuple[int, int], float] = {}
        self._looked_s = confirmed_s
        self.left = False
        self._settle(Progress(0, 0, seen.record.offset))

    @property
    def offset(self) -> int:
        """The next event of this member's range."""
        return self._lease.start

    @property
    def end(self) -> int:
        """The end of this member's range; the range is empty if this is `offset`."""
        return self._lease.end

    @property
    def settled(self) -> int:
        """The first event that was not done when this member last read the record."""
        return self._seen.record.offset

    @property
    def delivery(self) -> Delivery | None:
        """The delivery at the start of this member's range; None if those events are new."""
        if self._seen.record.by_key is not None:
            return self.turn.delivery
        start = Span(self.offset, min(self.offset + 1, self.end))
        return next(iter(deliveries_in(self._seen.record, start)), None)

    @property
    def lapses(self) -> bool:
        """Whether the lease should be renewed."""
        return self._passed_s() > self._lease.lease_s / _RENEWALS

    def pick(self, batch: pa.RecordBatch, offset_column: str) -> npt.NDArray[np.bool_]:
        """Return which events of a batch this member reads in its turn."""
        offsets = batch.column(offset_column).to_numpy()
        buckets = bucket_of(batch, self._key, len(self._starts))
        own: npt.NDArray[np.bool_] = offsets >= self._starts[buckets]
        if own.any():
            self._picked = frozenset(np.unique(buckets[own]).tolist())
        return own

    def is_based_on(self, root: Root) -> bool:
        """Tell whether the keys of a root's events have the values that the buckets go by."""
        return basis_of(root, self._key) == self._basis

    def rebase(self, root: Root) -> None:
        """Begin again at the reader's position, by the keys of a root; raises as `publish`.

        No batch may be given out that is not done.
        """
        basis, at = basis_of(root, self._key), Progress(self.offset, self.offset, root.tail)

        def make(seen: SeenReader | None) -> ReaderRecord | None:
            record = self._own_record(seen, at)
            is_done = KeyBasis.of(record.by_key) == basis
            return None if is_done else rebased(record, basis)

        self._write(make)
        self.turn, self._given = Turn(), frozenset()
        self._settle(at)

    def hand(self) -> None:
        """Note that the events that were picked last are given out."""
        self._given = self._picked

    @property
    def may_skip(self) -> bool:
        """Whether it is time to commit a range in which all events are in others' buckets."""
        return self._passed_s() > self._lease.lease_s / _LOOKS

    def publish(self, offset: int, *, provisional: bool = False) -> None:  # noqa: ARG002
        """Commit this member's range up to an offset; takes another range at its end.

        Raises:
            LeaseLostError: The range went to other members, so nothing is committed.
            ReaderConflictError: The reader was released or taken over, or another process follows
                under this member's name.
        """
        self._step(Progress(offset, offset, self._context.log.root.tail))

    def give_out(self, done: int, read: int) -> bool:
        """Commit this member's range up to `done`, and name `[done, read)` as a delivery.

        Returns False if its range, which a renewal may shorten, does not have these events any
        more. Raises as `publish`.
        """
        return self._step(Progress(done, read, self._context.log.root.tail, counted=True))

    def give_back(
        self, end: int, *, delay_s: int = 0, reason: str | None = None, rows: Sequence[int] = ()
    ) -> None:
        """Give back this member's range up to an offset, to be given out again after a delay.

        With a reason, its events become a dead letter: those at the offsets `rows`, or all.
        Raises as `publish`.
        """

        def make(seen: SeenReader | None) -> ReaderRecord:
            record = self._own_record(seen, Progress(self.offset, end, end))
            if record.by_key is None and record.members[self.member].start != self.offset:
                raise self._lost(record, end)  # an earlier call succeeded, its response was lost
            number = record.number + 1
            buckets = sorted(self._given or self.turn.buckets)
            back = Delivery(self.offset, end, 1, self.member, since=number, buckets=buckets)
            before = named_before(record, back)
            count = max((each.count for each in before), default=0) + (not self._writes_letters)
            back = replace(back, count=max(count, 1))
            if reason is not None:
                token = self._context.clock.new_id()[:16]
                back = replace(back, letter=number, token=token, reason=reason, rows=[*rows])
            elif before and before[0].letter is not None:
                back = before[0]  # leave the letter to a member that writes letters
            elif delay_s:
                back = replace(back, delay_s=delay_s)
            return returned(record, self.member, back, number, self.turn.buckets)

        self._write(make)
        self._settle(Progress(end, end, self._context.log.root.tail))

    def owes(self, letter: Delivery) -> bool:
        """Tell whether the newest record still has a letter, so that it is to be written."""
        newest = newest_record(self._context, self.name)
        deliveries = [] if newest is None else newest.record.deliveries
        return (letter.letter, letter.token) in [(each.letter, each.token) for each in deliveries]

    def renew(self, read: int) -> None:
        """Renew the lease while events up to `read` are given out; raises as `publish`."""
        self._step(Progress(self.offset, read, self._context.log.root.tail))

    def take(self, tail: int) -> None:
        """Take a range, if this member has none and one is free; raises as `publish`."""
        record = self._seen.record
        if record.by_key is not None:
            self._take_buckets(tail)
            return
        if self._lease.start < self._lease.end:
            if record.deliveries and waiting(record, self._barred(record)):
                self._step(Progress(self.offset, self.offset, tail))
            return
        self._look(tail)
        record = self._seen.record
        free = free_range(left(record, self._given_up(record)), tail, self._barred(record))
        if free.start < free.end:
            self._step(Progress(self.offset, self.offset, tail), idle=True)

    def _take_buckets(self, tail: int) -> None:
        self._look(tail)
        record = self._seen.record
        record = left(record, self._given_up(record))
        holders = [] if record.by_key is None else record.by_key.holders
        at = Progress(self.offset, self.offset, tail)
        if "" in holders and holders.count(self.member) < most_buckets(record):
            self._step(at)
        elif not self.left or self.member in holders:
            self._settle(at)

    def _look(self, tail: int) -> None:
        """Read the newest record now and then, while events below the tail are not done."""
        now_s = self._context.clock.boot_s()
        waits = self._seen.record.offset < tail
        if waits and now_s - self._looked_s > self._lease.lease_s / _LOOKS:
            self._looked_s = now_s
            self._seen = newest_record(self._context, self.name) or self._seen

    def leave(self) -> None:
        """Leave the reader: others may take this member's events at once. Safe to repeat."""

        def make(seen: SeenReader | None) -> ReaderRecord | None:
            mine = None if seen is None else seen.record.members.get(self.member)
            if mine is None or mine.token != self._lease.token:
                return None
            return left(self._current(seen), frozenset({self.member}))

        self._write(make)
        self._give_up(self.offset)

    def _step(self, at: Progress, *, idle: bool = False) -> bool:
        """Write a record with this member's progress; if `idle`, only to lease a range.

        Returns whether the events that it was given are in its range.
        """
        fits = False

        def make(seen: SeenReader | None) -> ReaderRecord | None:
            nonlocal fits
            record = self._own_record(seen, at)
            lease = record.members[self.member]
            fits = record.by_key is not None or lease.start <= at.done <= at.read <= lease.end
            now = replace(
                at,
                barred=self._barred(record),
                counted=at.counted and fits,
                turn=self.turn.buckets,
                given=self._given,
                start=self.offset,
            )
            record = advanced(record, self.member, now, record.number + 1)
            mine = record.members[self.member]
            return None if idle and mine.start == mine.end else record

        self._write(make)
        self._settle(at)
        return fits

    def _settle(self, at: Progress) -> None:
        """Continue with the range in the newest record; by key, with a turn of its buckets.

        A turn lasts while events are given out. It then ends if another member needs some of its
        buckets, or if a delivery is waiting for this member.
        """
        record = self._seen.record
        mine = record.members.get(self.member)
        if mine is None or mine.token != self._lease.token:
            return
        self.left, self._basis = False, KeyBasis.of(record.by_key)
        share, barred, held = record.by_key, self._barred(record), at.done < at.read
        if share is None:
            self._lease = mine
        elif held:
            deliveries = [each for each in record.deliveries if not self._given & {*each.buckets}]
            others = turn_of(replace(record, deliveries=deliveries), share, self.member, barred)
            waits = others.delivery or share.holders.count(self.member) > most_buckets(record)
            end = at.read if waits else self.turn.end
            self._lease = replace(mine, start=at.done, end=end)
        else:
            if self._given:
                self._new_first = self.turn.delivery is not None  # alternate with new events
            new_to = at.tail if self._new_first else 0
            turn = turn_of(record, share, self.member, barred, new_to=new_to)
            self.turn, self._given = turn, frozenset()
            self._starts = bucket_starts(share, turn.buckets)
            self._lease = replace(mine, start=turn.start, end=turn.end)

    def _own_record(self, seen: SeenReader | None, at: Progress) -> ReaderRecord:
        """Return the record with this member in it; raises if it lost events that it has read."""
        record = self._current(seen)
        record = left(record, self._given_up(record))
        mine = record.members.get(self.member)
        if (basis := KeyBasis.of(record.by_key)) != self._basis:
            # Another member has begun again by the new values of the key.
            self._basis, self.turn, self._given = basis, Turn(), frozenset()
            if mine is not None and at.read > self.offset:
                raise self._lost(record, at.read, "the values of the key have changed meanwhile")
        if mine is not None and mine.token == self._lease.token:
            return record
        if mine is not None:
            raise ReaderConflictError(
                "another process follows under this member's name",
                remedy="give each process a member name of its own",
                reader=self.name,
                member=self.member,
            )
        if at.read > self.offset or not (record.members or self.left):
            raise self._lost(record, at.read)
        lease = replace(self._lease, start=at.done, end=at.done, renewed=record.number)
        return joined(record, self.member, lease)

    def _lost(self, record: ReaderRecord, end: int, why: str = "") -> LeaseLostError:
        """Give up this member's range up to an offset; return the error to raise."""
        start, others = self.offset, record.members.items()
        self._give_up(end)
        return LeaseLostError(
            why or "the member's lease expired, so its events go to other members",
            reader=self.name,
            member=self.member,
            lease_s=self._lease.lease_s,
            events=f"[{start}, {end})",
            now=[name for name, each in others if each.start <= start < each.end],
        )

    def _given_up(self, record: ReaderRecord) -> frozenset[str]:
        """Return the members whose leases have expired: this one saw them unchanged for so long."""
        now_s, before = self._context.clock.boot_s(), self._watched
        self._watched = {}
        for name, lease in record.members.items():
            mark = (lease.token, lease.renewed)
            known = before.get(name)
            self._watched[name] = known if known and known[0] == mark else (mark, now_s)
        return frozenset(
            name
            for name, (_, since_s) in self._watched.items()
            if name != self.member and now_s - since_s > record.members[name].lease_s
        )

    def _barred(self, record: ReaderRecord) -> frozenset[int]:
        """Return the marks of deliveries that this member may not take now."""
        if not record.deliveries:
            return frozenset()
        now_s, before = self._context.clock.boot_s(), self._delayed
        marks = {
            (each.mark, each.since): delay_s
            for each in record.deliveries
            if (delay_s := self._delay_of(record, each)) and each.since is not None
        }
        self._delayed = {mark: before.get(mark, now_s) for mark in marks}
        delayed = {
            mark[0] for mark, since_s in self._delayed.items() if now_s - since_s <= marks[mark]
        }
        return barred_letters(record, writes_letters=self._writes_letters) | delayed

    def _delay_of(self, record: ReaderRecord, delivery: Delivery) -> int:
        """Return how long this member waits for a delivery; for a letter of another, a lease."""
        others = record.members.keys() - {self.member}
        if delivery.buckets and delivery.letter is not None and delivery.member in others:
            return self._lease.lease_s
        return delivery.delay_s or 0

    def _give_up(self, offset: int) -> None:
        self.turn = Turn()
        self._lease, self.left = replace(self._lease, start=offset, end=offset), True


def join_reader(
    context: StreamContext,
    name: str,
    *,
    owner: str,
    member: str,
    lease: Duration,
    start: Cut | None,
    writes_letters: bool = False,
    key: Sequence[str] = (),
) -> MemberReader:
    """Join the members of a reader, or register it.

    `start` is used for a new reader, and for one whose next events are gone. A process that joins
    under a present member's name replaces it and takes its range. With `writes_letters` it counts
    deliveries and writes dead letters.
    """
    names.check_label(member, what="member")
    lease_s, token = check_duration("lease", lease), context.clock.new_id()[:16]
    if not lease_s:
        raise InvalidInputError("a lease can't be zero", remedy="give a lease of 1 s or more")

    def join(record: ReaderRecord, others: Mapping[str, Lease], number: int) -> ReaderRecord:
        mine = Lease(record.offset, record.offset, token, lease_s, number)
        basis = basis_of(context.log.root, key)
        record = shared_by(replace(record, members={**others}), basis, name=name)
        record = joined(record, member, mine)
        if len(record.members) > MEMBERS_LIMIT:
            raise InvalidInputError(
                "the reader has too many members",
                remedy=f"share it among at most {MEMBERS_LIMIT}",
                reader=name,
            )
        start = record.members[member].start
        barred = frozenset(
            each.start for each in record.deliveries if each.delay_s or each.letter is not None
        )
        at = Progress(start, start, context.log.root.tail, barred)
        return advanced(record, member, at, number)

    def undo(record: ReaderRecord) -> ReaderRecord | None:
        mine = record.members.get(member)
        held = mine is not None and mine.token == token
        return left(record, frozenset({member})) if held else None

    claim = Claim(owner, start, shared=True)
    seen, confirmed_s = claim_name(context, name, claim, join, undo)
    return MemberReader(context, seen, confirmed_s, member, writes_letters=writes_letters, key=key)
