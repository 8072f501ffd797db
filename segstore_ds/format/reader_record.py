"""The record of a named reader: the content of one file of its metadata log (FORMAT.md 8)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from segstore_ds.errors import UnsupportedVersionError
from segstore_ds.format.fields import Fields, build_json, parse_json

RECORD_FORMAT = 1  # On disk. Never change; add a new one.
RECORD_LIMIT_BYTES = 64 << 10
OWNER_LIMIT = 1000  # characters


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
        number: The number of the record in the reader's log, filled in likewise.
        extra: Fields of a newer version, carried through.
    """

    stream_id: str
    generation: int
    offset: int
    owner: str
    lapse_s: int
    released: bool = False
    provisional: bool = False
    version: int = 0
    transaction: str = ""
    name: str = ""
    number: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)


def encode_record(record: ReaderRecord) -> bytes:
    """Return the body of a record's file."""
    value = dict(record.extra)
    value.update(
        format=RECORD_FORMAT,
        stream_id=record.stream_id,
        generation=record.generation,
        offset=record.offset,
        owner=record.owner,
        lapse_s=record.lapse_s,
        released=record.released,
        provisional=record.provisional,
        version=record.version,
        transaction=record.transaction,
        name=record.name,
        number=record.number,
    )
    return build_json(value)


def decode_record(body: bytes, where: str) -> ReaderRecord:
    """Decode the body of a record's file.

    Raises:
        CorruptionError: The body is not a reader's record.
        UnsupportedVersionError: The format is newer.
    """
    fields = Fields(parse_json(body, where=where), where=where)
    found = fields.integer("format", least=1)
    if found > RECORD_FORMAT:
        raise UnsupportedVersionError(
            "reader's record has a newer format", where=where, found=found, known=RECORD_FORMAT
        )
    return ReaderRecord(
        stream_id=fields.text("stream_id", limit=100),
        generation=fields.integer("generation"),
        offset=fields.integer("offset"),
        owner=fields.text("owner", limit=OWNER_LIMIT),
        lapse_s=fields.integer("lapse_s", least=1),
        released=fields.flag("released"),
        provisional=fields.flag("provisional"),
        version=fields.integer("version"),
        transaction=fields.text("transaction", limit=100),
        name=fields.text("name", limit=100),
        number=fields.integer("number"),
        extra=dict(fields.rest()),
    )
