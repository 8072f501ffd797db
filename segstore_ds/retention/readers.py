"""Named readers: positions that retention respects, each in a metadata log of its own.

A reader registers first and checks the head then. Registering is a commit of the stream as well: a
retention that has looked at the readers before loses the race against it, and looks again. So one
of the two always sees the other: the reader the head that has moved, or the retention the reader.
Publishing a later position needs no commit, since the earlier one held back more.

Whether a reader has lapsed is judged by the store's time alone. A reader that may have lapsed (half
of the time has passed since its last record) registers again before it relies on being respected.
"""

from dataclasses import replace

from segstore_ds.commit.commit import StreamLog
from segstore_ds.errors import (
    FormatError,
    InvalidInputError,
    PositionError,
    ReaderConflictError,
    TruncatedError,
    UnsupportedVersionError,
)
from segstore_ds.format import names
from segstore_ds.format.fields import MAX_INT, is_text
from segstore_ds.format.reader_record import OWNER_LIMIT, ReaderRecord
from segstore_ds.format.root import Root
from segstore_ds.log.transition import Slot
from segstore_ds.read.cuts import check_held, position_of
from segstore_ds.read.reader_records import (
    SeenReader,
    add_record,
    find_reader,
    newest_record,
    record_log,
)

LAPSE_S = 7 * 86_400


class NamedReader:
    """A registered reader: holds back retention from its position on, until it is released.

    Made by `register_reader`. Of two handles with one owner both may publish; the later position
    stands.

    Args:
        log: The stream's log.
        seen: Its newest record.
        confirmed_s: By the boot clock, before that record was written.
        client: Who reads, for the stream's history.
    """

    def __init__(self, log: StreamLog, seen: SeenReader, confirmed_s: float, client: str) -> None:
        self._log = log
        self._seen = seen
        self._confirmed_s = confirmed_s
        self._client = client

    def __repr__(self) -> str:
        return f"<reader {self.name!r} at {self.offset}>"

    @property
    def name(self) -> str:
        """Its name."""
        return self._seen.name

    @property
    def owner(self) -> str:
        """Who may publish under the name."""
        return self._seen.record.owner

    @property
    def offset(self) -> int:
        """The offset of the next event that it needs, as published last."""
        return self._seen.record.offset

    @property
    def lapses(self) -> bool:
        """Whether half of its time has passed since the last record: it should be renewed."""
        elapsed_s = self._log.clock.boot_s() - self._confirmed_s
        return elapsed_s > self._seen.record.lapse_s / 2

    def publish(self, offset: int, *, provisional: bool = False) -> None:
        """Say that everything before an offset is no longer needed; an earlier one changes nothing.

        Durable when it returns. Safe to repeat.

        Raises:
            ReaderConflictError: The name was taken over by another owner.
            PositionError: The offset lies beyond the tail, or the reader's position is of another
                generation: it holds back everything until it is registered with a new start.
            InvalidInputError: The offset is no int from 0.
            TruncatedError: The reader had lapsed, and the head has passed its position.
            ConflictError: Every race was lost.
            CommitUnknownError: The storage never said whether the record was written.
            FormatError: A record can't be read.
            StorageError: The storage failed.
        """
        if type(offset) is not int or offset < 0:
            raise InvalidInputError("not an offset", remedy="give an int from 0", offset=offset)
        if offset > self._log.root.tail and offset > self._log.refresh().tail:
            raise PositionError(
                "position lies beyond the tail", offset=offset, tail=self._log.root.tail
            )
        began = self._log.clock.boot_s()

        def advance(seen: SeenReader | None) -> ReaderRecord:
            current = self._own(seen)
            mine = self._seen.record
            if not mine.generation == current.generation == self._log.root.generation:
                _check_generation(self._log.refresh(), mine)
            root, later = self._log.root, max(offset, current.offset)
            return replace(
                current,
                offset=later,
                provisional=bool(provisional),
                version=root.version,
                transaction=root.transaction,
            )

        self._seen = add_record(self._log, self._seen, advance)
        # Asked once the record is there: until then a retention may have found the old one lapsed.
        # And confirmed behind the announcement: one that failed is due again with the next word.
        if self.lapses:
            _announce(self._log, self._seen, client=self._client)
        self._confirmed_s = began

    def renew(self) -> None:
        """Say that the reader is still there; raises as `publish`."""
        self.publish(self.offset)

    def release(self) -> None:
        """Give the reader up: it holds nothing back and its name is free. Safe to repeat.

        Raises:
            As `publish`.
        """
        self._seen = add_record(
            self._log, self._seen, lambda seen: replace(self._own(seen), released=True)
        )

    def _own(self, seen: SeenReader | None) -> ReaderRecord:
        if seen is None or (seen.record.released and not self._seen.record.released):
            raise ReaderConflictError(
                "reader was released",
                remedy="register it again with stream.reader(name)",
                reader=self.name,
            )
        _check_owner(seen, self.owner)
        return seen.record


def register_reader(
    log: StreamLog,
    name: str,
    *,
    owner: str,
    start: int | None,
    lapse_s: int = LAPSE_S,
    takeover: bool = False,
    provisional: bool = False,
    client: str = "",
) -> NamedReader:
    """Register a reader, or go on with the one of that owner.

    From its return on, `retain` drops nothing from the reader's position on, until the reader is
    released or lapses.

    Args:
        log: The stream's log.
        name: Of the reader.
        owner: Who may publish under the name.
        start: Offset of the first event that it needs; None for where it was published last, or the
            head where it is new.
        lapse_s: After so long without a record it holds nothing back.
        takeover: Take the name over from another owner.
        provisional: Let another owner take the name until the next record.
        client: Who registers, for the stream's history.

    Raises:
        ReaderConflictError: The name belongs to another owner.
        TruncatedError: The position lies below the head: names what is lost. It stays registered
            there, so that the loss is not forgotten.
        PositionError: The position is beyond the tail, or of another stream or generation.
        InvalidInputError: The name, the owner or the time is not valid.
        ConflictError: Every race was lost.
        CommitUnknownError: The storage never said whether the reader is registered.
        FormatError: A record can't be read.
        StorageError: The storage failed.
    """
    _check_asked(owner, lapse_s)
    root, began = log.refresh(), log.clock.boot_s()

    def claim(seen: SeenReader | None) -> ReaderRecord:
        taken = seen is not None and not seen.record.released
        if seen is not None and taken and not (takeover or seen.record.provisional):
            _check_owner(seen, owner)
        mine = seen.record if seen is not None and taken else None
        offset = _start_of(log, root, start, mine)
        extra = seen.record.extra if seen is not None else {}
        return ReaderRecord(
            root.stream_id,
            root.generation,
            offset,
            owner,
            lapse_s,
            provisional=bool(provisional),
            version=root.version,
            transaction=root.transaction,
            extra=extra,
        )

    seen = add_record(log, newest_record(log, name) or _unborn(root, name), claim)
    reader = NamedReader(log, seen, began, client)
    _announce(log, seen, client=client)
    return reader


def release_reader(log: StreamLog, name: str) -> bool:
    """Release a reader whoever owns it; False where there is none to release.

    Its record need not be one that can be read: this is the way out where one stops retention.

    Raises:
        InvalidInputError: Not a reader's name.
        ConflictError: Every race was lost.
        CommitUnknownError: The storage never said whether it is released.
        UnsupportedVersionError: A newer version wrote the record: release it with that.
        FormatError: The next record can't be read either.
        StorageError: The storage failed.
    """
    try:
        seen = find_reader(log, name)
    except UnsupportedVersionError:
        raise
    except FormatError:
        number = record_log(log, name).newest_listed()
        seen = replace(_unborn(log.refresh(), name), number=-1 if number is None else number)
    if seen is None:
        return False
    add_record(log, seen, lambda newest: replace((newest or seen).record, released=True))
    return True


def _check_asked(owner: str, lapse_s: int) -> None:
    # What nobody could read again would stop retention for good.
    if type(lapse_s) is not int or not 1 <= lapse_s <= MAX_INT:
        raise InvalidInputError(
            "a reader lapses after a second at least",
            remedy="give whole seconds from 1",
            lapse_s=lapse_s,
        )
    if not is_text(owner) or len(owner) > OWNER_LIMIT:
        raise InvalidInputError(
            "not an owner of a reader",
            remedy=f"give a text of at most {OWNER_LIMIT} characters",
            owner=owner,
        )


def _start_of(log: StreamLog, root: Root, start: int | None, mine: ReaderRecord | None) -> int:
    if start is None and mine is None:
        return root.head
    if start is None and mine is not None:
        _check_generation(root, mine)
        check_held(log, position_of(mine))
        return mine.offset
    offset = int(start or 0)
    if offset > root.tail:
        raise PositionError("position lies beyond the tail", offset=offset, tail=root.tail)
    return offset


def _check_generation(root: Root, record: ReaderRecord) -> None:
    if (record.stream_id, record.generation) != (root.stream_id, root.generation):
        raise PositionError(
            "the reader's position is of another stream or generation",
            remedy="history was abandoned since; register it with a new start",
            position=(record.stream_id, record.generation),
            stream=(root.stream_id, root.generation),
        )


def _announce(log: StreamLog, seen: SeenReader, *, client: str) -> None:
    """Commit that a reader is there, so that a retention in flight looks again; check the head."""

    def build(root: Root, _slot: Slot) -> Root:
        return replace(root, operation="reader", client=client or root.client)

    root = log.commit(build, transaction=log.clock.new_id()).root
    _check_generation(root, seen.record)
    offset = seen.record.offset
    if root.head > offset:
        raise TruncatedError(
            "events that the reader needs are gone",
            remedy="register it with start='head' to go on without them",
            reader=seen.name,
            lost=f"[{offset}, {root.head})",
            head=root.head,
        )


def _unborn(root: Root, name: str) -> SeenReader:
    record = ReaderRecord(root.stream_id, root.generation, 0, "", LAPSE_S, released=True)
    return SeenReader(names.check_label(name, what="reader"), -1, record, 0)


def _check_owner(seen: SeenReader, owner: str) -> None:
    if seen.record.owner != owner:
        raise ReaderConflictError(
            "reader belongs to another owner",
            remedy="use another name; or, if its owner is gone for good, free it with "
            "stream.release_reader(name), or take it over with takeover=True",
            reader=seen.name,
            owner=seen.record.owner or "a plain caller",
            caller=owner or "a plain caller",
        )
