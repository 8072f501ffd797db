"""How members share a named reader: each leases ranges of offsets in the reader's record. Pure.

From a record's `offset` on, what is neither done nor leased is free. A member takes the lowest free
range, and commits it from its start on. So the lowest event that is not done is the position, for
which retention waits. A member that others no longer wait for leaves the record, and its range is
free again; a commit under its token is refused then.

A member that is alone leases all that will come: it needs no record before it reads new events.
Several divide what is there: each takes its share of half of it, at most `RANGE_ROWS`.
"""

from dataclasses import dataclass, replace

from segstore_ds.format.reader_record import NO_END, Lease, ReaderRecord, Span

RANGE_ROWS = 1 << 18


@dataclass(frozen=True, slots=True)
class Progress:
    """What a member has read: below `done` it is done, below `read` it has been given out."""

    done: int
    read: int
    tail: int


def joined(record: ReaderRecord, member: str, lease: Lease) -> ReaderRecord:
    """Add a member; it takes over the range of the process that was this member before."""
    before = record.members.get(member, lease)
    return _with(record, member, replace(lease, start=before.start, end=before.end))


def left(record: ReaderRecord, members: frozenset[str]) -> ReaderRecord:
    """Remove members: what they leased and have not done is free again."""
    kept = {name: lease for name, lease in record.members.items() if name not in members}
    return replace(record, members=kept)


def advanced(record: ReaderRecord, member: str, at: Progress, number: int) -> ReaderRecord:
    """Commit what a member has done, renew its lease, and take another range if it has none.

    `number` is that of the record that is being made.

    >>> lease = Lease(0, NO_END, "t", 30, 0)
    >>> pair = {"w1": lease, "w2": Lease(0, 0, "u", 9, 1)}
    >>> record = ReaderRecord("s", 0, 0, "", 60, members=pair)
    >>> shared = advanced(record, "w1", Progress(done=8, read=8, tail=28), 2)
    >>> shared.offset, shared.members["w1"]
    (8, Lease(start=8, end=13, token='t', lease_s=30, renewed=2))
    """
    lease = record.members[member]
    done = at.done if lease.start <= at.done <= lease.end else lease.start
    record = add_done(record, Span(lease.start, done))
    lease = replace(lease, start=done, renewed=number)
    if len(record.members) > 1 and lease.end - done > RANGE_ROWS:
        lease = replace(lease, end=max(done, min(at.read, lease.end)))
    record = _with(record, member, lease)
    if lease.start < lease.end:
        return record
    free = free_range(record, at.tail)
    if free.start == free.end:
        return record
    return _with(record, member, replace(lease, start=free.start, end=free.end))


def free_range(record: ReaderRecord, tail: int) -> Span:
    """Return the range that a member may take next; an empty one if there is none."""
    leased = (lease for lease in record.members.values() if lease.start < lease.end)
    at, end = record.offset, NO_END
    for taken in sorted((*record.done, *leased), key=lambda span: span.start):
        if taken.start > at:
            end = taken.start
            break
        at = max(at, taken.end)
    if (members := len(record.members)) > 1:
        share = -(-max(tail - at, 0) // (2 * members))
        end = min(end, at + min(share, RANGE_ROWS))
    return Span(at, end)


def add_done(record: ReaderRecord, span: Span) -> ReaderRecord:
    """Add a range to what is done; the position moves up to the first event that is not."""
    merged: list[Span] = []
    for each in sorted((*record.done, span), key=lambda each: each.start):
        if merged and each.start <= merged[-1].end:
            merged[-1] = Span(merged[-1].start, max(merged[-1].end, each.end))
        elif each.start < each.end:
            merged.append(each)
    if merged and merged[0].start <= record.offset:
        return replace(record, offset=max(record.offset, merged[0].end), done=merged[1:])
    return replace(record, done=merged)


def _with(record: ReaderRecord, member: str, lease: Lease) -> ReaderRecord:
    return replace(record, members={**record.members, member: lease})
