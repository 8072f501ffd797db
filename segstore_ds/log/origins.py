"""Origins and pins: what links a clone to the stream it shares objects with, in both directions.

A clone's root lists the origin's parts and segments under the names that they have there; what is
missing in the clone's folder is read from the origin's. The origin's root holds a pin for each
clone: without it nothing is read from there, whatever the clone's root says. Vacuum keeps what the
pinned version lists until the clone is dropped or materialized, or the pin is removed explicitly.
Whether the clone can be read makes no difference.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from segstore_ds.errors import CorruptionError, FormatError
from segstore_ds.format import names
from segstore_ds.format.clones import Origin, Pin, all_pins, pin_of
from segstore_ds.format.record import from_json
from segstore_ds.format.root import ROOT_RAW_LIMIT_BYTES, Root, decode_root, encode_root
from segstore_ds.log.metadata_log import Codec, MetadataLog
from segstore_ds.storage import Storage

_SHARED_FOLDERS = (f"{names.SEGMENTS_FOLDER}/", f"{names.STATUS_FOLDER}/")
_WITHOUT_FRAMES: Codec[Root] = Codec(
    encode_root,
    decode_root,
    ROOT_RAW_LIMIT_BYTES,
    attach=lambda root, _frames, _where: root,
)


@dataclass(frozen=True, slots=True)
class PinCheck:
    """Tells whether an origin holds the pin of a clone; picklable."""

    origin: Origin
    clone_id: str

    def __call__(self, storage: Storage) -> bool:
        """Ask the origin's log: two requests, if the hinted root holds the pin."""
        files = MetadataLog(storage, names.LOG_FOLDER, _WITHOUT_FRAMES)
        hint = files.read_hint()
        try:
            hinted = files.get(hint.number) if hint else None
        except FormatError:
            hinted = None  # the newest may be readable
        if hinted is not None and self._is_held(hinted):
            return True
        latest = files.latest()
        return latest is not None and self._is_held(latest[1])

    def _is_held(self, root: Root) -> bool:
        name = self.origin.pin
        if root.stream_id != self.origin.stream_id or name not in root.pins:
            return False
        return pin_of(root, name).clone_id == self.clone_id


def pins_of(root: Root) -> dict[str, Pin]:
    """Return the pins of a root that are still needed, by their names."""
    return {name: pin for name, pin in all_pins(root).items() if pin.released_us is None}


def origins_of(root: Root) -> Iterator[Origin]:
    """Yield the streams that a root shares objects with; CorruptionError if one is not valid."""
    for stream_id, value in root.origins.items():
        yield from_json(Origin, value, where=f"origin {stream_id!r}", stream_id=stream_id)


def share_origins(storage: Storage, root: Root) -> None:
    """Make storage read what is missing in a clone's folder from its origins; sends no request.

    Raises CorruptionError when an origin is not on the clone's filesystem.
    """
    for origin in origins_of(root):
        if not same_filesystem(storage.url, origin.url):
            raise CorruptionError(
                "origin is on another filesystem", url=storage.url, origin=origin.url
            )
        storage.share(origin.url, _SHARED_FOLDERS, PinCheck(origin, root.stream_id))


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
