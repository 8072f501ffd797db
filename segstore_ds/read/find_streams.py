"""Finding streams: folders that hold a log, searched from the top.

Folders are searched level by level, several at the same time; each is listed once. A stream that
can't be read, or a folder that can't be searched, is also a row of the metadata table `streams`,
with the code and the text of the error. So one damaged stream does not hide others.
"""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from segstore_ds.errors import NotFoundError, SegstoreError, StorageError
from segstore_ds.format import names
from segstore_ds.log.metadata_log import MetadataLog
from segstore_ds.log.newest import ROOT_CODEC
from segstore_ds.log.place import first_version
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.read.metadata_rows import build_batches, facts_of, flags, ints, texts, times
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
    """Return the locations of streams in a folder, as `segstore.list_streams` describes it."""
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
    """Return the results of `visit` for folders with a log; None means that one holds no stream.

    Searches `depth` folders deep, but not inside a stream. Raises NotFoundError if the folder does
    not exist, and StorageError if it can't be listed itself.
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
    """Return the result of `visit` for a folder, and the inner folders to search."""
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


STREAMS_SCHEMA = pa.schema(
    [
        *texts("path", "url", "stream_id"),
        *ints("version", "generation"),
        *times("time"),
        *ints("head", "tail", "events"),
        *flags("sealed"),
        *texts("code", "error"),
    ]
)


def read_streams(storage: Storage, *, depth: int) -> pa.Table:
    """Return the metadata table `streams` of a folder, as `segstore.streams` describes it."""
    rows = [
        _row_of_error(found.url, found.error) if isinstance(found, Unsearched) else found
        for found in search(storage, _read_stream, depth=depth)
    ]
    for row in rows:
        row["path"] = row["url"].removeprefix(storage.url).lstrip("/") or "."
    rows.sort(key=lambda row: str(row["url"]))
    return pa.Table.from_batches(build_batches(rows, STREAMS_SCHEMA), STREAMS_SCHEMA)


_DELETED = tuple(name for name in names.FOLDERS if name != names.LOG_FOLDER)  # a drop deletes them


def _read_stream(folder: Storage) -> dict[str, Any] | None:
    """Return the row of a folder that holds a log; None if there is no commit in it."""
    log = StreamLog(folder)
    try:
        root = log.open()
    except NotFoundError as error:
        unfinished = any(names.is_object(i.path) for name in _DELETED for i in folder.list(name))
        gone = first_version(log.files) is not None and not unfinished
        return None if gone else _row_of_error(folder.url, error)
    except SegstoreError as error:
        return _row_of_error(folder.url, error)
    return {"url": folder.url, **facts_of(root)}


def _row_of_error(url: str, error: SegstoreError) -> dict[str, Any]:
    return {"url": url, "code": error.code, "error": str(error)}
