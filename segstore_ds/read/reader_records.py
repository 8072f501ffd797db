"""The records of named readers: each reader has its own metadata log.

Only the record with the highest number counts. It is found by listing, never by a hint, because a
writer that was suspended may create a number that was deleted meanwhile. So a record is kept for
`_KEPT_US` after the next one, and a writer that read its base more than `_FRESH_S` ago reads it
again after the put: if it is still the same record, the number after it was never deleted.

The hint is written after the record, so a log that ends before its hint has lost records. A record
has the name of its reader and its number: one that was moved or copied is damage. Only the store's
time decides whether a reader has lapsed. A stream that replaces a dropped one may have readers of
the same names, so a writer checks for a drop before each put, and again after a slow one.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from segstore_ds.errors import (
    ConflictError,
    CorruptionError,
    FormatError,
    InvalidInputError,
    MissingObjectError,
    NotFoundError,
    StorageError,
    UnsupportedVersionError,
)
from segstore_ds.format import names
from segstore_ds.format.reader_record import (
    RECORD_LIMIT_BYTES,
    ReaderRecord,
    decode_record,
    encode_record,
)
from segstore_ds.format.root import Root
from segstore_ds.log.context import StreamContext
from segstore_ds.log.metadata_log import Codec, MetadataLog

_CODEC: Codec[ReaderRecord] = Codec(encode_record, decode_record, RECORD_LIMIT_BYTES)
_ATTEMPTS = 100
_PURGE_EVERY, _PURGE_S = 16, 1.0  # records and seconds: each purge lists all that are kept
_RECORDS_KEPT = 8
_KEPT_US = 5_000_000  # twice `_FRESH_S`, and a second more, since stores round times
_FRESH_S = 2.0
_RELEASE = (
    "restore the reader's records from a backup, or free the name with "
    "stream.readers.release(name) and register it again at the position that it needs"
)


@dataclass(frozen=True, slots=True)
class SeenReader:
    """A reader's newest record, its number, and when the store says it was written.

    By the boot clock, at `seen_s` no later record existed, and at `purged_s` this process purged
    older ones.
    """

    name: str
    number: int
    record: ReaderRecord
    renewed_us: int
    seen_s: float = float("-inf")
    purged_s: float = float("-inf")

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
        """Tell whether the reader can't continue: it is below the head or in another generation."""
        return self.record.generation != root.generation or self.record.offset < root.head


def each_reader(context: StreamContext) -> Iterator[tuple[str, SeenReader | FormatError]]:
    """Yield the name of every reader, with its newest record or the error of reading it."""
    newest: dict[str, tuple[int, int]] = {}
    for info in context.storage.list(names.READERS_FOLDER):
        folder, _, file = info.path.rpartition("/")
        if folder == names.READER_HINTS_FOLDER:
            newest.setdefault(file, (-1, 0))
            continue
        name, number = folder.removeprefix(f"{names.READERS_FOLDER}/"), names.parse_log_name(file)
        if number is not None and number >= newest.get(name, (-1, 0))[0]:
            newest[name] = (number, info.modified_us)
    for name, (number, renewed_us) in sorted(newest.items()):
        try:
            _check_name(context, name)
            seen = None
            if number >= _hinted(context, name):
                seen = _read(context, name, number, renewed_us)
            # It was deleted, or is not the newest any more: list this reader's folder.
            seen = seen or newest_record(context, name)
        except FormatError as error:
            yield name, error
        else:
            if seen is not None:
                yield name, seen


def find_reader(context: StreamContext, name: str) -> SeenReader | None:
    """Return a reader's newest record; None if it never registered or was released."""
    seen = newest_record(context, name)
    return None if seen is None or seen.record.released else seen


def named_reader(context: StreamContext, name: str) -> SeenReader:
    """Return a reader's newest record; NotFoundError if it never registered or was released."""
    seen = find_reader(context, name)
    if seen is None:
        raise no_such_reader(context, name)
    return seen


def no_such_reader(context: StreamContext, name: str) -> NotFoundError:
    """Return the error for a name that no reader of the stream has."""
    return NotFoundError(
        "no such reader",
        remedy="stream.readers lists those of a stream; stream.readers.register(name) adds one",
        url=context.storage.url,
        reader=name,
    )


def live_readers(context: StreamContext, now_us: int) -> list[SeenReader]:
    """Return the readers that hold retention back at this store time, ordered by name.

    An unreadable record is a FormatError: a caller must not take its reader for absent.
    """
    live = []
    for _, seen in each_reader(context):
        if isinstance(seen, FormatError):
            raise seen
        if seen.is_live(now_us):
            live.append(seen)
    return live


def newest_record(context: StreamContext, name: str) -> SeenReader | None:
    """Return a reader's newest record, even a released one, or None."""
    folder = names.reader_folder(name)
    for _ in range(_ATTEMPTS):
        seen_s = context.clock.boot_s()
        hinted = _hinted(context, name)  # before the listing, which may have a later one
        numbers = {
            number: info.modified_us
            for info in context.storage.list(folder)
            if (number := names.parse_log_name(info.path.rpartition("/")[2])) is not None
        }
        newest = max(numbers, default=-1)
        if newest < hinted:
            raise MissingObjectError(
                "records of a reader are gone",
                remedy=_RELEASE,
                url=context.storage.url,
                reader=name,
                seen=hinted,
                newest=newest,
            )
        if newest < 0:
            return None
        seen = _read(context, name, newest, numbers[newest], seen_s)
        if seen is not None:
            return seen
    raise StorageError("reader changes faster than it can be read", reader=name)


def newest_number(context: StreamContext, name: str) -> int:
    """Return the number of a reader's newest record, even one that is gone; -1 for none."""
    listed = record_log(context, name).newest_listed()
    return max(_hinted(context, name), -1 if listed is None else listed)


def add_record(
    context: StreamContext,
    seen: SeenReader,
    make: Callable[[SeenReader | None], ReaderRecord | None],
) -> SeenReader:
    """Write the record that `make` returns for the newest one, again after each lost race.

    If it returns None, nothing is written.
    """
    files, name = record_log(context, seen.name), seen.name
    for attempt in range(_ATTEMPTS):
        began_s = context.clock.boot_s()
        context.log.follow()
        made = make(seen if seen.number >= 0 else None)
        if made is None:
            return seen
        number = seen.number + 1
        record = replace(made, name=name, number=number, id=context.clock.new_id()[:16])
        taken = files.add_or_read(number, record)
        # After a long time the number may have been deleted: then this record is not the newest.
        now_s = context.clock.boot_s()
        fresh = now_s - seen.seen_s <= _FRESH_S
        if taken is None and now_s - began_s > _FRESH_S:
            _check_late(context, files, number)
        newest, won = None, taken is None and (fresh or _stands(files, seen))
        if taken is not None and fresh and _hinted(context, name) <= number:
            newer = _decoded(context, files, name, number, taken)
            newest = SeenReader(name, number, newer, 0, seen.seen_s)
        elif not won:
            newest = newest_record(context, name)
            won = newest is not None and newest.record == record
        if won:
            seen_at = record.transaction or "unknown"
            files.write_hint(names.Hint(number, record.generation, record.stream_id, seen_at))
            purged_s = seen.purged_s
            if number % _PURGE_EVERY == _PURGE_EVERY - 1 and began_s - purged_s >= _PURGE_S:
                # If this process was suspended, others may have deleted it; they purge as well.
                with suppress(MissingObjectError, StorageError):
                    now_us = context.storage.info(files.path(number)).modified_us
                    files.purge(number - _RECORDS_KEPT, superseded_us=now_us - _KEPT_US)
                    purged_s = began_s
            return SeenReader(name, number, record, 0, began_s, purged_s)
        seen = newest or replace(seen, number=-1)
        context.clock.backoff(min(attempt, 6), base_s=0.004, most_s=0.25)
    raise ConflictError("others wrote the reader's record first on every attempt", reader=name)


def _stands(files: MetadataLog[ReaderRecord], base: SeenReader) -> bool:
    """Tell whether the base still exists: records are deleted in order, so the next one was not."""
    if base.number < 0:
        return files.newest_listed() == 0
    try:
        return files.get(base.number) == base.record
    except FormatError:
        return False


def _check_late(context: StreamContext, files: MetadataLog[ReaderRecord], number: int) -> None:
    """Delete the record that was just put if the stream was dropped meanwhile."""
    try:
        context.log.follow()
    except NotFoundError:
        if files.holds_added(number):
            context.storage.delete(files.path(number))
        raise


def _read(
    context: StreamContext, name: str, number: int, renewed_us: int, seen_s: float = float("-inf")
) -> SeenReader | None:
    files = record_log(context, name)
    data = files.read(number)
    if data is None:
        return None
    return SeenReader(
        name, number, _decoded(context, files, name, number, data), renewed_us, seen_s
    )


def _decoded(
    context: StreamContext, files: MetadataLog[ReaderRecord], name: str, number: int, data: bytes
) -> ReaderRecord:
    """Return the record that a file holds, if it belongs to its stream, name and number."""
    try:
        record = files.decode(number, data)
    except UnsupportedVersionError:
        raise
    except FormatError as error:
        where = context.storage.describe(files.path(number))
        raise CorruptionError(
            "reader's record can't be read", remedy=_RELEASE, reader=name, where=where
        ) from error
    if record.stream_id != context.log.root.stream_id:
        raise CorruptionError(
            "reader belongs to another stream",
            remedy="if it was copied here by mistake, free the name with "
            "stream.readers.release(name)",
            reader=name,
            stream=context.log.root.stream_id,
            found=record.stream_id,
        )
    if (record.name, record.number) != (name, number):
        raise CorruptionError(
            "reader's record was written under another name or number",
            remedy=_RELEASE,
            reader=name,
            number=number,
            found=(record.name, record.number),
        )
    return record


def _check_name(context: StreamContext, name: str) -> None:
    try:
        names.check_label(name, what="reader")
    except InvalidInputError as error:
        raise CorruptionError(
            "folder does not belong to a reader",
            where=f"{context.storage.url}/{names.READERS_FOLDER}/{name}",
        ) from error


def _hinted(context: StreamContext, name: str) -> int:
    """Return the number of the newest record that a reader's hint proves; -1 for none."""
    hint = record_log(context, name).read_hint()
    return hint.number if hint and hint.stream_id == context.log.root.stream_id else -1


def record_log(context: StreamContext, name: str) -> MetadataLog[ReaderRecord]:
    """Return the metadata log of a reader's records."""
    folder, hint = names.reader_folder(name), names.reader_hint(name)
    return MetadataLog(context.storage, folder, _CODEC, clock=context.clock, hint_path=hint)
