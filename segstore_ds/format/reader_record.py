"""The record of a named reader: the content of one file of its metadata log (FORMAT.md 8)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from segstore_ds.format.record import (
    Limit,
    Positive,
    build_json,
    from_json,
    parse_json,
    take_format,
    to_json,
)

RECORD_FORMAT = 1  # On disk. Never change; add a new one.
RECORD_LIMIT_BYTES = 64 << 10
OWNER_LIMIT = 1000  # characters
_Name = Annotated[str, Limit(100)]


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
    extra: Mapping[str, Any] = field(default_factory=dict)


def encode_record(record: ReaderRecord) -> bytes:
    """Return the body of a record's file."""
    return build_json({**to_json(record), "format": RECORD_FORMAT})


def decode_record(body: bytes, where: str) -> ReaderRecord:
    """Decode the body of a record's file.

    Raises:
        CorruptionError: The body is not a reader's record.
        UnsupportedVersionError: The format is newer.
    """
    value = parse_json(body, where=where)
    value = take_format(value, RECORD_FORMAT, what="reader's record", where=where)
    return from_json(ReaderRecord, value, where=where)
