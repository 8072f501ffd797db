"""Finding streams: folders that hold a log, searched from the top.

Folders are searched level by level, several at the same time; each is listed once.
"""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from segstore_ds.errors import NotFoundError, StorageError
from segstore_ds.format import names
from segstore_ds.log.metadata_log import MetadataLog
from segstore_ds.log.newest import ROOT_CODEC
from segstore_ds.log.place import first_version
from segstore_ds.storage import Storage, find_inner

_LOG = logging.getLogger(__name__)
DEPTH = 3
FOLDERS_AT_ONCE = 16

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Unsearched:
    """A folder that could not be searched, and why."""

    url: str
    error: StorageError


def find_streams(storage: Storage, *, depth: int = DEPTH) -> list[str]:
    """Return the locations of streams in a folder, or the folder itself if it is one; sorted.

    Searches `depth` folders deep, but not inside a stream. An inner folder that the caller may not
    list is skipped, with a warning in the log.

    Raises:
        NotFoundError: The folder does not exist.
        InvalidInputError: The location is a file.
        StorageError: Folders could not be listed; names them, and the streams found elsewhere.
    """
    streams: list[str] = []
    failed: dict[str, StorageError] = {}
    for found in search(storage, _holds_commits, depth=depth):
        if isinstance(found, str):
            streams.append(found)
        elif found.error.denied:
            _LOG.warning("folder %s is not searched for streams: %s", found.url, found.error)
        else:
            failed[found.url] = found.error
    if failed:
        raise StorageError(
            "folders could not be listed",
            url=storage.url,
            folders=sorted(failed),
            streams=sorted(streams),
        ) from next(iter(failed.values()))
    return sorted(streams)


def search(
    storage: Storage, visit: Callable[[Storage], T | None], *, depth: int
) -> list[T | Unsearched]:
    """Return what `visit` returns for each folder with a log; None if it holds no stream after all.

    Searches `depth` folders deep, but not inside a stream. It raises NotFoundError if the folder
    does not exist, and StorageError if it can't be listed itself.
    """
    if storage.peek("", 1) is None:
        raise NotFoundError("no such folder", remedy="check the location", url=storage.url)
    found: list[T | Unsearched] = []
    level = [storage]
    with ThreadPoolExecutor(FOLDERS_AT_ONCE, thread_name_prefix="segstore-find") as threads:
        for left in range(depth, -1, -1):
            looked = threads.map(partial(_look, visit, deeper=left > 0), level)
            answers = [(folder, *answer) for folder, answer in zip(level, looked, strict=True)]
            level = []
            for folder, seen, inner in answers:
                if isinstance(seen, Unsearched) and folder is storage:
                    raise seen.error
                if seen is not None:
                    found.append(seen)
                # Open each folder as a separate location: some names are valid in a location, but
                # not in a path below one.
                level += [storage.sibling(url) for url in inner]
    return found


def _look(
    visit: Callable[[Storage], T | None], folder: Storage, *, deeper: bool
) -> tuple[T | Unsearched | None, list[str]]:
    """Return what a folder is, and the folders to search in it."""
    try:
        inner = folder.folders("")
        found = visit(folder) if names.LOG_FOLDER in inner else None
    except StorageError as error:
        return Unsearched(folder.url, error), []
    if found is not None or not deeper:
        return found, []
    urls = (find_inner(folder.url, name) for name in inner)
    return None, [url for url in urls if url is not None]


def _holds_commits(folder: Storage) -> str | None:
    log = MetadataLog(folder, names.LOG_FOLDER, ROOT_CODEC)
    return folder.url if first_version(log) is None else None
