"""A scan: events of one version, which are read whenever they are asked for."""

import random
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from segstore_ds.errors import InvalidInputError
from segstore_ds.format.root import Root
from segstore_ds.log.context import StreamContext
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.options import table as options
from segstore_ds.options.arguments import check_whole
from segstore_ds.read.filters.conditions import Filters, all_of
from segstore_ds.read.filters.given import FilterLike, parse_filters
from segstore_ds.read.frames import load
from segstore_ds.read.parquet_files import ParquetFile, list_parquet_files
from segstore_ds.read.plan import Reading, ReadTask, split_reading, whole_reading
from segstore_ds.read.scan import first_rows, open_reader
from segstore_ds.storage import Storage

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl
    from pyarrow import dataset


_NEAR_ROWS = 1 << 16  # the events between two sampled ones are read too, if they are not more


class ScanTask:
    """A part of a scan, for a process of its own: picklable, and iterated over as batches."""

    __slots__ = ("_reading", "_task")

    def __init__(self, reading: Reading, task: ReadTask) -> None:
        self._reading, self._task = reading, task

    @property
    def schema(self) -> pa.Schema:
        """The columns of the batches."""
        return self._reading.result_schema

    @property
    def start(self) -> int:
        """The offset of its first event, before filters; a lower bound where a segment is split.

        The parts of a segment are cut between frames, whose offsets are known when it is read.
        """
        first = self._task.slices[0]
        return first.start + max(first.rows[0], first.claim[0])

    @property
    def end(self) -> int:
        """The offset after its last event, before filters; an upper bound as `start` is a lower."""
        last = self._task.slices[-1]
        return last.start + last.rows[1]

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the events of this part in offset order.

        Errors are raised while it is read, as by a reader of the scan.

        Examples:
            >>> (task,) = stream.scan(columns=["n"]).tasks(n=1)
            >>> task.to_reader().read_all()["n"].to_pylist()
            [1, 2, 3]
        """
        return open_reader(self._reading, [self._task])

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self.to_reader())


class Scan:
    """Events of one version of a stream, in offset order; made by `Stream.scan`.

    Nothing is read before a method needs it, and each call reads again. Threads may share a scan,
    and it is picklable. Whatever takes Arrow's C stream takes it: `pa.table(scan)`,
    `pl.DataFrame(scan)`, DuckDB on a variable. These raise their own errors with the text of
    segstore's; the methods here raise segstore's.

    Raises:
        FormatError: Any method: metadata can't be read; a damaged segment raises while reading.
        SnapshotExpiredError: Any method: segments of the version were deleted after its grace.
    """

    __slots__ = ("context", "limit", "reading", "root")

    def __init__(
        self, context: StreamContext, root: Root, reading: Reading, limit: int | None = None
    ) -> None:
        limit = check_whole("limit", limit, optional=True)
        if limit is not None and not reading.filters:
            reading = replace(reading, end=min(reading.end, reading.start + limit))
            limit = None
        self.context, self.root, self.reading, self.limit = context, root, reading, limit

    @classmethod
    def at_root(cls, storage: Storage, root: Root, reading: Reading, limit: int | None) -> Self:
        """Return a scan as it was when it was pickled; sends no request."""
        log = StreamLog(storage)
        log.adopt(root)
        return cls(StreamContext.of(log), root, reading, limit)

    def __reduce__(self) -> tuple[Any, ...]:
        return Scan.at_root, (self.context.storage, self.root, self.reading, self.limit)

    def __repr__(self) -> str:
        url, version = self.context.storage.url, self.version
        return f"<Scan {url} version={version} start={self.start} end={self.end}>"

    @property
    def version(self) -> int:
        """The version of the stream."""
        return self.reading.version

    @property
    def start(self) -> int:
        """The offset of the first event."""
        return self.reading.start

    @property
    def end(self) -> int:
        """The offset after the last event."""
        return self.reading.end

    @property
    def schema(self) -> pa.Schema:
        """The columns of all events: those of the stream, then the extra ones."""
        return self.reading.result_schema

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the events as a reader of batches, which DuckDB, Polars and pandas take.

        Threads decode up to four frames at once; the order stays. Up to eight decoded frames may be
        held, and the one in use. That is 72 MiB if frames have 8 MiB, as most have. Of larger
        frames, at most 256 MiB or one frame is held. From object stores, eight threads fetch up to
        8 MiB of encoded frames each, within the same 256 MiB.

        The threads end with the last frame, or when nothing refers to the reader any more. Its
        `close` and `with` are pyarrow's and do nothing. Those of
        `pa.RecordBatchReader.from_stream(scan)` end the threads, but there an error is Arrow's. In
        a forked process, reading on raises InvalidInputError.

        Examples:
            >>> stream.scan(columns=["n"]).to_reader().read_all()["n"].to_pylist()
            [1, 2, 3]
        """
        reader = open_reader(
            self.reading, whole_reading(self.context, self.reading, root=self.root)
        )
        return reader if self.limit is None else first_rows(reader, self.limit)

    def to_arrow(self) -> pa.Table:
        """Return the events as a table of Arrow, all of them in memory.

        Examples:
            >>> stream.scan().to_arrow().num_rows
            3
        """
        return self.to_reader().read_all()

    def to_pandas(self, **how: Any) -> "pd.DataFrame":
        """Return the events as a DataFrame of pandas, all of them in memory.

        Args:
            how: Arguments of pyarrow's `Table.to_pandas`, such as `types_mapper`.

        Raises:
            InvalidInputError: pandas can't hold a value, such as a time of day in nanoseconds.

        Examples:
            >>> stream.scan(limit=2).to_pandas()["n"].tolist()
            [1, 2]
        """
        load("pandas")
        table = self.to_arrow()
        try:
            return table.to_pandas(**how)
        except MemoryError:
            raise
        except (pa.ArrowException, ArithmeticError) as error:
            raise InvalidInputError(
                "pandas can't hold the values of a column",
                remedy="leave it out with columns=[...], or keep Arrow's types with "
                "types_mapper=pandas.ArrowDtype",
                cause=str(error),
            ) from error

    def to_polars(self) -> "pl.LazyFrame":
        """Return the events as a LazyFrame of Polars, which reads them when it is collected.

        It reads only the columns, rows and segments that a query needs. On a local disk Polars
        reads Parquet segments itself if the scan has no cut, no filter and no extra column but
        offsets. Then segstore's checksums and its read cache are not used, and no copy replaces
        a damaged segment: if a file's footer is wrong, the rows are what Polars makes of it.

        Examples:
            >>> stream.scan().to_polars().select("n").sum().collect().item()
            6
        """
        frame = import_module("segstore_ds.stream.polars_scan").scan_events(self)
        return frame if self.limit is None else frame.head(self.limit)

    def to_duckdb(
        self, connection: "duckdb.DuckDBPyConnection | None" = None
    ) -> "duckdb.DuckDBPyRelation":
        """Return the events as a relation of DuckDB, all of them in memory.

        Args:
            connection: Of DuckDB; None for its default one.

        Examples:
            >>> stream.scan().to_duckdb().filter("n > 1").fetchall()
            [('bob', 2), ('eve', 3)]
        """
        return (connection or load("duckdb")).from_arrow(self.to_arrow())

    def to_dataset(self) -> "dataset.Dataset":
        """Return the events as a `pyarrow.dataset.Dataset`, for other libraries.

        It reads only the columns and events that a scanner needs. Picklable.

        Raises:
            InvalidInputError: The scan has both filters and a limit.

        Examples:
            >>> stream.scan().to_dataset().count_rows()
            3
        """
        self._refuse_limit("to_arrow()")
        return import_module("segstore_ds.stream.arrow_dataset").StreamDataset(self)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self.to_reader())

    def count(self) -> int:
        """Return how many events there are.

        Without filters, the version and the cuts say it: no segment is read. With filters, segments
        and frames are skipped by their statistics, and only the filtered columns are decoded.

        Examples:
            >>> stream.scan(filters=[["user", "==", "ada"]]).count()
            1
        """
        reading = replace(
            self.reading,
            columns=(),
            offset_column=None,
            segment_column=None,
            commit_time_column=None,
        )
        if not reading.filters:
            return reading.end - reading.start
        found = Scan(self.context, self.root, reading, self.limit)
        return sum(batch.num_rows for batch in found)

    def sample(self, n: int, *, seed: int | None = None) -> pa.Table:
        """Return random events, each equally likely and none twice; all if there are fewer.

        Only the frames that hold them, and those between near ones, are read. With filters their
        columns are read first, to know which events match.

        Args:
            n: How many events (>= 0).
            seed: The same one gives the same events of the same version; None for any.

        Returns:
            The events in offset order.

        Raises:
            InvalidInputError: The scan has both filters and a limit.

        Examples:
            >>> stream.scan().sample(2, seed=1).num_rows
            2
        """
        self._refuse_limit("to_arrow()")
        n = check_whole("n", n)
        offsets: Sequence[int] = range(self.start, self.end)
        if self.reading.filters:
            unused = max(self.reading.schema.names, key=len, default="") + "_"
            found = replace(
                self.reading,
                columns=(),
                offset_column=unused,
                segment_column=None,
                commit_time_column=None,
            )
            offsets = Scan(self.context, self.root, found).to_arrow()[unused].to_numpy()
        chosen = sorted(random.Random(seed).sample(range(len(offsets)), min(n, len(offsets))))
        reading = replace(self.reading, filters=Filters())
        parts = [self.schema.empty_table()]
        for run in _near([int(offsets[place]) for place in chosen]):
            part = replace(reading, start=run[0], end=run[-1] + 1)
            row = run[0]
            for batch in Scan(self.context, self.root, part):
                inside = bisect_left(run, row), bisect_left(run, row + batch.num_rows)
                places = [offset - row for offset in run[slice(*inside)]]
                if places:
                    parts.append(pa.Table.from_batches([batch]).take(places))
                row += batch.num_rows
        return pa.concat_tables(parts).combine_chunks()

    def tasks(
        self,
        n: int | None = None,
        *,
        partition_bytes: int = options.default("partitionBytes"),
        partition_rows: int | None = None,
    ) -> list[ScanTask]:
        """Split the scan into parts that any number of processes read.

        Args:
            n: At least this many, if there are enough frames; None for what the sizes give.
            partition_bytes: Encoded bytes of a part, approximately.
            partition_rows: Events of a part, approximately. Parts of less than half a frame decode
                the same frame each.

        Returns:
            Picklable parts in offset order; none if nothing can match.

        Raises:
            InvalidInputError: The scan has both filters and a limit.
            NotFoundError: The requested commit times are older than the stream's history.

        Examples:
            >>> _ = stream.append({"user": "ada", "n": 4})
            >>> tasks = stream.scan().tasks(partition_rows=3)  # each for a process of its own
            >>> [batch["n"].to_pylist() for task in tasks for batch in task]
            [[1, 2, 3], [4]]
        """
        self._refuse_limit("to_reader()")
        found = split_reading(
            self.context,
            self.reading,
            partition_bytes=partition_bytes,
            partition_rows=partition_rows,
            min_partitions=n,
            root=self.root,
        )
        return [ScanTask(self.reading, task) for task in found]

    def files(self, *, partial: bool = False) -> list[ParquetFile]:
        """List the plain Parquet files that hold the events, in offset order.

        Row n of a file is the event at its `start` + n. The events of the scan are exactly the rows
        ``[row_start, row_end)`` of each file: the first file may begin before the scan, and the
        last may end after it. After the version that lists a file is superseded, the file stays for
        the grace of upkeep.

        Args:
            partial: Leave out the events in Arrow segments, which are between the files; the other
                methods return them.

        Raises:
            InvalidInputError: The scan holds events in Arrow segments and `partial` is false; or it
                has filters, which files do not apply.

        Examples:
            >>> layout = segstore.Layout(segment_format="parquet", inline_bytes=0)
            >>> _ = stream.append({"user": "ada", "n": 4}, layout=layout)
            >>> [(file.start, file.end) for file in stream.scan(3).files()]
            [(3, 4)]
        """
        if self.reading.filters:
            raise InvalidInputError(
                "files hold all events, also those that a filter leaves out",
                remedy="list the files of a scan without filters",
            )
        return list_parquet_files(self.context.status, self.root, self.reading, partial=partial)

    def between(self, start: int, end: int) -> Self:
        """Return the scan of a part of the range, without the limit."""
        reading = replace(self.reading, start=start, end=end)
        return type(self)(self.context, self.root, reading)

    def plan_part(
        self, columns: Sequence[str], filters: FilterLike | Filters = None
    ) -> tuple[Reading, list[ReadTask]]:
        """Plan to read some of the columns, in no particular order, of the events that also match.

        The caller applies the limit.
        """
        found = self.reading
        names = ("offset_column", "segment_column", "commit_time_column")
        extra: dict[str, Any] = {
            name: None for name in names if getattr(found, name) not in columns
        }
        own = tuple(name for name in found.columns if name in columns)
        both = all_of([found.filters, parse_filters(filters, found.schema)])
        reading = replace(found, columns=own, filters=both, **extra)
        return reading, split_reading(self.context, reading, root=self.root)

    def _refuse_limit(self, instead: str) -> None:
        if self.limit is not None:
            raise InvalidInputError(
                "a scan with filters and a limit can't be divided",
                remedy=f"use {instead}, or leave the limit out",
                limit=self.limit,
            )


def _near(offsets: Sequence[int]) -> Iterator[list[int]]:
    """Yield ascending offsets in runs whose neighbours are near each other; see `_NEAR_ROWS`."""
    run: list[int] = []
    for offset in offsets:
        if run and offset - run[-1] > _NEAR_ROWS:
            yield run
            run = []
        run.append(offset)
    if run:
        yield run
