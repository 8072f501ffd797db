"""Cuts and positions: parse user input, resolve it to an offset of one root, check a range.

A position names its stream and generation, so it is refused on another stream, and after commits
were abandoned. A range below the head is an error, unless the caller accepts the loss.
"""

import datetime as dt
import json
import logging
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from segstore_ds.errors import (
    RESTORE_LOG,
    InvalidInputError,
    NotFoundError,
    PositionError,
    TruncatedError,
)
from segstore_ds.format import names
from segstore_ds.format.root import SHOWN_TAGS, Root, Tag
from segstore_ds.log.context import StreamContext
from segstore_ds.log.lookup import find_moment, version_at
from segstore_ds.log.seen import Seen, is_gone
from segstore_ds.options import quantities
from segstore_ds.options.arguments import check_whole, whole
from segstore_ds.read.event_time import resolve_event_time

if TYPE_CHECKING:
    from segstore_ds.format.reader_record import ReaderRecord

FORMS = (
    "an offset, 'head', 'tail', 'version:N', 'tag:NAME', 'reader:NAME', a position, a time like "
    "2026-11-20T10:00:00Z, one like -1h (s, m, h, d, w) before now, or 'eventtime:TIME'"
)
EVENT_TIME = "eventtime"  # a kind of cut; its value is read in the type of the time column
GO_ON = "start at 'head', or set fail_on_data_loss=False to continue without them"
_LOG = logging.getLogger(__name__)
_ENDS = {"head": "head", "tail": "tail", "earliest": "head", "latest": "tail"}
_VERSION = re.compile(r"version:([0-9]{1,18})")
_OFFSET = re.compile(r"[0-9]{1,18}")
_NAMED = re.compile(r"(tag|reader|eventtime):(.*)")


@dataclass(frozen=True, slots=True)
class Position:
    """A cut that names its stream, as a checkpoint stores it.

    Attributes:
        stream_id: The stream's id.
        generation: The stream's generation.
        offset: The cut's offset, counted in events.
        version: The newest version seen when the position was taken.
        transaction: That version's transaction id; without it ("") lost commits go undetected.

    Examples:
        >>> position = stream.position(2)
        >>> stream.scan(position).count()  # refused on another stream
        1
    """

    stream_id: str
    generation: int
    offset: int
    version: int = 0
    transaction: str = ""

    @classmethod
    def of(cls, root: Root, offset: int) -> Self:
        """Return the position of an offset, as of a root."""
        return cls(root.stream_id, root.generation, offset, root.version, root.transaction)

    def to_value(self) -> dict[str, Any]:
        """Return the JSON object of this position."""
        value = {"generation": self.generation, "offset": self.offset, "stream": self.stream_id}
        seen = {"transaction": self.transaction, "version": self.version}
        return {**value, **seen} if self.transaction else value

    def to_json(self) -> str:
        """Return this position as canonical JSON text: equal positions give equal texts."""
        value = self.to_value()
        return json.dumps(value, sort_keys=True, separators=(",", ":"))


CutLike = int | str | dt.datetime | Position
AsOf = int | str | dt.datetime | None  # a version, the newest one at a time, or 'tag:NAME'


@dataclass(frozen=True, slots=True)
class Cut:
    """A parsed cut, not yet resolved to an offset; `kind` says what `value` is."""

    kind: str
    value: Any = None


HEAD = Cut("head")


def parse_cut(given: Any) -> Cut:
    """Parse an int, a text in any form, an aware datetime, a Position or its JSON. Pure.

    >>> parse_cut('tail'), parse_cut('17'), parse_cut('version:3')
    (Cut(kind='tail', value=None), Cut(kind='offset', value=17), Cut(kind='version', value=3))
    """
    if isinstance(given, Position):
        for name in ("generation", "offset"):
            check_whole(name, getattr(given, name))
        return Cut("position", given)
    if isinstance(given, dt.datetime):
        return Cut("time", _to_us(given, given))
    offset = whole(given)
    if offset is not None and 0 <= offset < 2**63:
        return Cut("offset", offset)
    if isinstance(given, str):
        return _parse_text(given.strip())
    raise _not_a_cut(given)


def cut_text(given: CutLike) -> str:
    """Return a cut as text, which `parse_cut` takes as well."""
    return given.to_json() if isinstance(given, Position) else str(given)


def _parse_text(text: str) -> Cut:
    if text.lower() in _ENDS:
        return Cut(_ENDS[text.lower()])
    if _OFFSET.fullmatch(text):
        return Cut("offset", int(text))
    if match := _VERSION.fullmatch(text):
        return Cut("version", int(match[1]))
    if match := _NAMED.fullmatch(text):
        kind, value = match.groups()
        moment = kind == EVENT_TIME
        return Cut(kind, value.strip() if moment else names.check_label(value, what=kind))
    if text.startswith("{"):
        return Cut("position", _parse_position(text))
    return _parse_time(text)


def _parse_time(text: str) -> Cut:
    ago_s = quantities.parse_duration(text[1:]) if text.startswith("-") else None
    if ago_s is not None:
        return Cut("ago", ago_s)
    try:
        moment = quantities.parse_moment(dt.datetime, text)
    except ValueError as error:
        raise _not_a_cut(text) from error
    return Cut("time", _to_us(moment, text))


def parse_moment(given: str | dt.datetime) -> int:
    """Return a user's datetime or ISO 8601 text, with a zone, as microseconds since 1970 UTC."""
    moment: object = given
    if isinstance(given, str):
        with suppress(ValueError):
            moment = quantities.parse_moment(dt.datetime, given)
    if not isinstance(moment, dt.datetime):
        raise InvalidInputError(
            "not a time",
            remedy="give a datetime with a time zone, or a string like 2026-11-20T10:00:00Z; only "
            "cuts may be relative, like end='-1h'",
            given=given,
        )
    return _to_us(moment, given)


def resolve_cut(context: StreamContext, root: Root, cut: Cut, *, end: bool = False) -> int:
    """Return the offset of a cut as of a root.

    A time resolves to the tail after the last commit at or before it. An event time resolves to
    the first event at or after it or, as an `end`, to the offset after the last one before it.
    """
    match cut.kind:
        case "head" | "tail":
            return root.head if cut.kind == "head" else root.tail
        case "version":
            return _tail_of(context, cut.value)
        case "time" | "ago" as kind:
            now_us = context.clock.wall_us()
            time_us = cut.value if kind == "time" else now_us - cut.value * 1_000_000
            return min(tail_at(context, time_us), root.tail)
        case "tag" | "reader" | "eventtime":
            return _resolve_named(context, root, cut, end=end)
        case "position":
            check_position(root, cut.value)
            check_held(context, cut.value)
            return int(cut.value.offset)
    return int(cut.value)


def resolve_end(context: StreamContext, root: Root, end: Cut, start: int) -> int:
    """Return the offset of an end; for an event time at least the start."""
    last = resolve_cut(context, root, end, end=True)
    return max(start, last) if end.kind == EVENT_TIME else last


def _tail_of(context: StreamContext, version: int) -> int:
    """Return the tail as of a version, from the history, which is kept longer than commit files."""
    root = context.log.root
    if version > root.version:
        root = context.log.refresh()
    found = context.log.history.moment(root, version) if 0 <= version <= root.version else None
    return context.log.read_version(version).tail if found is None else found.tail


def tail_at(context: StreamContext, time_us: int) -> int:
    """Return the tail after the last commit at or before a time, in microseconds since 1970 UTC."""
    found = find_moment(context.log, context.log.refresh(), time_us)
    return found.tail if found else 0


def _resolve_named(context: StreamContext, root: Root, cut: Cut, *, end: bool) -> int:
    if cut.kind == EVENT_TIME:
        return resolve_event_time(context, root, cut.value, end=end)
    if cut.kind == "tag":
        return _tag_of(root, cut.value).offset
    from segstore_ds.read.reader_records import named_reader  # noqa: PLC0415 - few cuts name one

    position = position_of(named_reader(context, cut.value).record)
    check_position(root, position)
    check_held(context, position)
    return position.offset


def position_of(record: "ReaderRecord") -> Position:
    """Return the position in a reader's record. Pure."""
    seen = (record.version, record.transaction)
    return Position(record.stream_id, record.generation, record.offset, *seen)


def check_held(context: StreamContext, position: Position) -> None:
    """Check that the log still holds the commits that a position has seen.

    Takes one request, except for positions of the two newest versions and those without a version.
    """
    newest, seen = context.log.root, Seen.by(position)
    if seen is None or not seen.is_same_history(newest):
        return
    if seen.version > newest.version:
        newest = context.log.refresh()
    if is_gone(context.log.files, seen, newest):
        raise PositionError(
            "position was taken at a commit that is gone from the log",
            remedy=f"{RESTORE_LOG}; then start from a cut of this stream",
            offset=position.offset,
            seen=seen.version,
            newest=newest.version,
            tail=newest.tail,
        )


def check_position(root: Root, position: Position) -> None:
    """Raise PositionError if a position is of another stream or generation."""
    if position.stream_id != root.stream_id:
        raise PositionError(
            "position belongs to another stream",
            remedy="the stream was recreated, or the checkpoint belongs to another one; start"
            " from a cut of this stream, a streaming query with a new checkpoint",
            position=position.stream_id,
            stream=root.stream_id,
        )
    if position.generation != root.generation:
        raise PositionError(
            "position belongs to another generation",
            remedy="a repair or a promotion abandoned commits since it was taken; choose a new "
            "start",
            position=position.generation,
            generation=root.generation,
        )


def check_range(
    root: Root, start: int, end: int, *, fail_on_data_loss: bool, url: str = "", remedy: str = GO_ON
) -> tuple[int, int]:
    """Return the range to read; if data loss is accepted, it is cut at the head, with a warning."""
    if start > end and start <= root.tail:
        raise InvalidInputError(
            "start is after end",
            remedy="give an end that is not before the start",
            start=start,
            end=end,
        )
    if max(start, end) > root.tail:
        raise PositionError(
            "cut is beyond the tail",
            remedy="read up to 'tail', or wait for the events",
            start=start,
            end=end,
            tail=root.tail,
        )
    if start >= root.head:
        return start, end
    if fail_on_data_loss:
        until = min(end, root.head) if end > start else root.head
        raise TruncatedError(
            "events before the head are gone",
            remedy=remedy,
            lost=f"[{start}, {until})",
            head=root.head,
        )
    lost = (start, min(root.head, end))
    _LOG.warning(
        "the events [%d, %d) of %s are gone; reading continues at %d", *lost, url, root.head
    )
    return root.head, max(end, root.head)


def resolve_range(
    context: StreamContext, root: Root, start: Cut, end: Cut, *, remedy: str = GO_ON
) -> tuple[int, int]:
    """Return the range of two cuts as of a root; raises as `resolve_cut` and `check_range`."""
    first = resolve_cut(context, root, start)
    last = resolve_end(context, root, end, first)
    return check_range(root, first, last, fail_on_data_loss=True, remedy=remedy)


def root_as_of(context: StreamContext, as_of: AsOf, *, replicated: bool = False) -> Root:
    """Return the root of a version, of the newest one at a time, or of the one that a tag keeps.

    None means the newest version seen; with `replicated`, the newest one replicated everywhere.
    """
    if as_of is None:
        return context.log.acknowledged() if replicated else context.log.root
    if replicated:
        raise InvalidInputError(
            "as_of and replicated=True were both given",
            remedy="leave one of them out: replicated=True chooses the version itself",
            as_of=as_of,
        )
    if isinstance(as_of, str) and as_of.startswith("tag:"):
        return context.log.read_version(_kept_version(context, parse_cut(as_of).value))
    if isinstance(as_of, str | dt.datetime):
        root = version_at(context.log, parse_moment(as_of))
        if root is None:
            raise NotFoundError(
                "stream was created after that time", url=context.storage.url, timestamp=str(as_of)
            )
        return root
    version = whole(as_of)
    if version is None:
        raise InvalidInputError(
            "neither a version nor a time",
            remedy="give a version's number, a datetime with a time zone, or a string like "
            "2026-11-20T10:00:00Z or tag:NAME",
            as_of=as_of,
        )
    return context.log.read_version(version)


def _kept_version(context: StreamContext, name: str) -> int:
    tag = context.log.root.tags.get(name) or _tag_of(context.log.refresh(), name)
    if name not in context.log.root.kept:
        raise InvalidInputError(
            "the tag names a cut and keeps no version",
            remedy="read up to it with end='tag:NAME'; tags.set(name, keep=True) keeps a version",
            tag=name,
        )
    return tag.version


def _tag_of(root: Root, name: str) -> Tag:
    tag = root.tags.get(name)
    if tag is None:
        known = sorted(root.tags)
        raise NotFoundError("no such tag", tag=name, known=known[:SHOWN_TAGS])
    return tag


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
        of_utc = f"{moment.isoformat()}Z"
        raise InvalidInputError(
            "time has no time zone",
            remedy=f"write {of_utc}, or another zone such as +01:00",
            cut=str(given),
        )
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return (moment - epoch) // dt.timedelta(microseconds=1)


def _not_a_cut(given: Any) -> InvalidInputError:
    return InvalidInputError("not a cut", remedy=f"give {FORMS}", cut=given)
