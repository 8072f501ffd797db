"""Pins and origins: the records that link a clone with the stream it was made of (FORMAT.md 4.9).

Both are objects in a root, by name. A root carries them as they were stored; whoever needs one
parses it, so that a damaged record stops only what depends on it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from segstore_ds.format.fields import Fields


@dataclass(frozen=True, slots=True)
class Pin:
    """A version of a stream that a clone needs.

    Attributes:
        version: The version that the clone lists; vacuum keeps its objects.
        url: Where the clone was made; it may have been moved since.
        clone_id: The stream id that the clone takes, so that no other stream releases its pin.
        made: The clone was seen to exist. If it is now missing from `url`, it was moved.
        released_us: When the clone stopped needing it, although readers of the clone's older
            versions may still need it; None while the clone needs it.
        extra: Fields of a newer version, carried through.
    """

    version: int
    url: str
    clone_id: str
    made: bool = False
    released_us: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to_value(self) -> dict[str, Any]:
        """Return the pin as a root stores it.

        >>> Pin(3, "file:///c", "f00").to_value()["version"]
        3
        """
        return {
            **self.extra,
            "version": self.version,
            "url": self.url,
            "clone_id": self.clone_id,
            "made": self.made,
            "released_us": self.released_us,
        }


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

    stream_id: str
    url: str
    pin: str
    version: int
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to_value(self) -> dict[str, Any]:
        """Return the origin as a root stores it, under its stream id."""
        return {**self.extra, "url": self.url, "pin": self.pin, "version": self.version}


def parse_pin(name: str, value: Any) -> Pin:
    """Parse a pin of a root; CorruptionError if it is malformed."""
    fields = Fields(value, where=f"pin {name!r}")
    return Pin(
        version=fields.integer("version"),
        url=fields.text("url"),
        clone_id=fields.text("clone_id", limit=100),
        made=fields.flag("made"),
        released_us=fields.optional_integer("released_us"),
        extra=dict(fields.rest()),
    )


def parse_origin(stream_id: str, value: Any) -> Origin:
    """Parse an origin of a root; CorruptionError if it is malformed."""
    fields = Fields(value, where=f"origin {stream_id!r}")
    return Origin(
        stream_id=stream_id,
        url=fields.text("url"),
        pin=fields.text("pin", limit=100),
        version=fields.integer("version"),
        extra=dict(fields.rest()),
    )
