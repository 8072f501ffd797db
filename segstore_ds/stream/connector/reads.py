"""Reads: planned as of one version, a snapshot, in one process; tasks in others run them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa

from segstore_ds.errors import InvalidInputError
from segstore_ds.format.copies import origins_of
from segstore_ds.format.root import Root
from segstore_ds.format.segment import PARQUET
from segstore_ds.log.context import StreamContext
from segstore_ds.log.newest import ROOT_CODEC
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.options import table as options
from segstore_ds.read.cuts import CutLike, parse_cut, root_as_of
from segstore_ds.read.filters.conditions import Condition, Filters
from segstore_ds.read.filters.literals import NAN
from segstore_ds.read.parquet_files import ParquetFile, parquet_file
from segstore_ds.read.plan import Reading, ReadTask, plan_range, split_reading
from segstore_ds.read.request import plan_reading
from segstore_ds.status.epochs import stream_schema
from segstore_ds.storage import Storage, open_storage, resolve_location

__all__ = [
    "NAN",
    "Condition",
    "Filters",
    "ParquetFile",
    "Snapshot",
    "Storage",
    "open_snapshot",
    "open_storage",
    "parse_cut",
    "resolve_location",
]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One version of a stream; it looks for no newer one."""

    context: StreamContext
    root: Root

    @classmethod
    def at(cls, storage: Storage, pinned: bytes) -> Self:
        """Return the snapshot whose `pinned` bytes these are; sends no request."""
        log = StreamLog(storage)
        log.adopt(ROOT_CODEC.decode_file(pinned, "pinned"))
        return cls(StreamContext.of(log), log.root)

    @property
    def pinned(self) -> bytes:
        """The version as bytes, which a plan carries."""
        return ROOT_CODEC.encode_file(self.root)

    @property
    def is_short(self) -> bool:
        """Whether the root lists all segments, so that no request is sent to plan a read."""
        return not (self.root.lists or self.root.parts)

    @property
    def url(self) -> str:
        """The stream's canonical location."""
        return self.context.storage.url

    @property
    def storage(self) -> Storage:
        """The stream's folder."""
        return self.context.storage

    @property
    def owners(self) -> dict[str, tuple[int, int]]:
        """The owners of the writers that the root lists, and the offsets of their last batches."""
        writers = self.root.writers.values()
        return {writer.owner: (writer.end - writer.rows, writer.end) for writer in writers}

    @property
    def schema(self) -> pa.Schema:
        """The columns of the events, in stored form."""
        return stream_schema(self.context.status, self.root)

    @property
    def spark_schema(self) -> str | None:
        """Spark's JSON of the schema, or of some of its columns; None if Spark never wrote one."""
        return self.context.status.schema_texts(self.root.epoch)[1]

    def plan(
        self,
        start_cut: CutLike = "head",
        end_cut: CutLike = "tail",
        *,
        start_event_time: str | None = None,
        end_event_time: str | None = None,
        **how: Any,
    ) -> Reading:
        """Return the plan that all tasks of a read share; `how` is as for `Stream.scan`."""
        if (start_event_time, end_event_time) != (None, None):
            how["event_time"] = (start_event_time, end_event_time)
        return plan_reading(self.context, self.root, start_cut, end_cut, **how)

    def tasks(
        self,
        reading: Reading,
        *,
        partition_bytes: int = options.default("partitionBytes"),
        partition_rows: int | None = None,
        min_partitions: int | None = None,
    ) -> list[ReadTask]:
        """Split a read into tasks in offset order, for `run_task`; none if nothing can match."""
        return split_reading(
            self.context,
            reading,
            partition_bytes=partition_bytes,
            partition_rows=partition_rows,
            min_partitions=min_partitions,
            root=self.root,
        )

    def parquet(self, reading: Reading, epochs: Sequence[int]) -> tuple[list[ParquetFile], bool]:
        """Return the Parquet segments of a read that a plain Parquet reader reads as we do.

        They are those of the given epochs. The second value says whether they are the whole read.
        A read with commit times has none, since no file holds them; nor has a read of a clone that
        shares segments.
        """
        if reading.commit_time_column is not None or any(origins_of(self.root)):
            return [], False
        slices = plan_range(self.context.status, self.root, reading)
        plain = slices.select(PARQUET, epochs)
        return [parquet_file(placed, self.url) for placed in plain], len(plain) == len(slices)


def open_snapshot(
    storage: Storage,
    *,
    version_as_of: int | str | None = None,
    timestamp_as_of: Any = None,
    replicated_only: bool = False,
) -> Snapshot:
    """Open a stream at a version, or at the newest one; raises as `open` and `root_as_of`."""
    if version_as_of is not None and timestamp_as_of is not None:
        raise InvalidInputError(
            "both a version and a time were given to read as of",
            remedy="give version_as_of or timestamp_as_of",
            version=version_as_of,
            timestamp=timestamp_as_of,
        )
    log = StreamLog(storage)
    log.open()
    context = StreamContext.of(log)
    as_of = timestamp_as_of if version_as_of is None else version_as_of
    return Snapshot(context, root_as_of(context, as_of, replicated=replicated_only))
