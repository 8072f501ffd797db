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
SHARED_FORMAT = 2  # of a record with members, or with events that are done beyond its offset
RECORD_LIMIT_BYTES = 64 << 10
MEMBERS_LIMIT = 200  # whose names, leases and done ranges fit into a record
OWNER_LIMIT = 1000  # characters
NO_END = MAX_INT  # the end of a range of all that will come
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
    """A member of a shared reader, and the range that only it reads; an empty one is none.

    Attributes:
        token: Names one process that follows as this member.
        lease_s: Seconds without a renewal after which others may take the range.
        renewed: Number of the record that renewed it last.
    """

    token: _Name
    lease_s: Positive
    renewed: int

    def behind(self, tail: int) -> int:
        """Return how many events of the range are there and not done."""
        return max(min(self.end, tail) - self.start, 0)


@dataclass(frozen=True, slots=True)
class ReaderRecord:
    """The state of a reader as of one record.

    Attributes:
        stream_id: The stream that it reads.
        generation: Generation of the stream when the position was published.
        offset: Offset of the next event that the reader needs; earlier events may be deleted.
        owner: Who may publish under the name; "" for a plain caller.
        lapse_s: Seconds without a record, by the store's time, after which the reader no longer
            holds back retention.
        released: True once the name is free; the reader then holds back nothing.
        provisional: True while the owner is not recorded anywhere else, so that another may take
            the name.
        version: The newest version that the reader had seen.
        transaction: The transaction of that version.
        name: The reader's name, filled in when the record is written.
        number: The number of the record in the reader's log, also filled in then.
        members: Who shares the reader, by name, each with its lease.
        done: Ranges from `offset` on that are done; ascending, with gaps between them.
        extra: Fields of a newer version, carried through.
    """

    stream_id: _Name
    generation: int
    offset: int
    owner: Annotated[str, Limit(OWNER_LIMIT)]
    lapse_s: Positive
    released: bool = False
    provisional: bool = False
    version: int = 0
    transaction: _Name = ""
    name: _Name = ""
    number: int = 0
    members: Annotated[Mapping[str, Lease], ABSENT] = field(default_factory=dict)
    done: Annotated[list[Span], ABSENT] = field(default_factory=list)
    extra: Mapping[str, Any] = field(default_factory=dict)


def encode_record(record: ReaderRecord) -> bytes:
    """Return the body of a record's file."""
    shared = record.members or record.done
    number = SHARED_FORMAT if shared else RECORD_FORMAT
    return build_json({**to_json(record), "format": number})


def decode_record(body: bytes, where: str) -> ReaderRecord:
    """Decode the body of a record's file.

    Raises:
        CorruptionError: The body is not a reader's record.
        UnsupportedVersionError: The format is newer.
    """
    value = parse_json(body, where=where)
    value = take_format(value, SHARED_FORMAT, what="reader's record", where=where)
    return from_json(ReaderRecord, value, where=where)
