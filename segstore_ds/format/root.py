"""The root: the content of one commit file, from which everything else is found (FORMAT.md 3).

A root is an immutable value. The types of its fields and of its rows say how they are stored, and
which input is corrupt (`format.record`). Fields that a newer writer added are carried through
unchanged in `extra`. Features are stored by name: this version of segstore cannot read a stream
with an unknown reader feature, and cannot change one with an unknown writer feature.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Annotated, Any, Self, TypeVar

from segstore_ds.errors import CorruptionError, UnsupportedVersionError
from segstore_ds.format import names
from segstore_ds.format.arrow.frame import ALIGNMENT
from segstore_ds.format.batch_fingerprint import decode_fingerprint
from segstore_ds.format.record import (
    ABSENT,
    UNSTORED,
    Limit,
    Positive,
    Range,
    Row,
    TimeUs,
    build_json,
    from_json,
    is_text,
    parse_json,
    take_format,
    to_json,
)

ROOT_FORMAT = 1  # On disk. Never change; add a new one.
COLUMN_NAMES = "column-names"  # On disk: the feature that `Epoch.names` needs. Never change.
TIME_COLUMN = "time_column"  # On disk: the property that names the time column. Never change.
# On disk: the property that holds rules for appended events, and its feature. Never change.
RULES_PROPERTY = "rules"
ROOT_RAW_LIMIT_BYTES = 4 << 20
TAGS_BYTES = 8_320  # most bytes of tags in the root: about 200 with names of ten characters
TAG_BYTES, KEPT_BYTES = 30, 170  # per tag besides its name, and per version that a tag keeps
SHOWN_TAGS = 50  # most tags that an error lists
# Features that this version can read, or write. A new feature is needed if earlier versions would
# misread or damage a stream.
NANOSECONDS = "nanoseconds"  # On disk: schemas with times in nanoseconds. Never change.
READER_FEATURES = frozenset((COLUMN_NAMES, NANOSECONDS))
WRITER_FEATURES = frozenset((COLUMN_NAMES, RULES_PROPERTY))


T = TypeVar("T")
_Id = Annotated[str, Limit(100)]
_Text = Annotated[str, Limit(1000)]
_StatusPath = Annotated[str, Limit(300), names.check_status_path]
_Fingerprint = Annotated[str, Limit(1000), decode_fingerprint]
# For loops in C: a root has hundreds of rows.
_rows_of, _number_of, _data_of = attrgetter("rows"), attrgetter("number"), attrgetter("data")
frame_of = attrgetter("frame")


@dataclass(frozen=True, slots=True)
class BlobRef(Row):
    """An immutable status object, named by digest, for a schema that is too large for the root."""

    path: _StatusPath
    bytes: Positive
    count: Annotated[int, Range(most=1 << 40)] = 0  # small enough for sums in an int64


@dataclass(frozen=True, slots=True)
class Epoch:
    """One schema of the stream, numbered from 0.

    Exactly one of `schema` (base64 of the Arrow IPC schema) and `blob` is set. `spark` is Spark's
    own JSON of the schema if Spark wrote it; a blob stores both. `names` has the names of columns
    that differ from their stored names (`format.schema.column_names`).
    """

    number: int
    since: int
    schema: str | None
    spark: str | None
    blob: BlobRef | None = None
    names: Annotated[Mapping[str, str | None], ABSENT] = field(default_factory=dict, hash=False)

    def check_stored(self, where: str) -> None:
        """Raise CorruptionError if there is no schema, or two."""
        if (self.schema is None) == (self.blob is None):
            raise CorruptionError("malformed epoch", where=where, epoch=self.number)


@dataclass(frozen=True, slots=True)
class InlineFrame(Row):
    """The only frame of an inline segment, as it is in the commit file.

    `crc` is the expected CRC-32 of the bytes, not verified yet. `raw_bytes` is the decompressed
    size of the frame's buffers, `fingerprint` the digest of its schema. `batch` is as in `Frame`.
    """

    size: Positive
    crc: int
    raw_bytes: int
    fingerprint: _Id
    data: Annotated[bytes, UNSTORED] = b""
    batch: Annotated[Any, UNSTORED] = field(default=None, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle all but the batch."""
        return type(self), (self.size, self.crc, self.raw_bytes, self.fingerprint, self.data)


@dataclass(frozen=True, slots=True)
class SegmentEntry(Row):
    """One segment; its position in a root's list determines its offset.

    A segment that no commit names yet has the id 0, and `mirrors` with the other folders that have
    its object.

    A segment with a `frame` is inline: it has no object, and no footer.

    `frames` is the number of its frames, and `frame_raws` their decompressed size in units of
    64 KiB; both are 0 if unknown.
    """

    segment_id: int
    path: Annotated[str, Limit(300)]
    rows: Positive
    bytes: Positive
    footer_bytes: int
    footer_crc: int
    format: Annotated[str, Limit(20)] = "arrow"
    stats: str | None = None
    frame: InlineFrame | None = None
    frames: int = 0
    frame_raws: int = 0
    mirrors: Annotated[tuple[str, ...], UNSTORED] = field(default=(), compare=False)

    def check_stored(self, where: str) -> None:
        """Raise CorruptionError unless it is a valid object or a valid inline segment."""
        if (frame := self.frame) is None:
            names.check_segment_path(self.path, where=where)
            if not self.footer_bytes:
                raise CorruptionError("segment has no footer", where=where, path=self.path)
        elif (
            self.path != names.build_inline_path(self.segment_id)
            or (self.bytes, self.footer_bytes, self.footer_crc) != (frame.size, 0, 0)
            or (self.frames, self.frame_raws) != (0, 0)
            or self.format != "arrow"
            or frame.size % ALIGNMENT
            or not is_text(frame.fingerprint)
        ):
            raise CorruptionError("malformed inline segment", where=where, segment=self.segment_id)

    @property
    def epoch(self) -> int:
        """The schema epoch of its bytes."""
        return self.segment_id >> 32

    def numbered(self, segment_id: int) -> Self:
        """Return the segment with an id, as a root lists it."""
        path = names.build_inline_path(segment_id) if self.frame else self.path
        return replace(self, segment_id=segment_id, path=path, mirrors=())


@dataclass(frozen=True, slots=True)
class PartRef(Row):
    """A reference to a part, or to a list of parts, of one of a root's tables.

    It covers the offsets of events or the versions of rows `[start, end)`. `bytes` is the length of
    its envelope. FORMAT.md 5 has the rest.
    """

    path: _StatusPath
    start: int
    end: Positive
    count: Positive
    bytes: Positive
    time_us: TimeUs = 0
    last_us: TimeUs = 0
    stats: str | None = field(default=None, compare=False)

    def check_stored(self, where: str) -> None:
        """Raise CorruptionError if a range is empty or reversed."""
        if self.start >= self.end or self.time_us > self.last_us:
            raise CorruptionError("part has no range", where=where, path=self.path)


@dataclass(frozen=True, slots=True)
class Retired(Row):
    """An object that a commit dropped from the stream.

    The kind ``segment`` is a segment, ``status`` is only a status object, and ``part`` is a status
    part with all segments that it lists.
    """

    kind: Annotated[str, Limit(20)]
    path: Annotated[str, Limit(300)]
    version: int
    time_us: TimeUs

    def check_stored(self, where: str) -> None:
        """Raise CorruptionError if the path does not fit the kind."""
        segment = self.kind == "segment"
        (names.check_segment_path if segment else names.check_status_path)(self.path, where=where)


@dataclass(frozen=True, slots=True)
class Writer(Row):
    """The last batch of a writer id; `fingerprint` is that of the batch, if it has one."""

    owner: Annotated[str, Limit(1000)]
    batch_id: int
    version: int
    rows: int
    end: int
    fingerprint: _Fingerprint = ""


@dataclass(frozen=True, slots=True)
class Tag(Row):
    """A named cut: its offset, and the version and time of the commit that named it."""

    offset: int
    version: int
    time_us: TimeUs


@dataclass(frozen=True, slots=True)
class Kept(Row):
    """The version of a tag, for reads after its commit file is gone; the tag's cut is its tail."""

    head: int
    epochs: Positive  # number of epochs
    parts: PartRef | None  # a list of its parts; None if it lists no segment


@dataclass(frozen=True, slots=True)
class HistoryRow(Row):
    """What one commit did and what it cost (FORMAT.md 5.3).

    `head` and `tail` are those after it. `rows`, `segments` and `bytes` are what it added.
    """

    version: int
    time_us: TimeUs
    operation: _Text
    head: int
    tail: int
    rows: int = 0
    segments: int = 0
    bytes: int = 0
    writer_id: _Text | None = None
    batch_id: int | None = None
    client: _Text = ""
    application: _Text = ""  # the application in which the client ran
    attempts: int = 1  # how often the change was planned, including the last time
    races_lost: int = 0
    requests: int = 0
    request_bytes: int = 0
    transaction: _Text = ""  # "" if it is not known
    # JSON: [start, end, segments before, segments after] of each run, or an object of changes.
    merged: _Text | None = None


@dataclass(frozen=True, slots=True)
class LastUpkeep(Row):
    """The newest commit of an upkeep; no orphans are left of versions below `swept`."""

    version: int
    time_us: TimeUs
    swept: int


@dataclass(frozen=True)
class Root:
    """The state of a stream as of one version; the glossary defines each word."""

    stream_id: _Id
    version: int
    transaction: _Id
    parent: _Id
    time_us: TimeUs
    operation: _Id
    epochs: tuple[Epoch, ...]
    generation: int = 0
    head: int = 0
    tail: int = 0
    sealed: bool = False
    dropped: bool = False
    next_segment: Annotated[int, Range(most=(1 << 32) - 1)] = 0  # the lower half of the next id
    log_start: int = 0
    staging_floor: int = 0
    upkeep: Annotated[LastUpkeep | None, ABSENT] = None
    restored: Annotated[int | None, ABSENT] = 0
    lists: tuple[PartRef, ...] = ()
    parts: tuple[PartRef, ...] = ()
    entries: tuple[SegmentEntry, ...] = ()
    retired: tuple[Retired, ...] = ()
    retired_parts: tuple[PartRef, ...] = ()
    retired_lists: tuple[PartRef, ...] = ()
    writers: Mapping[str, Writer] = field(default_factory=dict)
    writers_parts: tuple[PartRef, ...] = ()
    writers_lists: tuple[PartRef, ...] = ()
    tags: Mapping[str, Tag] = field(default_factory=dict)
    kept: Annotated[Mapping[str, Kept], ABSENT] = field(default_factory=dict)
    pins: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, Any] = field(default_factory=dict)
    copies: Mapping[str, Any] = field(default_factory=dict)
    redactions: Annotated[Mapping[str, Any], ABSENT] = field(default_factory=dict)
    history: tuple[HistoryRow, ...] = ()
    history_parts: tuple[PartRef, ...] = ()
    history_lists: tuple[PartRef, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    reader_features: tuple[str, ...] = ()
    writer_features: tuple[str, ...] = ()
    client: Annotated[str, Limit(400)] = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    def check_stored(self, where: str) -> None:
        """Raise CorruptionError if the stream id, epochs' numbers or kept versions are wrong."""
        if [*map(_number_of, self.epochs)] != [*range(max(len(self.epochs), 1))]:
            raise CorruptionError("epochs are not numbered from 0", where=where)
        if not self.kept.keys() <= self.tags.keys():
            raise CorruptionError("a version is kept without a tag", where=where)
        if not self.stream_id.isascii():
            raise CorruptionError("stream id is not ASCII, which a hint has to be", where=where)

    def changed(self, **values: Any) -> Self:
        """Return the root with other values of some fields, faster than `dataclasses.replace`."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, **values)
        return made

    @property
    def epoch(self) -> Epoch:
        """The newest epoch, which has the schema of the stream."""
        return self.epochs[-1]

    @property
    def listed_start(self) -> int:
        """The offset of the first event in listed segments, at or before the head."""
        refs = (*self.lists, *self.parts)
        return refs[0].start if refs else self.inline_start

    @property
    def retired_count(self) -> int:
        """The number of retired objects."""
        parts = (*self.retired_lists, *self.retired_parts)
        return len(self.retired) + sum([part.count for part in parts])

    @property
    def kept_tags(self) -> dict[str, Tag]:
        """The tags that keep versions, by name."""
        return {name: self.tags[name] for name in self.kept}

    def kept_version(self, version: int) -> Self | None:
        """Return the root of a version that a tag keeps, as far as reads need it, or None."""
        for name, tag in self.kept_tags.items():
            if tag.version == version:
                kept = self.kept[name]
                return self.changed(
                    version=version,
                    transaction="",  # not kept with a tag
                    time_us=tag.time_us,
                    epochs=self.epochs[: kept.epochs],
                    head=kept.head,
                    tail=tag.offset,
                    lists=() if kept.parts is None else (kept.parts,),
                    parts=(),
                    entries=(),
                )
        return None

    @property
    def inline_start(self) -> int:
        """The offset of the first event of `entries`."""
        rows: int = sum(map(_rows_of, self.entries))
        return self.tail - rows

    @property
    def inline_bytes(self) -> int:
        """The size of the frames after the body of the commit file."""
        return sum(map(len, map(_data_of, filter(None, map(frame_of, self.entries)))))


def property_of(root: Root, name: str, kind: type[T]) -> T | None:
    """Return the value of a property; None if it is not set."""
    text = root.properties.get(name)
    if text is None:
        return None
    return from_json(kind, parse_json(text, where=name), where=f"property {name}")


def encode_root(root: Root) -> bytes:
    """Return the body of the commit file: canonical JSON, unknown fields included."""
    value = to_json(root)
    value["format"] = ROOT_FORMAT
    return build_json(value)


def decode_root(body: bytes, where: str) -> Root:
    """Decode the body of a commit file; `format.inline` attaches the frames."""
    value = take_format(parse_json(body, where=where), ROOT_FORMAT, what="root", where=where)
    features = from_json(_Features, value, where=where).reader_features
    if unknown := sorted({*features} - READER_FEATURES):
        raise UnsupportedVersionError(
            "stream needs reader features this version lacks", where=where, features=unknown
        )
    return from_json(Root, value, where=where)


@dataclass(frozen=True, slots=True)
class _Features:
    """The field that says whether the rest can be read."""

    reader_features: tuple[str, ...]


def check_writable(root: Root) -> None:
    """Raise UnsupportedVersionError if the stream needs an unknown writer feature."""
    if unknown := sorted({*root.writer_features} - WRITER_FEATURES):
        raise UnsupportedVersionError(
            "stream needs writer features this version lacks",
            remedy="write with a newer version of segstore-ds; this version can still read it",
            features=unknown,
        )
