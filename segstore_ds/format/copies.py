"""Records of copies, pins and origins, in the roots of the streams (FORMAT.md 4.8, 4.9).

The root of a stream that a copy made has the record of that copy, which never changes. Pins and
origins link a clone with the stream that it was made of. A root keeps all of them unparsed. They
are parsed when they are needed, so a damaged record stops only what depends on it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from segstore_ds.errors import CorruptionError
from segstore_ds.format.record import ABSENT, UNSTORED, Limit, from_json
from segstore_ds.format.root import Root

SEGMENTS, EVENTS, CLONE = "segments", "events", "clone"  # On disk: modes. Never change.


@dataclass(frozen=True, slots=True)
class CopyRecord:
    """The arguments and the result of a copy; FORMAT.md 3.1 has the fields."""

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
    """Return the mode of an unparsed record; "" if it has none."""
    mode = value.get("mode") if isinstance(value, Mapping) else None
    return mode if isinstance(mode, str) else ""


@dataclass(frozen=True, slots=True)
class Pin:
    """A version of a stream that a clone needs."""

    version: int  # the version that the clone lists; upkeep keeps its objects
    url: str  # where the clone was made; it may have been moved since
    # The stream id of the clone: no other stream may release the pin.
    clone_id: Annotated[str, Limit(100)]
    # The clone was seen to exist. If it is now missing from `url`, it was moved.
    made: bool = False
    # When the clone released it; readers of the clone's older versions may still need it. None
    # while the clone needs it.
    released_us: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Origin:
    """A stream that a clone shares objects with; FORMAT.md 3.1 has the fields."""

    stream_id: Annotated[str, UNSTORED]
    url: str
    pin: Annotated[str, Limit(100)]
    version: int
    extra: Mapping[str, Any] = field(default_factory=dict)


def pin_of(root: Root, name: str) -> Pin:
    """Return a pin of a root; CorruptionError if it is malformed."""
    return from_json(Pin, root.pins[name], where=f"pin {name!r}")


def all_pins(root: Root) -> dict[str, Pin]:
    """Return the pins of a root by name; CorruptionError if one is malformed."""
    return {name: pin_of(root, name) for name in root.pins}


def pins_of(root: Root) -> dict[str, Pin]:
    """Return the pins of a root that are not released, by name."""
    return {name: pin for name, pin in all_pins(root).items() if pin.released_us is None}


def origins_of(root: Root) -> Iterator[Origin]:
    """Yield the streams that a root shares objects with; CorruptionError if one is not valid."""
    for stream_id, value in root.origins.items():
        yield from_json(Origin, value, where=f"origin {stream_id!r}", stream_id=stream_id)


def same_filesystem(one: str, other: str) -> bool:
    """Tell whether two canonical locations are on one filesystem.

    >>> same_filesystem("file:/a/b", "file:/c"), same_filesystem("s3://a/x", "s3://b/x")
    (True, False)
    """

    def place(url: str) -> tuple[str, str]:
        scheme, _, rest = url.partition(":")
        shared = scheme in ("file", "memory")
        return scheme, "" if shared else rest.lstrip("/").partition("/")[0]

    return place(one) == place(other)
