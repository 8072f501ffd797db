"""Finding streams: folders that hold a log, searched from the top."""

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
    """Return the locations of streams in a folder, or the folder itself if it is one; sorted.

    Searches `depth` folders deep, but not inside a stream. An inner folder that the caller may not
    list is skipped, with a warning in the log.

    Raises:
        NotFoundError: The folder does not exist.
        InvalidInputError: The location is a file.
        StorageError: Folders could not be listed; names them, and the streams found elsewhere.
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
    """Yield the streams in a folder; add inner folders that can't be listed to `failed`."""
    inner = storage.folders("")
    if names.LOG_FOLDER in inner:
        log = MetadataLog(storage, names.LOG_FOLDER, ROOT_CODEC)
        if log.newest_listed() is not None:
            yield storage.url
            return
    for name in inner if depth > 0 else ():
        # Open each folder as a separate location: some names are valid in a location, but not in a
        # path below one.
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
