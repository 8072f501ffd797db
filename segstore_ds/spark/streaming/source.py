"""The streaming source: offsets, how far each micro-batch goes, and what its tasks read.

One process asks for offsets and partitions over the life of a query. It keeps a handle on the log
and sends one small request per idle poll. The tasks' copy of the reader holds only the columns.

The start of a query must be resolved only once. Until Spark has logged the first batch, it asks for
the initial offset again at every restart; by then `tail` has moved, and `version:3` may be purged.
So the initial offset is the cut itself, which takes no request, and every later offset has the
offset that the cut was resolved to, as `origin`. The two differ as text, so Spark logs a first
batch at once, even an empty one.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from segstore_ds import NamedReader, Position, Stream
from segstore_ds.errors import (
    CommitUnknownError,
    InvalidInputError,
    PositionError,
    SchemaMismatchError,
    SegstoreError,
    StorageError,
    TruncatedError,
)
from segstore_ds.spark.batch.planning import plan_reading, plan_tasks, project
from segstore_ds.spark.batch.slices import slice_batches
from segstore_ds.spark.boundary import at_boundary
from segstore_ds.spark.versions import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from segstore_ds.spark.workers import QUERY_ID
from segstore_ds.stream.connector.queries import MicroBatches
from segstore_ds.stream.connector.reads import Snapshot, Storage, parse_cut
from segstore_ds.stream.connector.tasks import Reading

_LOG = logging.getLogger(__name__)
AGAIN = "load it again and restart the query: it continues with this batch, in the new columns"
_ENDS_EARLY = (
    "the first batch goes from %d to %d of %d: this Spark passes no limits, so the source applies "
    "those of its options; with the triggers AvailableNow and Once the query ends after this batch"
)
_TOKEN_DIGITS = 16


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """What Spark stores of a query's progress: a position, and the offset where the query began.

    `reader` is the token that owns the query's named reader; "" for a query without one. `end` is
    the cut where the query ends, with its offset, if it is an event time.
    """

    position: Position
    origin: int
    reader: str = ""
    end: tuple[str, int] | None = None

    def to_value(self) -> dict[str, Any]:
        """Return the canonical value: Spark compares its JSON as text."""
        value = {**self.position.to_value(), "origin": self.origin}
        if self.reader:
            value["reader"] = self.reader
        if self.end is not None:
            value["end"] = dict(zip(("cut", "offset"), self.end, strict=True))
        return dict(sorted(value.items()))

    def at(self, position: Position) -> "StreamOffset":
        """Return the same query at another position."""
        return replace(self, position=position)


def parse_offset(value: Mapping[str, Any]) -> StreamOffset | None:
    """Return the offset that Spark passes back; None for the initial one. Pure."""
    match value:
        case {"cut": str()}:
            return None
        case {
            "generation": int(generation),
            "offset": int(offset),
            "origin": int(origin),
            "stream": str(stream),
        } if 0 <= origin <= offset:
            seen = (int(value.get("version", 0)), str(value.get("transaction", "")))
            reader = str(value.get("reader", ""))
            position = Position(stream, generation, offset, *seen)
            return StreamOffset(position, origin, reader, _parse_end(value.get("end")))
    raise PositionError(
        "the checkpoint's offset was not written by segstore",
        remedy="the checkpoint belongs to another query; choose another checkpointLocation",
        offset=dict(value),
    )


def _parse_end(value: object) -> tuple[str, int] | None:
    match value:
        case {"cut": str(cut), "offset": int(offset)}:
            return cut, offset
    return None


@at_boundary
class RefusedReader(DataSourceStreamReader):
    """Replaces a reader whose options are not valid: Spark's first call raises the error."""

    def __init__(self, error: SegstoreError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        """Raise the error."""
        raise self._error

    def latestOffset(self, *_: Any) -> dict[str, Any]:
        """Raise the error."""
        raise self._error

    def partitions(self, *_: Any) -> list[InputPartition]:
        """Raise the error."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """Raise the error; there is no partition to read."""
        raise self._error


@at_boundary
class SegstoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Answers Spark's questions about one streaming query, and reads its partitions."""

    def __init__(
        self,
        storage: Storage,
        options: Mapping[str, Any],
        schema: StructType,
        *,
        takes_all: bool,
    ) -> None:
        _check_minimum(options)
        self._options = options
        self._takes_all = takes_all and options["columns"] is None  # the user named no columns
        self._schema = schema
        self._batches = MicroBatches(
            storage,
            options["startCut"],
            options["endCut"],
            most_rows=options["maxRowsPerTrigger"],
            most_bytes=options["maxBytesPerTrigger"],
            least_rows=options["minRowsPerTrigger"],
            most_delay_s=options["maxTriggerDelay"],
            fail_on_data_loss=options["failOnDataLoss"],
            replicated=options["replicatedOnly"],
        )
        self._origin: StreamOffset | None = None
        self._reading: Reading | None = None  # of the last batch
        # For a Spark that passes no start: the last end planned, and the last one returned.
        self._planned: StreamOffset | None = None
        self._returned: StreamOffset | None = None
        self._published: PublishedPosition | None = None
        if options["takeover"] and options["readerName"] is None:
            raise InvalidInputError("takeover needs a name", remedy="give readerName as well")
        if (name := options["readerName"]) is not None:
            parse_cut(f"reader:{name}")  # raises for an invalid name
            strict = options["failOnDataLoss"]
            self._published = PublishedPosition(
                self._batches.stream, name, fail_on_data_loss=strict
            )

    def __getstate__(self) -> dict[str, Any]:
        return {"_schema": self._schema}

    # Offsets are planned in the one process that lives as long as the query.
    def initialOffset(self) -> dict[str, Any]:
        """Return the start as a cut, not resolved; see the module."""
        return {"cut": self._options["startCut"]}

    def prepareForTriggerAvailableNow(self) -> None:
        """Use the current tail as the query's end; raises as `latestOffset`."""
        self._batches.target = self._batches.follow().tail

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return one limit that stands for all limits of a batch; Spark knows only one."""
        return ReadMaxFiles(1)

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return the next batch's end: within every limit, never back, never past `endCut`.

        If the new events are too few and wait for more, it is the start.

        Spark before 4.2 passes neither argument. It asks for the end of a batch only after the
        batch before, and makes a batch of each answer, with or without a call of `partitions`. When
        a query restarts, it first plans an empty batch at the newest end in its checkpoint.
        """
        root = self._batches.follow()
        given = self._planned if start is None else parse_offset(start)
        begun = given or self._begin(root)
        self._batches.keep_end(begun.end)
        self._batches.check(begun.position, logged=given is not None)
        offset = begun.position.offset
        if self._published is not None:
            token = self._published.hold(offset, given.reader if given else "")
            begun = replace(begun, reader=token)
        if start is None and self._returned is not None:
            begun = max(begun, self._returned, key=lambda each: each.position.offset)
            offset = begun.position.offset
        available = self._batches.available()
        begun = replace(begun, end=self._batches.kept_end)
        due = not available <= offset <= root.tail
        if due and not (self._may_wait(start, limit) and self._batches.waits(offset)):
            last = self._batches.end_of_batch(offset, limited=self._is_limited(limit))
            begun = begun.at(Position.of(root, last))
            if start is None and last < available and self._returned is None:
                _LOG.warning(_ENDS_EARLY, offset, last, available)
        self._returned = begun
        return begun.to_value()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the tail as last seen, so that progress shows how far behind a query is."""
        root = self._batches.seen
        if root is None:
            return None
        tail = {"generation": root.generation, "offset": root.tail, "stream": root.stream_id}
        return {**tail, "url": self._batches.stream.url}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan the tasks of a batch on the newest version; every version holds the same events."""
        finish = parse_offset(end)
        if finish is None:
            return []
        begun = parse_offset(start) or finish.at(replace(finish.position, offset=finish.origin))
        self._batches.follow()
        self._batches.check(begun.position, logged=False)
        self._batches.check(finish.position, logged=True)
        self._planned = finish
        first, last = begun.position.offset, finish.position.offset
        if last < first:  # Spark used an answer from before it passed the checkpoint's offset
            raise PositionError(
                "Spark asks for a batch that ends before it begins: events would be repeated",
                remedy="unset spark.sql.streaming.triggerAvailableNowWrapper.enabled",
                start=first,
                end=last,
            )
        if first == last:
            return []
        snapshot = self._batches.snapshot
        reading = self._plan(snapshot, {"startCut": first, "endCut": last})
        tasks = plan_tasks(snapshot, self._options, reading)
        return [InputPartition([(reading, task, snapshot.owners)]) for task in tasks]

    def commit(self, end: dict[str, Any]) -> None:
        """Publish the position, if the query has a `readerName`."""
        finish = parse_offset(end)
        if self._published is not None and finish is not None:
            self._published.publish(finish.position.offset, finish.reader)

    def stop(self) -> None:
        """Do nothing; Spark may also end a query without this call."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of a partition in offset order.

        Raises:
            InvalidInputError: The query writes to the stream, so it would never end. Only a task
                knows the query's id, and the stream has it only after a committed batch.
        """
        if partition is None or partition.value is None:
            return
        context = TaskContext.get()
        query = context.getLocalProperty(QUERY_ID) if context else None
        for reading, task, owners in partition.value:
            if query in owners:
                raise InvalidInputError(
                    "the query writes to the stream that it reads",
                    remedy="write to another stream; the committed batch stays, at these offsets",
                    stream=reading.stream_id,
                    written=owners[query],
                )
            yield from slice_batches(reading, self._schema, task)

    def _plan(self, snapshot: Snapshot, cuts: Mapping[str, int]) -> Reading:
        """Plan a batch with the columns that the query began with."""
        columns = self._check_columns(snapshot, self._reading is not None)
        reading: Reading = plan_reading(snapshot, {**self._options, **cuts, "columns": columns})
        if self._reading is not None:
            self._reading.check_goes_on(reading, remedy=AGAIN)
        self._reading = reading
        return reading

    def _check_columns(self, snapshot: Any, begun: bool) -> tuple[str, ...]:
        """Return the columns of the stream that the query reads.

        Raises:
            SchemaMismatchError: They changed since the query began, or there are new ones and the
                user has not named those to read; nothing of the batch is read.
        """
        try:
            columns = project(snapshot, self._options, self._schema)
        except SchemaMismatchError as error:
            if not begun:
                raise
            raise SchemaMismatchError(error.fact, remedy=AGAIN, **error.fields) from error
        new = sorted({*snapshot.schema.names}.difference(columns))
        if new and self._takes_all:
            raise SchemaMismatchError(
                "the stream has columns that the query does not read",
                remedy=f"{AGAIN}; or name those to read in the option columns",
                new_columns=new,
            )
        return columns

    def _is_limited(self, limit: ReadLimit | None) -> bool:
        """Tell whether limits apply: as Spark says, or else if an option sets one."""
        if limit is not None:
            return not isinstance(limit, ReadAllAvailable)
        given = (self._options["maxRowsPerTrigger"], self._options["maxBytesPerTrigger"])
        return given != (None, None)

    def _may_wait(self, start: dict[str, Any] | None, limit: ReadLimit | None) -> bool:
        """Tell whether few events may wait for more; with the trigger `Once` they never do.

        A Spark that passes no limit may run `Once` or `AvailableNow`, which ask a single time. So,
        as in Spark's source for Kafka, the first batch of a query never waits.
        """
        if start is None and limit is None:
            return self._returned is not None
        return not isinstance(limit, ReadAllAvailable)

    def _begin(self, root: Any) -> StreamOffset:
        """Resolve the start, once in this process."""
        if self._origin is None:
            offset = self._batches.begin()
            if self._published is not None and self._options["takeover"]:
                offset = self._published.take_over(offset)
            self._origin = StreamOffset(Position.of(root, offset), offset)
        return self._origin


def _check_minimum(options: Mapping[str, Any]) -> None:
    least, most = options["minRowsPerTrigger"], options["maxRowsPerTrigger"]
    if None not in (least, most) and least > most:
        raise InvalidInputError(
            "minRowsPerTrigger is above maxRowsPerTrigger",
            remedy="a batch could never hold that many: raise the maximum or lower the minimum",
            minRowsPerTrigger=least,
            maxRowsPerTrigger=most,
        )


def _new_token() -> str:
    return uuid4().hex[:_TOKEN_DIGITS]


class PublishedPosition:
    """The position that a query publishes under `readerName`, so that retention waits for it.

    Spark asks for the next batch only after the previous one is committed, so the query is done
    with everything before the offset that Spark then names. Spark asks once more when a query with
    `AvailableNow`, or one that has reached its `endCut`, finds nothing left; so that position is
    published too. A query that ends in another way (`Trigger.Once`, `stop()`, a kill) publishes its
    last position when it starts again.

    Spark does not tell a source its query's id. So the reader's owner is a token that the offsets
    in the checkpoint carry; until Spark has logged it, the registration is provisional. With
    `fail_on_data_loss` a position below the head is an error.
    """

    def __init__(self, stream: Stream, name: str, *, fail_on_data_loss: bool) -> None:
        self._stream = stream
        self._name = name
        self._fail_on_data_loss = fail_on_data_loss
        self._reader: NamedReader | None = None
        self._provisional = True
        self._token = ""

    def hold(self, offset: int, logged: str) -> str:
        """Register at an offset, or publish that the query is done with everything before it.

        `logged` is the token in the offset that Spark passed, or "". Returns the token that the
        next offset must carry.
        """
        self._token = logged or self._token or _new_token()
        provisional = not logged
        if self._reader is None:
            self._reader = self._register(offset, provisional=provisional)
            self._provisional = provisional
        elif offset > self._reader.offset or self._reader.lapses or provisional < self._provisional:
            self._publish(self._reader, offset, provisional=provisional)
        return self._token

    def take_over(self, offset: int) -> int:
        """Take the name from its owner, and return its position; `offset` if there is no reader."""
        known = self._name in {seen.name for seen in self._stream.readers}
        self._token = _new_token()
        start = None if known else offset
        self._reader = self._register(start, provisional=True, takeover=True)
        return self._reader.offset

    def publish(self, offset: int, logged: str) -> None:
        """Publish what Spark has committed, if this query has registered; raises as `hold`."""
        reader = self._reader
        if reader is not None and logged == self._token and offset > reader.offset:
            self._publish(reader, offset, provisional=False)

    def _publish(self, reader: NamedReader, offset: int, *, provisional: bool) -> None:
        try:
            reader.publish(offset, provisional=provisional)
        except (StorageError, CommitUnknownError) as error:
            # The earlier position keeps more events; the next batch publishes again.
            _LOG.warning("position of reader %r was not published: %s", self._name, error)
        else:
            self._provisional = provisional

    def _register(
        self, offset: int | None, *, provisional: bool, takeover: bool = False
    ) -> NamedReader:
        for _ in range(10):
            try:
                owner = f"query:{self._token}"
                return self._stream.readers.register(
                    self._name,
                    owner=owner,
                    start=offset,
                    takeover=takeover,
                    provisional=provisional,
                )
            except TruncatedError as error:
                if self._fail_on_data_loss:
                    raise
                _LOG.warning("reader %r continues at the head: %s", self._name, error)
                offset = self._stream.head
        raise StorageError("the head moves faster than a reader can register", reader=self._name)
