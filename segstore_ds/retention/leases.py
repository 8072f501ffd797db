"""Plans how members share a named reader: each leases a range of offsets in its record. Pure.

From the record's `offset` on, events that are neither done nor leased are free. A member takes the
lowest free range, and commits it from its start on. So `offset` is the lowest event that is not
done, for which retention waits. When a member's lease expires, others remove it from the record:
its range is free again, and commits under its token are refused.

A single member leases all future events, so it needs no record before it reads new ones. Several
members divide the free events: each takes its share of half of them, at most `RANGE_ROWS`.

If deliveries are counted, a batch is named in the record before it is given out, until it is done.
A free delivery is leased alone, so a batch that fails again and again delays no other events.
"""

from dataclasses import dataclass, replace

from segstore_ds.format.reader_record import (
    NO_END,
    Delivery,
    Lease,
    ReaderRecord,
    Span,
    encode_record,
)
from segstore_ds.retention.key_share import advanced_by_key, done_by_key, freed, without

RANGE_ROWS = 1 << 18
# A record names no further delivery beyond this size: the rest is for members that join.
_NAMED_BYTES = 48 << 10


@dataclass(frozen=True, slots=True)
class Progress:
    """A member's state: events of `[start, done)` are done, those of `[done, read)` given out.

    A delivery whose mark is in `barred` can't be taken now. With `counted`, the events given out
    are named as a delivery. By key they are in the buckets `given`, and `done` holds for those in
    `turn`.
    """

    done: int
    read: int
    tail: int
    barred: frozenset[int] = frozenset()
    counted: bool = False
    turn: frozenset[int] = frozenset()
    given: frozenset[int] = frozenset()
    start: int = 0


def joined(record: ReaderRecord, member: str, lease: Lease) -> ReaderRecord:
    """Add a member; it takes over the range of the process that had this member's name before."""
    before = record.members.get(member, lease)
    return _with(record, member, replace(lease, start=before.start, end=before.end))


def left(record: ReaderRecord, members: frozenset[str]) -> ReaderRecord:
    """Remove members; what they leased and have not done is free again."""
    if not members:
        return record
    kept = {name: lease for name, lease in record.members.items() if name not in members}
    by_key = None if record.by_key is None else freed(record.by_key, kept)
    return replace(record, members=kept, by_key=by_key)


def advanced(record: ReaderRecord, member: str, at: Progress, number: int) -> ReaderRecord:
    """Commit what a member has done, renew its lease, and take another range if it has none.

    `number` is that of the new record. If the range begins below what the member has read, an
    earlier record took it, whose response was lost: nothing of that range is done.

    >>> lease = Lease(0, NO_END, "t", 30, 0)
    >>> pair = {"w1": lease, "w2": Lease(0, 0, "u", 9, 1)}
    >>> record = ReaderRecord("s", 0, 0, "", 60, members=pair)
    >>> shared = advanced(record, "w1", Progress(done=8, read=8, tail=28), 2)
    >>> shared.offset, shared.members["w1"]
    (8, Lease(start=8, end=13, token='t', lease_s=30, renewed=2))
    """
    if (share := record.by_key) is not None:
        record = done_by_key(record, share, at.turn, at.done)
        idle = at.read <= at.done  # otherwise it keeps the buckets of events that it was given
        record = advanced_by_key(record, record.by_key or share, member, number, moves=idle)
        return _given(record, member, at) if at.counted and at.given else record
    lease = record.members[member]
    done = at.done if at.start <= lease.start <= at.done <= lease.end else lease.start
    record = add_done(record, Span(lease.start, done))
    lease = replace(lease, start=done, renewed=number)
    if (len(record.members) > 1 and lease.end - done > RANGE_ROWS) or waiting(record, at.barred):
        lease = replace(lease, end=max(done, min(at.read, lease.end)))
    record = _with(record, member, lease)
    if at.counted:
        record = _given(record, member, replace(at, done=done, read=min(at.read, lease.end)))
    if lease.start < lease.end:
        return record
    free = free_range(record, at.tail, at.barred)
    if free.start == free.end:
        return record
    return _with(record, member, replace(lease, start=free.start, end=free.end))


def free_range(record: ReaderRecord, tail: int, barred: frozenset[int] = frozenset()) -> Span:
    """Return the range that a member may take next; an empty one if there is none.

    Deliveries that begin at an offset in `barred` are skipped, and a delivery is taken alone.
    """
    leased = (lease for lease in record.members.values() if lease.start < lease.end)
    kept = (each for each in record.deliveries if each.start in barred)
    taken: list[Span | Delivery] = [*record.done, *leased, *kept]
    at, end = record.offset, NO_END
    for span in sorted(taken, key=lambda span: span.start):
        if span.start > at:
            end = span.start
            break
        at = max(at, span.end)
    for delivery in record.deliveries:
        if delivery.start <= at < delivery.end:
            return Span(at, min(end, delivery.end))
        if at < delivery.start:
            end = min(end, delivery.start)
    if (members := len(record.members)) > 1:
        share = -(-max(tail - at, 0) // (2 * members))
        end = min(end, at + min(share, RANGE_ROWS))
    return Span(at, end)


def waiting(record: ReaderRecord, barred: frozenset[int]) -> bool:
    """Tell whether a delivery can be taken that nobody has leased."""
    leases = record.members.values()
    return any(
        each.start not in barred
        and not any(lease.start <= each.start < lease.end for lease in leases)
        for each in record.deliveries
    )


def barred_letters(record: ReaderRecord, *, writes_letters: bool) -> frozenset[int]:
    """Return the marks of letters that a member may not take now.

    A member that `writes_letters` may take the one with the lowest number; others may take none.
    """
    letters = sorted(
        (each.letter, each.mark) for each in record.deliveries if each.letter is not None
    )
    return frozenset(mark for _, mark in letters[1 if writes_letters else 0 :])


def returned(
    record: ReaderRecord,
    member: str,
    back: Delivery,
    number: int,
    turn: frozenset[int] = frozenset(),
) -> ReaderRecord:
    """Return the record after a member gave a batch back; its lease continues after the batch.

    By key, the other buckets of its `turn` are done to there. If the record has no room to name the
    delivery, its events are free without a count, delay or letter.

    >>> held = {"w1": Lease(0, 9, "t", 30, 0)}
    >>> record = ReaderRecord("s", 0, 0, "", 60, members=held)
    >>> later = returned(record, "w1", Delivery(0, 4, 1, "w1"), 2)
    >>> later.offset, later.members["w1"].start, free_range(later, 9)
    (0, 4, Span(start=0, end=4))
    """
    if (share := record.by_key) is not None:
        record = done_by_key(record, share, turn.difference(back.buckets), back.end)
        record = advanced_by_key(record, record.by_key or share, member, number, moves=False)
        return _named(record, back)
    lease = record.members[member]
    lease = replace(lease, start=min(back.end, lease.end), renewed=number)
    return _named(_with(record, member, lease), back)


def deliveries_in(record: ReaderRecord, span: Span) -> list[Delivery]:
    """Return the deliveries with events in a range."""
    return [each for each in record.deliveries if each.start < span.end and span.start < each.end]


def named_before(record: ReaderRecord, batch: Delivery) -> list[Delivery]:
    """Return the deliveries with events of a batch."""
    if batch.buckets:
        return [each for each in record.deliveries if {*each.buckets} & {*batch.buckets}]
    return deliveries_in(record, Span(batch.start, batch.end))


def _given(record: ReaderRecord, member: str, at: Progress) -> ReaderRecord:
    """Name the batch that a member is about to get as a delivery, with a raised count."""
    if at.done >= at.read:
        return record
    batch = Delivery(at.done, at.read, 1, member, buckets=sorted(at.given))
    count = 1 + max((each.count for each in named_before(record, batch)), default=0)
    return _named(record, replace(batch, count=count))


def _named(record: ReaderRecord, delivery: Delivery) -> ReaderRecord:
    """Name a delivery in place of those in its range, if the record has room."""
    if delivery.buckets:
        others = without(record.deliveries, delivery.buckets, NO_END)
    else:
        others = _outside(record.deliveries, Span(delivery.start, delivery.end))
    deliveries = sorted((*others, delivery), key=lambda each: each.start)
    named = replace(record, deliveries=deliveries)
    if len(encode_record(named)) > _NAMED_BYTES:
        return replace(record, deliveries=others)
    return named


def _outside(deliveries: list[Delivery], span: Span) -> list[Delivery]:
    """Return the parts of deliveries outside a range."""
    if span.start >= span.end:
        return deliveries
    return [
        replace(each, start=start, end=end)
        for each in deliveries
        for start, end in (
            (each.start, min(each.end, span.start)),
            (max(each.start, span.end), each.end),
        )
        if start < end
    ]


def add_done(record: ReaderRecord, span: Span) -> ReaderRecord:
    """Add a range to what is done; the position moves up to the first event that is not done."""
    merged: list[Span] = []
    for each in sorted((*record.done, span), key=lambda each: each.start):
        if merged and each.start <= merged[-1].end:
            merged[-1] = Span(merged[-1].start, max(merged[-1].end, each.end))
        elif each.start < each.end:
            merged.append(each)
    left = _outside(record.deliveries, span) if record.deliveries else record.deliveries
    if merged and merged[0].start <= record.offset:
        record = _moved(record, merged[0].end)
        offset = max(record.offset, merged[0].end)
        return replace(record, offset=offset, done=merged[1:], deliveries=left)
    return replace(record, done=merged, deliveries=left)


def _moved(record: ReaderRecord, offset: int) -> ReaderRecord:
    """Raise the positions of all buckets to an offset: events below it are done, or dropped."""
    share = record.by_key
    if share is None:
        return record
    positions = [max(each, offset) for each in share.positions]
    return replace(record, by_key=replace(share, positions=positions))


def _with(record: ReaderRecord, member: str, lease: Lease) -> ReaderRecord:
    return replace(record, members={**record.members, member: lease})
