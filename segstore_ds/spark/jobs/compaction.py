"""Compaction as a Spark job: a plan that is read as rows, and a write that takes such rows.

One row is one whole group of segments. Tasks merge whole groups, and the driver commits once. Rows
of events are refused when the write is planned, before any task runs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from segstore_ds.errors import InvalidInputError
from segstore_ds.options import BY_NAME, READ, WRITE
from segstore_ds.options.compaction import CompactRules
from segstore_ds.spark.active import activated
from segstore_ds.spark.batch.metadata_reader import PLAN
from segstore_ds.spark.batch.writer import layout_of
from segstore_ds.spark.boundary import at_boundary, in_sparks_words
from segstore_ds.spark.option_texts import as_location
from segstore_ds.spark.schemas import from_stored, to_arrow
from segstore_ds.stream.connector import (
    METADATA,
    CompactTasks,
    Replacement,
    Root,
    Storage,
    Stream,
    client_name,
    commit_compaction,
    plan_compaction,
    plan_compaction_job,
)

MOST_PARTITIONS = 256
ROUNDS = 8
_EVENT_OPTIONS = (
    "columns",
    "filters",
    "startEventTime",
    "endEventTime",
    "offsetColumn",
    "segmentColumn",
    "commitTimeColumn",
)


def plan_schema() -> StructType:
    """Return the columns of a compaction plan."""
    return from_stored(METADATA[PLAN], None)


def plan_rows(
    stream: Stream, options: Mapping[str, Any], root: Root, schema: StructType
) -> "PlanReader":
    """Plan the compaction of a range and return a reader of its rows; raises as `Stream.read`.

    Raises:
        InvalidInputError: Options for events, or a schema of the user's own, are given.
    """
    given = [name for name in _EVENT_OPTIONS if options[name] is not None]
    if given or schema.names != METADATA[PLAN].names:
        raise InvalidInputError(
            "a compaction plan is read as a whole",
            remedy="remove the options and the schema; filter the rows afterwards",
            options=given,
        )
    rules = CompactRules(options["compactMode"], options["compactRows"], options["compactBytes"])
    reading = stream.plan_read(options["startCut"], options["endCut"], root=root)
    return PlanReader(plan_compaction(stream, rules, reading, root))


@at_boundary
@dataclass(frozen=True)
class PlanReader(DataSourceReader):
    """Reads the rows of a plan: one partition per group, 256 at most."""

    rows: list[dict[str, Any]]

    def __getstate__(self) -> dict[str, Any]:
        return {"rows": []}  # each partition carries its own rows

    def __setstate__(self, state: dict[str, Any]) -> None:
        object.__setattr__(self, "rows", state["rows"])

    def partitions(self) -> list[InputPartition]:
        """Return the partitions."""
        count = min(len(self.rows), MOST_PARTITIONS)
        borders = [len(self.rows) * n // count for n in range(count + 1)] if count else [0]
        return [InputPartition(self.rows[first:last]) for first, last in pairwise(borders)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition."""
        if partition is not None and partition.value:
            yield pa.RecordBatch.from_pylist(partition.value, to_arrow(plan_schema()))


@dataclass(frozen=True)
class GroupsMessage(WriterCommitMessage):
    """What one task wrote, sent to the driver."""

    done: tuple[Replacement, ...]


def plan_compact_writer(
    storage: Storage, options: Mapping[str, Any], schema: StructType, *, overwrite: bool
) -> "CompactWriter":
    """Check that the rows are those of a plan, and fix what all tasks share.

    Raises:
        InvalidInputError: The columns are not those of a plan, or the mode is overwrite.
        NotFoundError: There is no stream.
    """
    wanted = plan_schema()
    found = [(field.name, field.dataType) for field in schema]
    if overwrite or found != [(field.name, field.dataType) for field in wanted]:
        raise InvalidInputError(
            "operation=compact takes the rows of a compaction plan, in mode append",
            remedy=f'write spark.read.format("segstore").option("metadata", "{PLAN}").load(path)',
            columns=schema.names,
        )
    rules = CompactRules(options["compactMode"], options["compactRows"], options["compactBytes"])
    client = f"{client_name()} pyspark/{pyspark.__version__}"
    return CompactWriter(plan_compaction_job(storage, rules, layout_of(options), client=client))


@at_boundary
class CompactWriter(DataSourceArrowWriter):
    """Merges groups in tasks and commits in the driver; every copy of it holds the same job."""

    def __init__(self, work: CompactTasks) -> None:
        self._work = work

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the segments that replace the groups of one task.

        Raises:
            InvalidInputError: A row was altered, or belongs to another stream.
        """
        rows = (row for batch in iterator for row in batch.to_pylist())
        return GroupsMessage(self._work.run(rows))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Replace all groups in one commit.

        Raises:
            ConflictError: Every group's inputs have changed since the plan, or all races were lost.
            StagedExpiredError: The job took longer than vacuum's grace.
            CommitUnknownError: The commit may or may not be in the log.
        """
        if done := _done(messages):
            commit_compaction(self._work, done)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Clean up after a failed job; never raises.

        If every message arrived, the commit was tried and may have landed, so nothing is deleted.
        """
        if any(message is None for message in messages):
            self._work.discard(_done(messages))


@in_sparks_words
def compact(spark: SparkSession, path: str, **options: Any) -> int:
    """Compact a stream with Spark's tasks: plan, merge and commit until there is nothing to do.

    Each round is one commit. It is safe to repeat, and to run beside readers and writers.

    Args:
        spark: A session with the format registered.
        path: The stream.
        options: As in docs/options.md, for example ``compactBytes="256m"``.

    Returns:
        How many groups of segments were rewritten.

    Raises:
        InvalidInputError: An option or the location is not valid.
        pyspark.errors.PySparkException: The job failed; the text names our error and the remedy.
    """
    path = as_location(path)
    reads, writes = _split(options, READ), _split(options, WRITE)
    known = {*reads, *writes}
    if known != {*options}:
        raise InvalidInputError("unknown options", options=sorted({*options} - known))
    total, planned = 0, -1
    for _ in range(ROUNDS):
        plan = spark.read.format("segstore").options(**reads, metadata=PLAN).load(path)
        groups, version = plan.selectExpr("count(*)", "max(version)").collect()[0]
        # Planned on the same version again: the result was no gain, so it was not committed.
        if not groups or version == planned:
            break
        planned = version
        writer = plan.write.format("segstore").mode("append")
        with activated(spark):
            writer.options(**writes, operation="compact").save(path)
        total += groups
    return total


def _split(options: Mapping[str, Any], scope: str) -> dict[str, Any]:
    def takes(name: str) -> bool:
        option = BY_NAME.get(name.lower())
        return option is not None and scope in option.scopes

    return {name: value for name, value in options.items() if takes(name)}


def _done(messages: Sequence[WriterCommitMessage | None]) -> list[Replacement]:
    return [
        run for message in messages if isinstance(message, GroupsMessage) for run in message.done
    ]
