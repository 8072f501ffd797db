"""Creates, opens, lists and drops streams. There is no catalog: streams are found by listing."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from segstore_ds.errors import AlreadyExistsError, InvalidInputError
from segstore_ds.format.policies import (
    DEFAULT_POLICY,
    RETENTION_PROPERTY,
    UPKEEP_PROPERTY,
    RetentionPolicy,
    UpkeepPolicy,
    build_upkeep,
)
from segstore_ds.log.clock import SYSTEM_CLOCK, Clock
from segstore_ds.log.context import client_name, new_context
from segstore_ds.log.place import first_version
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.options.arguments import check_whole
from segstore_ds.read.find_streams import DEPTH, find_streams, read_streams
from segstore_ds.retention.drop import Dropped, run_drop
from segstore_ds.retention.retain import build_retention
from segstore_ds.storage import UrlLike, open_storage
from segstore_ds.stream.stream import Stream
from segstore_ds.write.create import run_create
from segstore_ds.write.inputs import Data, schema_of


def create(
    url: UrlLike,
    schema: pa.Schema | None = None,
    *,
    like: Data | None = None,
    storage_options: Mapping[str, Any] | None = None,
    spark_schema: str | None = None,
    single_writer: bool = False,
    exist_ok: bool = False,
    upkeep: UpkeepPolicy | None = DEFAULT_POLICY,
    retention: RetentionPolicy | Mapping[str, Any] | None = None,
    key_columns: Sequence[str] | None = None,
    time_column: str | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Stream:
    """Create an empty stream.

    Durable when it returns. If several create at once, exactly one succeeds; with `exist_ok` all of
    them get that one.

    Args:
        url: Where; a folder of its own, missing or empty.
        schema: Columns of the events. Stored as nullable, zones as UTC, large and dictionary types
            as plain ones.
        like: Instead of a schema: data that `append` takes, or a stream, for its columns; no row of
            it is written.
        storage_options: For the filesystem, flat or keyed by URL prefix; `env:NAME` values allowed.
        spark_schema: Spark's JSON of the schema, if Spark creates the stream.
        single_writer: Allow a filesystem without exclusive create.
        exist_ok: Open an existing stream, with its own columns and policies.
        upkeep: What the stream's upkeep keeps (see `Settings.update`); None for no upkeep.
        retention: Which events committers drop (see there); None for none.
        key_columns: Columns by whose values events are looked up (see there).
        time_column: The column with each event's time (see there).
        clock: Time and ids.

    Returns:
        The stream.

    Raises:
        AlreadyExistsError: There is a stream already.
        SchemaMismatchError: A column has a type that can't be stored.
        InvalidInputError: The folder holds something else, or is inside another stream.
        CorruptionError: The folder holds segments but no log.
        CommitUnknownError: The storage never said whether the stream was created.
        UnsafeFilesystemError: The filesystem can't create exclusively.

    Examples:
        >>> events = segstore.create("clicks", like={"user": "ada", "n": 1})
        >>> events.schema.names, events.tail
        (['user', 'n'], 0)
    """
    if schema is not None and like is not None:
        raise InvalidInputError("both schema and like were given", remedy="give one of the two")
    if like is not None:
        schema = schema_of(like)
    storage = open_storage(url, storage_options, single_writer=single_writer)
    fields = {field.name: field for field in (schema if isinstance(schema, pa.Schema) else ())}
    properties = {
        UPKEEP_PROPERTY: build_upkeep(upkeep),
        RETENTION_PROPERTY: build_retention(retention, fields.get(time_column or "")),
    }
    context = new_context(StreamLog(storage, clock=clock))
    try:
        run_create(
            context,
            schema,
            spark_schema=spark_schema,
            properties=properties,
            key_columns=key_columns,
            time_column=time_column,
        )
    except AlreadyExistsError:
        if not exist_ok:
            raise
        return open(storage, clock=clock)
    return Stream(context)


def open(  # noqa: A001 - segstore.open(url) is the name users expect
    url: UrlLike,
    *,
    storage_options: Mapping[str, Any] | None = None,
    single_writer: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> Stream:
    """Open a stream at its newest version.

    Args:
        url: Where it is.
        storage_options: For the filesystem, flat or keyed by URL prefix; `env:NAME` values allowed.
        single_writer: Allow a filesystem without exclusive create.
        clock: Time and ids.

    Raises:
        NotFoundError: There is no stream; never an empty answer.
        MissingObjectError: The newest commits are gone, as the hint proves.
        FormatError: The newest root can't be read.

    Examples:
        >>> segstore.open("hello").tail
        3
    """
    log = StreamLog(open_storage(url, storage_options, single_writer=single_writer), clock=clock)
    log.open()
    return Stream(new_context(log))


def exists(url: UrlLike, *, storage_options: Mapping[str, Any] | None = None) -> bool:
    """Tell whether there is a stream. A read error is raised, and never means "no".

    Examples:
        >>> segstore.exists("hello"), segstore.exists("nowhere")
        (True, False)
    """
    storage = open_storage(url, storage_options, single_writer=True)
    return first_version(StreamLog(storage).files) is None


def list_streams(
    url: UrlLike, *, storage_options: Mapping[str, Any] | None = None, depth: int = DEPTH
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
    url: UrlLike, *, storage_options: Mapping[str, Any] | None = None, depth: int = DEPTH
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
