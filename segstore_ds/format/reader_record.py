"""The record of a named reader: what one file of its metadata log holds (FORMAT.md 8)."""

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
    """A reader as of one record.

    Attributes:
        stream_id: Of the stream that it reads.
        generation: Of the stream, when the position was published.
        offset: Of the next event that the reader needs; everything before it may go.
        owner: Who may publish under the name; "" for a plain caller.
        lapse_s: After so long without a record, by the store's time, the reader holds nothing back.
        released: It has been given up: it holds nothing back and the name is free.
        provisional: Its owner is not recorded anywhere else yet, so another may take the name.
        version: The newest version that the reader had seen.
        transaction: Of that version; "" where it is not recorded.
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
    )
    return build_json(value)


def decode_record(body: bytes, where: str) -> ReaderRecord:
    """Return the record that a file's body holds.

    Raises:
        CorruptionError: It holds something else.
        UnsupportedVersionError: A newer format.
    """
    fields = Fields(parse_json(body, where=where), where=where)
    found = fields.integer("format", least=1)
    if found > RECORD_FORMAT:
        raise UnsupportedVersionError(
            "reader's record is of a newer format", where=where, found=found, known=RECORD_FORMAT
        )
    return ReaderRecord(
        stream_id=fields.text("stream_id", limit=100),
        generation=fields.integer("generation"),
        offset=fields.integer("offset"),
        owner=fields.text("owner", limit=OWNER_LIMIT),
        lapse_s=fields.integer("lapse_s", least=1),
        released=fields.flag("released"),
        provisional=fields.flag("provisional"),
        transaction=(transaction := fields.optional_text("transaction", limit=100) or ""),
        version=fields.integer("version") if transaction else int(fields.optional("version") or 0),
        extra=dict(fields.rest()),
    )
