"""Copies by events as a Spark job: any rows in, one commit out, idempotent by the copy's id."""

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from segstore_ds.errors import InternalError, InvalidInputError
from segstore_ds.options import COPIED
from segstore_ds.spark.batch.writer import SegstoreWriter, StagedMessage, build_request, staged_of
from segstore_ds.spark.boundary import at_boundary
from segstore_ds.spark.jobs.copying import EVENTS
from segstore_ds.stream.connector import (
    ROWS,
    CopyRequest,
    OffsetCheck,
    RowsCopy,
    Storage,
    check_offsets,
    commit_rows_copy,
    parse_cut,
    plan_rows_copy,
)

_RANGE = ("startcut", "endcut", "offsetcolumn")
_FIXED = ("offset", "position", "version")
_OTHERS = ("writerId", "batchId", "writerTakeover", "mergeSchema", "overwriteSchema")


def take_range(given: Mapping[str, str]) -> tuple[Mapping[str, str], str | None]:
    """Take what a copy by events says about its rows out of a write's options, as Spark has them.

    The rows of a DataFrame are those of the moment it was loaded. So a write without the helper
    must name its range, in cuts that still mean the same events now, and the column of the offsets.

    It returns the other options, and a JSON text for `plan_events_copy`; None if this is no such
    copy.

    Raises:
        InvalidInputError: A cut is missing, or is one that moves, or there is no column.
    """
    named = {name.lower(): value for name, value in given.items()}
    if str(named.get("copymode")).strip().lower() != EVENTS:
        return given, None
    others = {name: value for name, value in given.items() if name.lower() not in _RANGE}
    if COPIED in given:
        return others, given[COPIED]
    *cuts, column = [named.get(name) for name in _RANGE]
    fixed = all(cut is not None and parse_cut(cut).kind in _FIXED for cut in cuts)
    if not fixed or column is None:
        raise InvalidInputError(
            "a copy by events needs the range of its rows, in offsets, and their offsetColumn",
            remedy="use segstore.copy(spark, source, target, copy_id, transform); or load the "
            "DataFrame with startCut, endCut and offsetColumn, and give the same ones here",
            startCut=cuts[0],
            endCut=cuts[1],
            offsetColumn=column,
        )
    return others, json.dumps({"cuts": cuts, "column": column})


def plan_events_copy(
    source: Storage,
    target: Storage,
    options: Mapping[str, Any],
    schema: StructType,
    *,
    overwrite: bool = False,
) -> RowsCopy:
    """Fix the range and what all tasks share.

    Under the key `COPIED` the options hold a JSON object: `cuts`, the range that was asked for; if
    the rows are of a part of it, `span` and `made_by`.

    Raises:
        InvalidInputError: Mode overwrite, or an option that makes no sense with a copy.
    """
    given = [name for name in _OTHERS if options[name]]
    if overwrite or given or options["compact"] == "auto":
        raise InvalidInputError(
            "copyMode=events creates a new stream once, in mode append",
            remedy="the copy's id makes it safe to repeat; leave these options out",
            options=given,
        )
    copied = json.loads(options[COPIED])
    first, last = copied["cuts"]
    request = CopyRequest(options["copyId"], first, last, options["seal"], ROWS)
    write = build_request(options, schema, overwrite=False, writer=None)
    span, made_by = copied.get("span"), copied.get("made_by")
    span = None if span is None else (span[0], span[1])
    return plan_rows_copy(source, target, request, write, span=span, made_by=made_by)


@dataclass(frozen=True)
class CheckedMessage(StagedMessage):
    """What one task staged, and the first and last offset of its rows; -1 if they are unknown."""

    offsets: tuple[int, int] = (-1, -1)


@at_boundary
class EventsCopyWriter(SegstoreWriter):
    """Stages rows in tasks and commits them as the whole of a new stream, or notes a part of it.

    `column` names the offsets of the rows, which are checked and not stored.
    """

    def __init__(self, work: RowsCopy, column: str | None) -> None:
        super().__init__(work.job)
        self._work, self._column = work, column

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage one task's rows; raises as `SegstoreWriter.write`.

        Raises:
            InvalidInputError: The rows are not of the copy's range, or in another order.
        """
        context = TaskContext.get()
        if context is None:
            raise InternalError("write runs outside a Spark task")
        check = OffsetCheck(self._column or "", self._work.span)
        rows = map(check.take, iterator) if self._column else iterator
        # All attempts of all jobs of a copy share one folder.
        staged = self._job.stage(context.partitionId(), secrets.token_hex(6), rows)
        return CheckedMessage(staged, offsets=(check.first, check.last))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Fill the destination, all at once, in partition order."""
        sent = [message for message in messages if isinstance(message, CheckedMessage)]
        check_offsets(
            [message.offsets for message in sorted(sent, key=lambda one: one.staged.task)]
        )
        commit_rows_copy(self._work, staged_of(messages))


def plan_events_writer(
    source: Storage,
    target: Storage,
    options: Mapping[str, Any],
    schema: StructType,
    *,
    overwrite: bool,
) -> EventsCopyWriter:
    """Return the writer of a copy by events; raises as `plan_events_copy`."""
    column = json.loads(options[COPIED]).get("column")
    if column is not None and column not in schema.names:
        raise InvalidInputError(
            "the rows have no such column", remedy="load them with offsetColumn", column=column
        )
    stored = StructType([field for field in schema if field.name != column])
    work = plan_events_copy(source, target, options, stored, overwrite=overwrite)
    return EventsCopyWriter(work, column)
