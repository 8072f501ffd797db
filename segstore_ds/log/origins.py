"""Origins and pins: what links a clone to the stream it shares objects with, in both directions.

A clone's root lists the origin's parts and segments under the names that they have there; what is
missing in the clone's folder is read from the origin's. The origin's root holds a pin for each
clone. Vacuum keeps what the pinned version lists until the clone is dropped or materialized, or the
pin is removed explicitly. Whether the clone can be read makes no difference.
"""

from collections.abc import Iterator

from segstore_ds.errors import CorruptionError
from segstore_ds.format import names
from segstore_ds.format.clones import Origin, Pin, parse_origin, parse_pin
from segstore_ds.format.root import Root
from segstore_ds.storage import Storage

_SHARED_FOLDERS = (f"{names.SEGMENTS_FOLDER}/", f"{names.STATUS_FOLDER}/")


def pins_of(root: Root) -> dict[str, Pin]:
    """Return the pins of a root that are still needed, by their names."""
    pins = {name: parse_pin(name, value) for name, value in root.pins.items()}
    return {name: pin for name, pin in pins.items() if pin.released_us is None}


def origins_of(root: Root) -> Iterator[Origin]:
    """Yield the streams that a root shares objects with; CorruptionError if one is not valid."""
    for stream_id, value in root.origins.items():
        yield parse_origin(stream_id, value)


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
