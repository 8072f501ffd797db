"""Writes that do a job: their rows are those of a compaction's plan, segments, or events to copy.

The options `operation` and `copyMode` ask for them. A `TableJob` (`stream.connector`) is planned in
the driver; each task does some of its rows, and the results of all tasks are committed once. A copy
by events takes rows of a DataFrame (`RowsCopy`).
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain, pairwise
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from segstore_ds.errors import InvalidInputError
from segstore_ds.options.table import WRITE, parse_options
from segstore_ds.spark.batch.metadata_reader import EVENTS_ONLY, PLAN, check_whole, table_schema
from segstore_ds.spark.batch.parts import PartsReader
from segstore_ds.spark.batch.writer import SegstoreWriter, build_request
from segstore_ds.spark.option_texts import HelperNotes
from segstore_ds.spark.versions import to_arrow
from segstore_ds.stream.connector.jobs import (
    RowsCopy,
    TableJob,
    commit_compaction,
    plan_compaction,
    plan_compaction_job,
    plan_rows_copy,
    plan_segments_copy,
)
from segstore_ds.stream.connector.reads import Snapshot, Storage, parse_cut

SEGMENTS, EVENTS, CLONE = "segments", "events", "clone"
MOST_TASKS = 256
_RANGE = ("startcut", "endcut", "offsetcolumn")
_FIXED = ("offset", "position", "version")
# Options that only an append obeys, with the values that ask for nothing.
_OF_APPENDS = {
    **dict.fromkeys(("writerId", "batchId", "expectedTail", "expectedVersion")),
    **dict.fromkeys(("takeover", "mergeSchema", "overwriteSchema"), False),
}
Open = Callable[[Mapping[str, Any]], Storage]


def plan_job_writer(
    given: Mapping[str, str],
    open_storage: Open,
    schema: StructType,
    *,
    client: str,
    overwrite: bool,
) -> SegstoreWriter | None:
    """Return the writer of a job; None if the options, as Spark has them, ask for an append."""
    given, range_ = _take_range(given)
    options = parse_options(given, WRITE)
    mode = _check_options(options, overwrite=overwrite)
    if options["operation"] == "append" and mode is None:
        return None
    target = open_storage(options)
    if mode is None:
        _check_rows(schema, PLAN, operation="compact")
        compaction = plan_compaction_job(target, options)
        return _write_job(compaction, partial(commit_compaction, compaction, client))
    source, copy_id = open_storage({**options, "path": options["copyFrom"]}), options["copyId"]
    if range_ is None:
        _check_rows(schema, SEGMENTS, operation="copy")
        copy = plan_segments_copy(source, target, copy_id, seal=options["seal"], client=client)
        return _write_job(copy, copy.commit)
    *cuts, column = range_
    rows = StructType([field for field in schema if field.name != column])
    piece = HelperNotes.of(given).piece
    if piece is None and len(rows) == len(schema):
        raise InvalidInputError(
            "the rows have no such column", remedy="load them with offsetColumn", column=column
        )
    work = plan_rows_copy(
        source,
        target,
        build_request(options, rows, client=client),
        copy_id,
        (cuts[0], cuts[1]),
        seal=options["seal"],
        span=piece and piece[:2],
        made_by=piece and piece[2],
        column=column,
    )
    return SegstoreWriter(partial(_run_rows, work), work.commit, work.discard)


def _check_options(options: Mapping[str, Any], *, overwrite: bool) -> str | None:
    """Return how a write copies, ``segments`` or ``events``; None if it is not a copy."""
    copies, mode = options["operation"] == "copy", options["copyMode"]
    given = [name for name, unasked in _OF_APPENDS.items() if options[name] is not unasked]
    given += ["compact"] if options["compact"] == "auto" else []
    if (options["operation"] != "append" or mode is not None) and (overwrite or given):
        raise InvalidInputError(
            "a copy or a compaction is written in mode append, and takes no options of an append",
            remedy="leave these options out: without them it is safe to repeat",
            options=given,
        )
    if mode == CLONE:
        raise InvalidInputError(
            "a clone takes no rows", remedy='call Stream.copy_to(url, copy_id=..., mode="clone")'
        )
    if copies and mode == EVENTS:
        raise InvalidInputError(
            "operation=copy takes the rows of metadata=segments",
            remedy="leave operation out to write rows of events with copyMode=events",
        )
    given = [name for name in ("copyFrom", "copyId") if options[name] is not None]
    if copies or mode == EVENTS:
        if len(given) < 2:
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


def _check_rows(schema: StructType, table: str, *, operation: str) -> None:
    found, wanted = (
        [(field.name, field.dataType) for field in each] for each in (schema, table_schema(table))
    )
    if found != wanted:
        raise InvalidInputError(
            f"operation={operation} takes the rows of metadata={table}",
            remedy=f'write spark.read.format("segstore").option("metadata", "{table}").load(...)',
            columns=schema.names,
        )


def _take_range(
    given: Mapping[str, str],
) -> tuple[Mapping[str, str], tuple[str, str, str | None] | None]:
    """Take the cuts of a copy's rows and the column of their offsets out of a write's options.

    A DataFrame has the rows of the moment when it was loaded. So a write must name its range, by
    cuts that never change their meaning, and the column of the offsets. A helper has read the range
    of its piece itself.
    """
    named = {name.lower(): value for name, value in given.items()}
    if str(named.get("copymode")).strip().lower() != EVENTS:
        return given, None
    start, end, column = (named.get(name) for name in _RANGE)
    fixed = HelperNotes.of(given).piece is not None or (
        column and all(cut and parse_cut(cut).kind in _FIXED for cut in (start, end))
    )
    if not fixed or start is None or end is None:
        raise InvalidInputError(
            "a copy by events needs the range of its rows, in offsets, and their offsetColumn",
            remedy="use segstore.spark.copy(spark, source, target, copy_id, transform); or load "
            "the DataFrame with startCut, endCut and offsetColumn, and give the same ones here",
            startCut=start,
            endCut=end,
            offsetColumn=column,
        )
    others = {name: value for name, value in given.items() if name.lower() not in _RANGE}
    return others, (start, end, column)


def plan_rows(snapshot: Snapshot, options: Mapping[str, Any], schema: StructType) -> PartsReader:
    """Plan the compaction of a range and return a reader of its rows; raises as `Stream.read`."""
    check_whole(options, EVENTS_ONLY, schema)
    rows = plan_compaction(snapshot, options)
    count = min(len(rows), MOST_TASKS)
    borders = [len(rows) * n // count for n in range(count + 1)] if count else [0]
    return PartsReader(_read_plan, [rows[first:last] for first, last in pairwise(borders)])


def _read_plan(rows: list[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pylist(rows, to_arrow(table_schema(PLAN)))


def _write_job(job: TableJob, commit: Callable[[list[Any]], object]) -> SegstoreWriter:
    return SegstoreWriter(
        partial(_run_job, job), partial(_joined, commit), partial(_joined, job.discard)
    )


def _run_job(
    job: TableJob, _context: TaskContext, batches: Iterator[pa.RecordBatch]
) -> tuple[list[Any], int]:
    return [*job.run(job.take(row for batch in batches for row in batch.to_pylist()))], 0


def _joined(step: Callable[[list[Any]], object], done: list[list[Any]]) -> None:
    step([*chain(*done)])


def _run_rows(
    work: RowsCopy, context: TaskContext, batches: Iterator[pa.RecordBatch]
) -> tuple[Any, int]:
    done = work.stage(context.partitionId(), batches)
    return done, done[0].rows
