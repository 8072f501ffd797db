"""Pins and origins: the records that link a clone with the stream it was made of (FORMAT.md 4.9).

Both are objects in a root, by name. A root carries them as they were stored. They are
parsed where they are needed, so that a damaged record stops only what depends on it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from segstore_ds.format.record import UNSTORED, Limit, from_json
from segstore_ds.format.root import Root


@dataclass(frozen=True, slots=True)
class Pin:
    """A version of a stream that a clone needs.

    Attributes:
        version: The version that the clone lists; upkeep keeps its objects.
        url: Where the clone was made; it may have been moved since.
        clone_id: The stream id that the clone takes, so that no other stream releases its pin.
        made: The clone was seen to exist. If it is now missing from `url`, it was moved.
        released_us: When the clone stopped needing it, although readers of the clone's older
            versions may still need it; None while the clone needs it.
        extra: Fields of a newer version, carried through.
    """

    version: int
    url: str
    clone_id: Annotated[str, Limit(100)]
    made: bool = False
    released_us: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Origin:
    """A stream that a clone shares objects with.

    Attributes:
        stream_id: Its id.
        url: Its folder.
        pin: The name of the clone's pin there.
        version: Its version that the clone was made of.
        extra: Fields of a newer version, carried through.
    """

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
    """Return the pins of a root that are still needed, by their names."""
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
