"""Finding and deleting streams. There is no catalog: the storage itself lists them."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from segstore_ds.log.clock import SYSTEM_CLOCK, Clock
from segstore_ds.log.context import client_name
from segstore_ds.options.arguments import check_whole
from segstore_ds.read.find_streams import DEPTH, find_streams, read_streams
from segstore_ds.retention.drop import Dropped, run_drop
from segstore_ds.storage import UrlLike, open_storage


def list_streams(
    url: UrlLike,
    *,
    storage_options: Mapping[str, Any] | None = None,
    depth: int = DEPTH,
) -> list[str]:
    """Return the locations of all streams in a folder, sorted.

    A subfolder that the caller may not list is skipped, with a warning in the log.

    Args:
        url: The folder; it may be a stream itself.
        storage_options: As in `open`.
        depth: How many folders deep to look; streams are not searched for others within.

    Raises:
        NotFoundError: There is no such folder.
        StorageError: A folder could not be listed; names it, and the streams found elsewhere.

    Examples:
        >>> [url.rpartition("/")[2] for url in segstore.list_streams(".")]
        ['hello']
    """
    depth = check_whole("depth", depth)
    storage = open_storage(url, storage_options, single_writer=True)
    return find_streams(storage, depth=depth)


def streams(
    url: UrlLike,
    *,
    storage_options: Mapping[str, Any] | None = None,
    depth: int = DEPTH,
) -> pa.Table:
    """Return the metadata table `streams`: a row for each stream in a folder, ordered by location.

    A stream that can't be read and a subfolder that can't be listed are rows as well, with the
    `code` and the text of the error. Several folders are searched at the same time; each takes one
    listing, and each stream the few requests of an open.

    Args:
        url: The folder; it may be a stream itself, whose `path` is then `.`.
        storage_options: As in `open`.
        depth: How many folders deep to look; streams are not searched for others within.

    Raises:
        NotFoundError: There is no such folder.

    Examples:
        >>> segstore.streams(".").select(["path", "tail"]).to_pylist()
        [{'path': 'hello', 'tail': 3}]
    """
    depth = check_whole("depth", depth)
    return read_streams(open_storage(url, storage_options, single_writer=True), depth=depth)


def drop(
    url: UrlLike,
    *,
    confirm: UrlLike,
    storage_options: Mapping[str, Any] | None = None,
    single_writer: bool = False,
    expected_version: int | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Dropped:
    """Delete a stream. There is no way back.

    Only names that segstore builds are deleted. Everything else in the folder stays, and is
    reported.

    A last commit ends the stream for every handle. Then the data is deleted, and the log last. A
    drop is refused while there are clones, or the stream is replicated (first promote a folder
    that replicates another, or once did). It is safe to repeat until it returns: an interrupted
    drop leaves no stream that can be read.

    Args:
        url: The stream.
        confirm: The same location once more.
        storage_options: As in `open`.
        single_writer: As in `open`.
        expected_version: Drop only this version: nothing was committed since.
        clock: Time and ids.

    Returns:
        How many objects were deleted, and the names that stay because they are not the stream's.

    Raises:
        InvalidInputError: The confirmation names another location.
        NotFoundError: There is no stream.
        ConflictError: Clones read its segments, it is replicated, it has another version, or every
            race was lost; nothing was deleted.
        CommitUnknownError: It is unknown whether the drop was committed; nothing was deleted.
        FormatError: Metadata can't be read; nothing was deleted.

    Examples:
        >>> segstore.drop("hello", confirm="hello").kept
        ()
    """
    storage = open_storage(url, storage_options, single_writer=single_writer)
    named = open_storage(confirm, storage_options, single_writer=True)
    return run_drop(
        storage,
        confirm=named.url,
        clock=clock,
        client=client_name(),
        expected_version=expected_version,
    )
