"""Copies as a Spark job: tasks copy segment objects, the driver commits once.

The job writes the rows of `metadata=segments`. Only each segment's offset and id count; everything
else is looked up in the source. A failed job never deletes what it has copied: the next job with
the same id continues from there.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from segstore_ds.errors import InvalidInputError
from segstore_ds.spark.batch.metadata_reader import table_schema
from segstore_ds.spark.boundary import at_boundary
from segstore_ds.stream.connector import (
    CopyJob,
    CopyRequest,
    PlacedSegment,
    Storage,
    client_name,
    commit_segments,
    copy_segments,
    plan_copy_job,
)

MOST_TASKS = 256
TASK_BYTES = 32 << 20
SEGMENTS = "segments"
EVENTS = "events"
_COPY_OPTIONS = ("copyFrom", "copyId")
_EXPECTED = ("expectedTail", "expectedVersion")


def check_copy_options(options: Mapping[str, Any]) -> str | None:
    """Return how a write copies, ``segments`` or ``events``; None if it is not a copy.

    Raises:
        InvalidInputError: An option of a copy is missing or given for another write, or an option
            of appends is given for a copy or a compaction.
    """
    copies, mode = options["operation"] == "copy", options["copyMode"]
    expected = [name for name in _EXPECTED if options[name] is not None]
    if expected and (options["operation"] != "append" or mode is not None):
        raise InvalidInputError(
            "a copy or a compaction takes no expected tail or version",
            remedy="remove the option",
            options=expected,
        )
    if copies and mode == EVENTS:
        raise InvalidInputError(
            "operation=copy takes the rows of metadata=segments",
            remedy="leave operation out to write rows of events with copyMode=events",
        )
    given = [name for name in _COPY_OPTIONS if options[name] is not None]
    if copies or mode == EVENTS:
        if len(given) < len(_COPY_OPTIONS):
            raise InvalidInputError(
                "a copy needs copyFrom and copyId",
                remedy="give both: the source's location, and a name for the copy",
                given=given,
            )
        return mode or SEGMENTS
    if given or options["seal"] or mode is not None:
        raise InvalidInputError(
            "the options belong to a copy",
            remedy="give them with operation=copy or copyMode=events only",
            options=given or ["seal" if options["seal"] else "copyMode"],
        )
    return None


def plan_copy_writer(
    source: Storage,
    target: Storage,
    options: Mapping[str, Any],
    schema: StructType,
    *,
    overwrite: bool,
) -> "CopyWriter":
    """Check that the rows describe segments, and fix the version that is copied.

    Raises:
        InvalidInputError: The columns are not those of `metadata=segments`, or mode overwrite.
    """
    found = [(field.name, field.dataType) for field in schema]
    wanted = [(field.name, field.dataType) for field in table_schema(SEGMENTS)]
    if overwrite or found != wanted:
        raise InvalidInputError(
            "operation=copy takes the rows of metadata=segments, in mode append",
            remedy='write spark.read.format("segstore").option("metadata", "segments").load(...)',
            columns=schema.names,
        )
    request = CopyRequest(options["copyId"], SEGMENTS, SEGMENTS, options["seal"])
    return CopyWriter(plan_copy_job(source, target, request))


@dataclass(frozen=True)
class CopiedMessage(WriterCommitMessage):
    """What one task copied, sent to the driver."""

    found: tuple[PlacedSegment, ...]


@at_boundary
class CopyWriter(DataSourceArrowWriter):
    """Copies segments in tasks and commits in the driver; every copy of it holds the same job."""

    def __init__(self, job: CopyJob) -> None:
        self._job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Copy the segments of one task; nothing if the copy was done before."""
        wanted: list[tuple[int, int]] = []
        for batch in iterator:
            starts, ids = batch.column("start").to_pylist(), batch.column("segment_id").to_pylist()
            wanted.extend(zip(starts, ids, strict=True))
        return CopiedMessage(() if self._job.done else copy_segments(self._job, wanted))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Create the destination, all at once."""
        found = [
            segment
            for message in messages
            if isinstance(message, CopiedMessage)
            for segment in message.found
        ]
        client = f"{client_name()} pyspark/{pyspark.__version__}"
        commit_segments(self._job, found, client=client)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Leave what was copied to the next attempt; never raises."""
