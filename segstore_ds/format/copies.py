"""The record of a copy: what made a stream, in the stream's own root (FORMAT.md 4.8, 4.9).

There is one record per copy id, for all modes, and it never changes. A root carries records as they
were stored. They are parsed where they are needed, so that a damaged record stops only what depends
on it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from segstore_ds.errors import CorruptionError
from segstore_ds.format.record import ABSENT, UNSTORED, Limit, from_json

SEGMENTS, EVENTS, CLONE = "segments", "events", "clone"  # On disk: modes. Never change.


@dataclass(frozen=True, slots=True)
class CopyRecord:
    """What was asked of a copy, and what it made; FORMAT.md 3.1 has the fields."""

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
    origin: Annotated[str | None, ABSENT] = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def check_stored(self, where: str) -> None:
        """Raise CorruptionError if the mode is not known, or the range ends before it begins."""
        if self.mode not in (SEGMENTS, EVENTS, CLONE):
            raise CorruptionError("copy has an unknown mode", where=where, mode=self.mode)
        if self.end < self.start or bool(self.origin) != (self.mode == CLONE):
            raise CorruptionError("record of a copy contradicts itself", where=where)


def parse_copy(copy_id: str, value: Any) -> CopyRecord:
    """Parse a record of a copy; CorruptionError if it is malformed or contradicts itself."""
    return from_json(CopyRecord, value, where=f"copy {copy_id!r}", copy_id=copy_id)


def mode_of(value: Any) -> str:
    """Return the mode of a record that was not parsed; "" where it has none."""
    mode = value.get("mode") if isinstance(value, Mapping) else None
    return mode if isinstance(mode, str) else ""
