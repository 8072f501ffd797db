"""Origins and pins: what links a clone to the stream it shares objects with, in both directions.

A clone's root lists the origin's parts and segments under the names that they have there; what is
missing in the clone's folder is read from the origin's. The origin's root holds a pin for each
clone. Vacuum keeps what the pinned version lists until the clone is dropped or materialized, or the
pin is removed explicitly. Whether the clone can be read makes no difference.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from segstore_ds.errors import CorruptionError
from segstore_ds.format import names
from segstore_ds.format.root import Root
from segstore_ds.storage import Storage

_SHARED_FOLDERS = (f"{names.SEGMENTS_FOLDER}/", f"{names.STATUS_FOLDER}/")


@dataclass(frozen=True, slots=True)
class Origin:
    """A stream that a clone shares objects with: its id, its folder, and the clone's pin there."""

    stream_id: str
    url: str
    pin: str
    version: int


@dataclass(frozen=True, slots=True)
class Pin:
    """A version of a stream that a clone needs.

    Attributes:
        version: Vacuum keeps what it lists.
        url: Where the clone was made; it may have been moved since.
        released_us: When the clone stopped needing it, although readers of the clone's older
            versions may still need it; None while the clone needs it.
        clone_id: The stream id that the clone takes, so that no other stream releases its pin.
        made: The clone was seen to exist. If it is now missing from `url`, it was moved.
    """

    version: int
    url: str
    clone_id: str
    released_us: int | None = None
    made: bool = False

    def to_value(self) -> dict[str, Any]:
        """Return the pin as a root stores it."""
        return asdict(self)

    def is_of(self, clone_id: str, version: int | None) -> bool:
        """Tell whether it is held by a clone with `clone_id` that was made of a version.

        >>> Pin(3, "file:/x", "a").is_of("a", 3), Pin(3, "file:/x", "b").is_of("a", 3)
        (True, False)
        """
        # A pin's name may be reused, but no two pins have the same version.
        return (self.version, self.clone_id) == (version, clone_id)


def parse_pin(name: str, value: Any) -> Pin:
    """Return a pin of a root; CorruptionError if it is not valid."""
    fields = value if isinstance(value, Mapping) else {}
    match fields:
        case {
            "version": int(version),
            "url": str(url),
            "clone_id": str(clone_id),
            "released_us": int() | None as released_us,
            "made": bool(made),
        } if version >= 0:
            return Pin(version, url, clone_id, released_us, made)
    raise CorruptionError("pin can't be read", pin=name)


def pins_of(root: Root) -> dict[str, Pin]:
    """Return the pins of a root that are still needed, by their names."""
    pins = {name: parse_pin(name, value) for name, value in root.pins.items()}
    return {name: pin for name, pin in pins.items() if pin.released_us is None}


def origins_of(root: Root) -> Iterator[Origin]:
    """Yield the streams that a root shares objects with; CorruptionError if one is not valid."""
    for stream_id, value in root.origins.items():
        fields = value if isinstance(value, Mapping) else {}
        url, pin, version = fields.get("url"), fields.get("pin"), fields.get("version")
        if not isinstance(url, str) or not isinstance(pin, str) or type(version) is not int:
            raise CorruptionError("origin can't be read", origin=stream_id)
        yield Origin(stream_id, url, pin, version)


def share_origins(storage: Storage, root: Root) -> None:
    """Make storage read what is missing in a clone's folder from its origins; sends no request.

    Raises CorruptionError when an origin is not on the clone's filesystem.
    """
    for origin in origins_of(root):
        if not same_filesystem(storage.url, origin.url):
            raise CorruptionError(
                "origin is on another filesystem", url=storage.url, origin=origin.url
            )
        storage.share(origin.url, _SHARED_FOLDERS)


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
