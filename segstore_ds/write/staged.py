"""The result of a task: durable segments that no commit names yet."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from segstore_ds.errors import InvalidInputError, StorageError
from segstore_ds.format import names
from segstore_ds.format.arrow.frame import Frame
from segstore_ds.format.arrow.index import SegmentSummary
from segstore_ds.format.batch_fingerprint import BatchFacts
from segstore_ds.format.root import SegmentEntry
from segstore_ds.format.segment import ARROW
from segstore_ds.format.statistics import Stats, entry_stats
from segstore_ds.storage import Storage
from segstore_ds.write.segment_writer import SegmentWriter


@dataclass(frozen=True, slots=True)
class StagedSegment:
    """A segment object that is durable but not committed."""

    path: str
    rows: int
    bytes: int
    footer_bytes: int
    footer_crc: int
    stats: str | None
    format: str = ARROW
    mirrors: tuple[str, ...] = ()  # those that hold the whole object
    frames: int = 0
    frame_raws: int = 0

    def entry(self, segment_id: int) -> SegmentEntry:
        """Return the root's entry for this segment."""
        return SegmentEntry(
            segment_id=segment_id,
            path=self.path,
            rows=self.rows,
            bytes=self.bytes,
            footer_bytes=self.footer_bytes,
            footer_crc=self.footer_crc,
            format=self.format,
            stats=self.stats,
            frames=self.frames,
            frame_raws=self.frame_raws,
        )


@dataclass(frozen=True, slots=True)
class StagedTask:
    """What one task staged: segments, or inline frames if its output was too small for a segment.

    It travels from executor to driver: picklable, and small except for `frames`, which stay within
    `inline_bytes`.
    """

    task: int
    host: str
    rows: int
    segments: tuple[StagedSegment, ...] = ()
    frames: tuple[Frame, ...] = ()
    stats: Stats = field(default_factory=dict)  # of all rows, as the batch's fingerprint has them

    @property
    def facts(self) -> BatchFacts:
        """The number and statistics of its rows."""
        return BatchFacts(self.rows, self.stats)


def staged_segment(writer: SegmentWriter, summary: SegmentSummary) -> StagedSegment:
    """Return the staged segment for a writer that finished with this summary."""
    return StagedSegment(
        path=writer.path,
        rows=summary.rows,
        bytes=summary.bytes,
        footer_bytes=summary.footer_bytes,
        footer_crc=summary.footer_crc,
        stats=entry_stats(summary.stats),
        format=writer.format,
        mirrors=writer.mirrors,
        frames=len(summary.frames),
        frame_raws=summary.frame_raws,
    )


def mirrors_of(segments: Iterable[StagedSegment]) -> dict[str, frozenset[str]]:
    """Return which mirrors hold which staged object, as a commit takes it."""
    return {names.segment_object(one.path): frozenset(one.mirrors) for one in segments}


def delete_staged(storage: Storage, segments: Iterable[StagedSegment]) -> None:
    """Delete staged objects that no commit can name, best effort: vacuum deletes the rest."""
    for segment in segments:
        for url in (None, *segment.mirrors):
            try:
                folder = storage if url is None else storage.sibling(url)
                folder.delete(names.segment_object(segment.path))
            except (StorageError, InvalidInputError):
                continue
