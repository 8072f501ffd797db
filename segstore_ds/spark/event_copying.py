"""Copies by events as a Spark job: any rows in, one commit out, idempotent by the copy's id."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from segstore_ds.engine.commit import StreamLog
from segstore_ds.engine.copy import CopyRequest
from segstore_ds.engine.copy_rows import ROWS, RowsCopy, commit_rows_copy, plan_rows_copy
from segstore_ds.engine.cuts import check_range, parse_cut, resolve_cut
from segstore_ds.engine.staging import delete_staged
from segstore_ds.errors import InvalidInputError
from segstore_ds.format.root import Root
from segstore_ds.options import COPIED
from segstore_ds.spark.writer import SegstoreWriter, build_request, staged_of
from segstore_ds.storage import Storage

_WHOLE = ("head", "tail")
_OTHERS = ("writerId", "batchId", "writerTakeover", "mergeSchema", "overwriteSchema")


def plan_events_copy(
    source: Storage,
    target: Storage,
    options: Mapping[str, Any],
    schema: StructType,
    *,
    overwrite: bool = False,
) -> RowsCopy:
    """Fix the range and what all tasks share, in the destination's root.

    Args:
        source: The source's folder.
        target: The destination's.
        options: Parsed; under `COPIED` the range that `copy` was asked for, if it is not the whole.
        schema: Of the rows.
        overwrite: Mode overwrite was asked for.

    Raises:
        InvalidInputError: Mode overwrite, or an option that makes no sense with a copy.
        As `segstore_ds.engine.copy_rows.plan_rows_copy` otherwise.
    """
    given = [name for name in _OTHERS if options[name]]
    if overwrite or given or options["compact"] == "auto":
        raise InvalidInputError(
            "copyMode=events makes a new stream once, in mode append",
            remedy="the copy's id makes it safe to repeat; leave these options out",
            options=given,
        )
    first, last = json.loads(options.get(COPIED) or json.dumps(_WHOLE))
    cuts = (parse_cut(first), parse_cut(last))

    def bind(log: StreamLog, root: Root) -> tuple[int, int]:
        start, end = (resolve_cut(log, root, cut) for cut in cuts)
        return check_range(root, start, end, fail_on_data_loss=True)

    request = CopyRequest(options["copyId"], first, last, options["seal"], ROWS)
    write = build_request(options, schema, overwrite=False, writer=None)
    return plan_rows_copy(source, target, request, write, bind)


class EventsCopyWriter(SegstoreWriter):
    """Stages rows in tasks, commits them as the whole of a new stream."""

    def __init__(self, work: RowsCopy) -> None:
        super().__init__(work.job)
        self._work = work

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Fill the destination, all at once, in partition order.

        Raises:
            As `segstore_ds.engine.copy_rows.commit_rows_copy`.
        """
        commit_rows_copy(self._work, staged_of(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Clean up after a job that failed; never raises.

        With every message there the commit was tried and may have landed: nothing is deleted then.
        """
        if any(message is None for message in messages):
            segments = [one for task in staged_of(messages) for one in task.segments]
            delete_staged(self._work.job.storage, segments)
