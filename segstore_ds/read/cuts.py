"""Cuts and positions: parsing what users write, binding it to an offset, checking a range."""

import datetime as dt
import json
import logging
import operator
import re
from dataclasses import dataclass
from typing import Any, Self

from segstore_ds.commit.commit import StreamLog
from segstore_ds.commit.lookup import moment_at
from segstore_ds.errors import InvalidInputError, NotFoundError, PositionError, TruncatedError
from segstore_ds.format import names
from segstore_ds.format.reader_record import ReaderRecord
from segstore_ds.format.root import Root
from segstore_ds.format.tag import SHOWN_TAGS
from segstore_ds.log.copy_record import check_complete
from segstore_ds.log.seen import RESTORE, is_gone, seen_by
from segstore_ds.options.arguments import check_whole
from segstore_ds.read.reader_records import find_reader
from segstore_ds.status.blobs import StatusBlobs

FORMS = (
    "an offset, 'head', 'tail', 'version:N', 'tag:NAME', 'reader:NAME', a position, or a time like "
    "2026-11-20T10:00:00Z"
)
GO_ON = "start at 'head', or set fail_on_data_loss=False to go on without them"
_LOG = logging.getLogger(__name__)
_VERSION = re.compile(r"version:([0-9]{1,18})")
_OFFSET = re.compile(r"[0-9]{1,18}")
_NAMED = re.compile(r"(tag|reader):(.*)")


@dataclass(frozen=True, slots=True)
class Position:
    """A cut that knows its stream: what a checkpoint keeps.

    Attributes:
        stream_id: Of the stream.
        generation: Of the stream.
        offset: The cut.
        version: The newest version that was seen when it was taken.
        transaction: Of that version; "" where it is not known, and then nobody can tell whether
            the commits up to it were lost since.
    """

    stream_id: str
    generation: int
    offset: int
    version: int = 0
    transaction: str = ""

    @classmethod
    def of(cls, root: Root, offset: int) -> Self:
        """Return an offset as of a root."""
        return cls(root.stream_id, root.generation, offset, root.version, root.transaction)

    def to_value(self) -> dict[str, Any]:
        """Return the fields of the text of this position."""
        value = {"generation": self.generation, "offset": self.offset, "stream": self.stream_id}
        seen = {"transaction": self.transaction, "version": self.version}
        return {**value, **seen} if self.transaction else value

    def to_json(self) -> str:
        """Return the one canonical text of this position."""
        value = self.to_value()
        return json.dumps(value, sort_keys=True, separators=(",", ":"))


CutLike = int | str | dt.datetime | Position


@dataclass(frozen=True, slots=True)
class Cut:
    """A place between events as it was asked for; `kind` says what `value` is."""

    kind: str
    value: Any = None


def parse_cut(given: Any) -> Cut:
    """Return the cut that a user wrote. Pure.

    Args:
        given: An int, a text in any of the forms, an aware datetime, a Position or its JSON.

    Raises:
        InvalidInputError: None of these; a time without a zone says so.

    >>> parse_cut('tail'), parse_cut('17'), parse_cut('version:3')
    (Cut(kind='tail', value=None), Cut(kind='offset', value=17), Cut(kind='version', value=3))
    """
    if isinstance(given, Position):
        for name in ("generation", "offset"):
            check_whole(name, getattr(given, name))
        return Cut("position", given)
    if isinstance(given, dt.datetime):
        return Cut("time", _to_us(given, given))
    offset = _whole(given)
    if offset is not None and 0 <= offset < 2**63:
        return Cut("offset", offset)
    if isinstance(given, str):
        return _parse_text(given.strip())
    raise _not_a_cut(given)


def _parse_text(text: str) -> Cut:
    if text.lower() in ("head", "tail"):
        return Cut(text.lower())
    if _OFFSET.fullmatch(text):
        return Cut("offset", int(text))
    if match := _VERSION.fullmatch(text):
        return Cut("version", int(match[1]))
    if match := _NAMED.fullmatch(text):
        return Cut(match[1], names.check_label(match[2], what=match[1]))
    if text.startswith("{"):
        return Cut("position", _parse_position(text))
    return Cut("time", parse_time(text))


def parse_time(text: str) -> int:
    """Return a time with a zone as microseconds since 1970 UTC.

    Raises:
        InvalidInputError: Not ISO 8601, or without a zone.

    >>> parse_time('1970-01-01T00:00:01Z')
    1000000
    """
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise _not_a_cut(text) from None
    return _to_us(moment, text)


def parse_moment(given: str | dt.datetime) -> int:
    """Return a time that a user gave as microseconds since 1970 UTC.

    Raises:
        InvalidInputError: Neither a datetime nor ISO 8601, or without a zone.
    """
    if isinstance(given, dt.datetime):
        return _to_us(given, given)
    if isinstance(given, str):
        return parse_time(given)
    raise InvalidInputError(
        "not a time",
        remedy="give a datetime with a zone, or a text like 2026-11-20T10:00:00Z",
        given=given,
    )


def check_version(given: int) -> int:
    """Return a version that a user gave.

    Raises:
        InvalidInputError: It is not a whole number.
    """
    version = _whole(given)
    if version is None:
        raise InvalidInputError("not a version", remedy="give its number, as an int", given=given)
    return version


def _whole(given: Any) -> int | None:
    """Return an integer of Python or NumPy as Python's, None for what is none."""
    if isinstance(given, bool):
        return None
    try:
        return operator.index(given)
    except TypeError:
        return None


def resolve_cut(log: StreamLog, root: Root, cut: Cut) -> int:
    """Return the offset of a cut as of a root.

    A time stands behind everything committed at or before it.

    Raises:
        NotFoundError: There is no such version, tag or reader.
        SnapshotExpiredError: The version, or the versions of that time, were purged.
        PositionError: Another stream's or generation's position.
        IncompleteStreamError: A copy into the stream was not done as of that root.
        FormatError: A commit file can't be read.
        StorageError: The storage failed.
    """
    check_complete(root, url=log.storage.url)
    match cut.kind:
        case "head" | "tail":
            return root.head if cut.kind == "head" else root.tail
        case "version":
            return tail_of(log, cut.value)
        case "time":
            return min(tail_at(log, cut.value), root.tail)
        case "tag" | "reader":
            return _resolve_named(log, root, cut)
        case "position":
            check_position(root, cut.value)
            check_held(log, cut.value)
            return int(cut.value.offset)
    return int(cut.value)


def tail_of(log: StreamLog, version: int) -> int:
    """Return the tail as of a version, from the history, which outlives the version's own file.

    Raises:
        NotFoundError: The stream has not got that far.
        SnapshotExpiredError: It was purged, and is older than the history.
        FormatError: The history, or the version, can't be read.
        StorageError: The storage failed.
    """
    root = log.root
    if version > root.version:
        root = log.refresh()
    found = log.history.moment(root, version) if 0 <= version <= root.version else None
    return log.read_version(version).tail if found is None else found.tail


def tail_at(log: StreamLog, time_us: int) -> int:
    """Return the tail behind everything committed at or before a time; raises as `tail_of`."""
    found = moment_at(log, time_us)
    return found.tail if found else 0


def _resolve_named(log: StreamLog, root: Root, cut: Cut) -> int:
    if cut.kind == "tag":
        blobs = StatusBlobs(log.storage)
        tag = blobs.tag(root, cut.value)
        if tag is None:
            known = sorted(blobs.tags(root))
            raise NotFoundError("no such tag", tag=cut.value, known=known[:SHOWN_TAGS])
        return tag.offset
    seen = find_reader(log, cut.value)
    if seen is None:
        raise NotFoundError("no such reader", reader=cut.value)
    record = seen.record
    position = position_of(record)
    check_position(root, position)
    check_held(log, position)
    return record.offset


def position_of(record: ReaderRecord) -> Position:
    """Return the position that a reader's record holds. Pure."""
    return Position(
        record.stream_id, record.generation, record.offset, record.version, record.transaction
    )


def check_held(log: StreamLog, position: Position) -> None:
    """Check that the log still holds the commits that a position has seen.

    Takes one request, but for positions of the two newest versions and those without a version.

    Raises:
        PositionError: It does not: commits were lost, and their offsets may be given out anew.
        MissingObjectError: This handle has seen commits that are gone.
        StorageError: The storage failed.
    """
    newest, seen = log.root, seen_by(position)
    if seen is None or not seen.is_same_history(newest):
        return
    if seen.version > newest.version:
        newest = log.refresh()
    if is_gone(log.files, seen, newest):
        raise PositionError(
            "position has seen commits that are gone from the log",
            remedy=f"{RESTORE}; then start from a cut of this stream",
            offset=position.offset,
            seen=seen.version,
            newest=newest.version,
            tail=newest.tail,
        )


def check_position(root: Root, position: Position) -> None:
    """Check that a position is of this stream and generation.

    Raises:
        PositionError: It is not.
    """
    if position.stream_id != root.stream_id:
        raise PositionError(
            "position is of another stream",
            remedy="the stream was created anew, or the checkpoint belongs elsewhere; start from "
            "a cut of this stream",
            position=position.stream_id,
            stream=root.stream_id,
        )
    if position.generation != root.generation:
        raise PositionError(
            "position is of another generation",
            remedy="history was abandoned since; choose a new start",
            position=position.generation,
            generation=root.generation,
        )


def check_range(
    root: Root, start: int, end: int, *, fail_on_data_loss: bool, remedy: str = GO_ON
) -> tuple[int, int]:
    """Return the range to read, clamped to the head where the caller accepts loss. Pure.

    Raises:
        InvalidInputError: Start lies behind end.
        PositionError: A cut lies beyond the tail.
        TruncatedError: A cut lies below the head; names the events that are lost, and `remedy`.
    """
    if start > end and start <= root.tail:
        raise InvalidInputError(
            "start lies behind end", remedy="give an end from the start on", start=start, end=end
        )
    if max(start, end) > root.tail:
        raise PositionError(
            "cut lies beyond the tail",
            remedy="read up to 'tail', or wait for the events",
            start=start,
            end=end,
            tail=root.tail,
        )
    if start >= root.head:
        return start, end
    if fail_on_data_loss:
        raise TruncatedError(
            "events before the head are gone",
            remedy=remedy,
            lost=f"[{start}, {min(end, root.head)})",
            head=root.head,
        )
    return root.head, max(end, root.head)


def take_range(
    root: Root, start: int, end: int, *, fail_on_data_loss: bool, url: str
) -> tuple[int, int]:
    """Return the range as `check_range` does; loss that the caller accepts is a warning in the log.

    Raises:
        As `check_range`.
    """
    first, last = check_range(root, start, end, fail_on_data_loss=fail_on_data_loss)
    if first > start:
        lost = (start, min(first, end))
        _LOG.warning("the events [%d, %d) of %s are gone; reading goes on at %d", *lost, url, first)
    return first, last


def _parse_position(text: str) -> Position:
    try:
        value = json.loads(text)
    except ValueError:
        raise _not_a_cut(text) from None
    match value:
        case {"stream": str(stream), "generation": int(generation), "offset": int(offset)}:
            match value:
                case {"version": int(version), "transaction": str(transaction)}:
                    seen = (version, transaction)
                case _:
                    seen = (0, "")
            if offset >= 0:
                return Position(stream, generation, offset, *seen)
    raise _not_a_cut(text)


def _to_us(moment: dt.datetime, given: Any) -> int:
    if moment.tzinfo is None:
        raise InvalidInputError(
            "time has no zone", remedy="add one, such as Z or +01:00", cut=str(given)
        )
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return (moment - epoch) // dt.timedelta(microseconds=1)


def _not_a_cut(given: Any) -> InvalidInputError:
    return InvalidInputError("not a cut", remedy=f"give {FORMS}", cut=given)
