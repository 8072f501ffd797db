"""Batch reads of metadata tables: the option `metadata`."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from segstore_ds.errors import InvalidInputError
from segstore_ds.options.table import default
from segstore_ds.spark.batch.parts import PartsReader
from segstore_ds.spark.schemas import from_stored
from segstore_ds.spark.versions import to_arrow
from segstore_ds.stream.connector.reads import Snapshot, Storage
from segstore_ds.stream.connector.tables import METADATA, MetadataRows, list_streams_below

STREAMS = "streams"  # the only table of a folder, not of a stream
PLAN = "compactionPlan"  # a table that job_writer.py reads
EVENTS_ONLY = (
    "startCut",
    "endCut",
    "columns",
    "filters",
    "startEventTime",
    "endEventTime",
    "offsetColumn",
    "commitTimeColumn",
)
_STREAM_ONLY = ("versionAsOf", "timestampAsOf")
_PLAN_ONLY = ("compactRows", "compactBytes", "compactMode")


def table_schema(name: str) -> StructType:
    """Return a metadata table's columns."""
    return from_stored(METADATA[name], None)


def plan_metadata_reader(
    snapshot: Snapshot, options: Mapping[str, Any], schema: StructType
) -> PartsReader:
    """Plan the read of a metadata table as of a version, one part per range of offsets."""
    name = options["metadata"]
    check_whole(options, (*EVENTS_ONLY, *_PLAN_ONLY), schema)
    read = partial(_read_rows, snapshot.storage, snapshot.pinned, name, to_arrow(schema))
    return PartsReader(read, MetadataRows(snapshot, name).spans())


def plan_streams_reader(
    folder: Storage, options: Mapping[str, Any], schema: StructType
) -> PartsReader:
    """Plan the table of the streams in a folder: one task, which uses threads."""
    check_whole(options, (*EVENTS_ONLY, *_PLAN_ONLY, *_STREAM_ONLY), schema)
    return PartsReader(partial(_list_streams, folder, to_arrow(schema)), [STREAMS])


def check_whole(options: Mapping[str, Any], refused: Sequence[str], schema: StructType) -> None:
    """Raise InvalidInputError if an option of `refused`, or a schema of the user, is given."""
    given = [option for option in refused if options[option] != default(option)]
    if given or schema.names != table_schema(options["metadata"]).names:
        raise InvalidInputError(
            "a metadata table is read as a whole",
            remedy="remove the options and the schema; select and filter the rows afterwards",
            options=given,
        )


def _read_rows(
    storage: Storage, pinned: bytes, name: str, target: pa.Schema, span: tuple[int, int]
) -> Iterator[pa.RecordBatch]:
    for batch in MetadataRows(Snapshot.at(storage, pinned), name).read(span):
        yield pa.RecordBatch.from_arrays(batch.columns, schema=target)


def _list_streams(folder: Storage, target: pa.Schema, _part: str) -> Iterator[pa.RecordBatch]:
    rows = list_streams_below(folder)
    yield from pa.Table.from_arrays(rows.columns, schema=target).to_batches()
