"""Encode a root as JSON rows, and decode it (FORMAT.md 3).

The input is untrusted: every field is checked before a value is built from it, and malformed input
is a CorruptionError.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any

from segstore_ds.errors import CorruptionError, UnsupportedVersionError
from segstore_ds.format import names
from segstore_ds.format.arrow.frame import ALIGNMENT
from segstore_ds.format.arrow.segment import ArrowSegments
from segstore_ds.format.batch_fingerprint import decode_fingerprint
from segstore_ds.format.fields import (
    Fields,
    build_json,
    check_known,
    is_text,
    parse_cells,
    parse_json,
)
from segstore_ds.format.part_times import attach_times, encode_times
from segstore_ds.format.parts.history_rows import (
    parse_row,
    row_value,
)
from segstore_ds.format.root import (
    READER_FEATURES,
    ROOT_FORMAT,
    BlobRef,
    Epoch,
    InlineFrame,
    LastUpkeep,
    PartRef,
    Retired,
    Root,
    SegmentEntry,
    Writer,
)

FINGERPRINT_LIMIT = 1000  # characters
SEGMENT_LIMIT = (1 << 32) - 1  # above its 32 bits a segment id holds the epoch
BLOB_LIMIT = 1 << 40  # values; the sum of all counts in a root is an int64
_ENTRY_CELLS = (
    "segment_id",
    "path",
    "rows",
    "bytes",
    "footer_bytes",
    "footer_crc",
    "format",
    "stats",
)


def _cells_of(row: type) -> Callable[[Any], tuple[Any, ...]]:
    """Return what gives the cells of such a value; `astuple` takes ten times as long."""
    return attrgetter(*_names_of(row))


def _names_of(row: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(row) if field.compare)


_PART_CELLS = _names_of(PartRef)
_blob_cells, _writer_cells, _part_cells, _upkeep_cells = map(
    _cells_of, (BlobRef, Writer, PartRef, LastUpkeep)
)


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
        dropped=root.dropped,
        next_segment=root.next_segment,
        log_start=root.log_start,
        staging_floor=root.staging_floor,
        lists=[part_value(part) for part in root.lists],
        parts=[part_value(part) for part in root.parts],
        entries=[entry_value(entry) for entry in root.entries],
        retired=[retired_value(item) for item in root.retired],
        retired_blobs=[blob_value(blob) for blob in root.retired_blobs],
        writers={name: writer_value(writer) for name, writer in root.writers.items()},
        writers_blob=blob_value(root.writers_blob) if root.writers_blob else None,
        tags=dict(root.tags),
        tags_blob=blob_value(root.tags_blob) if root.tags_blob else None,
        pins=dict(root.pins),
        origins=dict(root.origins),
        copies=dict(root.copies),
        history=[row_value(row) for row in root.history],
        history_parts=[part_value(part) for part in root.history_parts],
        history_lists=[part_value(part) for part in root.history_lists],
        properties=dict(root.properties),
    )
    if root.upkeep is not None:
        value.update(upkeep=list(_upkeep_cells(root.upkeep)))
    if root.redactions:
        value.update(redactions=dict(root.redactions))
    if root.restored is not None:
        value.update(restored=root.restored)
    if times := encode_times(root):
        value.update(part_times=times)
    return build_json(value)


def decode_root(body: bytes, *, where: str) -> Root:
    """Decode the body of a commit file.

    Raises:
        CorruptionError: The body is not a root, or contradicts itself.
        UnsupportedVersionError: The format is newer, or this version lacks a reader feature.
    """
    fields = Fields(parse_json(body, where=where), where=where)
    found = fields.integer("format", least=1)
    if found > ROOT_FORMAT:
        raise UnsupportedVersionError(
            "root has a newer format", where=where, found=found, supported=ROOT_FORMAT
        )
    reader_features = fields.texts("reader_features")
    unknown = check_known(reader_features, READER_FEATURES)
    if unknown:
        raise UnsupportedVersionError(
            "stream needs reader features this version lacks", where=where, features=unknown
        )
    root = _take_root(fields, reader_features)
    if fields.has("part_times"):
        root = attach_times(root, fields.mapping("part_times"), where=where)
    return replace(root, extra=dict(fields.rest()))


def _take_root(fields: Fields, reader_features: tuple[str, ...]) -> Root:
    where = fields.where
    writers_blob = fields.take("writers_blob")
    tags_blob = fields.take("tags_blob")
    epochs = tuple(_parse_epoch(item, where) for item in fields.items("epochs"))
    if not epochs or [epoch.number for epoch in epochs] != list(range(len(epochs))):
        raise CorruptionError("epochs are not numbered from 0", where=where)
    stream_id = fields.text("stream_id", limit=100)
    if not stream_id.isascii():
        raise CorruptionError("stream id is not ASCII, which a hint has to be", where=where)
    return Root(
        reader_features=reader_features,
        writer_features=fields.texts("writer_features"),
        stream_id=stream_id,
        generation=fields.integer("generation"),
        version=fields.integer("version"),
        transaction=fields.text("transaction", limit=100),
        parent=fields.text("parent", limit=100),
        time_us=fields.time_us("time_us"),
        operation=fields.text("operation", limit=100),
        client=fields.text("client", limit=400),
        epochs=epochs,
        head=fields.integer("head"),
        tail=fields.integer("tail"),
        sealed=fields.flag("sealed"),
        dropped=fields.flag("dropped"),
        next_segment=fields.integer("next_segment", most=SEGMENT_LIMIT),
        log_start=fields.integer("log_start"),
        staging_floor=fields.integer("staging_floor"),
        upkeep=_parse_upkeep(fields.take("upkeep"), where) if fields.has("upkeep") else None,
        restored=fields.integer("restored") if fields.has("restored") else None,
        lists=_parts(fields, "lists"),
        parts=_parts(fields, "parts"),
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
        tags_blob=parse_blob(tags_blob, where=where) if tags_blob is not None else None,
        pins=fields.mapping("pins"),
        origins=fields.mapping("origins"),
        copies=fields.mapping("copies"),
        redactions=fields.mapping("redactions") if fields.has("redactions") else {},
        history=tuple(parse_row(item, where=where) for item in fields.items("history")),
        history_parts=_parts(fields, "history_parts"),
        history_lists=_parts(fields, "history_lists"),
        properties=fields.texts_by_name("properties"),
    )


def entry_value(entry: SegmentEntry) -> list[Any]:
    """Return the JSON row of a segment entry."""
    if entry.frame is not None:
        frame = entry.frame
        facts = [entry.rows, len(frame.data), 0, 0, entry.format, entry.stats]
        return [entry.segment_id, None, *facts, [frame.crc, frame.raw_bytes, frame.fingerprint]]
    row = [
        entry.segment_id,
        entry.path,
        entry.rows,
        entry.bytes,
        entry.footer_bytes,
        entry.footer_crc,
        entry.format,
        entry.stats,
    ]
    return [*row, None, [entry.frames, entry.frame_raws]] if entry.frames else row


def parse_entry(value: Any, *, where: str) -> SegmentEntry:
    """Parse the JSON row of a segment entry; an inline one lacks its bytes (`attach_frames`)."""
    row = parse_cells(value, _ENTRY_CELLS, where=where)
    if value[1] is None:
        return _parse_inline(value, where=where)
    frames, frame_raws = _parse_frames(value, where=where)
    return SegmentEntry(
        segment_id=row.integer("segment_id"),
        path=names.check_segment_path(row.text("path", limit=300), where=where),
        rows=row.integer("rows", least=1),
        bytes=row.integer("bytes", least=1),
        footer_bytes=row.integer("footer_bytes", least=1),
        footer_crc=row.integer("footer_crc"),
        format=row.text("format", limit=20),
        stats=row.optional_text("stats"),
        frames=frames,
        frame_raws=frame_raws,
    )


def _parse_frames(row: list[Any], *, where: str) -> tuple[int, int]:
    """Return the frame counts of an entry's row; zeros if it does not say."""
    place = len(_ENTRY_CELLS) + 1
    if len(row) <= place or row[place] is None:
        return 0, 0
    cells = parse_cells(row[place], ("frames", "frame_raws"), where=where)
    return cells.integer("frames", least=1), cells.integer("frame_raws")


def _parse_inline(value: Any, *, where: str) -> SegmentEntry:
    row = parse_cells(value, (*_ENTRY_CELLS, "frame"), where=where)
    frame = parse_cells(row.take("frame"), ("crc", "raw", "schema"), where=where)
    segment_id, size = row.integer("segment_id"), row.integer("bytes", least=1)
    fingerprint = frame.text("schema", limit=100)
    arrow = row.text("format", limit=20) == ArrowSegments.name
    if not arrow or size % ALIGNMENT or not is_text(fingerprint):
        raise CorruptionError("malformed inline segment", where=where, segment=segment_id)
    return SegmentEntry(
        segment_id=segment_id,
        path=names.build_inline_path(segment_id),
        rows=row.integer("rows", least=1),
        bytes=size,
        footer_bytes=0,
        footer_crc=0,
        stats=row.optional_text("stats"),
        frame=InlineFrame(b"", frame.integer("crc"), frame.integer("raw"), fingerprint),
    )


def blob_value(blob: BlobRef) -> list[Any]:
    """Return the JSON row of a reference to a blob."""
    return list(_blob_cells(blob))


def parse_blob(value: Any, *, where: str) -> BlobRef:
    """Parse the JSON row of a reference to a blob."""
    row = parse_cells(value, ("path", "bytes", "count"), where=where)
    return BlobRef(
        path=names.check_status_path(row.text("path", limit=300), where=where),
        bytes=row.integer("bytes", least=1),
        count=row.integer("count", most=BLOB_LIMIT),
    )


def writer_value(writer: Writer) -> list[Any]:
    """Return the JSON row of a writer."""
    return list(_writer_cells(writer))


def parse_writer(value: Any, *, where: str) -> Writer:
    """Parse the JSON row of a writer."""
    columns = ("owner", "batch_id", "version", "rows", "end", "fingerprint")
    row = parse_cells(value, columns, where=where)
    fingerprint = row.text("fingerprint", limit=FINGERPRINT_LIMIT)
    decode_fingerprint(fingerprint, where=where)
    return Writer(
        owner=row.text("owner", limit=1000),
        batch_id=row.integer("batch_id"),
        version=row.integer("version"),
        rows=row.integer("rows"),
        end=row.integer("end"),
        fingerprint=fingerprint,
    )


def retired_value(retired: Retired) -> list[Any]:
    """Return the JSON row of a retired object."""
    return [retired.kind, retired.path, retired.version, retired.time_us]


def parse_retired(value: Any, *, where: str) -> Retired:
    """Parse the JSON row of a retired object."""
    row = parse_cells(value, ("kind", "path", "version", "time_us"), where=where)
    kind, path = row.text("kind", limit=20), row.text("path", limit=300)
    check = names.check_segment_path if kind == "segment" else names.check_status_path
    return Retired(
        kind=kind,
        path=check(path, where=where),
        version=row.integer("version"),
        time_us=row.time_us("time_us"),
    )


def _epoch_value(epoch: Epoch) -> dict[str, Any]:
    return {
        "number": epoch.number,
        "since": epoch.since,
        "schema": epoch.schema,
        "spark": epoch.spark,
        "blob": blob_value(epoch.blob) if epoch.blob else None,
    }


def _parse_upkeep(value: Any, where: str) -> LastUpkeep:
    row = parse_cells(value, ("version", "time_us", "swept"), where=where)
    return LastUpkeep(row.integer("version"), row.time_us("time_us"), row.integer("swept"))


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
    if (epoch.schema is None) == (epoch.blob is None):
        raise CorruptionError("malformed epoch", where=where, epoch=epoch.number)
    return epoch


def part_value(part: PartRef) -> list[Any]:
    """Return the JSON row of a reference to a part or a list of parts."""
    return list(_part_cells(part))


def parse_part(value: Any, *, where: str) -> PartRef:
    """Parse the JSON row of a reference to a part or a list of parts."""
    row = parse_cells(value, _PART_CELLS, where=where)
    part = PartRef(
        path=names.check_status_path(row.text("path", limit=300), where=where),
        start=row.integer("start"),
        end=row.integer("end", least=1),
        count=row.integer("count", least=1),
        bytes=row.integer("bytes", least=1),
        time_us=row.time_us("time_us"),
        last_us=row.time_us("last_us"),
    )
    if part.start >= part.end or part.time_us > part.last_us:
        raise CorruptionError("part has no range", where=where, path=part.path)
    return part


def _parts(fields: Fields, name: str) -> tuple[PartRef, ...]:
    return tuple(parse_part(item, where=fields.where) for item in fields.items(name))
