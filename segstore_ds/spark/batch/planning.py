"""What the format does when a DataFrame is loaded and planned: it pins a version and plans tasks.

The plan of a short stream takes no request once the root is read. So it is made when the DataFrame
is loaded, and the process that Spark starts for the plan passes it on without importing more. The
rows of a small stream are read then, too, and the process of a task only passes them on.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructType, TimestampType

from segstore_ds.errors import InvalidInputError, SchemaMismatchError, SegstoreError
from segstore_ds.options.arguments import arguments_of
from segstore_ds.options.table import (
    MANY,
    OPEN,
    PLAN,
    READ,
    SPLIT,
    STREAM_READ,
    parse_options,
    refuse_others,
)
from segstore_ds.spark.batch.parts import PartsReader, iterate_rows, pack, read_packed
from segstore_ds.spark.batch.slices import read_small, slice_batches
from segstore_ds.spark.option_texts import HelperNotes
from segstore_ds.spark.schemas import from_stored, is_nullable
from segstore_ds.stream.connector.reads import (
    Snapshot,
    Storage,
    open_snapshot,
    open_storage,
    parse_cut,
)

if TYPE_CHECKING:
    from segstore_ds.stream.connector.folders import Folder

NO_PATH = (
    "give the stream's location: load(path), save(path) or the option path. Spark forgets a "
    "catalog table's options, so in SQL give it each time: SELECT ... FROM t "
    "WITH (path = '...'), INSERT INTO t WITH (path = '...') ...; or once: "
    "segstore.spark.create_view(spark, name, url)"
)
_ASKED = (
    "name columns of the stream with their types, in any order, and cast afterwards; if the "
    "stream has changed since, load it again"
)
_FIXED = ("head", "tail", "offset")


Pinned = Any  # the bytes of a version; for the streams of a folder, those of each by its name


class Source(Protocol):
    """The format's object, as Spark made it."""

    options: Any
    bound_storage_options: ClassVar[Any]


def load(source: Source) -> tuple[StructType, Pinned | None, PartsReader | None]:
    """Return the columns of a load, the version that it is pinned to, and its plan if it is cheap.

    Spark calls it for batch and streaming reads. Cuts are parsed but not resolved: a query that
    restarts must not fail because the version at which it began is gone.
    """
    options = parse_options(source.options, READ, STREAM_READ)
    if (folder := folder_of(source, options)) is not None:
        found = folder.snapshot()
        parts = plan_reading(found, {**options, "startCut": "head", "endCut": "tail"})
        return from_stored(parts[0][2].result_schema, found.spark_schema), found.pinned, None
    cuts = [parse_cut(options[name]) for name in ("startCut", "endCut")]
    if options["metadata"] is not None:
        return *_load_table(source, options), None
    snapshot = snapshot_of(source, options)
    reading = plan_reading(snapshot, {**options, "startCut": "head", "endCut": "tail"})
    if not reading.result_schema.names:
        raise InvalidInputError(
            "the requested schema has no columns",
            remedy='to count events, give offsetColumn="offset" as well',
        )
    schema = from_stored(reading.result_schema, snapshot.spark_schema)
    sends_nothing = (
        snapshot.is_short
        and all(cut.kind in _FIXED for cut in cuts)
        and not (reading.filters or reading.commit_time_column)
    )
    try:
        planned = _plan_events(source, snapshot, schema, early=True) if sends_nothing else None
    except SegstoreError:  # a batch read raises it again when it is planned; a query must not fail
        planned = None
    return schema, snapshot.pinned, planned


def plan(source: Source, schema: StructType, pinned: Pinned | None) -> PartsReader:
    """Plan a read of the pinned version, or of the one that the options name."""
    options = parse_options(source.options, READ)
    if (folder := folder_of(source, options)) is not None:
        return _plan_folder(folder, options, schema, pinned)
    if options["metadata"] is not None:
        return _plan_table(source, options, schema, pinned)
    return _plan_events(source, _pinned(source, options, pinned), schema)


def _pinned(source: Source, options: Mapping[str, Any], pinned: bytes | None) -> Snapshot:
    if pinned is None:
        return snapshot_of(source, options)
    return Snapshot.at(storage_of(source, options), pinned)


def _load_table(source: Source, options: Mapping[str, Any]) -> tuple[StructType, bytes | None]:
    from segstore_ds.spark.batch.metadata_reader import STREAMS, table_schema

    name = options["metadata"]
    return table_schema(name), None if name == STREAMS else snapshot_of(source, options).pinned


def _plan_table(
    source: Source, options: Mapping[str, Any], schema: StructType, pinned: bytes | None
) -> PartsReader:
    from segstore_ds.spark.batch import metadata_reader

    name = options["metadata"]
    if name == metadata_reader.STREAMS:
        return metadata_reader.plan_streams_reader(storage_of(source, options), options, schema)
    snapshot = _pinned(source, options, pinned)
    if name == metadata_reader.PLAN:
        from segstore_ds.spark.batch.job_writer import plan_rows

        return plan_rows(snapshot, options, schema)
    return metadata_reader.plan_metadata_reader(snapshot, options, schema)


def _plan_events(
    source: Source, snapshot: Snapshot, schema: StructType, *, early: bool = False
) -> PartsReader:
    options = parse_options(source.options, READ)
    options = {**options, "columns": project(snapshot, options, schema)}
    epochs = HelperNotes.of(source.options).native_epochs
    reading = replace(plan_reading(snapshot, options), native_epochs=epochs)
    tasks = plan_tasks(snapshot, options, reading)
    rows = read_small(reading, schema, tasks) if early else None
    if rows is not None:
        return PartsReader(iterate_rows, rows)
    run = partial(read_packed, pack(partial(slice_batches, reading, schema)))
    return PartsReader(run, [pack(task) for task in tasks])


def _plan_folder(
    folder: "Folder", options: Mapping[str, Any], schema: StructType, pinned: Pinned | None
) -> PartsReader:
    found = folder.snapshot(pinned)
    options = {**options, "columns": project(found, options, schema)}
    parts = plan_tasks(found, options, plan_reading(found, options))
    run = partial(read_packed, pack(partial(_part_batches, schema)))
    return PartsReader(run, [pack(part) for part in parts])


def _part_batches(schema: StructType, part: Any) -> Iterator[pa.RecordBatch]:
    """Yield the events of some streams that one task reads."""
    for reading, task, _ in part:
        yield from slice_batches(reading, schema, task)


def names_many(path: str | None) -> bool:
    """Tell whether a location names the streams of a folder."""
    if path is None or "*" not in path:
        return False  # without importing more
    from segstore_ds.stream.connector.folders import Folder

    return Folder.is_named(path)


def folder_of(source: Source, options: Mapping[str, Any]) -> "Folder | None":
    """Return the folder that parsed options name with a pattern; None if they name a stream."""
    if not names_many(options["path"]):
        return None
    from segstore_ds.stream.connector.folders import Folder

    refuse_others(
        source.options,
        MANY,
        "a read of many streams does not know this option",
        "remove it, or read a stream by its own location",
    )
    return Folder.named(
        options["path"],
        options["storageOptions"] or source.bound_storage_options,
        single_writer=options["singleWriter"],
        replicated_only=options["replicatedOnly"],
        stream_column=options["streamColumn"],
    )


def snapshot_of(source: Source, options: Mapping[str, Any]) -> Snapshot:
    """Open the stream at the version that parsed options name, or at the newest one."""
    return open_snapshot(storage_of(source, options), **arguments_of(options, OPEN))


def storage_of(source: Source, options: Mapping[str, Any]) -> Storage:
    """Return the folder that parsed options name, with the session's storage options."""
    path = options["path"]
    if path is None:
        if "paths" in source.options:
            raise InvalidInputError(
                "more than one path was given",
                remedy="load one stream at a time, or those of a folder by folder/*",
            )
        raise InvalidInputError("no path was given", remedy=NO_PATH)
    if names_many(path):
        raise InvalidInputError(
            "location names many streams", remedy="name one to write to", path=path
        )
    if options.get("streamColumn") is not None:
        raise InvalidInputError(
            "streamColumn is for reads of many streams",
            remedy="remove it, or end the location with a pattern, such as /*",
        )
    return open_storage(
        path,
        options["storageOptions"] or source.bound_storage_options,
        single_writer=bool(options.get("singleWriter")),
    )


def plan_reading(snapshot: Any, options: Mapping[str, Any]) -> Any:
    """Plan a read by Spark's options, of a snapshot of a stream or of a folder."""
    return snapshot.plan(**arguments_of(options, PLAN))


def plan_tasks(snapshot: Any, options: Mapping[str, Any], reading: Any) -> list[Any]:
    """Split a planned read into tasks by Spark's options; raises as `Scan.tasks`."""
    tasks: list[Any] = snapshot.tasks(reading, **arguments_of(options, SPLIT))
    return tasks


def project(snapshot: Any, options: Mapping[str, Any], schema: StructType) -> tuple[str, ...]:
    """Return the stream's columns that a schema asks for, in the schema's order."""
    extra = {
        options["offsetColumn"]: LongType(),
        options["commitTimeColumn"]: TimestampType(),
        getattr(snapshot, "column", None): StringType(),
    }
    wanted = {*schema.names}
    asked = [field for field in snapshot.schema if field.name in wanted]
    stored = from_stored(pa.schema(asked), snapshot.spark_schema)
    known = {field.name: field.dataType for field in stored}
    known |= extra
    if not schema.fields:
        raise SchemaMismatchError("the requested schema has no columns", remedy=_ASKED)
    for field in schema:
        found = known.get(field.name)
        if found is None or found.simpleString() != field.dataType.simpleString():
            raise SchemaMismatchError(
                "the requested schema does not match the stream's",
                remedy=_ASKED,
                column=field.name,
                asked=field.dataType.simpleString(),
                stream=found.simpleString() if found else "no such column",
            )
        if not is_nullable(field.dataType):
            raise SchemaMismatchError(
                "the requested schema has NOT NULL inside a column",
                remedy="declare it nullable: all columns of a stream are",
                column=field.name,
            )
    columns = tuple(field.name for field in schema if field.name not in extra)
    if options["columns"] is not None and set(columns) != set(options["columns"]):
        raise InvalidInputError(
            "the option columns and the schema name different columns",
            remedy="give one of the two",
            columns=options["columns"],
            schema=columns,
        )
    return columns
