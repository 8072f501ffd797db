"""The streams of a folder as one source: a scan of all, and a loop over new events of any."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import pyarrow as pa

from segstore_ds.format.root import Root
from segstore_ds.log.clock import SYSTEM_CLOCK, Clock
from segstore_ds.log.context import StreamContext
from segstore_ds.observe.page import Rows
from segstore_ds.options.arguments import check_seconds, check_timeout, check_whole
from segstore_ds.options.quantities import Duration
from segstore_ds.read.cuts import CutLike
from segstore_ds.read.plan import Reading, whole_reading
from segstore_ds.read.progress import FolderBatches, Progress
from segstore_ds.read.scan import open_reader
from segstore_ds.read.together import STREAM_COLUMN, Plan, StreamFolder, Together
from segstore_ds.stream.follow import FIRST_WAIT_S, POLL_S

_AGAIN = "begin a new loop at this one's position: it continues with the new columns"


class StreamSet:
    """The streams of a folder as one source.

    Their columns are merged by name, each with a type that holds all its values, as `merge_schema`
    does; a stream that lacks one has null there. An extra column has the stream's name.

    Args:
        url: A folder and a pattern for the names in it, such as `s3://bucket/streams/*`.
        storage_options: As in `open`.
        stream_column: The name of the column with each event's stream.
        single_writer: As in `open`.
        clock: Time and ids.

    Raises:
        InvalidInputError: The last part of the location has no `*`, or another part has one.

    Examples:
        >>> streams = segstore.StreamSet("*")
        >>> pa.table(streams.scan(filters="n > 2 and stream == 'hello'")).to_pylist()
        [{'user': 'eve', 'n': 3, 'stream': 'hello'}]
    """

    def __init__(
        self,
        url: str,
        *,
        storage_options: Mapping[str, Any] | None = None,
        stream_column: str = STREAM_COLUMN,
        single_writer: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._folder = StreamFolder.open(
            url, storage_options, single_writer=single_writer, clock=clock
        )
        self._column = stream_column

    def __repr__(self) -> str:
        return f"<StreamSet {self._folder.url}>"

    def scan(
        self,
        start: CutLike = "head",
        end: CutLike = "tail",
        *,
        replicated: bool = False,
        **how: Any,
    ) -> Rows:
        """Return the events of all streams, each between two cuts, as of their newest versions.

        Args:
            start: 'head', 'tail', a time, or 'eventtime:T', in each stream.
            end: The event after the last, in the same forms.
            replicated: As for `Stream.scan`.
            how: Arguments of `Stream.scan`, but `limit`, `as_of` and `segment_column`. Streams that
                a filter on the stream column rules out are not read.

        Returns:
            The events, stream by stream in the order of names, and by offset in each.

        Raises:
            NotFoundError: There is no stream.
            SchemaMismatchError: No type holds the values of a column in two streams; names them.
            InvalidInputError: A stream has a column with the name of the stream column.

        Examples:
            >>> pa.table(segstore.StreamSet("*").scan(columns=["n"], filters="n < 2")).to_pylist()
            [{'n': 1, 'stream': 'hello'}]
        """
        together = Together(self._folder.apart(acknowledged=replicated).whole(), self._column)
        plans = together.plan(start, end, **how)
        schema = plans[0][2].result_schema
        return Rows(schema, lambda: pa.RecordBatchReader.from_batches(schema, _batches(plans)))

    def follow(
        self,
        *,
        start: CutLike = "tail",
        max_rows: int = 1 << 20,
        poll_s: float = POLL_S,
        timeout: Duration | None = None,
        replicated: bool = False,
        fail_on_data_loss: bool = True,
        **how: Any,
    ) -> "SetFollow":
        """Read events of all streams as they are committed: a loop over batches.

        A stream that is created later joins from its head. An idle stream is polled again after a
        sixteenth of the time since its last change, at most after 30 seconds.

        Args:
            start: As for `scan`, in the streams that exist, or the `position` of a loop.
            max_rows: Most events between two positions, shared fairly by the streams that have new
                ones.
            poll_s: Most seconds between two looks, which begin 5 ms apart after each batch.
            timeout: End when nothing came for so long: seconds, a timedelta or a text such as
                '30s'; None waits for ever.
            replicated: As for `scan`.
            fail_on_data_loss: False continues without streams that were dropped and without events
                before a head, with a warning in the log.
            how: `columns`, `filters`, `event_time`, `offset_column` and `commit_time_column`.

        Raises:
            NotFoundError: There is no stream; or, while it is read, one of them was dropped.
            SchemaMismatchError: As for `scan`; or a column that is read was renamed, dropped or
                replaced.

        Examples:
            >>> loop = segstore.StreamSet("*").follow(start="head", timeout=0)
            >>> [batch["n"].to_pylist() for batch in loop]
            [[1, 2, 3]]
            >>> [*segstore.StreamSet("*").follow(start=loop.position, timeout=0)]
            []
        """
        check_seconds("poll_s", poll_s, positive=True)
        before = None
        if isinstance(start, str) and start.startswith("{"):
            before, start = Progress.parse(json.loads(start)), "head"
        batches = FolderBatches(
            self._folder.apart(acknowledged=replicated),
            start,
            most_rows=check_whole("max_rows", max_rows, least=1),
            fail_on_data_loss=fail_on_data_loss,
        )
        how["fail_on_data_loss"] = fail_on_data_loss
        return SetFollow(
            batches,
            self._column,
            how,
            before,
            poll_s=poll_s,
            timeout_s=check_timeout("timeout", timeout),
        )


class SetFollow(Iterator[pa.RecordBatch]):
    """The batches of a set of streams as they are committed, made by `StreamSet.follow`.

    All have the columns of all streams. It ends when nothing came for the timeout.
    """

    def __init__(
        self,
        batches: FolderBatches,
        column: str,
        how: Mapping[str, Any],
        before: Progress | None,
        *,
        poll_s: float,
        timeout_s: float | None,
    ) -> None:
        self._batches, self._column, self._how = batches, column, how
        self._clock, self._poll_s, self._timeout_s = batches.folder.clock, poll_s, timeout_s
        self._wait_s, self._heard_s = FIRST_WAIT_S, self._clock.boot_s()
        if before is None:
            batches.folder.whole()
        else:
            batches.folder.look(whole=True)
        self._done = self._end = batches.begin() if before is None else before
        self._readings: dict[str, Reading] = {}
        self._given: Iterator[pa.RecordBatch] = iter(())

    @property
    def position(self) -> str:
        """Where to continue, as JSON for `start`.

        It moves once all events up to the next position are done; at most `max_rows` come again.
        """
        return self._done.to_json()

    def __iter__(self) -> Self:
        """Return this object."""
        return self

    def __next__(self) -> pa.RecordBatch:
        """Return the next batch, waiting for it; StopIteration at the timeout."""
        while (batch := self._next_given()) is None:
            self._done = self._end
            self._batches.folder.look()
            end = self._batches.next(self._done)
            streams, spans = self._batches.events(self._done, end)
            self._given, self._end = _batches(self._plan(streams, spans)), end
            if spans:
                continue
            silent_s = self._clock.boot_s() - self._heard_s
            if self._timeout_s is not None and silent_s >= self._timeout_s:
                raise StopIteration
            self._clock.sleep(min(self._wait_s, self._poll_s))
            self._wait_s *= 2
        self._wait_s, self._heard_s = FIRST_WAIT_S, self._clock.boot_s()
        return batch

    def _next_given(self) -> pa.RecordBatch | None:
        try:
            return next(self._given, None)
        except BaseException:
            self._given, self._end = iter(()), self._done  # the next call reads these events again
            raise

    def _plan(
        self,
        streams: Mapping[str, tuple[StreamContext, Root]],
        spans: Mapping[str, tuple[int, int]],
    ) -> Sequence[Plan]:
        if not spans:
            return ()
        plans = Together(streams, self._column).plan(spans=spans, **self._how)
        for _, _, reading in plans:
            before = self._readings.get(reading.stream_id, reading)
            before.check_goes_on(reading, remedy=_AGAIN)
            self._readings[reading.stream_id] = reading
        return plans


def _batches(plans: Sequence[Plan]) -> Iterator[pa.RecordBatch]:
    for context, root, reading in plans:
        yield from open_reader(reading, whole_reading(context, reading, root=root))
