"""Batch reads of a stream's metadata tables: the option `metadata`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from segstore_ds import Stream
from segstore_ds.errors import InvalidInputError
from segstore_ds.spark.boundary import at_boundary
from segstore_ds.spark.schemas import from_stored, to_arrow
from segstore_ds.stream.connector import (
    METADATA,
    STREAMS,
    Storage,
    list_streams_below,
    open_pinned,
    pin,
)

PLAN = "compactionPlan"  # a table that jobs.py reads
EVENTS_ONLY = (
    "columns",
    "filters",
    "startEventTime",
    "endEventTime",
    "offsetColumn",
    "commitTimeColumn",
)
_STREAM_ONLY = ("versionAsOf", "timestampAsOf")


def is_metadata_table(name: str | None) -> bool:
    """Tell whether the option names a metadata table of this module."""
    return name in METADATA and name != PLAN


def table_schema(name: str) -> StructType:
    """Return a metadata table's columns."""
    return from_stored(METADATA[name], None)


def plan_metadata_reader(
    stream: Stream, options: Mapping[str, Any], schema: StructType
) -> "MetadataReader":
    """Plan the read of a metadata table as of a version."""
    name = options["metadata"]
    check_whole(options, EVENTS_ONLY, schema)
    return MetadataReader(stream, name, schema)


def plan_streams_reader(
    folder: Storage, options: Mapping[str, Any], schema: StructType
) -> "StreamsReader":
    """Plan the listing of the streams in a folder; sends no request."""
    check_whole(options, (*EVENTS_ONLY, *_STREAM_ONLY), schema)
    return StreamsReader(folder, schema)


def check_whole(options: Mapping[str, Any], refused: Sequence[str], schema: StructType) -> None:
    """Raise InvalidInputError if options of another table, or a schema of the user's, are given."""
    given = [option for option in refused if options[option] is not None]
    if given or schema.names != table_schema(options["metadata"]).names:
        raise InvalidInputError(
            "a metadata table is read as a whole",
            remedy="remove the options and the schema; select and filter the rows afterwards",
            options=given,
        )


@at_boundary
class StreamsReader(DataSourceReader):
    """Lists the streams in a folder, in one task with threads of its own."""

    def __init__(self, folder: Storage, schema: StructType) -> None:
        self._folder = folder
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Return one partition."""
        return [InputPartition(STREAMS)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield a row for each stream."""
        if partition is not None:
            rows = list_streams_below(self._folder)
            target = to_arrow(self._schema)
            yield from pa.Table.from_arrays(rows.columns, schema=target).to_batches()


@at_boundary
class MetadataReader(DataSourceReader):
    """Reads a metadata table, one partition per range of offsets."""

    def __init__(self, stream: Stream, name: str, schema: StructType) -> None:
        self._storage, self._pinned = stream.storage, pin(stream)
        self._name = name
        self._ranges = stream.plan_metadata(name, root=stream.root)
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Return one partition per range."""
        return [InputPartition(span) for span in self._ranges]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range."""
        if partition is None or partition.value is None:
            return
        stream = open_pinned(self._storage, self._pinned)
        target = to_arrow(self._schema)
        for batch in stream.metadata(self._name, root=stream.root, span=partition.value):
            yield pa.RecordBatch.from_arrays(batch.columns, schema=target)
