"""The record of a copy by events: its progress, and which commits it forbids until it is done.

The record is kept in the destination's root. It names the copy, the range of the source that was
fixed when the copy began, and how many of those events are in the destination. Until the copy is
done, only the copy itself can use the destination: `check_complete` refuses it wherever a root is
opened, and `check_commit` refuses every commit that is neither the copy's nor upkeep.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from segstore_ds.errors import CorruptionError, IncompleteStreamError
from segstore_ds.format.root import Root

EVENTS = "events"
# What may be committed to a stream whose copy is not done: no events, and nothing that names one.
_UPKEEP = frozenset({"copy", "drop", "vacuum", "purge", "merge-status", "merge-history"})
_TEXTS = ("source", "mode", "digest")
_FLAGS = ("transformed", "done")
_NUMBERS = ("generation", "version", "start", "end", "progress", "segments", "bytes")


@dataclass(frozen=True, slots=True)
class CopyState:
    """The record of a copy by events.

    Attributes:
        copy_id: Names the copy.
        source: Id of the stream that is copied.
        generation: Of the source.
        version: Of the source when the copy began.
        start: First offset of the source that is copied.
        end: The offset after the last one.
        digest: Of the arguments of the copy.
        transformed: The events are rows that a job made from the source's, committed all at once.
        progress: How many events of the range are in the destination.
        segments: How many segments were written for them.
        bytes: Their encoded size.
        done: Nothing is missing.
    """

    copy_id: str
    source: str
    generation: int
    version: int
    start: int
    end: int
    digest: str
    transformed: bool = False
    progress: int = 0
    segments: int = 0
    bytes: int = 0
    done: bool = False

    @property
    def whole(self) -> bool:
        """Whether all events of the range were copied."""
        return self.progress == self.end - self.start

    @property
    def consistent(self) -> bool:
        """Whether `done` fits `progress`; a transformed copy may be whole before it is done."""
        return self.whole if self.done else self.transformed or not self.whole

    def moved(self, events: int, segments: int, nbytes: int) -> "CopyState":
        """Return the state after more events were copied; done when none is missing."""
        moved = replace(
            self,
            progress=self.progress + events,
            segments=self.segments + segments,
            bytes=self.bytes + nbytes,
        )
        return replace(moved, done=moved.whole)

    def to_value(self) -> dict[str, Any]:
        """Return the state as a root stores it."""
        value: dict[str, Any] = {name: getattr(self, name) for name in _NUMBERS}
        return value | {
            "source": self.source,
            "mode": EVENTS,
            "digest": self.digest,
            "transformed": self.transformed,
            "done": self.done,
        }


def parse_copy(copy_id: str, value: Any, *, where: str) -> CopyState:
    """Return the state of a copy by events from a root; CorruptionError if it is invalid."""
    fields = value if isinstance(value, Mapping) else {}
    texts: dict[str, Any] = {name: fields.get(name) for name in _TEXTS}
    numbers: dict[str, Any] = {name: fields.get(name) for name in _NUMBERS}
    sound = all(isinstance(text, str) for text in texts.values())
    sound &= all(type(number) is int and number >= 0 for number in numbers.values())
    flags: dict[str, Any] = {name: fields.get(name) for name in _FLAGS}
    sound &= all(type(flag) is bool for flag in flags.values())
    if not sound or texts.pop("mode") != EVENTS:
        raise CorruptionError("record of a copy can't be read", where=where, copy_id=copy_id)
    state = CopyState(copy_id, **texts, **numbers, **flags)
    if state.progress > state.end - state.start or not state.consistent:
        raise CorruptionError("record of a copy contradicts itself", where=where, copy_id=copy_id)
    return state


def find_incomplete(root: Root) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the unfinished copies into a stream, with their ids; almost all streams have none.

    A record that can't be read counts as unfinished.
    """
    for copy_id, value in root.copies.items():
        fields = value if isinstance(value, Mapping) else {}
        if fields.get("done") is not True:
            yield copy_id, fields


def check_complete(root: Root, *, url: str) -> None:
    """Refuse a stream that a copy has not filled yet, or a version from before it had.

    Raises:
        IncompleteStreamError: Names the copy and its progress.
    """
    for copy_id, fields in find_incomplete(root):
        raise IncompleteStreamError(
            "a copy into this stream is not done",
            url=url,
            version=root.version,
            copy_id=copy_id,
            copied=fields.get("progress"),
            source=fields.get("source"),
        )


def check_commit(old: Root, new: Root, *, url: str) -> None:
    """Refuse a commit to a stream that a copy has not filled, except the copy's own and upkeep.

    Raises IncompleteStreamError as `check_complete`.
    """
    if new.operation not in _UPKEEP:
        check_complete(old, url=url)


def broken_copies(old: Root, new: Root) -> Iterator[str]:
    """Yield the rules about copies that a commit breaks."""
    if new.operation == "drop":
        return
    unfinished = dict(find_incomplete(old))
    for copy_id, before in old.copies.items():
        after = new.copies.get(copy_id)
        if copy_id not in unfinished or new.operation != "copy":
            if after != before:
                yield f"the record of a copy stays: {copy_id}"
        elif not isinstance(after, Mapping) or any(
            after.get(name) != before.get(name)
            for name in before
            if name not in ("progress", "segments", "bytes", "done")
        ):
            yield f"a copy keeps what it was begun with: {copy_id}"
        elif not before.get("transformed") and (
            after.get("progress", 0) - before.get("progress", 0) != new.tail - old.tail
        ):
            yield f"events and progress move together: {copy_id}"
    if {*new.copies} - {*old.copies}:
        yield "a copy begins with its stream"
    if new.sealed and not old.sealed and [*find_incomplete(new)]:
        yield "a stream is sealed when its copy is done"
