"""The root: the content of one commit file, all that is needed to find the rest (FORMAT.md 3).

A root is a frozen value; `encode_root` and `decode_root` turn it into the body of a commit file and
back. Fields that a newer writer added are carried through unchanged in `extra`. Features are kept
by name: an unknown reader feature means that the stream cannot be read, an unknown writer feature
that it cannot be changed, by this version of segstore.
"""

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field, replace
from typing import Any

from segstore_ds.errors import CorruptionError, UnsupportedVersionError
from segstore_ds.format import names
from segstore_ds.format.fields import Fields, build_json, check_known, parse_json
from segstore_ds.format.history_rows import (
    HistoryPart,
    HistoryRow,
    parse_part_ref,
    parse_row,
    part_ref_value,
    row_value,
)

ROOT_FORMAT = 1  # On disk. Never change; add a new one.
ROOT_LIMIT_BYTES = 64 << 10
ROOT_RAW_LIMIT_BYTES = 4 << 20
DROPPED_FEATURE = "dropped"  # On disk: the stream has ended and its objects may be gone.
LEVELS = "levels"  # On disk: parts of packed columns, lists of parts.
HISTORY = "history"  # On disk: every commit leaves a row in the history.
PARQUET_SEGMENTS = "parquet-segments"  # On disk: segments of the format `parquet`.
ORIGINS_FEATURE = "origins"  # On disk: objects may lie in the folder of another stream.
READER_FEATURES = frozenset(  # On disk: names this version can read.
    {DROPPED_FEATURE, LEVELS, PARQUET_SEGMENTS, ORIGINS_FEATURE}
)
FOLLOWERS_FEATURE = "followers"  # On disk: a commit counts once the followers have it, too.
WRITER_FEATURES = frozenset(
    {HISTORY, FOLLOWERS_FEATURE}
)  # On disk: names that this version can write.


@dataclass(frozen=True, slots=True)
class BlobRef:
    """A status object that holds what outgrew the root: named by digest, immutable."""

    path: str
    bytes: int
    digest: str
    count: int = 0


@dataclass(frozen=True, slots=True)
class Epoch:
    """One generation of the schema.

    Exactly one of `schema` (base64 of the Arrow IPC schema) and `blob` is given; `spark` is
    Spark's own JSON of the schema where Spark wrote it, stored with it in the blob.
    """

    number: int
    since: int
    schema: str | None
    spark: str | None
    blob: BlobRef | None = None


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """One committed segment. It has no offset of its own: its place in the list gives it one."""

    segment_id: int
    path: str
    rows: int
    bytes: int
    footer_bytes: int
    footer_crc: int
    format: str = "arrow"
    stats: str | None = None

    @property
    def epoch(self) -> int:
        """The generation of the schema that the bytes are of."""
        return self.segment_id >> 32


@dataclass(frozen=True, slots=True)
class PartRef:
    """A status part: the segments of the offsets ``[start, end)``.

    `bytes` and `digest` are those of its columns; statistics may follow behind them.
    """

    path: str
    start: int
    end: int
    segments: int
    bytes: int
    digest: str

    @property
    def size(self) -> int:
        """How many segments it lists."""
        return self.segments


@dataclass(frozen=True, slots=True)
class PartIndex:
    """A list of parts that outgrew the root: ``parts`` of them, of the offsets ``[start, end)``."""

    path: str
    start: int
    end: int
    parts: int
    segments: int
    bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class Retired:
    """Objects that a commit dropped.

    Kind ``segment`` is a segment's place, ``status`` a status object alone, ``part`` a status part
    together with every segment that it lists.
    """

    kind: str
    path: str
    version: int
    time_us: int


@dataclass(frozen=True, slots=True)
class Writer:
    """What a writer id committed last."""

    owner: str
    batch_id: int
    version: int
    rows: int
    end: int


@dataclass(frozen=True, slots=True)
class Root:
    """The state of a stream as of one version. See the glossary for each word."""

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
    next_segment: int = 0
    log_start: int = 0
    staging_floor: int = 0
    indexes: tuple[PartIndex, ...] = ()
    parts: tuple[PartRef, ...] = ()
    entries: tuple[SegmentEntry, ...] = ()
    retired: tuple[Retired, ...] = ()
    retired_blobs: tuple[BlobRef, ...] = ()
    writers: Mapping[str, Writer] = field(default_factory=dict)
    writers_blob: BlobRef | None = None
    tags: Mapping[str, Any] = field(default_factory=dict)
    pins: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, Any] = field(default_factory=dict)
    copies: Mapping[str, Any] = field(default_factory=dict)
    history: tuple[HistoryRow, ...] = ()
    history_parts: tuple[HistoryPart, ...] = ()
    history_lists: tuple[HistoryPart, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    reader_features: tuple[str, ...] = ()
    writer_features: tuple[str, ...] = ()
    client: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def epoch(self) -> Epoch:
        """The newest epoch: what is appended now is of its schema."""
        return self.epochs[-1]

    @property
    def listed_start(self) -> int:
        """The offset of the first listed event; the head lies at it or behind it."""
        if self.indexes:
            return self.indexes[0].start
        return self.parts[0].start if self.parts else self.inline_start

    @property
    def inline_start(self) -> int:
        """The offset of the first event of the entries."""
        return self.tail - sum(entry.rows for entry in self.entries)


def check_writable(root: Root) -> None:
    """Refuse a stream that needs a writer feature this version lacks.

    Raises:
        UnsupportedVersionError: Names the features.
    """
    unknown = check_known(root.writer_features, WRITER_FEATURES)
    if unknown:
        raise UnsupportedVersionError(
            "stream needs writer features this version lacks",
            remedy="write with a newer version of segstore-ds; reading goes on with this one",
            features=unknown,
        )


def add_features(root: Root) -> Root:
    """Return the root with the features that whatever this version commits may use."""
    if LEVELS in root.reader_features and HISTORY in root.writer_features:
        return root
    return replace(
        root,
        reader_features=tuple(dict.fromkeys((*root.reader_features, LEVELS))),
        writer_features=tuple(dict.fromkeys((*root.writer_features, HISTORY))),
    )


def add_format_features(root: Root, formats: Iterable[str]) -> Root:
    """Return the root with the features that a reader of segments of these formats needs."""
    if "parquet" not in formats or PARQUET_SEGMENTS in root.reader_features:
        return root
    return replace(root, reader_features=(*root.reader_features, PARQUET_SEGMENTS))


def encode_root(root: Root) -> bytes:
    """Return the body of the commit file: canonical JSON, unknown fields included."""
    value = dict(root.extra)
    value.update(
        format=ROOT_FORMAT,
        reader_features=list(root.reader_features),
        writer_features=list(root.writer_features),
        stream_id=root.stream_id,
        generation=root.generation,
        version=root.version,
        transaction=root.transaction,
        parent=root.parent,
        time_us=root.time_us,
        operation=root.operation,
        client=root.client,
        epochs=[_epoch_value(epoch) for epoch in root.epochs],
        head=root.head,
        tail=root.tail,
        sealed=root.sealed,
        next_segment=root.next_segment,
        log_start=root.log_start,
        staging_floor=root.staging_floor,
        indexes=[list(astuple(index)) for index in root.indexes],
        parts=[part_value(part) for part in root.parts],
        entries=[entry_value(entry) for entry in root.entries],
        retired=[[r.kind, r.path, r.version, r.time_us] for r in root.retired],
        retired_blobs=[blob_value(blob) for blob in root.retired_blobs],
        writers={name: writer_value(writer) for name, writer in root.writers.items()},
        writers_blob=blob_value(root.writers_blob) if root.writers_blob else None,
        tags=dict(root.tags),
        pins=dict(root.pins),
        origins=dict(root.origins),
        copies=dict(root.copies),
        history=[row_value(row) for row in root.history],
        history_parts=[part_ref_value(part) for part in root.history_parts],
        history_lists=[part_ref_value(part) for part in root.history_lists],
        properties=dict(root.properties),
    )
    return build_json(value)


def decode_root(body: bytes, *, where: str) -> Root:
    """Return the root that a commit file's body holds.

    Raises:
        CorruptionError: Not a root, or one that contradicts itself.
        UnsupportedVersionError: A newer format, or a reader feature this version lacks.
    """
    fields = Fields(parse_json(body, where=where), where=where)
    found = fields.integer("format", least=1)
    if found > ROOT_FORMAT:
        raise UnsupportedVersionError(
            "root is of a newer format", where=where, found=found, supported=ROOT_FORMAT
        )
    reader_features = fields.texts("reader_features")
    unknown = check_known(reader_features, READER_FEATURES)
    if unknown:
        raise UnsupportedVersionError(
            "stream needs reader features this version lacks", where=where, features=unknown
        )
    root = _take_root(fields, reader_features)
    return replace(root, extra=dict(fields.rest()))


def _take_root(fields: Fields, reader_features: tuple[str, ...]) -> Root:
    where = fields.where
    writers_blob = fields.take("writers_blob")
    epochs = tuple(_parse_epoch(item, where) for item in fields.items("epochs"))
    if not epochs or [epoch.number for epoch in epochs] != list(range(len(epochs))):
        raise CorruptionError("epochs are not numbered from 0", where=where)
    return Root(
        reader_features=reader_features,
        writer_features=fields.texts("writer_features"),
        stream_id=fields.text("stream_id", limit=100),
        generation=fields.integer("generation"),
        version=fields.integer("version"),
        transaction=fields.text("transaction", limit=100),
        parent=fields.text("parent", limit=100),
        time_us=fields.integer("time_us"),
        operation=fields.text("operation", limit=100),
        client=fields.text("client", limit=400),
        epochs=epochs,
        head=fields.integer("head"),
        tail=fields.integer("tail"),
        sealed=fields.flag("sealed"),
        next_segment=fields.integer("next_segment"),
        log_start=fields.integer("log_start"),
        staging_floor=fields.integer("staging_floor"),
        indexes=tuple(_parse_index(item, where) for item in fields.optional_items("indexes")),
        parts=tuple(parse_part(item, where=where) for item in fields.items("parts")),
        entries=tuple(parse_entry(item, where=where) for item in fields.items("entries")),
        retired=tuple(parse_retired(item, where=where) for item in fields.items("retired")),
        retired_blobs=tuple(
            parse_blob(item, where=where) for item in fields.items("retired_blobs")
        ),
        writers={
            name: parse_writer(item, where=where)
            for name, item in fields.mapping("writers").items()
        },
        writers_blob=parse_blob(writers_blob, where=where) if writers_blob is not None else None,
        tags=fields.mapping("tags"),
        pins=fields.mapping("pins"),
        origins=fields.mapping("origins"),
        copies=fields.mapping("copies"),
        history=tuple(parse_row(item, where=where) for item in fields.items("history")),
        history_parts=_history_parts(fields, "history_parts"),
        history_lists=_history_parts(fields, "history_lists"),
        properties=fields.mapping("properties"),
    )


def entry_value(entry: SegmentEntry) -> list[Any]:
    """Return a segment entry as it stands in JSON."""
    return [
        entry.segment_id,
        entry.path,
        entry.rows,
        entry.bytes,
        entry.footer_bytes,
        entry.footer_crc,
        entry.format,
        entry.stats,
    ]


def parse_entry(value: Any, *, where: str) -> SegmentEntry:
    """Return the segment entry that JSON holds.

    Raises:
        CorruptionError: It holds something else.
    """
    row = _row(
        value,
        ("segment_id", "path", "rows", "bytes", "footer_bytes", "footer_crc", "format", "stats"),
        where,
    )
    return SegmentEntry(
        segment_id=row.integer("segment_id"),
        path=names.check_segment_path(row.text("path", limit=300), where=where),
        rows=row.integer("rows", least=1),
        bytes=row.integer("bytes", least=1),
        footer_bytes=row.integer("footer_bytes", least=1),
        footer_crc=row.integer("footer_crc"),
        format=row.text("format", limit=20),
        stats=row.optional_text("stats"),
    )


def blob_value(blob: BlobRef) -> list[Any]:
    """Return a blob's reference as it stands in JSON."""
    return [blob.path, blob.bytes, blob.digest, blob.count]


def parse_blob(value: Any, *, where: str) -> BlobRef:
    """Return the blob's reference that JSON holds.

    Raises:
        CorruptionError: It holds something else.
    """
    row = _row(value, ("path", "bytes", "digest", "count"), where)
    return BlobRef(
        path=names.check_status_path(row.text("path", limit=300), where=where),
        bytes=row.integer("bytes", least=1),
        digest=row.text("digest", limit=32),
        count=row.integer("count"),
    )


def writer_value(writer: Writer) -> list[Any]:
    """Return a writer as it stands in JSON."""
    return [writer.owner, writer.batch_id, writer.version, writer.rows, writer.end]


def parse_writer(value: Any, *, where: str) -> Writer:
    """Return the writer that JSON holds.

    Raises:
        CorruptionError: It holds something else.
    """
    row = _row(value, ("owner", "batch_id", "version", "rows", "end"), where)
    return Writer(
        owner=row.text("owner", limit=1000),
        batch_id=row.integer("batch_id"),
        version=row.integer("version"),
        rows=row.integer("rows"),
        end=row.integer("end"),
    )


def retired_value(retired: Retired) -> list[Any]:
    """Return a retired object as it stands in JSON."""
    return [retired.kind, retired.path, retired.version, retired.time_us]


def parse_retired(value: Any, *, where: str) -> Retired:
    """Return the retired object that JSON holds.

    Raises:
        CorruptionError: It holds something else.
    """
    row = _row(value, ("kind", "path", "version", "time_us"), where)
    kind, path = row.text("kind", limit=20), row.text("path", limit=300)
    check = names.check_segment_path if kind == "segment" else names.check_status_path
    return Retired(
        kind=kind,
        path=check(path, where=where),
        version=row.integer("version"),
        time_us=row.integer("time_us"),
    )


def _epoch_value(epoch: Epoch) -> dict[str, Any]:
    return {
        "number": epoch.number,
        "since": epoch.since,
        "schema": epoch.schema,
        "spark": epoch.spark,
        "blob": blob_value(epoch.blob) if epoch.blob else None,
    }


def _parse_epoch(value: Any, where: str) -> Epoch:
    fields = Fields(value, where=where)
    blob = fields.take("blob")
    epoch = Epoch(
        number=fields.integer("number"),
        since=fields.integer("since"),
        schema=fields.optional_text("schema"),
        spark=fields.optional_text("spark"),
        blob=parse_blob(blob, where=where) if blob is not None else None,
    )
    if (epoch.schema is None) == (epoch.blob is None) or fields.rest():
        raise CorruptionError("malformed epoch", where=where, epoch=epoch.number)
    return epoch


def part_value(part: PartRef) -> list[Any]:
    """Return a part's reference as it stands in JSON."""
    return [part.path, part.start, part.end, part.segments, part.bytes, part.digest]


def parse_part(value: Any, *, where: str) -> PartRef:
    """Return the part's reference that JSON holds.

    Raises:
        CorruptionError: It holds something else.
    """
    row = _row(value, ("path", "start", "end", "segments", "bytes", "digest"), where)
    return PartRef(
        path=names.check_status_path(row.text("path", limit=300), where=where),
        start=row.integer("start"),
        end=row.integer("end", least=1),
        segments=row.integer("segments", least=1),
        bytes=row.integer("bytes", least=1),
        digest=row.text("digest", limit=32),
    )


def _history_parts(fields: Fields, name: str) -> tuple[HistoryPart, ...]:
    where = fields.where
    return tuple(parse_part_ref(item, where=where) for item in fields.optional_items(name))


def _parse_index(value: Any, where: str) -> PartIndex:
    row = _row(value, ("path", "start", "end", "parts", "segments", "bytes", "digest"), where)
    return PartIndex(
        path=names.check_status_path(row.text("path", limit=300), where=where),
        start=row.integer("start"),
        end=row.integer("end", least=1),
        parts=row.integer("parts", least=1),
        segments=row.integer("segments", least=1),
        bytes=row.integer("bytes", least=1),
        digest=row.text("digest", limit=32),
    )


def _row(value: Any, columns: tuple[str, ...], where: str) -> Fields:
    # Rows are closed: a column more needs a feature name, since it could not be carried through.
    if not isinstance(value, list) or len(value) != len(columns):
        raise CorruptionError("not a row", where=where, columns=columns)
    return Fields(dict(zip(columns, value, strict=True)), where=where)
