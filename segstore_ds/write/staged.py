"""What a task hands to whoever commits: segments that are durable, but that no commit names yet."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from segstore_ds.errors import InvalidInputError, StorageError
from segstore_ds.format import names
from segstore_ds.format.arrow.frame import Frame
from segstore_ds.format.arrow.index import SegmentSummary
from segstore_ds.format.batch_fingerprint import BatchFacts
from segstore_ds.format.fields import build_json
from segstore_ds.format.root import SegmentEntry
from segstore_ds.format.segment import ARROW
from segstore_ds.format.statistics import Stats, to_json
from segstore_ds.storage import Storage
from segstore_ds.write.segment_writer import SegmentStager

ENTRY_STATS_BYTES = 600  # what one segment may add to the root


@dataclass(frozen=True, slots=True)
class StagedSegment:
    """A segment object that was written and is durable, but not committed."""

    path: str
    rows: int
    bytes: int
    footer_bytes: int
    footer_crc: int
    stats: str | None
    format: str = ARROW
    followers: tuple[str, ...] = ()  # that took every buffer of it

    def entry(self, segment_id: int) -> SegmentEntry:
        """Return what a root lists of it under an id."""
        return SegmentEntry(
            segment_id=segment_id,
            path=self.path,
            rows=self.rows,
            bytes=self.bytes,
            footer_bytes=self.footer_bytes,
            footer_crc=self.footer_crc,
            format=self.format,
            stats=self.stats,
        )


@dataclass(frozen=True, slots=True)
class StagedTask:
    """What one task staged: segments, or the frames of one that was too small to be written.

    Travels from executor to driver: picklable, and small but for `frames`, which stay under
    `inline_bytes`.
    """

    task: int
    host: str
    rows: int
    segments: tuple[StagedSegment, ...] = ()
    frames: tuple[Frame, ...] = ()
    stats: Stats = field(default_factory=dict)  # of all its rows, as the batch's fingerprint has it

    @property
    def facts(self) -> BatchFacts:
        """What is known of its rows."""
        return BatchFacts(self.rows, self.stats)


def staged_segment(stager: SegmentStager, summary: SegmentSummary) -> StagedSegment:
    """Return what a commit needs of a segment that was finished with this summary."""
    return StagedSegment(
        path=stager.path,
        rows=summary.rows,
        bytes=summary.bytes,
        footer_bytes=summary.footer_bytes,
        footer_crc=summary.footer_crc,
        stats=entry_stats(summary.stats),
        format=stager.format,
        followers=stager.followers,
    )


def entry_stats(stats: Stats) -> str | None:
    """Return a segment's statistics for the table status: as many columns as its share holds."""
    kept: dict[str, Any] = {}
    used = 2
    for name, value in to_json(stats).items():
        used += len(build_json({name: value}))
        if used > ENTRY_STATS_BYTES:
            break
        kept[name] = value
    return build_json(kept).decode() if kept else None


def delete_staged(storage: Storage, segments: Iterable[StagedSegment]) -> None:
    """Delete staged objects that no commit can name; what fails is left for vacuum."""
    for segment in segments:
        for url in (None, *segment.followers):
            try:
                folder = storage if url is None else storage.sibling(url)
                folder.delete(names.segment_object(segment.path))
            except (StorageError, InvalidInputError):
                continue
