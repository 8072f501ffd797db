"""Copies by events as a Spark job: any rows in, one commit out, idempotent by the copy's id."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from segstore_ds.errors import InvalidInputError
from segstore_ds.options import COPIED
from segstore_ds.spark.batch.writer import SegstoreWriter, build_request, staged_of
from segstore_ds.spark.boundary import at_boundary
from segstore_ds.spark.jobs.copying import EVENTS
from segstore_ds.stream.connector import (
    ROWS,
    CopyRequest,
    RowsCopy,
    Storage,
    commit_rows_copy,
    parse_cut,
    plan_rows_copy,
)

_RANGE = ("startcut", "endcut")
_FIXED = ("offset", "position", "version")
_OTHERS = ("writerId", "batchId", "writerTakeover", "mergeSchema", "overwriteSchema")


def take_range(given: Mapping[str, str]) -> tuple[Mapping[str, str], str | None]:
    """Take the range of a copy by events out of a write's options, as Spark hands them over.

    The rows of a DataFrame are those of the moment it was loaded. So a write without the helper
    must name its range, in cuts that still mean the same events now.

    It returns the other options, and the range for `plan_events_copy`; None if this is no such
    copy.

    Raises:
        InvalidInputError: A cut is missing, or is one that moves.
    """
    named = {name.lower(): value for name, value in given.items()}
    if str(named.get("copymode")).strip().lower() != EVENTS:
        return given, None
    others = {name: value for name, value in given.items() if name.lower() not in _RANGE}
    if COPIED in given:
        return others, given[COPIED]
    cuts = [named.get(name) for name in _RANGE]
    if not all(cut is not None and parse_cut(cut).kind in _FIXED for cut in cuts):
        raise InvalidInputError(
            "a copy by events needs the range of its rows, in offsets",
            remedy="use segstore.copy(spark, source, target, copy_id, transform); or load the "
            "DataFrame with the offsets startCut and endCut, and give the same ones here",
            startCut=cuts[0],
            endCut=cuts[1],
        )
    return others, json.dumps(cuts)


def plan_events_copy(
    source: Storage,
    target: Storage,
    options: Mapping[str, Any],
    schema: StructType,
    *,
    overwrite: bool = False,
) -> RowsCopy:
    """Fix the range and what all tasks share, in the destination's root.

    Under the key `COPIED` the options hold the range that was asked for, a JSON list of two cuts.

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
    first, last = json.loads(options[COPIED])
    request = CopyRequest(options["copyId"], first, last, options["seal"], ROWS)
    write = build_request(options, schema, overwrite=False, writer=None)
    return plan_rows_copy(source, target, request, write)


@at_boundary
class EventsCopyWriter(SegstoreWriter):
    """Stages rows in tasks and commits them as the whole of a new stream."""

    def __init__(self, work: RowsCopy) -> None:
        super().__init__(work.job)
        self._work = work

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Fill the destination, all at once, in partition order."""
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
    return EventsCopyWriter(plan_events_copy(source, target, options, schema, overwrite=overwrite))
