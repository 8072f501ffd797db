"""The records of named readers: each reader has its own metadata log.

Records are found by listing, never by a hint: a writer that slept may create a number that was
deleted since, and only the highest number counts. Only the store's time decides whether a reader
has lapsed.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from segstore_ds.commit.context import StreamContext
from segstore_ds.errors import ConflictError, CorruptionError, InvalidInputError, StorageError
from segstore_ds.format import names
from segstore_ds.format.reader_record import (
    RECORD_LIMIT_BYTES,
    ReaderRecord,
    decode_record,
    encode_record,
)
from segstore_ds.format.root import Root
from segstore_ds.log.metadata_log import Codec, MetadataLog
from segstore_ds.log.newest import CONFIRM_S
from segstore_ds.log.seen import hint_of

_CODEC: Codec[ReaderRecord] = Codec(encode_record, decode_record, RECORD_LIMIT_BYTES)
_ATTEMPTS = 20
_PURGE_EVERY = 16
_RECORDS_KEPT = 8


@dataclass(frozen=True, slots=True)
class SeenReader:
    """A reader's newest record, its number, and when the store says it was written."""

    name: str
    number: int
    record: ReaderRecord
    renewed_us: int

    def is_live(self, now_us: int) -> bool:
        """Tell whether the reader holds retention back at this store time."""
        age_us = now_us - self.renewed_us
        return not self.record.released and age_us <= self.record.lapse_s * 1_000_000

    def needs(self, root: Root) -> int:
        """Return the first offset that the reader still needs, at least the head.

        An offset of another generation does not describe the current events, so such a reader needs
        all of them.
        """
        if self.record.generation != root.generation:
            return root.head
        return max(self.record.offset, root.head)

    def lags(self, root: Root) -> bool:
        """Tell whether the reader can't go on: it is below the head or in another generation."""
        return self.record.generation != root.generation or self.record.offset < root.head


def store_now_us(context: StreamContext) -> int:
    """Return the store's time: write the log's hint and read its modification time."""
    context.storage.put(context.log.files.hint_path, names.build_hint(hint_of(context.log.root)))
    return context.storage.info(context.log.files.hint_path).modified_us


def list_readers(context: StreamContext) -> list[SeenReader]:
    """Return the newest record of every reader, ordered by name, released and lapsed ones too.

    An unreadable record is a FormatError: a caller must not take its reader for absent.
    """
    for _ in range(_ATTEMPTS):
        newest: dict[str, tuple[int, int]] = {}
        for info in context.storage.list(names.READERS_FOLDER):
            folder, _, file = info.path.removeprefix(f"{names.READERS_FOLDER}/").rpartition("/")
            number = names.parse_log_name(file)
            if number is not None and number >= newest.get(folder, (-1, 0))[0]:
                newest[folder] = (number, info.modified_us)
        found = [_read(context, name, *at) for name, at in sorted(newest.items())]
        if None not in found:
            return [seen for seen in found if seen is not None]
    raise StorageError("readers change faster than they can be read", url=context.storage.url)


def find_reader(context: StreamContext, name: str) -> SeenReader | None:
    """Return a reader's newest record; None if it never registered or was released."""
    seen = newest_record(context, name)
    return None if seen is None or seen.record.released else seen


def live_readers(context: StreamContext, now_us: int) -> list[SeenReader]:
    """Return the readers that hold retention back at this store time, ordered by name."""
    return [seen for seen in list_readers(context) if seen.is_live(now_us)]


def newest_record(context: StreamContext, name: str) -> SeenReader | None:
    """Return a reader's newest record, even a released one, or None."""
    folder = names.reader_folder(name)
    for _ in range(_ATTEMPTS):
        numbers = {
            number: info.modified_us
            for info in context.storage.list(folder)
            if (number := names.parse_log_name(info.path.rpartition("/")[2])) is not None
        }
        if not numbers:
            return None
        seen = _read(context, name, max(numbers), numbers[max(numbers)])
        if seen is not None:
            return seen
    raise StorageError("reader changes faster than it can be read", reader=name)


def add_record(
    context: StreamContext, seen: SeenReader, make: Callable[[SeenReader | None], ReaderRecord]
) -> SeenReader:
    """Write a reader's next record, made from its newest one; a lost race is tried again.

    Raises:
        ConflictError: Every race was lost.
        CommitUnknownError: The storage did not say whether the record was written.
    """
    files, name = record_log(context, seen.name), seen.name
    for attempt in range(_ATTEMPTS):
        began = context.clock.boot_s()
        record = make(seen if seen.number >= 0 else None)
        number = seen.number + 1
        won = files.add(number, record)
        # After a long sleep the number may have been deleted meanwhile: then this record is not the
        # newest but a leftover.
        if won and context.clock.boot_s() - began > CONFIRM_S:
            won = files.newest_listed() == number
        if won:
            if number % _PURGE_EVERY == _PURGE_EVERY - 1:
                files.purge(number - _RECORDS_KEPT)
            return SeenReader(name, number, record, 0)
        seen = newest_record(context, name) or replace(seen, number=-1)
        context.clock.backoff(min(attempt, 6), base_s=0.004, most_s=0.25)
    raise ConflictError("others wrote the reader's record first on every attempt", reader=name)


def _read(context: StreamContext, name: str, number: int, renewed_us: int) -> SeenReader | None:
    try:
        names.check_label(name, what="reader")
    except InvalidInputError as error:
        raise CorruptionError(
            "folder does not belong to a reader",
            where=f"{context.storage.url}/{names.READERS_FOLDER}/{name}",
        ) from error
    record = record_log(context, name).get(number)
    if record is not None and record.stream_id != context.log.root.stream_id:
        raise CorruptionError(
            "reader belongs to another stream",
            remedy="if it was copied here by mistake, free the name with "
            "stream.release_reader(name)",
            reader=name,
            stream=context.log.root.stream_id,
            found=record.stream_id,
        )
    return None if record is None else SeenReader(name, number, record, renewed_us)


def record_log(context: StreamContext, name: str) -> MetadataLog[ReaderRecord]:
    """Return the metadata log of a reader's records."""
    return MetadataLog(context.storage, names.reader_folder(name), _CODEC, clock=context.clock)
