"""The record of a copy: what made a stream, in the stream's own root (FORMAT.md 4.8, 4.9).

There is one record per copy id, for all modes. A root carries records as they were stored; whoever
needs one parses it, so that a damaged record stops only what depends on it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from segstore_ds.errors import CorruptionError
from segstore_ds.format.fields import Fields

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

    copy_id: str
    mode: str
    source: str
    generation: int
    version: int
    start: int
    end: int
    digest: str
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

    def to_value(self) -> dict[str, Any]:
        """Return the record as a root stores it, under its copy id."""
        value = {
            **self.extra,
            "mode": self.mode,
            "source": self.source,
            "generation": self.generation,
            "version": self.version,
            "start": self.start,
            "end": self.end,
            "digest": self.digest,
            "segments": self.segments,
            "bytes": self.bytes,
            "done": self.done,
        }
        if self.mode == CLONE:
            value["origin"] = self.origin
        if self.mode == EVENTS:
            value.update(transformed=self.transformed, progress=self.progress)
        return value


def parse_copy(copy_id: str, value: Any) -> CopyRecord:
    """Parse a record of a copy; CorruptionError if it is malformed or contradicts itself."""
    fields = Fields(value, where=f"copy {copy_id!r}")
    mode = fields.text("mode", limit=20)
    if mode not in (SEGMENTS, EVENTS, CLONE):
        raise CorruptionError("copy has an unknown mode", where=fields.where, mode=mode)
    record = CopyRecord(
        copy_id=copy_id,
        mode=mode,
        source=fields.text("source", limit=100),
        generation=fields.integer("generation"),
        version=fields.integer("version"),
        start=fields.integer("start"),
        end=fields.integer("end"),
        digest=fields.text("digest", limit=100),
        segments=fields.integer("segments"),
        bytes=fields.integer("bytes"),
        done=fields.flag("done"),
        origin=fields.text("origin") if mode == CLONE else "",
        transformed=fields.flag("transformed") if mode == EVENTS else False,
        progress=fields.integer("progress") if mode == EVENTS else 0,
        extra=dict(fields.rest()),
    )
    if not record.consistent:
        raise CorruptionError("record of a copy contradicts itself", where=fields.where)
    return record


def mode_of(value: Any) -> str:
    """Return the mode of a record that was not parsed; "" where it has none."""
    mode = value.get("mode") if isinstance(value, Mapping) else None
    return mode if isinstance(mode, str) else ""
