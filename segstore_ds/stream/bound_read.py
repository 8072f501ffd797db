"""A read that is bound to a version and a range, and is carried out any number of times."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import pyarrow as pa

from segstore_ds.format.root import Root
from segstore_ds.log.context import StreamContext
from segstore_ds.read.filters import FilterLike, Filters
from segstore_ds.read.plan import Reading, split_reading
from segstore_ds.read.request import ReadRequest, plan_reading
from segstore_ds.read.scan import open_reader


@dataclass(frozen=True, slots=True)
class BoundRead:
    """Events of one version, for whoever asks later, and from any thread.

    Attributes:
        context: Of the handle that bound it; each reading has one of its own.
        root: The version.
        request: What is read, with offsets as cuts.
        reading: Its plan.
    """

    context: StreamContext
    root: Root
    request: ReadRequest
    reading: Reading

    @classmethod
    def of(cls, context: StreamContext, root: Root, request: ReadRequest) -> Self:
        """Bind a request to a version."""
        reading = plan_reading(context, root, request)
        return cls(context, root, replace(request, start=reading.start, end=reading.end), reading)

    @property
    def schema(self) -> pa.Schema:
        """The columns of all events: those of the stream, then the extra ones."""
        return self.reading.result_schema

    def between(self, start: int, end: int) -> Self:
        """Return a read of a part of the range."""
        return type(self).of(self.context, self.root, replace(self.request, start=start, end=end))

    def open(
        self, columns: Sequence[str] | None = None, filters: FilterLike | Filters = None
    ) -> pa.RecordBatchReader:
        """Read events anew: some of the columns, in no particular order, of those that match."""
        asked = self.schema.names if columns is None else columns
        wanted = {*asked}
        asked_extra = (
            name if name in wanted else None
            for name in (
                self.request.offset_column,
                self.request.segment_column,
                self.request.commit_time_column,
            )
        )
        offset, segment, time = asked_extra
        request = replace(
            self.request,
            columns=[name for name in self.reading.columns if name in wanted],
            filters=filters,
            offset_column=offset,
            segment_column=segment,
            commit_time_column=time,
        )
        context = self.context.apart()
        reading = plan_reading(context, self.root, request)
        return open_reader(reading, split_reading(context, reading, root=self.root))
