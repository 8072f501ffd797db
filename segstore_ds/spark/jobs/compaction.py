"""Compaction as a Spark job: a plan that is read as rows, and a write that takes such rows.

One row is one whole group of segments. Tasks merge whole groups, and the driver commits once. Rows
of events are refused when the write is planned, before any task runs.
"""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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

from segstore_ds.errors import InvalidInputError, PositionError
from segstore_ds.options import BY_NAME, READ, WRITE
from segstore_ds.options.compaction import CompactRules
from segstore_ds.spark.active import activated
from segstore_ds.spark.batch.writer import layout_of
from segstore_ds.spark.boundary import at_boundary, in_sparks_words
from segstore_ds.spark.option_texts import as_location
from segstore_ds.spark.schemas import from_stored, to_arrow
from segstore_ds.stream.connector import (
    PLAN_SCHEMA,
    CompactJob,
    Layout,
    Replacement,
    Root,
    Storage,
    Stream,
    TableStatus,
    build_row,
    client_name,
    delete_staged,
    open_on,
    parse_row,
    plan_range_groups,
    run_group,
)
from segstore_ds.stream.connector import plan_compaction as plan_job

PLAN = "compactionPlan"
MOST_PARTITIONS = 256
ROUNDS = 8
_EVENT_OPTIONS = ("columns", "filters", "offsetColumn", "segmentColumn", "commitTimeColumn")


def plan_schema() -> StructType:
    """Return the columns of a compaction plan."""
    return from_stored(PLAN_SCHEMA, None)


def plan_rows(
    stream: Stream, options: Mapping[str, Any], root: Root, schema: StructType
) -> "PlanReader":
    """Plan the compaction of a range and return a reader of its rows; raises as `Stream.read`.

    Raises:
        InvalidInputError: Options for events, or a schema of the user's own, are given.
    """
    given = [name for name in _EVENT_OPTIONS if options[name] is not None]
    if given or schema.names != PLAN_SCHEMA.names:
        raise InvalidInputError(
            "a compaction plan is read as a whole",
            remedy="remove the options and the schema; filter the rows afterwards",
            options=given,
        )
    rules = CompactRules(options["compactMode"], options["compactRows"], options["compactBytes"])
    status = TableStatus(stream.storage)
    job = plan_job(stream.storage, status, root, rules, Layout())
    reading = stream.plan_read(options["startCut"], options["endCut"], root=root)
    groups = plan_range_groups(status, root, job, (reading.start, reading.end))
    rows = [
        build_row(root.stream_id, root.version, number, group, rules)
        for number, group in enumerate(groups)
    ]
    return PlanReader(rows)


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
    stream = open_on(storage)
    rules = CompactRules(options["compactMode"], options["compactRows"], options["compactBytes"])
    root = stream.root
    layout, ship_to = layout_of(options), stream.ship_to(root)
    job = plan_job(storage, TableStatus(storage), root, rules, layout, ship_to=ship_to)
    return CompactWriter(job, secrets.token_hex(16))


@at_boundary
class CompactWriter(DataSourceArrowWriter):
    """Merges groups in tasks and commits in the driver; every copy of it holds the same job."""

    def __init__(self, job: CompactJob, transaction: str) -> None:
        self._job = job
        self._transaction = transaction

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the segments that replace the groups of one task.

        Raises:
            InvalidInputError: A row was altered, or belongs to another stream.
        """
        done: list[Replacement] = []
        try:
            for row in (row for batch in iterator for row in batch.to_pylist()):
                group, rules, number = parse_row(row, stream_id=self._job.stream_id)
                job = replace(self._job, rules=rules)
                done.append(run_group(job, group, number=number, nonce=secrets.token_hex(6)))
        except BaseException:
            delete_staged(self._job.storage, _outputs(done))
            raise
        return GroupsMessage(tuple(done))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Replace all groups in one commit.

        Raises:
            ConflictError: Every group's inputs have changed since the plan, or all races were lost.
            StagedExpiredError: The job took longer than vacuum's grace.
            CommitUnknownError: The commit may or may not be in the log.
        """
        done = _done(messages)
        if not done:
            return
        stream = open_on(self._job.storage)
        if stream.stream_id != self._job.stream_id:
            raise PositionError(
                "the stream was recreated in the meantime", remedy="plan again", url=stream.url
            )
        stream.commit_groups(
            done,
            transaction=self._transaction,
            client=f"{client_name()} pyspark/{pyspark.__version__}",
        )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Clean up after a failed job; never raises.

        If every message arrived, the commit was tried and may have landed, so nothing is deleted.
        """
        if any(message is None for message in messages):
            delete_staged(self._job.storage, _outputs(_done(messages)))


@in_sparks_words
def compact(spark: SparkSession, path: str, **options: Any) -> int:
    """Compact a stream with Spark's tasks: plan, merge and commit until there is nothing to do.

    Each round is one commit. It is safe to repeat, and to run beside readers and writers.

    Args:
        spark: A session with the format registered.
        path: The stream.
        options: As in the README's tables, for example ``compactBytes="256m"``.

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


def _outputs(done: Sequence[Replacement]) -> Iterator[Any]:
    return (output for run in done for output in run.outputs)
