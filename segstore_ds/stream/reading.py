"""Reading: ranges of events between two cuts."""

import datetime as dt
import os
from collections.abc import Sequence

import pyarrow as pa

from segstore_ds import options
from segstore_ds.errors import InvalidInputError
from segstore_ds.format.root import Root
from segstore_ds.options.arguments import check_option
from segstore_ds.read.cuts import CutLike
from segstore_ds.read.filters import FilterLike
from segstore_ds.read.plan import (
    Reading,
    ReadRequest,
    ReadTask,
    date_tasks,
    plan_range,
    plan_reading,
    plan_tasks,
)
from segstore_ds.read.scan import run_tasks
from segstore_ds.status.slices import SliceTable
from segstore_ds.stream.handle import Handle

READ_THREADS = 4  # frames decoded at once; twice as many are held, `AHEAD_BYTES` at most


class Reads(Handle):
    """The part of a stream that reads events."""

    def read(
        self,
        start: CutLike = "head",
        end: CutLike = "tail",
        *,
        columns: Sequence[str] | None = None,
        filters: FilterLike = None,
        offset_column: str | None = None,
        segment_column: str | None = None,
        commit_time_column: str | None = None,
        fail_on_data_loss: bool = True,
        version_as_of: int | None = None,
        timestamp_as_of: str | dt.datetime | None = None,
    ) -> pa.RecordBatchReader:
        """Read the events between two cuts, in offset order, as of one version.

        Args:
            start: First event; an offset, 'head', 'tail', 'version:N', 'tag:NAME', 'reader:NAME', a
                position, or a time with a zone.
            end: The event after the last, in the same forms.
            columns: Which columns, in order; None for all.
            filters: ``[column, op, literal]`` lists that must all hold; SQL's rules for null.
            offset_column: Name of an extra int64 column with each event's offset.
            segment_column: Name of an extra int64 column with each event's segment id.
            commit_time_column: Name of an extra column with the time of each event's commit (UTC).
            fail_on_data_loss: False starts at the head if the start is below it, with a warning in
                the log.
            version_as_of: Read this version; None for the newest.
            timestamp_as_of: Or the newest version at that time, a datetime or text with a zone.

        Returns:
            A reader that DuckDB, Polars and pandas take without a copy. Threads decode up to four
            frames at once; the order stays. Up to eight decoded frames may be held, and the one in
            use. That is 144 MiB if frames have 16 MiB, as most have. Of
            larger frames, at most 256 MiB or one frame is held.

            The threads end with the last frame, or when nothing refers to the reader any more. Its
            `close` and `with` are pyarrow's and do nothing. Those of
            `pa.RecordBatchReader.from_stream(stream.read())` end the threads, but there an error is
            Arrow's. In a forked process, reading on raises InvalidInputError.

        Raises:
            InvalidInputError: A cut, a column or a filter is not valid, or start is after end.
            PositionError: A cut beyond the tail, or a position of another stream or generation.
            TruncatedError: The start is below the head.
            NotFoundError: There is no such version; or the requested commit times are older than
                the stream's history.
            SnapshotExpiredError: The version was purged.
            FormatError: Metadata can't be read; a damaged segment raises while reading.
            StorageError: The storage failed.
        """
        self._log.refresh()
        root = self.root_as_of(version=version_as_of, timestamp=timestamp_as_of)
        request = ReadRequest(
            start,
            end,
            columns=columns,
            filters=filters,
            offset_column=offset_column,
            segment_column=segment_column,
            commit_time_column=commit_time_column,
            fail_on_data_loss=fail_on_data_loss,
        )
        reading = plan_reading(self._context, root, request)
        tasks = self.plan_tasks(reading, root=root)
        threads = min(os.cpu_count() or 1, READ_THREADS)
        # Not bound to a name: only the reader may hold the generator, so that its end is seen.
        return pa.RecordBatchReader.from_batches(
            reading.result_schema, run_tasks(reading, tasks, threads=threads)
        )

    def plan_read(
        self,
        start: CutLike = "head",
        end: CutLike = "tail",
        *,
        columns: Sequence[str] | None = None,
        filters: FilterLike = None,
        offset_column: str | None = None,
        segment_column: str | None = None,
        commit_time_column: str | None = None,
        fail_on_data_loss: bool = True,
        root: Root | None = None,
    ) -> Reading:
        """Bind a read to a version and to offsets; `plan_tasks` splits it into tasks.

        Cuts, columns and errors are those of `read`.

        Args:
            start: First event.
            end: The event after the last.
            columns: Which columns, in order; None for all.
            filters: Conditions that must all hold.
            offset_column: Name of an extra column with offsets.
            segment_column: Name of an extra column with segment ids.
            commit_time_column: Name of an extra column with commit times.
            fail_on_data_loss: False starts at the head if the start is below it.
            root: The version to read as of; None for the newest that this handle has seen.

        Returns:
            What all tasks share; picklable.
        """
        request = ReadRequest(
            start,
            end,
            columns=columns,
            filters=filters,
            offset_column=offset_column,
            segment_column=segment_column,
            commit_time_column=commit_time_column,
            fail_on_data_loss=fail_on_data_loss,
        )
        return plan_reading(self._context, root or self._log.root, request)

    def plan_slices(self, reading: Reading, *, root: Root | None = None) -> SliceTable:
        """Return which rows of each segment a bound read takes, in offset order.

        Args:
            reading: From `plan_read`.
            root: The version that the read is bound to, if the caller has it; None looks it up.

        Raises:
            As `plan_tasks`.
        """
        return plan_range(self._status, self._bound(reading, root), reading)

    def plan_tasks(
        self,
        reading: Reading,
        *,
        partition_bytes: int = options.default("partitionBytes"),
        partition_rows: int | None = None,
        min_partitions: int | None = None,
        root: Root | None = None,
    ) -> list[ReadTask]:
        """Split a bound read into tasks that any number of processes carry out with `run_task`.

        Args:
            reading: From `plan_read`.
            partition_bytes: Encoded bytes per task, approximately.
            partition_rows: Rows per task, approximately.
            min_partitions: The wanted least number of tasks.
            root: The version that the read is bound to, if the caller has it; None looks it up.

        Returns:
            Picklable tasks in offset order; none if nothing can match.

        Raises:
            InvalidInputError: The read is bound to another stream or version, or a target is not a
                whole number from 1.
            SnapshotExpiredError: Its version was purged.
            NotFoundError: The requested commit times are older than the stream's history.
            FormatError: A status part can't be read.
            StorageError: The storage failed.
        """
        pinned = self._bound(reading, root)
        tasks = plan_tasks(
            plan_range(self._status, pinned, reading),
            partition_bytes=check_option("partition_bytes", partition_bytes),
            partition_rows=check_option("partition_rows", partition_rows),
            min_partitions=check_option("min_partitions", min_partitions),
        )
        if reading.commit_time_column is None:
            return tasks
        return date_tasks(self._log.history, pinned, reading, tasks)

    def _bound(self, reading: Reading, root: Root | None) -> Root:
        """Return the version that a read is bound to."""
        pinned = root or self._log.read_version(reading.version)
        if (pinned.stream_id, pinned.version) != (reading.stream_id, reading.version):
            raise InvalidInputError(
                "read is bound to another stream or version",
                bound=(reading.stream_id, reading.version),
                given=(pinned.stream_id, pinned.version),
            )
        return pinned
