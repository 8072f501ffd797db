"""The streaming source of many streams: one offset has the position in each."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from segstore_ds.errors import InvalidInputError
from segstore_ds.options.arguments import arguments_of
from segstore_ds.options.table import PLAN
from segstore_ds.spark.batch.planning import plan_tasks
from segstore_ds.spark.boundary import at_boundary
from segstore_ds.spark.streaming.source import AGAIN, SegstoreStreamReader
from segstore_ds.spark.versions import ReadAllAvailable, ReadLimit
from segstore_ds.stream.connector.folders import Folder
from segstore_ds.stream.connector.tasks import Reading


@at_boundary
class FolderStreamReader(SegstoreStreamReader):
    """Answers Spark's questions about a query over the streams of a folder.

    The initial offset is the cut itself, as for one stream. Every later one has the offset at which
    the reading of each stream began.
    """

    def __init__(
        self, folder: Folder, options: Mapping[str, Any], schema: StructType, *, takes_all: bool
    ) -> None:
        if options["endCut"] != "tail":
            raise InvalidInputError(
                "a query over many streams has no end",
                remedy="remove endCut; with the trigger AvailableNow it ends at the current tails",
                endCut=options["endCut"],
            )
        self._options, self._schema = options, schema
        self._takes_all = takes_all and options["columns"] is None
        self._folder = folder
        self._many = folder.batches(
            options["startCut"],
            most_rows=options["maxRowsPerTrigger"],
            most_bytes=options["maxBytesPerTrigger"],
            fail_on_data_loss=options["failOnDataLoss"],
        )
        self._readings: dict[str, Reading] = {}  # the last one of each stream, by its id
        self._columns: pa.Schema | None = None

    def prepareForTriggerAvailableNow(self) -> None:
        """Use the current tails as the query's end; streams that join later wait."""
        self._many.stop_here()

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return the next batch's end: within every limit over all streams.

        Raises:
            InvalidInputError: This Spark does not say where a batch begins.
            NotFoundError: Streams were dropped, and data loss is an error.
            PositionError: The checkpoint belongs to another query, or commits are gone.
            TruncatedError: The next events are below the head, and data loss is an error.
        """
        if start is None:
            raise InvalidInputError(
                "this Spark does not say where a batch begins",
                remedy="use Spark 4.2 or newer for many streams, or load them one by one",
            )
        self._many.folder.look()
        limited = not isinstance(limit, ReadAllAvailable)
        return self._many.next(Folder.progress(start), limited=limited).to_value()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the tails as last seen, so that progress shows how far behind a query is."""
        streams = self._many.folder.streams
        return {name: root.tail for name, (_, root) in streams.items()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan the tasks of a batch; raises as `latestOffset`."""
        finish = Folder.progress(end)
        if finish is None:
            return []
        self._many.folder.look()
        streams, spans = self._many.events(Folder.progress(start), finish)
        if not spans:
            return []
        snapshot = self._folder.some(streams, self._columns)
        columns = self._check_columns(snapshot, bool(self._readings))
        how = {**self._options, "columns": columns}
        plans = snapshot.plan(spans=spans, **arguments_of(how, PLAN))
        for _, _, reading in plans:
            before = self._readings.get(reading.stream_id, reading)
            before.check_goes_on(reading, remedy=AGAIN)
            self._readings[reading.stream_id] = reading
        self._columns = snapshot.schema  # they stay when a stream leaves
        return [InputPartition(part) for part in plan_tasks(snapshot, self._options, plans)]

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: no reader has a position in many streams."""
