"""A member of a shared reader: it reads ranges that only it has leased, and commits them.

A record is created under the next number, or not at all. So a lease is given once, and whoever
expires it in a record has ended it for everybody: the member's next record comes after that one,
does not find its lease there, and commits nothing.

No two machines' clocks are compared. A member is given up when another has seen its lease unchanged
for the lease's time on its own boot clock; the exclusive create proves that it still was unchanged.
Time decides who reads an event again, never whether one is lost.

A member that counts deliveries names each batch in the record before it gives it out. So whoever
gets it next knows how often it was given out, also by members that died of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from segstore_ds.errors import InvalidInputError, LeaseLostError, ReaderConflictError
from segstore_ds.format import names
from segstore_ds.format.reader_record import MEMBERS_LIMIT, Delivery, Lease, ReaderRecord, Span
from segstore_ds.log.context import StreamContext
from segstore_ds.options.arguments import check_duration
from segstore_ds.options.quantities import Duration
from segstore_ds.read.cuts import Cut
from segstore_ds.read.reader_records import SeenReader, newest_record
from segstore_ds.retention.key_share import (
    Turn,
    bucket_of,
    bucket_starts,
    part_of,
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
from segstore_ds.retention.readers import Asked, NamedReader, claim_name

_RENEWALS = 3  # in the time of a lease
_LOOKS = 30  # in that time, for what others give back


class MemberReader(NamedReader):
    """A named reader's handle of one member; `offset` and `end` are those of its own range.

    Below `offset` the member has done its range; by key it is that of its `turn`, and of these
    buckets. Attributes `member` and `settled` say who it is,
    and up to where everything was done when it last looked; `left` whether it has no lease.
    """

    def __init__(
        self,
        context: StreamContext,
        seen: SeenReader,
        confirmed_s: float,
        member: str,
        *,
        buries: bool,
    ) -> None:
        super().__init__(context, seen, confirmed_s)
        self.member = member
        self._buries = buries  # counts deliveries, and writes dead letters
        self._lease = seen.record.members[member]
        self.turn = Turn()
        self._picked = self._given = frozenset[int]()  # buckets of a batch, and of the one in hand
        self._new_first = False  # whether its last batch had been given out before
        self._starts = np.zeros(0, np.int64)  # of all buckets, in this turn
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
        """The end of this member's range; it has none if that is `offset`."""
        return self._lease.end

    @property
    def settled(self) -> int:
        """The first event that nobody had done when this member last looked."""
        return self._seen.record.offset

    @property
    def delivery(self) -> Delivery | None:
        """The delivery at the start of this member's range; None if it was not given out before."""
        if self._seen.record.by_key is not None:
            return self.turn.delivery
        start = Span(self.offset, min(self.offset + 1, self.end))
        return next(iter(deliveries_in(self._seen.record, start)), None)

    @property
    def lapses(self) -> bool:
        """Whether the lease should be renewed."""
        return self._passed_s() > self._lease.lease_s / _RENEWALS

    def pick(self, batch: pa.RecordBatch, offset_column: str) -> npt.NDArray[np.bool_]:
        """Return which events of a batch are for this member in its turn."""
        share, offsets = self._seen.record.by_key, batch.column(offset_column).to_numpy()
        columns = [] if share is None else share.columns
        buckets = bucket_of(batch, columns, len(self._starts))
        own: npt.NDArray[np.bool_] = offsets >= self._starts[buckets]
        if own.any():
            self._picked = frozenset(np.unique(buckets[own]).tolist())
        return own

    def hand(self) -> None:
        """Count the events that were picked last as in this member's hands."""
        self._given = self._picked

    @property
    def may_tell(self) -> bool:
        """Whether it is time to commit that events were passed that are in others' buckets."""
        return self._passed_s() > self._lease.lease_s / _LOOKS

    def publish(self, offset: int, *, provisional: bool = False) -> None:  # noqa: ARG002
        """Commit this member's range up to an offset; takes another range if that is its end.

        Raises:
            LeaseLostError: Others were given the range: nothing is committed.
            ReaderConflictError: The reader was released or taken over, or another process follows
                as this member.
        """
        self._step(Progress(offset, offset, self._context.log.root.tail))

    def give_out(self, done: int, read: int) -> bool:
        """Commit this member's range up to `done`, and name what it is given up to `read`.

        False if that is not in its range any more, which a renewal may have shortened.
        Raises as `publish`.
        """
        return self._step(Progress(done, read, self._context.log.root.tail, counted=True))

    def give_back(
        self, end: int, *, delay_s: int = 0, reason: str | None = None, rows: Sequence[int] = ()
    ) -> None:
        """Give back this member's range up to an offset, to be given out again after a delay.

        With a reason it becomes a dead letter, of the events at the offsets `rows` or of all.
        Raises as `publish`.
        """

        def make(seen: SeenReader | None) -> ReaderRecord:
            record = self._own_record(seen, Progress(self.offset, end, end))
            if record.by_key is None and record.members[self.member].start != self.offset:
                raise self._lost(record, end)  # a call before did so, and its answer was lost
            number = record.number + 1
            buckets = sorted(self._given or self.turn.buckets)
            back = Delivery(self.offset, end, 1, self.member, since=number, buckets=buckets)
            before = named_before(record, back)
            count = max((each.count for each in before), default=0) + (not self._buries)
            back = replace(back, count=max(count, 1))
            if reason is not None:
                back = replace(back, letter=number, reason=reason, rows=[*rows])
            elif before and before[0].letter is not None:
                back = before[0]  # this member writes no letters
            elif delay_s:
                back = replace(back, delay_s=delay_s)
            return returned(record, self.member, back, number, self.turn.buckets)

        self._write(make)
        self._settle(Progress(end, end, self._context.log.root.tail))

    def renew(self, read: int) -> None:
        """Renew the lease while events below `read` are given out and not done; as `publish`."""
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
        if "" in holders and holders.count(self.member) < part_of(record):
            self._step(at)
        elif not self.left:
            self._settle(at)

    def _look(self, tail: int) -> None:
        """See what others have done, now and then while something is not done."""
        now_s = self._context.clock.boot_s()
        waits = self._seen.record.offset < tail
        if waits and now_s - self._looked_s > self._lease.lease_s / _LOOKS:
            self._looked_s = now_s
            self._seen = newest_record(self._context, self.name) or self._seen

    def leave(self) -> None:
        """Leave the group: what this member has not done goes to others at once. Safe to repeat."""

        def make(seen: SeenReader | None) -> ReaderRecord | None:
            mine = None if seen is None else seen.record.members.get(self.member)
            if mine is None or mine.token != self._lease.token:
                return None
            return left(self._current(seen), frozenset({self.member}))

        self._write(make)
        self._give_up(self.offset)

    def _step(self, at: Progress, *, idle: bool = False) -> bool:
        """Write what was done and what is leased now; an idle member only to lease something.

        Returns whether what was read was in its range.
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
        """Go on with what the newest record gives this member; by key it is given a turn of that.

        A turn lasts for as long as the member has something in its hands. It ends there if others
        wait for its keys, or a delivery waits for it.
        """
        record = self._seen.record
        mine = record.members.get(self.member)
        if mine is None or mine.token != self._lease.token:
            return
        self.left = False
        share, barred, held = record.by_key, self._barred(record), at.done < at.read
        if share is None:
            self._lease = mine
        elif held:
            deliveries = [each for each in record.deliveries if not self._given & {*each.buckets}]
            others = turn_of(replace(record, deliveries=deliveries), share, self.member, barred)
            waits = others.delivery or share.holders.count(self.member) > part_of(record)
            end = at.read if waits else self.turn.end
            self._lease = replace(mine, start=at.done, end=end)
        else:
            if self._given:
                self._new_first = self.turn.delivery is not None  # they are given out in turns
            new_to = at.tail if self._new_first else 0
            turn = turn_of(record, share, self.member, barred, new_to=new_to)
            self.turn, self._given = turn, frozenset()
            self._starts = bucket_starts(share, turn.buckets)
            self._lease = replace(mine, start=turn.start, end=turn.end)

    def _own_record(self, seen: SeenReader | None, at: Progress) -> ReaderRecord:
        """Return the record with this member in it, if it has lost nothing that it has read."""
        record = self._current(seen)
        record = left(record, self._given_up(record))
        mine = record.members.get(self.member)
        if mine is not None and mine.token == self._lease.token:
            return record
        if mine is not None:
            raise ReaderConflictError(
                "another process follows as this member",
                remedy="give each process a name of its own",
                reader=self.name,
                member=self.member,
            )
        if at.read > self.offset or not (record.members or self.left):
            raise self._lost(record, at.read)
        lease = replace(self._lease, start=at.done, end=at.done, renewed=record.number)
        return joined(record, self.member, lease)

    def _lost(self, record: ReaderRecord, end: int) -> LeaseLostError:
        """Give up this member's range up to an offset; return the error that says so."""
        start, others = self.offset, record.members.items()
        self._give_up(end)
        return LeaseLostError(
            "member was silent for longer than its lease, so its events go to others",
            reader=self.name,
            member=self.member,
            lease_s=self._lease.lease_s,
            events=f"[{start}, {end})",
            now=[name for name, each in others if each.start <= start < each.end],
        )

    def _given_up(self, record: ReaderRecord) -> frozenset[str]:
        """Return the members whose leases this one has seen unchanged for their time."""
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
        """Return where the deliveries begin that this member may not take now."""
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
        return barred_letters(record, buries=self._buries) | delayed

    def _delay_of(self, record: ReaderRecord, delivery: Delivery) -> int:
        """Return for how long this member waits for a delivery: it writes others' letters late."""
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
    buries: bool = False,
    key: Sequence[str] = (),
) -> MemberReader:
    """Join the members of a reader, or register it.

    `start` counts for a new reader, and for one whose next events are gone. A process that joins
    under a member's name takes its place and its range. One that `buries` counts deliveries, and
    writes dead letters.
    """
    names.check_label(member, what="member")
    lease_s, token = check_duration("lease", lease), context.clock.new_id()[:16]
    if not lease_s:
        raise InvalidInputError("a lease takes time", remedy="give it a second or more")

    def join(record: ReaderRecord, others: Mapping[str, Lease], number: int) -> ReaderRecord:
        mine = Lease(record.offset, record.offset, token, lease_s, number)
        record = shared_by(replace(record, members={**others}), [*key], name=name)
        record = joined(record, member, mine)
        if len(record.members) > MEMBERS_LIMIT:
            raise InvalidInputError(
                "reader has too many members",
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

    asked = Asked(owner, start, shared=True)
    seen, confirmed_s = claim_name(context, name, asked, join, undo)
    return MemberReader(context, seen, confirmed_s, member, buries=buries)
