"""Finding streams: folders that hold a log, looked for from the top."""

from collections.abc import Iterator

from segstore_ds.engine.follow import ROOT_CODEC
from segstore_ds.engine.metadata_log import MetadataLog
from segstore_ds.format import names
from segstore_ds.storage import Storage

DEPTH = 3


def find_streams(storage: Storage, *, depth: int = DEPTH) -> Iterator[str]:
    """Yield the folders that are streams, relative to the storage, "" for itself; in order.

    A stream is not searched for others within.

    Args:
        storage: Where to look.
        depth: How many folders deep.

    Raises:
        StorageError: The storage failed; nothing is passed over.
    """
    return _find(storage, "", depth)


def _find(storage: Storage, folder: str, depth: int) -> Iterator[str]:
    inner = storage.folders(folder)
    prefix = f"{folder}/" if folder else ""
    if names.LOG_FOLDER in inner:
        log = MetadataLog(storage, f"{prefix}{names.LOG_FOLDER}", ROOT_CODEC)
        if log.newest_listed() is not None:
            yield folder
            return
    if depth > 0:
        for name in inner:
            yield from _find(storage, f"{prefix}{name}", depth - 1)
