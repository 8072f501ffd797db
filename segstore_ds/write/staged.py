"""The result of a task: durable segments that no commit names yet."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from segstore_ds.errors import InvalidInputError, StagedExpiredError, StorageError
from segstore_ds.format import names
from segstore_ds.format.arrow.frame import Frame
from segstore_ds.format.batch_fingerprint import BatchFacts
from segstore_ds.format.root import Root, SegmentEntry
from segstore_ds.storage import Storage

# Rows that broke a rule, and the reason for each.
Refused = tuple[pa.RecordBatch, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class StagedTask:
    """What one task staged: segments, or inline frames if its output was too small for a segment.

    It is sent from executor to driver: picklable, and small; `frames` stay within `inline_bytes`.
    """

    task: int
    host: str
    facts: BatchFacts  # of all rows except those that rules refused
    segments: tuple[SegmentEntry, ...] = ()
    frames: tuple[Frame, ...] = ()
    refused: tuple[Refused, ...] = field(default=(), repr=False)

    @property
    def rows(self) -> int:
        """How many rows it received."""
        return self.facts.rows


def check_floor(root: Root, token: str) -> None:
    """Raise StagedExpiredError if objects staged under a token may be deleted already. Pure."""
    version = names.parse_token_version(token)
    if version is not None and version < root.staging_floor:
        raise StagedExpiredError(
            "staged objects are too old to be committed",
            token=token,
            staging_floor=root.staging_floor,
        )


def delete_staged(storage: Storage, segments: Iterable[SegmentEntry]) -> None:
    """Delete staged objects that no commit can name, best effort: upkeep deletes what is left."""
    for segment in segments:
        for url in (None, *segment.mirrors):
            try:
                folder = storage if url is None else storage.sibling(url)
                folder.delete(names.segment_object(segment.path))
            except (StorageError, InvalidInputError):
                continue
