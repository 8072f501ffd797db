"""Finding streams: folders that hold a log, looked for from the top."""

from collections.abc import Iterator

from segstore_ds.engine.follow import ROOT_CODEC
from segstore_ds.engine.metadata_log import MetadataLog
from segstore_ds.format import names
from segstore_ds.storage import Storage, find_inner

DEPTH = 3


def find_streams(storage: Storage, *, depth: int = DEPTH) -> Iterator[str]:
    """Yield the locations of the folders that are streams, in order; a folder may be one itself.

    A stream is not searched for others within.

    Args:
        storage: Where to look.
        depth: How many folders deep.

    Raises:
        StorageError: The storage failed; nothing is passed over that can be a stream.
    """
    inner = storage.folders("")
    if names.LOG_FOLDER in inner:
        log = MetadataLog(storage, names.LOG_FOLDER, ROOT_CODEC)
        if log.newest_listed() is not None:
            yield storage.url
            return
    if depth > 0:
        for name in inner:
            # A root of its own: locations take names that paths within a root don't.
            url = find_inner(storage.url, name)
            if url is not None:
                yield from find_streams(storage.sibling(url), depth=depth - 1)
