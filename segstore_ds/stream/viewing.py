"""Metadata tables: what is known about a stream, as rows."""

import datetime as dt
from typing import Any

import pyarrow as pa

from segstore_ds.format.root import Root
from segstore_ds.log.copy_record import check_complete
from segstore_ds.read.cuts import CutLike, check_range, parse_cut, resolve_cut
from segstore_ds.read.metadata_tables import find_table, plan_table, read_table
from segstore_ds.read.parquet_files import ParquetFile, list_parquet_files
from segstore_ds.stream.handle import Handle

SEGMENTS_PER_RANGE = 65_536
_ALWAYS = ("info", "history")  # hold no events, so they are readable while a copy is not done


class Views(Handle):
    """The part of a stream that returns its metadata tables and its Parquet files."""

    def segments(self) -> pa.RecordBatchReader:
        """Return the segments that hold kept events, one row each, in offset order.

        Raises:
            FormatError: Metadata can't be read.
            StorageError: The storage failed.
        """
        return self.metadata("segments")

    def parquet_files(
        self,
        start: CutLike = "head",
        end: CutLike = "tail",
        *,
        version_as_of: int | None = None,
        timestamp_as_of: str | dt.datetime | None = None,
        partial: bool = False,
        root: Root | None = None,
    ) -> list[ParquetFile]:
        """List the plain Parquet files that hold the events between two cuts, in offset order.

        Row n of a file is the event at its `start` + n. The events of the range are exactly the
        rows ``[row_start, row_end)`` of each file: the first file may begin before `start`, and the
        last may end after `end`. After the version that lists a file is superseded, the file stays
        for vacuum's grace.

        Args:
            start: First event; any form of cut.
            end: The event after the last, in the same forms.
            version_as_of: Look at this version; None for the newest.
            timestamp_as_of: Or the newest version at that time, a datetime or text with a zone.
            partial: Leave out the events in Arrow segments, which are between the files; `read`
                returns them.
            root: Or this root.

        Raises:
            InvalidInputError: A cut is not valid, or start is after end; or the range holds events
                in Arrow segments and `partial` is false.
            PositionError: A cut beyond the tail, or a position of another stream or generation.
            TruncatedError: The start is below the head.
            NotFoundError: There is no such version.
            SnapshotExpiredError: The version was purged.
            FormatError: Metadata can't be read.
            StorageError: The storage failed.
        """
        if root is None:
            self._log.refresh()
            root = self.root_as_of(version=version_as_of, timestamp=timestamp_as_of)
        first, last = (resolve_cut(self._context, root, parse_cut(cut)) for cut in (start, end))
        bounds = check_range(root, first, last, fail_on_data_loss=True)
        url = self._log.storage.url
        return list_parquet_files(self._status, root, bounds, url=url, partial=partial)

    def info(self) -> dict[str, Any]:
        """Return the stream's current range and sizes, and what is kept of its past.

        Raises:
            FormatError: Metadata can't be read.
            StorageError: The storage failed.
        """
        row: dict[str, Any] = self.metadata("info").read_all().to_pylist()[0]
        return row

    def metadata(
        self, table: str, *, root: Root | None = None, span: tuple[int, int] | None = None
    ) -> pa.RecordBatchReader:
        """Return a metadata table, one of the names below, as batches.

        They are `segments`, `frames`, `history`, `info`, `writers`, `readers` and `tags`. Rows come
        in batches as they are read; a million segments are never held at once.

        Args:
            table: The table's name.
            root: The version to look at; None for the newest.
            span: For a table by range: only the segments of these offsets, from `plan_metadata`.

        Raises:
            InvalidInputError: There is no such table.
            IncompleteStreamError: A copy into the stream is not done; `info` and `history` still
                work.
            FormatError: Metadata can't be read.
            StorageError: The storage failed.
        """
        found = find_table(table)
        pinned = root or self._log.refresh()
        if table not in _ALWAYS:
            check_complete(pinned, url=self.url)
        bounds = (pinned.head, pinned.tail) if span is None else span
        batches = read_table(self._context, pinned, found, bounds)
        return pa.RecordBatchReader.from_batches(found.schema, batches)

    def plan_metadata(self, table: str, *, root: Root | None = None) -> list[tuple[int, int]]:
        """Return offset ranges for reading a metadata table in parallel; raises as `metadata`."""
        pinned = root or self._log.refresh()
        return plan_table(self._status, pinned, find_table(table), most_segments=SEGMENTS_PER_RANGE)
