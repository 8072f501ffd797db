"""The format `segstore` for Spark: it chooses the reader or writer and pins the version.

Spark calls each method in a process of its own, and what crosses between them is pickled.
`schema()` runs when a DataFrame is loaded and pins the version: the root travels with the
DataFrame, so every later plan of it reads the same events. What only writes or queries need is
imported by their entry points, since a process starts for each kind of call.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from segstore_ds.errors import InvalidInputError
from segstore_ds.options import READ, STREAM_READ, STREAM_WRITE, WRITE, parse_options
from segstore_ds.spark.batch.metadata_reader import (
    PLAN,
    plan_metadata_reader,
    plan_streams_reader,
    table_schema,
)
from segstore_ds.spark.batch.reader import event_time_of, plan_reader, project
from segstore_ds.spark.boundary import at_boundary
from segstore_ds.spark.option_texts import HelperNotes, asks_for_job
from segstore_ds.spark.schemas import from_stored
from segstore_ds.spark.worker_memory import commits_here
from segstore_ds.stream.connector.reads import (
    METADATA,
    STREAMS,
    Snapshot,
    Storage,
    open_snapshot,
    open_storage,
    parse_cut,
)

NO_PATH = (
    "give the stream's location: load(path), save(path) or the option path. Spark forgets a "
    "catalog table's options, so in SQL name it at each mention: SELECT ... FROM t "
    "WITH (path = '...'), INSERT INTO t WITH (path = '...') ...; or once: "
    "segstore.spark.create_view(spark, name, url)"
)


@at_boundary
class SegstoreDataSource(DataSource):
    """Batch and streaming reads and writes of segstore streams.

    The options are those of the tables in docs/options.md (`segstore_ds.options.TABLE`).
    """

    bound_storage_options: ClassVar[Mapping[str, Any] | None] = None
    bound_application: ClassVar[str | None] = None  # Spark does not tell planners and tasks its id

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._pinned: bytes | None = None

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "segstore"

    def schema(self) -> StructType:
        """Pin the newest version and return its columns.

        Raises:
            InvalidInputError: An option is not valid, or there is no path.
            NotFoundError: There is no stream.
        """
        # Spark calls this for batch and streaming reads. Cuts are parsed but not bound: a query
        # that restarts must not fail because the version it once began at is gone.
        options = parse_options(self.options, READ, STREAM_READ)
        for cut in (options["startCut"], options["endCut"]):
            parse_cut(cut)
        if options["metadata"] == STREAMS:
            return table_schema(STREAMS)
        snapshot = self.open_snapshot(options)
        self._pinned = snapshot.pinned
        if options["metadata"] in METADATA:
            return table_schema(options["metadata"])
        reading = snapshot.plan(
            columns=options["columns"],
            filters=options["filters"],
            event_time=event_time_of(options),
            offset_column=options["offsetColumn"],
            commit_time_column=options["commitTimeColumn"],
        )
        if not reading.result_schema.names:
            raise InvalidInputError(
                "the requested schema has no columns",
                remedy='to count alone, give offsetColumn="offset" as well',
            )
        return from_stored(reading.result_schema, snapshot.spark_schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Plan a read of the pinned version; raises as `Stream.read`.

        `schema` is what `schema()` gave, or the user's own, whose columns are then the only ones
        read.

        Raises:
            SchemaMismatchError: The user's schema names other columns or types.
        """
        options = parse_options(self.options, READ)
        storage = self.open_storage(options)
        if options["metadata"] == STREAMS:
            return plan_streams_reader(storage, options, schema)
        if self._pinned is None:
            snapshot = self.open_snapshot(options)
        else:
            snapshot = Snapshot.at(storage, self._pinned)
        if options["metadata"] == PLAN:
            from segstore_ds.spark.batch.job_writer import plan_rows

            return plan_rows(snapshot, options, schema)
        if options["metadata"] in METADATA:
            return plan_metadata_reader(snapshot, options, schema)
        options = {**options, "columns": project(snapshot, options, schema)}
        told = HelperNotes.of(self.options)
        return plan_reader(snapshot, options, schema, native_epochs=told.native_epochs)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Plan a write: create a missing stream, check the columns, fix the token.

        It raises as `Stream.plan_write` does.
        """
        from segstore_ds.spark.batch.writer import client_of, plan_append_writer

        client = client_of(self.bound_application)
        if asks_for_job(self.options):
            from segstore_ds.spark.batch.job_writer import plan_job_writer

            job = plan_job_writer(
                self.options, self.open_storage, schema, client=client, overwrite=overwrite
            )
            if job is not None:
                return job
        options = parse_options(self.options, WRITE)
        return plan_append_writer(
            self.open_storage(options),
            options,
            schema,
            client=client,
            overwrite=overwrite,
            transaction=HelperNotes.of(self.options).transaction,
        )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a streaming query; sends no request.

        `schema` is what `schema()` gave, or the user's own, whose columns are then the only ones
        read.
        """
        from segstore_ds.spark.streaming.source import SegstoreStreamReader

        options = parse_options(self.options, STREAM_READ)
        return SegstoreStreamReader(self.open_storage(options), options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of a streaming query's micro-batches, planned for its tasks.

        It raises as `Stream.plan_write` does, but for what ends only new batches.
        """
        from segstore_ds.spark.batch.writer import client_of
        from segstore_ds.spark.streaming.sink import SegstoreStreamWriter

        options = parse_options(self.options, STREAM_WRITE)
        given = {name.lower(): value for name, value in self.options.items()}
        writer = SegstoreStreamWriter(
            self.open_storage(options),
            options,
            schema,
            client=client_of(self.bound_application),
            overwrite=overwrite,
            checkpoint=given.get("checkpointlocation"),
        )
        if not commits_here():
            writer.plan()
        return writer

    def open_snapshot(self, options: Mapping[str, Any]) -> Snapshot:
        """Open the stream at the version that parsed options name, or at the newest one."""
        return open_snapshot(
            self.open_storage(options),
            version=options["versionAsOf"],
            timestamp=options["timestampAsOf"],
            replicated=options["replicatedOnly"],
        )

    def open_storage(self, options: Mapping[str, Any]) -> Storage:
        """Return the folder that parsed options name, with the session's storage options."""
        path = options["path"]
        if path is None:
            if "paths" in self.options:
                raise InvalidInputError(
                    "more than one path was given", remedy="load one stream at a time"
                )
            raise InvalidInputError("no path was given", remedy=NO_PATH)
        return open_storage(
            path,
            options["storageOptions"] or self.bound_storage_options,
            single_writer=bool(options.get("singleWriter")),
        )
