"""Streaming queries: which events a micro-batch reads, and how one is committed.

One process asks for batches over the life of a query. It keeps a handle and sends one small request
per idle poll. Every version holds the same events, so nothing is pinned.
"""

import pickle
from collections.abc import Sequence

from segstore_ds.errors import InternalError, InvalidInputError, NotFoundError
from segstore_ds.format.root import Root
from segstore_ds.log.context import new_context
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.read.cuts import (
    EVENT_TIME,
    Cut,
    Position,
    check_held,
    check_position,
    check_range,
    parse_cut,
    resolve_cut,
)
from segstore_ds.read.micro_batch import BatchLimits, Waiting, plan_batch_end
from segstore_ds.storage import Storage
from segstore_ds.stream.connector.reads import Snapshot
from segstore_ds.stream.connector.writes import open_to_commit
from segstore_ds.stream.stream import Stream, context_of
from segstore_ds.write.micro_batch import BatchPlan
from segstore_ds.write.request import WriteRequest
from segstore_ds.write.staged import StagedTask

__all__ = ["MicroBatches", "commit_batch"]
_KEPT: dict[bytes, Stream] = {}
KEPT_HANDLES = 8
BATCH_SEGMENTS = 1000  # bounds the first micro-batch, which may cover all of the stream
BoundEnd = tuple[str, int]  # a cut as text, and the offset that it was resolved to


def commit_batch(
    storage: Storage, plan: BatchPlan, request: WriteRequest, tasks: Sequence[StagedTask]
) -> None:
    """Commit a micro-batch under its request's writer; a repeated one changes nothing."""
    if request.writer is None:
        raise InternalError("a micro-batch without a writer")
    stream = _open_kept(storage, plan.root.stream_id)
    job = plan.job_of(context_of(stream), request.writer, tasks)
    if job is not None:
        stream.commit(job, tasks)


def _open_kept(storage: Storage, stream_id: str) -> Stream:
    """Return the handle with which this process committed the previous batch, or a new one.

    An engine commits batch after batch in one process, and a kept handle sends fewer requests. A
    handle is not reused if the stream was created again meanwhile.
    """
    key = pickle.dumps(storage)
    kept = _KEPT.pop(key, None)
    try:
        if kept is None or context_of(kept.refresh()).log.root.stream_id != stream_id:
            kept = open_to_commit(storage)
    except NotFoundError:  # the stream of the handle was dropped
        kept = open_to_commit(storage)
    while len(_KEPT) >= KEPT_HANDLES:
        _KEPT.pop(next(iter(_KEPT)))
    _KEPT[key] = kept
    return kept


class MicroBatches:
    """Plans the batches of a query from `start` to `end`; sends no request before `follow`.

    `stream` is the handle that follows the log, `seen` the root that `follow` returned last. No
    batch goes past the offset `target`, if there is one.
    """

    def __init__(
        self,
        storage: Storage,
        start: str,
        end: str,
        *,
        most_rows: int | None = None,
        most_bytes: int | None = None,
        least_rows: int | None = None,
        most_delay_s: float = 0.0,
        fail_on_data_loss: bool,
        replicated: bool = False,
    ) -> None:
        self._context = new_context(StreamLog(storage))
        self.stream = Stream(self._context)
        self.seen: Root | None = None
        self._limits = BatchLimits(most_rows, most_bytes, BATCH_SEGMENTS)
        self._waiting = Waiting(self._context, least_rows, most_delay_s)
        self.target: int | None = None
        self._strict = fail_on_data_loss
        self._start = start
        self._end_text = end
        self._end_cut = _parse_end(end)
        self._end: int | None = None
        self._checked = False
        self._replicated = replicated
        self._shown: Root | None = None  # the newest that is acknowledged

    def follow(self) -> Root:
        """Return the newest root, or the newest that is acknowledged."""
        newest, shown = self._context.log.follow(), self._shown
        if self._replicated and (shown is None or shown.transaction != newest.transaction):
            self._shown = self._context.log.acknowledged()
        self.seen = self._root
        return self.seen

    @property
    def snapshot(self) -> Snapshot:
        """The version that `follow` returned last."""
        return Snapshot(self._context, self._root if self.seen is None else self.seen)

    @property
    def _root(self) -> Root:
        return self._context.log.root if self._shown is None else self._shown

    def begin(self) -> int:
        """Resolve the start to an offset."""
        root, cut = self._root, parse_cut(self._start)
        offset = resolve_cut(self._context, root, cut)
        if cut.kind == "tail" and self.target is not None:
            offset = min(offset, self.target)
        end = self._bound_end(root)
        if end is not None and end < offset and self._end_cut is not None:
            if self._end_cut.kind == EVENT_TIME:
                self._end = offset  # no event before that time is left
                return offset
            raise InvalidInputError(
                "start is after end", remedy="give a later end", start=offset, end=end
            )
        return offset

    @property
    def kept_end(self) -> BoundEnd | None:
        """An end at an event time with its offset; a restart must not resolve it again."""
        if self._end is None or self._end_cut is None or self._end_cut.kind != EVENT_TIME:
            return None
        return self._end_text, self._end

    def keep_end(self, bound: BoundEnd | None) -> None:
        """Use the end that an earlier run of the query resolved, unless it had another cut."""
        if bound is not None and bound[0] == self._end_text:
            self._end = bound[1]

    def check(self, position: Position, *, logged: bool) -> None:
        """Check a position; one that a checkpoint `logged` also against the log, once.

        After that the handle itself notices if commits that it has seen are gone.
        """
        check_position(self._root, position)
        if logged and not self._checked:
            check_held(self._context, position)
            self._checked = True

    def available(self) -> int:
        """Return the offset up to which the query may read, as of the newest root seen."""
        root = self._root
        bounds = (root.tail, self.target, self._bound_end(root))
        return min(bound for bound in bounds if bound is not None)

    def waits(self, start: int) -> bool:
        """Tell whether the events from an offset on are too few for a batch, and more may come."""
        available = self.available()
        ends = self.target is not None or (self._end is not None and available >= self._end)
        return not ends and self._waiting.holds(self._root, start, available)

    def end_of_batch(self, start: int, *, limited: bool) -> int:
        """Return the end of the batch that begins at an offset, within every limit if `limited`."""
        root = self._root
        first, last = check_range(
            root,
            start,
            max(self.available(), start),
            fail_on_data_loss=self._strict,
            url=self._context.storage.url,
        )
        if first < last and limited:
            segments = self._context.status.segments(root, first, last)
            return plan_batch_end(segments, first, last, self._limits)
        return last

    def _bound_end(self, root: Root) -> int | None:
        """Return the offset of the end once it is certain; None while it is in the future."""
        cut = self._end_cut
        if self._end is None and cut is not None:
            ahead = cut.kind == "version" and cut.value > root.version
            if ahead or (cut.kind == "time" and cut.value >= root.time_us):
                return None
            self._end = resolve_cut(self._context, root, cut, end=True)
        return self._end


def _parse_end(text: str) -> Cut | None:
    cut = parse_cut(text)
    if cut.kind == "head":
        raise InvalidInputError(
            "a streaming query can't end at the head", remedy="give an offset, or leave it out"
        )
    return None if cut.kind == "tail" else cut
