"""The record of a named reader: the content of one file of its metadata log (FORMAT.md 8)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from segstore_ds.errors import CorruptionError
from segstore_ds.format.record import (
    ABSENT,
    MAX_INT,
    Limit,
    Positive,
    Row,
    build_json,
    from_json,
    parse_json,
    take_format,
    to_json,
)

# On disk. Never change; add a new one.
RECORD_FORMAT = 1
SHARED_FORMAT = 2  # of a record that members share, or have shared
RECORD_LIMIT_BYTES = 64 << 10
MEMBERS_LIMIT = 200  # members whose names, leases and done ranges fit into a record
OWNER_LIMIT = 1000  # characters
REASON_LIMIT = 200  # characters
NO_END = MAX_INT  # the end of a range with all future events
_Name = Annotated[str, Limit(100)]


@dataclass(frozen=True, slots=True)
class Span(Row):
    """A range of offsets, `[start, end)`."""

    start: int
    end: int

    def check_stored(self, where: str) -> None:
        """Refuse a range that ends before it starts."""
        if self.start > self.end:
            raise CorruptionError(
                "range ends before it starts", where=where, range=(self.start, self.end)
            )


@dataclass(frozen=True, slots=True)
class Lease(Span):
    """A member of a shared reader, and the range that only it reads, which may be empty."""

    token: _Name  # identifies the process that follows as this member
    lease_s: Positive  # after so long without a renewal, others may take the range
    renewed: int  # number of the record that renewed it last

    def behind(self, tail: int) -> int:
        """Return how many committed events of the range are not done."""
        return max(min(self.end, tail) - self.start, 0)


@dataclass(frozen=True, slots=True)
class Delivery:
    """Events `[start, end)` that were given to members `count` times, and that are not done.

    If a member gave them back, `since` is the number of that record, and others wait `delay_s` from
    when they see it. If they go to the dead letters, `letter` is the number of the record that says
    so, `token` identifies it, and `reason` says why; with `rows` only the events at these offsets
    do. If members share by key, it is of the events of some `buckets`, from their positions on; no
    two deliveries have the same bucket.
    """

    start: int
    end: int
    count: int
    member: _Name  # the member that got them last
    since: Annotated[int | None, ABSENT] = None
    delay_s: Annotated[int | None, ABSENT] = None
    letter: Annotated[int | None, ABSENT] = None
    token: Annotated[str | None, ABSENT] = None
    reason: Annotated[str | None, ABSENT] = None
    rows: Annotated[list[int], ABSENT] = field(default_factory=list)
    buckets: Annotated[list[int], ABSENT] = field(default_factory=list)

    @property
    def mark(self) -> int:
        """A number that identifies the delivery in its record."""
        return self.buckets[0] if self.buckets else self.start

    def check_stored(self, where: str) -> None:
        """Refuse a range that has no events."""
        if self.start >= self.end:
            raise CorruptionError(
                "delivery has no events", where=where, range=(self.start, self.end)
            )


@dataclass(frozen=True, slots=True)
class KeyShare:
    """How members share events by key: each bucket of keys has a position, and one holder.

    The events of a bucket below its position are done. The holder of a free bucket is "". The key's
    `columns` have their stored names; a redaction at version `since` was the last that may have
    changed their values.
    """

    columns: list[str]
    positions: list[int]
    holders: list[_Name]
    since: Annotated[int | None, ABSENT] = None

    def check_stored(self, where: str) -> None:
        """Refuse a share without buckets, or with some that have no position or holder."""
        if not 0 < len(self.positions) == len(self.holders) <= MEMBERS_LIMIT:
            raise CorruptionError(
                "buckets have no position or holder",
                where=where,
                buckets=(len(self.positions), len(self.holders)),
            )


@dataclass(frozen=True, slots=True)
class ReaderRecord:
    """The state of a reader as of one record; FORMAT.md 8 has the fields.

    `name`, `number` in the reader's log, and the unique `id` are filled in when it is written. The
    ranges in `done` ascend from `offset` on, with gaps between them; so do the `deliveries`, which
    may be adjacent. A caller that publishes must have registered since the last of the `resets`.
    """

    stream_id: _Name
    generation: int
    offset: int
    owner: Annotated[str, Limit(OWNER_LIMIT)]  # "" for a plain caller
    lapse_s: Positive
    released: bool = False
    provisional: bool = False
    version: int = 0
    transaction: _Name = ""
    name: _Name = ""
    number: int = 0
    id: Annotated[str | None, ABSENT] = None
    resets: Annotated[int | None, ABSENT] = None
    members: Annotated[Mapping[str, Lease], ABSENT] = field(default_factory=dict)
    done: Annotated[list[Span], ABSENT] = field(default_factory=list)
    deliveries: Annotated[list[Delivery], ABSENT] = field(default_factory=list)
    by_key: Annotated[KeyShare | None, ABSENT] = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def check_stored(self, where: str) -> None:
        """Refuse deliveries of unknown buckets, or without buckets if members share by key."""
        buckets = range(0 if self.by_key is None else len(self.by_key.positions))
        for each in self.deliveries:
            if bool(each.buckets) != bool(buckets) or not {*each.buckets} <= {*buckets}:
                raise CorruptionError(
                    "buckets of a delivery do not match those of the reader",
                    where=where,
                    buckets=each.buckets,
                )


def encode_record(record: ReaderRecord) -> bytes:
    """Return the body of a record's file."""
    shared = record.members or record.done or record.deliveries or record.by_key
    number = SHARED_FORMAT if shared else RECORD_FORMAT
    return build_json({**to_json(record), "format": number})


def decode_record(body: bytes, where: str) -> ReaderRecord:
    """Decode the body of a record's file."""
    value = parse_json(body, where=where)
    value = take_format(value, SHARED_FORMAT, what="reader's record", where=where)
    return from_json(ReaderRecord, value, where=where)
