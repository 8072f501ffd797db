"""The record of a copy: what made a stream, in the stream's own root (FORMAT.md 4.8, 4.9).

There is one record per copy id, for all modes. A root carries records as they were stored. They
are parsed where they are needed, so that a damaged record stops only what depends on it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from segstore_ds.errors import CorruptionError
from segstore_ds.format.record import UNSTORED, Limit, from_json, to_json

SEGMENTS, EVENTS, CLONE = "segments", "events", "clone"  # On disk: modes. Never change.


@dataclass(frozen=True, slots=True)
class CopyRecord:
    """What was asked of a copy, and how far it has come.

    Attributes:
        copy_id: Names the copy.
        mode: ``segments``, ``events`` or ``clone``.
        source: Id of the stream that is copied.
        generation: Of the source.
        version: Of the source when the copy began.
        start: First offset of the source that is copied.
        end: The offset after the last one.
        digest: Of the arguments of the copy.
        segments: How many segments the copy added.
        bytes: Their encoded size; 0 for a clone.
        done: Nothing is missing.
        origin: Of a clone: the location of the source.
        transformed: Of events: they are rows that a job made from the source's, committed at once.
        progress: Of events: how many of the range are in the destination.
        extra: Fields of a newer version, carried through.
    """

    copy_id: Annotated[str, UNSTORED]
    mode: Annotated[str, Limit(20)]
    source: Annotated[str, Limit(100)]
    generation: int
    version: int
    start: int
    end: int
    digest: Annotated[str, Limit(100)]
    segments: int = 0
    bytes: int = 0
    done: bool = False
    origin: str = ""
    transformed: bool = False
    progress: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether all events of the range were copied."""
        return self.progress == self.end - self.start

    @property
    def consistent(self) -> bool:
        """Whether `done` fits `progress`; a transformed copy may be whole before it is done."""
        if self.mode != EVENTS:
            return self.done
        if self.progress > self.end - self.start:
            return False
        return self.whole if self.done else self.transformed or not self.whole

    @property
    def begun(self) -> "CopyRecord":
        """The record as it was when the copy began: what never changes."""
        return replace(self, segments=0, bytes=0, done=False, progress=0)

    def moved(self, events: int, segments: int, nbytes: int) -> "CopyRecord":
        """Return the record after more events were copied; done when none is missing."""
        moved = replace(
            self,
            progress=self.progress + events,
            segments=self.segments + segments,
            bytes=self.bytes + nbytes,
        )
        return replace(moved, done=moved.whole)

    def check_stored(self, where: str) -> None:
        """Raise CorruptionError if the mode is not known, or `done` does not fit `progress`."""
        if self.mode not in (SEGMENTS, EVENTS, CLONE):
            raise CorruptionError("copy has an unknown mode", where=where, mode=self.mode)
        if not self.consistent:
            raise CorruptionError("record of a copy contradicts itself", where=where)

    def to_value(self) -> dict[str, Any]:
        """Return the record as a root stores it, under its copy id."""
        foreign = _foreign(self.mode)
        return {name: item for name, item in to_json(self).items() if name not in foreign}


def _foreign(mode: str) -> dict[str, Any]:
    """Return the fields that no copy of this mode has."""
    clone, events = {"origin": ""}, {"transformed": False, "progress": 0}
    return {**({} if mode == CLONE else clone), **({} if mode == EVENTS else events)}


def parse_copy(copy_id: str, value: Any) -> CopyRecord:
    """Parse a record of a copy; CorruptionError if it is malformed or contradicts itself."""
    foreign = _foreign(mode_of(value))
    return from_json(CopyRecord, value, where=f"copy {copy_id!r}", copy_id=copy_id, **foreign)


def mode_of(value: Any) -> str:
    """Return the mode of a record that was not parsed; "" where it has none."""
    mode = value.get("mode") if isinstance(value, Mapping) else None
    return mode if isinstance(mode, str) else ""
