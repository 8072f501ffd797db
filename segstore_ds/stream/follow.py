"""Following a stream: its events as they are committed, on a handle of its own.

A poll that finds nothing sends one small request. The wait between two polls doubles from 5 ms up
to `poll_s`, and starts at 5 ms again after events. A member of a reader reads the range that it has
leased.

With dead letters, the record that says that a batch is done also names the next one, which is
therefore fetched first. A batch that was given out before is read alone, as a range of its own.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Self, TypeVar

import pyarrow as pa

from segstore_ds.errors import (
    ConflictError,
    InvalidInputError,
    LeaseLostError,
    SegstoreError,
    TruncatedError,
)
from segstore_ds.format.reader_record import Delivery
from segstore_ds.format.root import Root
from segstore_ds.log.context import StreamContext
from segstore_ds.options.arguments import check_duration
from segstore_ds.options.quantities import Duration
from segstore_ds.read.cuts import CutLike, Position, parse_cut, resolve_cut
from segstore_ds.read.micro_batch import Waiting
from segstore_ds.read.plan import whole_reading
from segstore_ds.read.request import plan_reading
from segstore_ds.read.scan import open_reader
from segstore_ds.retention.key_share import check_key
from segstore_ds.retention.members import MemberReader, join_reader
from segstore_ds.retention.readers import NamedReader, register_reader
from segstore_ds.status.epochs import stream_schema
from segstore_ds.storage import UrlLike
from segstore_ds.stream.dead_letters import DeadLetters, check_reason, check_rows

POLL_S = 0.05
FIRST_WAIT_S = 0.005
_HIDDEN = "__segstore_offset"
_PASSED = "follow again with start='head' to continue without them"
_AGAIN = "start again: it continues with the first event that was not returned, in the new columns"
T = TypeVar("T")


class Follow(Iterator[pa.RecordBatch]):
    """The batches of a stream from a position on, made by `Stream.follow`.

    It ends with a seal, or when nothing came for the timeout.

    Use it in one `for`. A batch counts as done when the loop asks for the next one: only then a
    named reader's position passes it. A member leaves its reader when the loop has ended, and when
    nothing refers to this object any more, as after a `break` out of
    ``for batch in stream.follow(...)``; `close`, or a `with`, does so before. After an error the
    next batch is the first one that was not returned: no event is lost.

    Attributes:
        offset: The offset of the first event that is not done; of a member, in its range.
        reader: The named reader that publishes, or None.
    """

    def __init__(
        self,
        context: StreamContext,
        how: Mapping[str, Any],
        *,
        name: str | None,
        owner: str,
        member: str | None,
        key: Sequence[str] | None,
        lease: Duration,
        start: CutLike | None,
        poll_s: float,
        timeout_s: float | None,
        least_rows: int | None,
        most_rows: int | None,
        delay_s: float,
        replicated: bool,
        dead_letters: UrlLike | None,
        most_deliveries: int,
    ) -> None:
        _check_sharing(name, member, is_asked=key is not None or dead_letters is not None)
        self._key = [*(key or ())]
        self._handed = False  # whether a batch was returned since the last publication
        how, self._hidden = _with_hidden(how, self._key)
        self._context, self._how = context, how
        self._poll_s, self._timeout_s = poll_s, timeout_s
        self._heard_s = context.clock.boot_s()  # when the last batch was returned
        self._waiting = Waiting(context, least_rows, delay_s)
        self._replicated, self._most_rows = replicated, most_rows
        self._wait_s = FIRST_WAIT_S
        self._batches: Iterator[pa.RecordBatch] | None = None
        self._ended = False
        root = self._seen = context.log.refresh()  # the newest root that continues what was read
        if name is None and replicated:
            root = context.log.acknowledged()
        cut = None if start is None else parse_cut(start)
        self._reading = plan_reading(context, root, root.tail, root.tail, **how)
        self.reader: NamedReader | None = None
        self._member: MemberReader | None = None
        self._letters: DeadLetters | None = None
        self._most_deliveries = most_deliveries
        self._offsets: pa.Array | None = None  # of the batch returned last, if read with offsets
        if key is not None:
            check_key(stream_schema(context.status, root), self._key)
        if dead_letters is not None:
            self._letters = DeadLetters(context, dead_letters, name or "", how)
        if member is not None and name is not None:
            join = partial(
                join_reader,
                owner=owner,
                member=member,
                lease=lease,
                start=cut,
                writes_letters=self._letters is not None,
                key=self._key,
            )
            self.reader = self._member = _retry(partial(join, context, name))
            offset = self.reader.offset
        elif name is not None:
            register = partial(register_reader, owner=owner, start=cut)
            self.reader = _retry(partial(register, context, name))
            offset = self.reader.offset
        else:
            offset = root.tail if cut is None else resolve_cut(context, root, cut)
        self._next = self._upto = self.offset = offset
        self._turn = None if self._member is None else self._member.turn

    def __iter__(self) -> Self:
        """Return this object."""
        return self

    def __next__(self) -> pa.RecordBatch:
        """Return the next batch, waiting for it; StopIteration at a seal or the timeout."""
        while isinstance(found := self.poll(), float):
            if found < 0:
                raise StopIteration
            self._context.clock.sleep(found)
        return found

    def poll(self) -> pa.RecordBatch | float:
        """Return the next batch, or the seconds until the next poll; -1 after the end."""
        batch = self._take()
        if batch is not None:
            return batch
        if not self._is_over():
            return self._back_off()
        self.close()
        return -1.0

    @property
    def ended(self) -> bool:
        """Whether a seal ended it: no event can follow."""
        return self._ended

    def __enter__(self) -> Self:
        """Return this object."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def publish(self) -> None:
        """Count every batch that was returned as done, as asking for the next one does."""
        own, passed = self._member, self._next > self.offset
        quiet = self._key and not self._handed  # at most, events of other members were passed
        if quiet and own is not None and not own.lapses and not (passed and own.may_skip):
            return
        self.offset = self._next
        if self.reader is not None and (self.reader.offset < self.offset or self.reader.lapses):
            try:
                _retry(partial(self.reader.publish, self.offset))
            except LeaseLostError:
                self._batches, self._handed = None, False
                raise
            self._switch()
        self._handed = False

    def renew(self) -> None:
        """Keep a member's lease while the batch that was returned last takes longer than that."""
        own = self._member
        if own is None:
            return
        _retry(partial(own.renew, self._next if self._handed or not self._key else self.offset))
        if own.offset != self.offset:  # without a batch it may have got another range
            self._switch()

    def give_back(self, *, delay: Duration = 0) -> None:
        """Give back the batch that was returned last: it is not done, and is given out again.

        This member continues with the next batch.

        Args:
            delay: How long the others wait, each from when it sees the record: seconds, a timedelta
                or a text.

        Raises:
            InvalidInputError: This is no member, or there is no batch to give back.
            LeaseLostError: Others have got it already.
        """
        delay_s = check_duration("delay", delay)
        self._turn_down(partial(self._given().give_back, self._next, delay_s=delay_s or 0))

    def reject(self, reason: str, *, rows: Sequence[int] | None = None) -> None:
        """Send the batch that was returned last to the dead letters: it counts as done.

        It is written there once, before the position passes it, by this member or by another.

        Args:
            reason: Why; a text of at most 200 characters, longer ones are cut.
            rows: Only these rows of the batch, counted from 0; the others were dealt with.

        Raises:
            InvalidInputError: There are no dead letters, no batch, or not these rows.
            LeaseLostError: Others have got it already.
        """
        own, reason = self._given(), check_reason(reason)
        if self._letters is None:
            raise InvalidInputError(
                "there is no stream of dead letters", remedy="follow with dead_letters=<url>"
            )
        offsets = check_rows(rows, self._offsets, range(self.offset, self._next))
        self._turn_down(partial(own.give_back, self._next, reason=reason, rows=offsets))

    def _given(self) -> MemberReader:
        """Return the member, if it has a batch that is not done."""
        own = self._member
        if own is None or own.left or not self._handed or self._next == self.offset:
            raise InvalidInputError(
                "there is no batch to give back",
                remedy="follow as a member, and give back what came last",
            )
        return own

    def _turn_down(self, give_back: Callable[[], None]) -> None:
        _retry(give_back)
        self.offset, self._handed = self._next, False
        self._switch()

    def __del__(self) -> None:
        """Leave the reader as `close` does, in a thread: this one may hold any lock."""
        own: MemberReader | None = getattr(self, "_member", None)
        if own is None or own.left or sys.is_finalizing() or not self._context.clock.background:
            return
        with suppress(RuntimeError):  # no thread starts at the end of a process
            self._context.clock.start(partial(_leave, own), "segstore-leave")

    def close(self) -> None:
        """Leave the reader, if this is a member: others get at once what is not done yet."""
        self._batches = None
        if self._member is not None:
            self._member.leave()
            self._next = self.offset

    def _switch(self) -> None:
        """Switch to the range that the member has leased, if that is not being read."""
        own = self._member
        if own is None:
            return
        if own.offset != self.offset or own.end < self._upto or not self._is_turn(own):
            self._batches, self._turn = None, own.turn
            self._next = self._upto = self.offset = own.offset

    def _is_turn(self, own: MemberReader) -> bool:
        """Tell whether the member's turn is the one being read: other keys begin elsewhere."""
        before, now = self._turn, own.turn
        return before is not None and (before.buckets, before.delivery) == (
            now.buckets,
            now.delivery,
        )

    def _readable(self, root: Root) -> int:
        """Return the offset up to which events may be read."""
        if self._member is None:
            return root.tail
        if self._member.offset < min(self._member.end, root.head):
            self.renew()  # if this process was suspended, others may have done its range
        end = self._take_range(self._member, root.tail)
        # If it was suspended after it found this root, others may have read beyond its tail.
        return max(min(end, root.tail), self._next)

    def _take_range(self, own: MemberReader, tail: int) -> int:
        """Take a range if there is none; return the end of its first delivery, or of new events."""
        while True:
            _retry(partial(own.take, tail))
            self._switch()
            delivery, letters = own.delivery, self._letters
            if delivery is None:
                return own.end
            if delivery.letter is None:
                if letters is None or delivery.count < self._most_deliveries:
                    return min(own.end, delivery.end)
                reason = f"given out {delivery.count} times, and never done"
                _retry(partial(own.give_back, delivery.end, reason=reason))
            elif letters is None:  # only members with dead letters can write it
                _retry(partial(own.give_back, delivery.end))
            else:
                self._write_letter(own, delivery, letters)
            self._switch()

    def _write_letter(self, own: MemberReader, delivery: Delivery, letters: DeadLetters) -> None:
        """Write a dead letter and count it as done, unless others have done so meanwhile."""
        root = self._context.log.root
        if not self._keeps_keys(root):
            return
        letters.write(delivery, self._seen, root, own.pick, partial(own.owes, delivery))
        with suppress(LeaseLostError):
            _retry(partial(own.publish, delivery.end))

    def _keeps_keys(self, root: Root) -> bool:
        """Tell whether keys have the values that buckets go by; if not, begin again by the new."""
        own = self._member
        if own is None or own.is_based_on(root):
            return True
        _retry(partial(own.rebase, root))
        self._batches, self._turn = None, own.turn
        self._next = self._upto = self.offset = own.offset
        return False

    def _take(self) -> pa.RecordBatch | None:
        """Return the next committed batch, or None; the one returned last counts as done."""
        if self._letters is None or self._batches is None:
            self.publish()
        while (batches := self._batches or self._look()) is not None:
            try:
                batch = next(batches, None)
            except BaseException:
                self._batches = None  # the next call reads again: what was not returned is not done
                raise
            if batch is not None and self._key:
                batch = self._own_events(batch)
                if not batch.num_rows:
                    continue
            if batch is not None:
                self._wait_s, self._heard_s = FIRST_WAIT_S, self._context.clock.boot_s()
                if (given := self._give_out(batch)) is not None:
                    return given
                continue
            self._batches, self._next = None, self._upto
            self.publish()
        return None

    def _give_out(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Return a batch for the caller; if deliveries are counted, write first that it is given.

        None if it is not in the member's range any more.
        """
        start = self._next
        batch = self._without_offsets(batch)
        own, self._handed = self._member, True
        if own is not None:
            own.hand()
        if self._letters is None or own is None:
            return batch
        self.offset = start
        try:
            is_given = _retry(partial(own.give_out, start, self._next))
        except SegstoreError as error:
            self._batches, self._next = None, start
            if isinstance(error, LeaseLostError):
                self._next = self._upto = self.offset = own.offset
            raise
        if own.end < self._upto:
            self._batches = None  # others have joined, or a batch was given back
        if not is_given:
            self._batches, self._next, self._handed = None, start, False
            self._switch()
            return None
        return batch

    def _look(self) -> Iterator[pa.RecordBatch] | None:
        """Begin to read what was committed since the last look; None if there is nothing."""
        log, before = self._context.log, self._seen
        root = log.follow()
        same = (root.stream_id, root.generation) == (before.stream_id, before.generation)
        if same:
            self._seen = root
            self._keeps_keys(root)
        end = self._readable(root)
        if end == self._next and same:
            settled = root.tail if self._member is None else self._member.settled
            self._ended = root.sealed and settled >= root.tail
            return None
        if self._replicated:
            root = log.acknowledged()
            end = min(end, root.tail)
            if end <= self._next and same:
                return None
        waits = same and end == root.tail and self._waiting.holds(root, self._next, end)
        if waits and not self._is_over():
            return None
        if self._member is not None and not self._member.is_based_on(root):
            return None  # others have begun again by a later root
        # The position holds the root seen before: the read checks that it continues that history.
        start = Position.of(before, self._next)
        try:
            reading = plan_reading(self._context, root, start, end, **self._how)
        except TruncatedError as error:
            raise TruncatedError(error.fact, remedy=_PASSED, **error.fields) from error
        self._reading.check_goes_on(reading, remedy=_AGAIN)
        self._reading = reading
        tasks = whole_reading(self._context, reading, root=root)
        found, self._upto = open_reader(reading, tasks), end
        if self._turn is None or self._turn.delivery is None:
            self._batches = _pieces(found, self._most_rows)
        else:  # it is given out again as the same batch
            self._batches = iter(found.read_all().combine_chunks().to_batches())
        return self._batches

    def _own_events(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the events of a batch that are in this member's buckets; it passes the others."""
        own = self._member
        if own is None:
            return batch
        mine = own.pick(batch, self._how["offset_column"])
        if not mine.any():
            self._next = batch.column(self._how["offset_column"])[-1].as_py() + 1
        return batch if mine.all() else batch.filter(pa.array(mine))

    def _without_offsets(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        column = self._how["offset_column"]
        if column is None:
            self._offsets, self._next = None, self._next + batch.num_rows
            return batch
        self._offsets = batch.column(column)
        self._next = self._offsets[-1].as_py() + 1
        hidden = [name for name in batch.schema.names if name in {_HIDDEN, *self._hidden}]
        return batch.drop_columns(hidden) if hidden else batch

    def _is_over(self) -> bool:
        silent_s = self._context.clock.boot_s() - self._heard_s
        return self._ended or (self._timeout_s is not None and silent_s >= self._timeout_s)

    def _back_off(self) -> float:
        wait_s = min(self._wait_s, self._poll_s)
        self._wait_s = 2 * wait_s
        return wait_s


def _check_sharing(name: str | None, member: str | None, *, is_asked: bool) -> None:
    if member is not None and name is None:
        raise InvalidInputError(
            "a member needs a reader to share", remedy="give the reader's name as well"
        )
    if member is None and is_asked:
        raise InvalidInputError(
            "only members of a reader share by key, or write dead letters",
            remedy="give the reader's name and a member as well",
        )


def _with_hidden(
    how: Mapping[str, Any], key: list[str]
) -> tuple[Mapping[str, Any], frozenset[str]]:
    """Return the arguments of a read with the columns that are needed here, and those to hide."""
    filtered = how["filters"] is not None or how["event_time"] is not None
    if (filtered or key) and how["offset_column"] is None:
        how = {**how, "offset_column": _HIDDEN}  # some events are left out
    hidden = frozenset(key) - {*(key if how["columns"] is None else how["columns"])}
    if hidden:
        how = {**how, "columns": [*how["columns"], *sorted(hidden)]}
    return how, hidden


def _pieces(batches: Iterable[pa.RecordBatch], most: int | None) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = most or batch.num_rows
        yield from (batch.slice(at, rows) for at in range(0, batch.num_rows, rows))


def _retry(call: Callable[[], T]) -> T:
    """Repeat a call as long as it loses races; each time another process has made progress."""
    while True:
        try:
            return call()
        except ConflictError as error:
            if isinstance(error, LeaseLostError) or not error.retryable:
                raise


def _leave(member: MemberReader) -> None:
    with suppress(SegstoreError):  # its lease ends by itself
        member.leave()
