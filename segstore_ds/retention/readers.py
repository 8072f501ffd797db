"""Named readers: positions that retention respects, each in a metadata log of its own.

A reader writes its record first, then commits to the stream and checks the head. A retention that
read the readers before that commit loses its race, and reads them again. So either the reader sees
the moved head, or the retention sees the reader. Publishing a later position needs no commit of the
stream, because the earlier position held back more.

Only the store's time decides whether a reader has lapsed. When half of its `lapse_s` has passed
since its last record, it may have lapsed, so it commits and checks the head again.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NoReturn

from segstore_ds.errors import (
    FormatError,
    InvalidInputError,
    PositionError,
    ReaderConflictError,
    SegstoreError,
    TruncatedError,
    UnsupportedVersionError,
)
from segstore_ds.format import names
from segstore_ds.format.operation import Operation
from segstore_ds.format.reader_record import OWNER_LIMIT, Lease, ReaderRecord, Span
from segstore_ds.format.record import MAX_INT, is_text
from segstore_ds.format.root import Root
from segstore_ds.log.context import StreamContext
from segstore_ds.read.cuts import HEAD, Cut, check_held, position_of, resolve_cut
from segstore_ds.read.reader_records import (
    SeenReader,
    add_record,
    find_reader,
    named_reader,
    newest_number,
    newest_record,
)
from segstore_ds.retention.leases import add_done

LAPSE_S = 7 * 86_400
_SHOWN = 10  # members that an error names at most


class NamedReader:
    """A registered reader: holds back retention from its position on, until it is released.

    Made by `stream.readers.register`. Two handles with one owner may both publish; the later
    position holds.
    """

    def __init__(self, context: StreamContext, seen: SeenReader, confirmed_s: float) -> None:
        self._context = context
        self._seen = seen
        self._confirmed_s = confirmed_s  # boot clock, read before the newest record was written

    def __repr__(self) -> str:
        return f"<reader {self.name!r} at {self.offset}>"

    def __reduce__(self) -> NoReturn:
        raise InvalidInputError(
            "a named reader can't be pickled or copied",
            remedy="pickle the stream, and register it again there with "
            "stream.readers.register(name, owner=...)",
        )

    @property
    def name(self) -> str:
        """The reader's name."""
        return self._seen.name

    @property
    def owner(self) -> str:
        """Who may publish under the name."""
        return self._seen.record.owner

    @property
    def offset(self) -> int:
        """The offset of the next event that the reader needs, as last published."""
        return self._seen.record.offset

    @property
    def lapses(self) -> bool:
        """Whether half of `lapse_s` has passed since the last record, so it should publish."""
        return self._lapses_soon

    def publish(self, offset: int, *, provisional: bool = False) -> None:
        """Publish that the reader no longer needs the events before an offset.

        An earlier offset does not move the reader; the same offset renews it, so it does not lapse.
        The position is durable when this returns. Safe to repeat.

        Args:
            offset: Offset of the first event that the reader still needs (>= 0).
            provisional: Let another owner take the name until the next publication.

        Raises:
            ReaderConflictError: The name was taken over by another owner, or the reader was
                released.
            NotFoundError: The stream was dropped.
            PositionError: The offset is beyond the tail; or the reader's position is of another
                generation, and holds back all events until it is registered with a new start.
            TruncatedError: The reader had lapsed, and the head has passed its position.
            SegstoreError: As in methods of `Stream` that commit.

        Examples:
            >>> reader = stream.readers.register("warehouse")
            >>> reader.publish(2)
            >>> reader.offset
            2
        """
        if type(offset) is not int or offset < 0:
            raise InvalidInputError(
                "the offset is no whole number from 0 on",
                remedy="give an int of at least 0",
                offset=offset,
            )
        root = self._context.log.root
        if offset > root.tail:
            root = self._context.log.refresh()
        if offset > root.tail:
            raise PositionError("the offset is beyond the tail", offset=offset, tail=root.tail)

        def advance(seen: SeenReader | None) -> ReaderRecord:
            current = self._current(seen)
            if current.members:
                raise _is_shared(self.name, current.members)
            passed = add_done(current, Span(current.offset, max(offset, current.offset)))
            return replace(passed, provisional=bool(provisional))

        self._write(advance)

    def release(self) -> None:
        """Release the reader: it holds nothing back and its name is free. Safe to repeat.

        Raises the same errors as `publish`.

        Examples:
            >>> stream.readers.register("warehouse").release()
        """
        self._seen = add_record(self._context, self._seen, lambda seen: _released(self._own(seen)))

    def _write(self, make: Callable[[SeenReader | None], ReaderRecord | None]) -> None:
        """Write the record that `make` returns, if it returns one."""
        began, made = self._context.clock.boot_s(), None

        def noted(seen: SeenReader | None) -> ReaderRecord | None:
            nonlocal made
            made = make(seen)
            return made

        self._seen = add_record(self._context, self._seen, noted)
        if made is None:
            return
        # Check after the record is written: until then, retention may see the old record as
        # lapsed. Confirm after the announcement: if that fails, the next publish repeats it.
        if self._lapses_soon:
            _announce(self._context, self._seen)
        self._confirmed_s = began

    @property
    def _lapses_soon(self) -> bool:
        return self._passed_s() > self._seen.record.lapse_s / 2

    def _passed_s(self) -> float:
        """Return the seconds since the last record."""
        return self._context.clock.boot_s() - self._confirmed_s

    def _current(self, seen: SeenReader | None) -> ReaderRecord:
        """Return the record to continue from, at the newest version that this handle has seen."""
        current = self._own(seen)
        mine, root = self._seen.record, self._context.log.root
        of = {(each.stream_id, each.generation) for each in (mine, current, root)}
        if len(of) > 1:
            _check_generation(self._context.log.refresh(), mine)
        root = self._context.log.root
        return replace(current, version=root.version, transaction=root.transaction)

    def _own(self, seen: SeenReader | None) -> ReaderRecord:
        if seen is None or (seen.record.released and not self._seen.record.released):
            raise ReaderConflictError(
                "the reader was released",
                remedy="register it again with stream.readers.register(name)",
                reader=self.name,
            )
        _check_owner(seen, self.owner)
        if seen.record.resets != self._seen.record.resets:
            raise ReaderConflictError(
                "the reader was reset to another position",
                remedy="start again: register the reader, or follow, without a start; a streaming "
                "query goes there with a new checkpoint and takeover=True",
                reader=self.name,
                offset=seen.record.offset,
            )
        return seen.record


def register_reader(
    context: StreamContext,
    name: str,
    *,
    owner: str,
    start: Cut | None,
    lapse_s: int = LAPSE_S,
    takeover: bool = False,
    provisional: bool = False,
) -> NamedReader:
    """Register a reader, or continue the one of that owner; see `Stream.readers.register`.

    `takeover` also takes the name from living members. What members have done or pending beyond the
    reader's position, such as dead letters that are not written yet, is read again.
    """

    def join(record: ReaderRecord, others: Mapping[str, Lease], _number: int) -> ReaderRecord:
        if others and not takeover:
            raise _is_shared(name, others)
        return record

    claim = Claim(owner, start, lapse_s, takeover=takeover, provisional=provisional)
    return NamedReader(context, *claim_name(context, name, claim, join))


def reset_reader(context: StreamContext, name: str, start: Cut) -> None:
    """Move a reader to a cut; handles that registered before can't publish any more."""

    def join(record: ReaderRecord, others: Mapping[str, Lease], _number: int) -> ReaderRecord:
        if others:
            raise _is_shared(name, others)
        return replace(record, resets=(record.resets or 0) + 1)

    seen = named_reader(context, name)
    claim_name(context, name, Claim(seen.record.owner, start, seen.record.lapse_s), join)


@dataclass(frozen=True, slots=True)
class Claim:
    """How a reader registers: the arguments of `Stream.readers.register`.

    If `shared`, `start` only skips events that are gone. A start at the head means the head at the
    time of the record.
    """

    owner: str
    start: Cut | None
    lapse_s: int = LAPSE_S
    takeover: bool = False
    provisional: bool = False
    shared: bool = False


def claim_name(
    context: StreamContext,
    name: str,
    claim: Claim,
    join: Callable[[ReaderRecord, Mapping[str, Lease], int], ReaderRecord],
    undo: Callable[[ReaderRecord], ReaderRecord | None] | None = None,
) -> tuple[SeenReader, float]:
    """Write a record that registers a reader, and announce it.

    `join` makes the record of one without members, the members that may still live, and its number.
    If the announcement fails, `undo` makes one that takes it back, or returns None. Returns the
    record, and the boot clock's time before it was written.
    """
    _check_claim(claim.owner, claim.lapse_s)
    root, began = context.log.refresh(), context.clock.boot_s()
    newest = newest_record(context, name) or _unregistered(root, name, began)
    quiet_s = 0.0  # since the newest record, by the store's time: shorter leases have expired
    if newest.record.members:
        quiet_s = (context.log.store_now_us() - newest.renewed_us) / 1e6

    given = None if claim.start is None else resolve_cut(context, root, claim.start)
    at_head = False

    def make(seen: SeenReader | None) -> ReaderRecord:
        nonlocal at_head
        taken = seen is not None and not seen.record.released
        if seen is not None and taken and not (claim.takeover or seen.record.provisional):
            _check_owner(seen, claim.owner)
        # A takeover continues at the position even of a released name.
        mine = seen.record if seen is not None and (taken or claim.takeover) else None
        passed_s = quiet_s if seen is newest else 0
        members = mine.members if mine is not None else {}
        start = given
        at_head = claim.start == HEAD or (start is None and mine is None)
        if claim.shared and mine is not None and not mine.offset < root.head:
            start = None
        offset = _start_of(context, root, start, mine)
        if offset < root.head:
            raise _lost(name, offset, root)
        living = {
            name: replace(each, start=max(each.start, offset), end=max(each.end, offset))
            for name, each in members.items()
            if each.lease_s >= passed_s
        }
        resets = seen.record.resets if seen is not None else None
        if mine is not None and not claim.shared and offset < mine.offset:
            # Invalidate handles at the later offset, which would publish past these events.
            resets = (resets or 0) + 1
        shared = mine if claim.shared else None  # else events beyond the offset are read again
        record = ReaderRecord(
            root.stream_id,
            root.generation,
            offset if shared is None else shared.offset,
            claim.owner,
            claim.lapse_s,
            provisional=bool(claim.provisional),
            version=root.version,
            transaction=root.transaction,
            resets=resets,
            done=[] if shared is None else shared.done,
            deliveries=[] if shared is None else shared.deliveries,
            by_key=None if shared is None else shared.by_key,
            extra=seen.record.extra if seen is not None else {},
        )
        record = add_done(record, Span(record.offset, offset)) if claim.shared else record
        return join(record, living, 0 if seen is None else seen.number + 1)

    seen = add_record(context, newest, make)
    try:
        stands = _announce(context, seen)
    except SegstoreError as error:
        if undo is not None:
            with suppress(SegstoreError):
                add_record(context, seen, lambda newest: undo((newest or seen).record))
        if not (at_head and isinstance(error, TruncatedError)):
            raise
        claim, stands = replace(claim, start=HEAD), False  # the head has moved meanwhile
    return (seen, began) if stands else claim_name(context, name, claim, join, undo)


def release_reader(context: StreamContext, name: str) -> bool:
    """Release a reader, whatever its owner; return False if there is none to release.

    It works even if the record is damaged, which stops retention.
    """
    root, began = context.log.follow(), context.clock.boot_s()
    try:
        seen = find_reader(context, name)
    except UnsupportedVersionError:
        raise
    except FormatError:
        unregistered = _unregistered(root, name, began)
        seen = replace(unregistered, number=newest_number(context, name))
    if seen is None:
        return False
    add_record(context, seen, lambda newest: _released((newest or seen).record))
    return True


def _released(record: ReaderRecord) -> ReaderRecord:
    return replace(record, released=True, members={}, done=[], deliveries=[], by_key=None)


def _is_shared(name: str, members: Mapping[str, Lease]) -> ReaderConflictError:
    seconds = max(lease.lease_s for lease in members.values())
    return ReaderConflictError(
        "members share this reader",
        remedy="follow it with member=..., or stop its members first; if they crashed, wait until "
        f"no member has written a record for {seconds} s",
        reader=name,
        members=sorted(members)[:_SHOWN],
    )


def _check_claim(owner: str, lapse_s: int) -> None:
    # A stored record with other values could not be read, and would stop retention.
    if type(lapse_s) is not int or not 1 <= lapse_s <= MAX_INT:
        raise InvalidInputError(
            "lapse_s is not a whole number of seconds of at least 1",
            remedy="give an int, at least 1",
            lapse_s=lapse_s,
        )
    if not is_text(owner) or len(owner) > OWNER_LIMIT:
        raise InvalidInputError(
            "the owner is not a short text",
            remedy=f"give a text of at most {OWNER_LIMIT} characters",
            owner=owner,
        )


def _start_of(
    context: StreamContext, root: Root, start: int | None, mine: ReaderRecord | None
) -> int:
    if start is None and mine is None:
        return root.head
    if start is None and mine is not None:
        _check_generation(root, mine)
        check_held(context, position_of(mine))
        return mine.offset
    offset = int(start or 0)
    if offset > root.tail:
        raise PositionError("the start is beyond the tail", offset=offset, tail=root.tail)
    return offset


def _check_generation(root: Root, record: ReaderRecord) -> None:
    if (record.stream_id, record.generation) != (root.stream_id, root.generation):
        raise PositionError(
            "the reader's position belongs to another stream or generation",
            remedy="a repair or a promotion abandoned commits since it was published; register "
            "the reader with a new start",
            position=(record.stream_id, record.generation),
            stream=(root.stream_id, root.generation),
        )


def _announce(context: StreamContext, seen: SeenReader) -> bool:
    """Commit that a reader exists, so that a running retention reads the readers again.

    Returns False if the head has passed this record but not the reader's newest one: other members
    have done the events in between. Raises TruncatedError if it has passed both.
    """
    root = context.commit(
        lambda root, _: replace(root, operation=Operation.READER), reader=seen.name
    ).root
    _check_generation(root, seen.record)
    if seen.record.offset >= root.head:
        return True
    newest = find_reader(context, seen.name) or seen
    if newest.record.offset < root.head:
        raise _lost(seen.name, newest.record.offset, root)
    return False


def _lost(name: str, offset: int, root: Root) -> TruncatedError:
    return TruncatedError(
        "events that the reader needs are gone",
        remedy="register or follow it with start='head' to continue without them",
        reader=name,
        lost=f"[{offset}, {root.head})",
        head=root.head,
    )


def _unregistered(root: Root, name: str, seen_s: float) -> SeenReader:
    record = ReaderRecord(root.stream_id, root.generation, 0, "", LAPSE_S, released=True)
    return SeenReader(names.check_label(name, what="reader"), -1, record, 0, seen_s)


def _check_owner(seen: SeenReader, owner: str) -> None:
    if seen.record.owner != owner:
        raise ReaderConflictError(
            "the reader belongs to another owner",
            remedy="use another name; or, if the owner does not use it any more, continue at its "
            "position with takeover=True (in Python of stream.readers.register), or free the name "
            "with stream.readers.release(name)",
            reader=seen.name,
            owner=seen.record.owner or "a plain caller",
            caller=owner or "a plain caller",
        )
