"""What the format does when a DataFrame is loaded and planned: it pins a version and plans tasks.

The plan of a short stream costs no request once the root is read. So it is made when the DataFrame
is loaded, and the process that Spark starts for the plan hands it on without loading more. Of a
small stream the rows are read as well, so that the process of a task does the same.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Protocol

import pyarrow as pa
from pyspark.sql.types import LongType, StructType, TimestampType

from segstore_ds.errors import InvalidInputError, SchemaMismatchError, SegstoreError
from segstore_ds.options.arguments import arguments_of
from segstore_ds.options.table import OPEN, PLAN, READ, SPLIT, STREAM_READ, parse_options
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
from segstore_ds.stream.connector.tasks import Reading, ReadTask

NO_PATH = (
    "give the stream's location: load(path), save(path) or the option path. Spark forgets a "
    "catalog table's options, so in SQL name it at each mention: SELECT ... FROM t "
    "WITH (path = '...'), INSERT INTO t WITH (path = '...') ...; or once: "
    "segstore.spark.create_view(spark, name, url)"
)
_ASKED = (
    "name columns of the stream with their types, in any order, and cast afterwards; if the "
    "stream has changed since, load it again"
)
_FIXED = ("head", "tail", "offset")


class Source(Protocol):
    """The format as Spark made it."""

    options: Any
    bound_storage_options: ClassVar[Any]


def load(source: Source) -> tuple[StructType, bytes | None, PartsReader | None]:
    """Return the columns of a load, the version that it is pinned to, and its plan if it is cheap.

    Spark asks for both batch and streaming reads. Cuts are parsed but not bound: a query that
    restarts must not fail because the version it once began at is gone.
    """
    options = parse_options(source.options, READ, STREAM_READ)
    cuts = [parse_cut(options[name]) for name in ("startCut", "endCut")]
    if options["metadata"] is not None:
        return *_load_table(source, options), None
    snapshot = snapshot_of(source, options)
    reading = plan_reading(snapshot, {**options, "startCut": "head", "endCut": "tail"})
    if not reading.result_schema.names:
        raise InvalidInputError(
            "the requested schema has no columns",
            remedy='to count alone, give offsetColumn="offset" as well',
        )
    schema = from_stored(reading.result_schema, snapshot.spark_schema)
    sends_nothing = (
        snapshot.is_short
        and all(cut.kind in _FIXED for cut in cuts)
        and not (reading.filters or reading.commit_time_column)
    )
    try:
        planned = _plan_events(source, snapshot, schema, early=True) if sends_nothing else None
    except SegstoreError:  # it is raised if the DataFrame is planned and read; a query doesn't
        planned = None
    return schema, snapshot.pinned, planned


def plan(source: Source, schema: StructType, pinned: bytes | None) -> PartsReader:
    """Plan a read of the pinned version, or of the one that the options name."""
    options = parse_options(source.options, READ)
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


def snapshot_of(source: Source, options: Mapping[str, Any]) -> Snapshot:
    """Open the stream at the version that parsed options name, or at the newest one."""
    return open_snapshot(storage_of(source, options), **arguments_of(options, OPEN))


def storage_of(source: Source, options: Mapping[str, Any]) -> Storage:
    """Return the folder that parsed options name, with the session's storage options."""
    path = options["path"]
    if path is None:
        if "paths" in source.options:
            raise InvalidInputError(
                "more than one path was given", remedy="load one stream at a time"
            )
        raise InvalidInputError("no path was given", remedy=NO_PATH)
    return open_storage(
        path,
        options["storageOptions"] or source.bound_storage_options,
        single_writer=bool(options.get("singleWriter")),
    )


def plan_reading(snapshot: Snapshot, options: Mapping[str, Any]) -> Reading:
    """Bind a read to offsets and columns from Spark's options; raises as `Stream.read`."""
    return snapshot.plan(**arguments_of(options, PLAN))


def plan_tasks(snapshot: Snapshot, options: Mapping[str, Any], reading: Reading) -> list[ReadTask]:
    """Split a bound read into tasks by Spark's options; raises as `Scan.tasks`."""
    return snapshot.tasks(reading, **arguments_of(options, SPLIT))


def project(snapshot: Snapshot, options: Mapping[str, Any], schema: StructType) -> tuple[str, ...]:
    """Return the stream's columns that a schema asks for, in the schema's order."""
    offset, time = options["offsetColumn"], options["commitTimeColumn"]
    wanted = {*schema.names}
    asked = [field for field in snapshot.schema if field.name in wanted]
    stored = from_stored(pa.schema(asked), snapshot.spark_schema)
    known = {field.name: field.dataType for field in stored}
    known |= {offset: LongType(), time: TimestampType()}
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
    columns = tuple(field.name for field in schema if field.name not in (offset, time))
    if options["columns"] is not None and set(columns) != set(options["columns"]):
        raise InvalidInputError(
            "the option columns and the schema name different columns",
            remedy="give one of the two",
            columns=options["columns"],
            schema=columns,
        )
    return columns
