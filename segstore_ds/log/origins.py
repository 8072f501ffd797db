"""Reads the objects that a stream shares with its origins.

A root may list parts and segments of another stream, under the names that they have in its folder;
what is missing here is read from there. This needs the pin in the origin's root that this root
names. Without it nothing is read from the origin, whatever this root says.
"""

from dataclasses import dataclass

from segstore_ds.errors import CorruptionError, FormatError
from segstore_ds.format import names
from segstore_ds.format.copies import Origin, origins_of, pin_of, same_filesystem
from segstore_ds.format.root import ROOT_RAW_LIMIT_BYTES, Root, decode_root, encode_root
from segstore_ds.log.metadata_log import Codec, MetadataLog
from segstore_ds.status.references import OBJECT_FOLDERS
from segstore_ds.storage import Storage

_SHARED_FOLDERS = tuple(f"{folder}/" for folder in OBJECT_FOLDERS)
_WITHOUT_FRAMES: Codec[Root] = Codec(
    encode_root, decode_root, ROOT_RAW_LIMIT_BYTES, attach=lambda root, _frames, _where: root
)


@dataclass(frozen=True, slots=True)
class PinCheck:
    """Tells whether an origin holds the pin that a stream names; picklable."""

    origin: Origin
    stream_id: str

    def __call__(self, storage: Storage) -> bool:
        """Read the origin's log: two requests if the hinted root holds the pin."""
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
        return pin_of(root, name).clone_id == self.stream_id


def share_origins(storage: Storage, root: Root) -> None:
    """Let storage read missing objects from its origins, on this filesystem; sends no request."""
    for origin in origins_of(root):
        if not same_filesystem(storage.url, origin.url):
            raise CorruptionError(
                "origin is on another filesystem", url=storage.url, origin=origin.url
            )
        storage.share(origin.url, _SHARED_FOLDERS, PinCheck(origin, root.stream_id))
