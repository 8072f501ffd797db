"""Finding streams: folders that hold a log, looked for from the top."""

import logging
from collections.abc import Iterator

from segstore_ds.errors import NotFoundError, StorageError
from segstore_ds.format import names
from segstore_ds.log.metadata_log import MetadataLog
from segstore_ds.log.newest import ROOT_CODEC
from segstore_ds.storage import Storage, find_inner, is_denied

_LOG = logging.getLogger(__name__)
DEPTH = 3


def find_streams(storage: Storage, *, depth: int = DEPTH) -> list[str]:
    """Return the locations of the folders that are streams, sorted; a folder may be one itself.

    A stream is not searched for others within. A folder in it that the caller may not list is
    passed over, with a warning in the log.

    Args:
        storage: Where to look.
        depth: How many folders deep.

    Raises:
        NotFoundError: There is no such folder.
        InvalidInputError: It is a file.
        StorageError: A folder could not be listed; names it, and the streams that were found in all
            the others.
    """
    if storage.peek("", 1) is None:
        raise NotFoundError("no such folder", remedy="check the location", url=storage.url)
    failed: dict[str, StorageError] = {}
    found = sorted(_find(storage, depth, failed))
    if failed:
        raise StorageError(
            "folders could not be listed",
            url=storage.url,
            folders=[*failed],
            streams=found,
        ) from next(iter(failed.values()))
    return found


def _find(storage: Storage, depth: int, failed: dict[str, StorageError]) -> Iterator[str]:
    """Yield the streams in a folder; note those inner folders that could not be listed."""
    inner = storage.folders("")
    if names.LOG_FOLDER in inner:
        log = MetadataLog(storage, names.LOG_FOLDER, ROOT_CODEC)
        if log.newest_listed() is not None:
            yield storage.url
            return
    for name in inner if depth > 0 else ():
        # A root of its own: locations take names that paths within a root don't.
        url = find_inner(storage.url, name)
        if url is None:
            continue
        try:
            yield from _find(storage.sibling(url), depth - 1, failed)
        except StorageError as error:
            if is_denied(error):
                _LOG.warning("folder %s is not searched for streams: %s", url, error)
            else:
                failed[url] = error
