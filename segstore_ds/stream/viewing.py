"""Views: what is known about a stream, as rows."""

from typing import Any

import pyarrow as pa

from segstore_ds.engine.views import find_view, plan_view, read_view
from segstore_ds.format.root import Root
from segstore_ds.stream.handle import Handle

SEGMENTS_PER_RANGE = 65_536


class Views(Handle):
    """The part of a stream that tells what is known about it."""

    def segments(self) -> pa.RecordBatchReader:
        """Return the segments that hold kept events, a row each, in offset order.

        Raises:
            FormatError: Metadata can't be read.
            StorageError: The storage failed.
        """
        return self.metadata("segments")

    def info(self) -> dict[str, Any]:
        """Return what the stream is as of now: its range, sizes, and what is kept of its past.

        Raises:
            FormatError: Metadata can't be read.
            StorageError: The storage failed.
        """
        row: dict[str, Any] = self.metadata("info").read_all().to_pylist()[0]
        return row

    def metadata(
        self, view: str, *, root: Root | None = None, span: tuple[int, int] | None = None
    ) -> pa.RecordBatchReader:
        """Return a view: `segments`, `frames`, `history`, `info`, `writers`, `readers`, `tags`.

        Rows come in batches as they are read; a million segments are never held at once.

        Args:
            view: Which.
            root: The version to look at; None for the newest.
            span: For a view by range: only the segments of these offsets, from `plan_metadata`.

        Raises:
            InvalidInputError: There is no such view.
            FormatError: Metadata can't be read.
            StorageError: The storage failed.
        """
        found = find_view(view)
        pinned = root or self._log.refresh()
        bounds = (pinned.head, pinned.tail) if span is None else span
        batches = read_view(self._log, self._status, pinned, found, bounds)
        return pa.RecordBatchReader.from_batches(found.schema, batches)

    def plan_metadata(self, view: str, *, root: Root | None = None) -> list[tuple[int, int]]:
        """Return the ranges of offsets that many processes read a view by; raises as `metadata`."""
        pinned = root or self._log.refresh()
        return plan_view(self._status, pinned, find_view(view), most_segments=SEGMENTS_PER_RANGE)
