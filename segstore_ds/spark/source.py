"""The format `segstore` for Spark: it chooses the reader or writer and pins the version.

Spark calls each method in a process of its own, and pickles what it passes between them.
`schema()` runs when a DataFrame is loaded and pins the version: the DataFrame carries the root, so
every later plan of it reads the same events. A process starts for each kind of call, so each entry
point imports what it calls.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from segstore_ds.errors import SegstoreError
from segstore_ds.spark.batch.parts import PartsReader
from segstore_ds.spark.boundary import at_boundary
from segstore_ds.spark.workers import commits_here


@at_boundary
class SegstoreDataSource(DataSource):
    """Batch and streaming reads and writes of segstore streams."""

    bound_storage_options: ClassVar[Mapping[str, Any] | None] = None
    bound_application: ClassVar[str | None] = None  # Spark does not tell planners and tasks its id

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._pinned: Any = None
        self._planned: tuple[str, dict[str, Any]] | None = None  # a reader's state, by the schema
        self._has_reader = self._has_own_columns = False

    def __getstate__(self) -> dict[str, Any]:
        # Spark also sends the source to tasks, only for its name: they have their part of the plan.
        return {**vars(self), **({"_pinned": None, "_planned": None} if self._has_reader else {})}

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "segstore"

    def schema(self) -> StructType:
        """Pin the newest version and return its columns."""
        from segstore_ds.spark.batch.planning import load

        schema, self._pinned, reader = load(self)
        self._has_own_columns = True  # Spark asks, and sends this object on, if the user named none
        self._planned = None if reader is None else (schema.json(), vars(reader))
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Plan a read of the pinned version; raises as `Stream.read`.

        `schema` is the result of `schema()`, or the user's own: then only its columns are read.
        """
        self._has_reader = True
        if self._planned is not None and self._planned[0] == schema.json():
            return PartsReader(**self._planned[1])
        from segstore_ds.spark.batch.planning import plan

        return plan(self, schema, self._pinned)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Plan a write: create a missing stream, check the columns, fix the token."""
        from segstore_ds.options.table import WRITE, parse_options
        from segstore_ds.spark.batch.planning import storage_of
        from segstore_ds.spark.batch.writer import client_of, plan_append_writer
        from segstore_ds.spark.option_texts import HelperNotes, asks_for_job

        client = client_of(self.bound_application)
        if asks_for_job(self.options):
            from segstore_ds.spark.batch.job_writer import plan_job_writer

            job = plan_job_writer(
                self.options, partial(storage_of, self), schema, client=client, overwrite=overwrite
            )
            if job is not None:
                return job
        options = parse_options(self.options, WRITE)
        return plan_append_writer(
            storage_of(self, options),
            options,
            schema,
            client=client,
            overwrite=overwrite,
            transaction=HelperNotes.of(self.options).transaction,
        )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a streaming query, or one that raises; sends no request.

        `schema` is the result of `schema()`, or the user's own: then only its columns are read.
        """
        from segstore_ds.options.table import STREAM_READ, parse_options
        from segstore_ds.spark.batch.planning import folder_of, storage_of
        from segstore_ds.spark.streaming.source import RefusedReader, SegstoreStreamReader

        self._has_reader, takes_all = True, self._has_own_columns
        try:
            options = parse_options(self.options, STREAM_READ)
            if (folder := folder_of(self, options)) is not None:
                from segstore_ds.spark.streaming.folder import FolderStreamReader

                return FolderStreamReader(folder, options, schema, takes_all=takes_all)
            storage = storage_of(self, options)
            return SegstoreStreamReader(storage, options, schema, takes_all=takes_all)
        except SegstoreError as error:
            # Otherwise Spark would try to stop a reader that it does not have, and show that error.
            return RefusedReader(error)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of a streaming query's micro-batches, planned for its tasks.

        Raises as `Stream.plan_write`, except for errors that end only new batches.
        """
        from segstore_ds.options.table import STREAM_WRITE, parse_options
        from segstore_ds.spark.batch.planning import storage_of
        from segstore_ds.spark.batch.writer import client_of
        from segstore_ds.spark.streaming.sink import SegstoreStreamWriter

        options = parse_options(self.options, STREAM_WRITE)
        given = {name.lower(): value for name, value in self.options.items()}
        checkpoint = given.get("checkpointlocation")
        writer = SegstoreStreamWriter(
            storage_of(self, options),
            options,
            schema,
            client=client_of(self.bound_application, given.get("queryname")),
            overwrite=overwrite,
            checkpoint=checkpoint,
        )
        if not commits_here():
            writer.plan()
        elif checkpoint is not None:
            writer.open_checkpoint = partial(storage_of, self, {**options, "path": checkpoint})
        return writer
