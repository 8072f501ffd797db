"""The root: the content of one commit file, from which everything else is found (FORMAT.md 3).

A root is an immutable value, which `root_codec` encodes and decodes. Fields that a newer writer
added are carried through unchanged in `extra`. Features are stored by name: this version of
segstore cannot read a stream with an unknown reader feature, and cannot change one with an unknown
writer feature.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from segstore_ds.errors import UnsupportedVersionError
from segstore_ds.format.fields import check_known
from segstore_ds.format.parts.history_rows import (
    HistoryRow,
)

ROOT_FORMAT = 1  # On disk. Never change; add a new one.
ROOT_RAW_LIMIT_BYTES = 4 << 20
# On disk: names of features that this version can read, or write. Format 1 needs none: a later
# version adds a name where this one would misread its streams, or damage them.
READER_FEATURES: frozenset[str] = frozenset()
WRITER_FEATURES: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class BlobRef:
    """An immutable status object, named by digest, for what no longer fits in the root."""

    path: str
    bytes: int
    count: int = 0


@dataclass(frozen=True, slots=True)
class Epoch:
    """One schema of the stream, numbered from 0.

    Exactly one of `schema` (base64 of the Arrow IPC schema) and `blob` is set. `spark` is Spark's
    own JSON of the schema if Spark wrote it; a blob stores both.
    """

    number: int
    since: int
    schema: str | None
    spark: str | None
    blob: BlobRef | None = None


@dataclass(frozen=True, slots=True)
class InlineFrame:
    """The only frame of an inline segment, as it lies in the commit file.

    `crc` is the CRC-32 that the bytes should have; nothing has compared it. `raw_bytes` is the size
    of the frame's buffers once decompressed, `fingerprint` the digest of its schema.
    """

    data: bytes
    crc: int
    raw_bytes: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """One committed segment; its position in the list determines its offset.

    A segment with a `frame` is inline: it has no object. Its path, size and footer are those of the
    object that `format.inline` makes of it in memory, so readers need not tell the two apart.

    `frames` is the number of its frames, and `frame_raws` their decompressed size in units of
    64 KiB; both are 0 if the entry does not say.
    """

    segment_id: int
    path: str
    rows: int
    bytes: int
    footer_bytes: int
    footer_crc: int
    format: str = "arrow"
    stats: str | None = None
    frame: InlineFrame | None = None
    frames: int = 0
    frame_raws: int = 0

    @property
    def epoch(self) -> int:
        """The schema epoch of its bytes."""
        return self.segment_id >> 32


@dataclass(frozen=True, slots=True)
class PartTimes:
    """What is known of the times of a part's events.

    Attributes:
        column: The kind and the name of the time column, as in fingerprints of batches.
        bounds: What no time is outside of, both None if no event has a time; None if not known.
    """

    column: str
    bounds: tuple[Any, Any] | None


@dataclass(frozen=True, slots=True)
class PartRef:
    """A reference to a part, or to a list of parts, of the segments or of the history.

    Attributes:
        path: The object; its name holds its digest.
        start: First offset of its segments, or version of its rows.
        end: The offset or version after the last.
        count: How many segments or rows it lists, itself or in its parts.
        bytes: Length of its envelope; statistics may follow it.
        time_us: Commit time of the first version; 0 for segments.
        last_us: Commit time of the last version; 0 for segments.
        times: What a root says of the events' times; None where nobody has looked. It is not in the
            part's row.
    """

    path: str
    start: int
    end: int
    count: int
    bytes: int
    time_us: int = 0
    last_us: int = 0
    times: PartTimes | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Retired:
    """An object that a commit dropped from the stream.

    Kind ``segment`` is a segment's path, ``status`` is a status object alone, and ``part`` is a
    status part together with every segment that it lists.
    """

    kind: str
    path: str
    version: int
    time_us: int


@dataclass(frozen=True, slots=True)
class Writer:
    """The last commit of a writer id; `fingerprint` is that of the batch, if it has one."""

    owner: str
    batch_id: int
    version: int
    rows: int
    end: int
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class LastUpkeep:
    """The newest commit of an upkeep; `swept`: tokens of versions below it have no orphans left."""

    version: int
    time_us: int
    swept: int


@dataclass(frozen=True, slots=True)
class Root:
    """The state of a stream as of one version; the glossary defines each word."""

    stream_id: str
    version: int
    transaction: str
    parent: str
    time_us: int
    operation: str
    epochs: tuple[Epoch, ...]
    generation: int = 0
    head: int = 0
    tail: int = 0
    sealed: bool = False
    dropped: bool = False
    next_segment: int = 0
    log_start: int = 0
    staging_floor: int = 0
    upkeep: LastUpkeep | None = None
    restored: int | None = 0
    lists: tuple[PartRef, ...] = ()
    parts: tuple[PartRef, ...] = ()
    entries: tuple[SegmentEntry, ...] = ()
    retired: tuple[Retired, ...] = ()
    retired_blobs: tuple[BlobRef, ...] = ()
    writers: Mapping[str, Writer] = field(default_factory=dict)
    writers_blob: BlobRef | None = None
    tags: Mapping[str, Any] = field(default_factory=dict)
    tags_blob: BlobRef | None = None
    pins: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, Any] = field(default_factory=dict)
    copies: Mapping[str, Any] = field(default_factory=dict)
    redactions: Mapping[str, Any] = field(default_factory=dict)
    history: tuple[HistoryRow, ...] = ()
    history_parts: tuple[PartRef, ...] = ()
    history_lists: tuple[PartRef, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    reader_features: tuple[str, ...] = ()
    writer_features: tuple[str, ...] = ()
    client: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def epoch(self) -> Epoch:
        """The newest epoch, whose schema appended data has."""
        return self.epochs[-1]

    @property
    def listed_start(self) -> int:
        """The offset of the first listed event; the head is at or after it."""
        refs = (*self.lists, *self.parts)
        return refs[0].start if refs else self.inline_start

    @property
    def inline_start(self) -> int:
        """The offset of the first event of `entries`."""
        return self.tail - sum(entry.rows for entry in self.entries)

    @property
    def inline_bytes(self) -> int:
        """The size of the frames that lie behind the body of the commit file."""
        return sum(len(entry.frame.data) for entry in self.entries if entry.frame)


def check_writable(root: Root) -> None:
    """Raise UnsupportedVersionError if the stream needs an unknown writer feature."""
    unknown = check_known(root.writer_features, WRITER_FEATURES)
    if unknown:
        raise UnsupportedVersionError(
            "stream needs writer features this version lacks",
            remedy="write with a newer version of segstore-ds; this version can still read it",
            features=unknown,
        )
