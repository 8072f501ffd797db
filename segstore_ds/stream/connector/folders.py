"""Folders of streams: planned as of one version of each; a task may read parts of many."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa

from segstore_ds.format.root import Root
from segstore_ds.log.context import StreamContext
from segstore_ds.options import table as options
from segstore_ds.read.cuts import CutLike
from segstore_ds.read.plan import Reading, ReadTask, split_reading
from segstore_ds.read.progress import FolderBatches, Progress
from segstore_ds.read.together import STREAM_COLUMN, Plan, StreamFolder, Together
from segstore_ds.storage import split_pattern
from segstore_ds.stream.connector.reads import Snapshot

__all__ = ["Folder"]

# What one task reads, with the owners of each stream's writers.
Part = list[tuple[Reading, ReadTask, dict[str, tuple[int, int]]]]


class FolderSnapshot(Together):
    """One version of each stream of a folder, planned by the options of the table."""

    @property
    def pinned(self) -> dict[str, bytes]:
        """The versions as bytes, which a plan carries."""
        return {name: Snapshot(*found).pinned for name, found in self.streams.items()}

    def plan(  # type: ignore[override]
        self,
        start_cut: CutLike = "head",
        end_cut: CutLike = "tail",
        *,
        start_event_time: str | None = None,
        end_event_time: str | None = None,
        **how: Any,
    ) -> list[Plan]:
        """Plan a read by the options of the table, of all streams or of `spans`."""
        if (start_event_time, end_event_time) != (None, None):
            how["event_time"] = (start_event_time, end_event_time)
        return super().plan(start_cut, end_cut, **how)

    def tasks(
        self,
        plans: Sequence[Plan],
        *,
        partition_bytes: int = options.default("partitionBytes"),
        min_partitions: int | None = None,
    ) -> list[Part]:
        """Split plans into parts of about one size; one may hold events of many small streams."""
        each = min_partitions and -(-min_partitions // max(len(plans), 1))
        tasks = [
            (reading, task, Snapshot(context, root).owners)
            for context, root, reading in plans
            for task in split_reading(
                context, reading, root=root, partition_bytes=partition_bytes, min_partitions=each
            )
        ]
        sizes = [sum([placed.entry.bytes for placed in task.slices]) for _, task, _ in tasks]
        if min_partitions:
            partition_bytes = min(partition_bytes, sum(sizes) // min_partitions)
        parts: list[Part] = []
        left = -1
        for found, size in zip(tasks, sizes, strict=True):
            if size > left:
                parts.append([])
                left = partition_bytes
            parts[-1].append(found)
            left -= size
        return parts


@dataclass(frozen=True, slots=True)
class Folder:
    """The streams that a location with a pattern names; sends no request by itself."""

    streams: StreamFolder
    column: str

    @classmethod
    def named(
        cls,
        url: str,
        storage_options: Mapping[str, Any] | None,
        *,
        single_writer: bool,
        replicated_only: bool,
        stream_column: str | None,
    ) -> Self:
        """Return the folder of a location, as `StreamFolder.open`."""
        streams = StreamFolder.open(url, storage_options, single_writer=single_writer)
        return cls(streams.apart(acknowledged=replicated_only), stream_column or STREAM_COLUMN)

    @staticmethod
    def is_named(url: str) -> bool:
        """Tell whether a location names a folder's streams, and not one stream."""
        return split_pattern(url) is not None

    def snapshot(self, pinned: Mapping[str, bytes] | None = None) -> FolderSnapshot:
        """Return the versions that a plan carries, or the newest ones."""
        if pinned is None:
            return self.some(self.streams.whole())
        found = {name: Snapshot.at(self.streams.inner(name), pinned[name]) for name in pinned}
        return self.some({name: (each.context, each.root) for name, each in found.items()})

    def some(
        self, streams: Mapping[str, tuple[StreamContext, Root]], columns: pa.Schema | None = None
    ) -> FolderSnapshot:
        """Return some streams at their versions, with columns that the schema has in any case."""
        return FolderSnapshot(streams, self.column, columns)

    def batches(self, start: str, **how: Any) -> FolderBatches:
        """Return the planner of a query's batches."""
        return FolderBatches(self.streams, start, **how)

    @staticmethod
    def progress(offset: Mapping[str, Any]) -> Progress | None:
        """Return the progress in a query's offset; None for the initial offset."""
        return None if "cut" in offset else Progress.parse(offset)
