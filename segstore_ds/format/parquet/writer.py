"""Writes Parquet segments, which `parquet.segment` reads. Pure: batches to bytes."""

import base64
import json
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from inspect import signature
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from pyarrow import types as t

from segstore_ds.checksum import crc32
from segstore_ds.errors import InvalidInputError
from segstore_ds.format import compute as pc
from segstore_ds.format.arrow.frame import check_compression, check_size
from segstore_ds.format.arrow.index import (
    MAX_INDEX_BYTES,
    FrameEntry,
    build_index,
    finished_segment,
    merge_frames,
)
from segstore_ds.format.bounds import Bounds, Piece, compute, cut_bounds, label_of
from segstore_ds.format.parquet.encodings import Encodings, choose_encodings, leaves_of
from segstore_ds.format.parquet.filters import choose_filters, filter_options
from segstore_ds.format.parquet.window import Pieces
from segstore_ds.format.root import SegmentEntry
from segstore_ds.format.schema.codec import encode_schema, fingerprint
from segstore_ds.format.schema.column_names import with_column_ids
from segstore_ds.format.schema.conversion import decimal_columns, find_overlong

NAME = "parquet"  # On disk. Never change; add a new one.
MAGIC = b"PAR1"  # On disk, by Parquet.
INDEX_KEY = b"segstore"  # On disk. Never change; add a new one.
_SCHEMA_KEY = b"ARROW:schema"  # On disk, by Arrow.
VERSION = 1  # On disk. Never change; add a new one.
PARQUET_ERRORS = (
    pa.ArrowException,
    OSError,
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    OverflowError,
)
_INDEX_BYTES_OF_PIECE = 24  # roughly, a length and a checksum as text
_OTHER = "change the value, or set segment_format='arrow'"
_MOST_ROWS = 64 << 20  # pyarrow would write more rows as several row groups
# Pages should end by size: pyarrow's limit of 20,000 rows gives twice as many pages, each with a
# header and a checksum. Versions of pyarrow without this option end pages only by size.
_PAGES = {"max_rows_per_page": 1 << 15}
# By default, Parquet's writer abandons a dictionary above 1 MiB in the middle of a column chunk and
# writes the rest plain. For repeated long texts that takes twice the bytes and is slower to write
# and to read. `choose_encodings` has already decided that the dictionary pays off.
_DICTIONARY_BYTES = 16 << 20
_ZEROS = bytes(1 << 16)
_LONGEST_BOUND = 4096  # Parquet's writer keeps no bounds of texts with more bytes
_MOST_WRITERS = 32  # per segment: each one skips over all bytes written before
_LOOK_ROWS = 1 << 16  # `suits` is asked after as many rows as before, at most this many
CHOICE_ROWS = 1 << 20  # after this many rows the encodings are chosen again
if "max_rows_per_page" not in signature(pq.ParquetWriter).parameters:
    _PAGES = {}


class ParquetEncoder:
    """Encodes one segment; the caller writes the returned bytes in order.

    Call `start` once, `add` for every frame, `finish` once. `schema` is in normal form, and
    `can_store` is true for it. A level of None is the codec's own default. Statistics are computed
    for `stats_columns`, except nested ones. Row groups get Parquet's Bloom filters for the
    `key_columns` that exist. When other encodings become cheaper, the next frames get another
    Parquet writer; one footer names the row groups of all. `encodings` may be set before the first
    frame, to save the choice; afterwards they are the last ones used.
    """

    name = NAME

    def __init__(
        self,
        schema: pa.Schema,
        *,
        compression: str,
        compression_level: int | None,
        stats_columns: Sequence[str],
        key_columns: Sequence[str] = (),
    ) -> None:
        check_compression(compression, compression_level)
        self._schema = schema
        self._fingerprint = fingerprint(schema)
        self._decimals = decimal_columns(schema)
        self._leaves = len(leaves_of(schema))
        self._compression, self._level = compression, compression_level
        self._options: dict[str, Any] = {
            "write_page_checksum": True,
            "store_decimal_as_integer": True,
            "dictionary_pagesize_limit": _DICTIONARY_BYTES,
            **_PAGES,
        }
        self._stats_columns = list(stats_columns)
        self._texts = _find_texts(schema, stats_columns)
        self._key_columns = key_columns
        self._filters: dict[str, int] = {}
        self._pieces = Pieces()
        self._writers: list[tuple[pq.ParquetWriter, pa.PythonFile]] = []  # the last one writes
        self._frames: list[FrameEntry] = []
        self._stats: list[dict[str, Bounds]] = []  # of each frame
        self.stats: Piece = {}  # of all frames, after `finish`
        self._lengths: list[list[int]] = []
        self._crcs: list[list[int]] = []
        self.encodings: Encodings | None = None
        self._chosen_rows = 0  # rows when the encodings were last chosen
        self._look_rows = 0  # rows at which to check next whether they suit
        self.rows = 0
        self.pieces = 0  # checksums in the index
        self.is_broken = False  # an encode failed part-way; the segment must be aborted

    @property
    def encoded_bytes(self) -> int:
        """The number of bytes encoded so far."""
        return self._pieces.place

    def expect_bytes(self, rows: int) -> int:
        """Estimate the bytes of `rows` more rows by the last frame."""
        if not self._frames:
            return 0
        last = self._frames[-1]
        return last.bytes * rows // max(last.rows, 1)

    @property
    def expected_pieces(self) -> int:
        """The estimated number of pieces of another frame: that of the last frame."""
        return len(self._lengths[-1]) if self._lengths else 0

    def start(self) -> bytes:
        """Return the first bytes of the segment."""
        return MAGIC

    def add(self, batch: pa.RecordBatch) -> tuple[list[bytes], int]:
        """Append a frame; return the pieces to write and the CRC-32 of all of them.

        Raises:
            InvalidInputError: The batch has no rows, is too large for one frame, or holds a value
                that Parquet does not accept. If `is_broken` is then true, the segment must be
                aborted.
        """
        if not batch.num_rows:
            raise InvalidInputError("a frame has no rows")
        check_size(batch)
        self._check_sound()
        if batch.num_rows > _MOST_ROWS:
            raise InvalidInputError(
                "a frame has more rows than a row group",
                remedy="set frame_rows lower",
                rows=batch.num_rows,
            )
        overlong = find_overlong(batch, self._decimals)
        if overlong is not None:
            raise InvalidInputError(
                "a decimal has more digits than its type allows", remedy=_OTHER, column=overlong
            )
        self.is_broken = True
        start = self._pieces.place
        pieces = self._encode(batch)
        if not self._frames:
            pieces, start = _without_magic(pieces), len(MAGIC)
        crc = 0
        for piece in pieces:
            crc = crc32(piece, crc)
        stats = compute(batch, self._stats_columns, unbounded=self._bounded_later(batch))
        entry = FrameEntry(
            start=start,
            bytes=self._pieces.place - start,
            rows=batch.num_rows,
            crc=crc,
            fingerprint=self._fingerprint,
            raw_bytes=batch.nbytes,
        )
        if len(pieces) > MAX_INDEX_BYTES // _INDEX_BYTES_OF_PIECE:
            raise InvalidInputError(
                "a frame has too many columns",
                remedy="set segment_format='arrow', or write fewer columns",
                columns=self._leaves,
                pieces=len(pieces),
            )
        self._frames.append(entry)
        self._stats.append(stats)
        self._lengths.append([len(piece) for piece in pieces])
        self._crcs.append([crc32(piece) for piece in pieces])
        self.rows += batch.num_rows
        self.pieces += len(pieces)
        self.is_broken = False
        return pieces, crc

    def finish(self) -> tuple[bytes, SegmentEntry]:
        """End the segment; return its last bytes, and the segment, which has no path yet."""
        self._check_sound()
        if not self._writers:
            raise InvalidInputError("a segment has no frame", remedy="add a frame before finish")
        try:
            filters, groups = self._close()
            self._bound_texts(groups)
            index = _build(
                self._frames, self._stats, self._lengths, self._crcs, list(self._filters)
            )
            footer = self._footer(groups, index)
        except (MemoryError, InvalidInputError):
            raise
        except PARQUET_ERRORS as error:
            raise InvalidInputError(
                "a segment's footer can't be written", remedy=_OTHER, frames=len(self._frames)
            ) from error
        self._pieces.place += len(footer)
        end = filters + footer
        self.stats = merge_frames(self._frames, self._stats)
        return end, finished_segment(
            "parquet", self._frames, self.stats, end=end, size=self._pieces.place
        )

    def _check_sound(self) -> None:
        if self.is_broken:
            raise InvalidInputError(
                "an earlier frame of the segment was refused", remedy="start another segment"
            )

    def _encode(self, batch: pa.RecordBatch) -> list[bytes]:
        try:
            self._prepare(batch)
            self._writers[-1][0].write_batch(batch, row_group_size=batch.num_rows)
        except MemoryError:
            raise
        except PARQUET_ERRORS as error:
            raise InvalidInputError(
                "a value can't be stored in Parquet",
                remedy=_OTHER,
                column=_find_refused(batch),
                rows=batch.num_rows,
            ) from error
        return self._pieces.take()

    def _prepare(self, batch: pa.RecordBatch) -> None:
        """Open a writer for the first frame, and whenever the encodings change."""
        chosen, seen = self.encodings, self.rows + batch.num_rows
        if chosen is None or (
            len(self._writers) < _MOST_WRITERS and self._is_outdated(batch, chosen)
        ):
            chosen = choose_encodings(
                batch,
                _leaf_paths(self._schema) or (),
                compression=self._compression,
                level=self._level,
                used=chosen,
            )
            self._chosen_rows = seen
        same = self.encodings is not None and chosen.ways == self.encodings.ways
        self.encodings = chosen
        if same and self._writers:
            return
        if not self._writers:
            expected = chosen.expect_bytes(batch.num_rows)
            self._filters = choose_filters(batch, self._key_columns, frame_bytes=expected)
        options = self._options | chosen.options(self._compression, self._level)
        options |= filter_options(self._filters)
        sink = pa.PythonFile(self._pieces, mode="w")
        self._pieces.muted = bool(self._writers)  # only the first writer's magic is kept
        writer = pq.ParquetWriter(sink, with_column_ids(self._schema), **options)
        self._writers.append((writer, sink))
        self._skip_to_end(sink)

    def _is_outdated(self, batch: pa.RecordBatch, chosen: Encodings) -> bool:
        """Tell whether encodings were used for many rows, or do not suit the next ones."""
        if self.rows < self._look_rows:
            return False
        self._look_rows = self.rows + min(self.rows, _LOOK_ROWS)
        aged = self.rows + batch.num_rows - self._chosen_rows >= CHOICE_ROWS
        return aged or not chosen.suits(batch, self._compression)

    def _skip_to_end(self, sink: pa.PythonFile) -> None:
        """Move a writer's position, which Arrow counts itself, after the bytes of the others."""
        self._pieces.muted = True
        while left := self._pieces.place - sink.tell():
            sink.write(memoryview(_ZEROS)[:left])
        self._pieces.muted = False

    def _close(self) -> tuple[bytes, list[pq.FileMetaData]]:
        """Close all writers; return the filters and the metadata of all, without the footers."""
        filters: list[bytes] = []
        groups: list[pq.FileMetaData] = []
        for writer, sink in self._writers:
            self._skip_to_end(sink)
            writer.close()
            written = b"".join(self._pieces.take())
            size = int.from_bytes(written[-8:-4], "little") + 8  # footer, its length, the magic
            filters.append(written[:-size])
            groups.append(writer.writer.metadata)
            self._pieces.place -= size
        return b"".join(filters), groups

    def _footer(self, groups: Sequence[pq.FileMetaData], index: bytes) -> bytes:
        """Return one footer, which names the row groups of all writers and holds the index."""
        schema, none = with_column_ids(self._schema), pa.BufferOutputStream()
        with pq.ParquetWriter(none, schema, **self._options) as empty:
            # Our own text of the schema: pyarrow's would include the field ids.
            ours = {_SCHEMA_KEY: encode_schema(self._schema), INDEX_KEY: index}
            empty.add_key_value_metadata(ours)
        metadata = empty.writer.metadata
        for written in groups:
            metadata.append_row_groups(written)
        sink = pa.BufferOutputStream()
        metadata.write_metadata_file(sink)
        footer: bytes = sink.getvalue()[len(MAGIC) :].to_pybytes()
        return footer

    def _bounded_later(self, batch: pa.RecordBatch) -> list[str]:
        """Return the columns of texts whose bounds `_bound_texts` takes from Parquet."""
        lengths = {name: pc.max(pc.binary_length(batch.column(name))) for name in self._texts}
        return [name for name, most in lengths.items() if (most.as_py() or 0) <= _LONGEST_BOUND]

    def _bound_texts(self, groups: Iterable[pq.FileMetaData]) -> None:
        """Take the bounds of texts from the row groups, which saves the time to compute them."""
        rows = (group.row_group(n) for group in groups for n in range(group.num_row_groups))
        for stats, group in zip(self._stats, rows, strict=True):
            for label, leaf in self._texts.values():
                found = group.column(leaf).statistics
                if stats[label].min is None and found is not None and found.has_min_max:
                    text = label.startswith("string:")
                    bounds = cut_bounds(found.min_raw, found.max_raw, text=text)
                    stats[label] = Bounds(*bounds, stats[label].nulls)


def _find_texts(schema: pa.Schema, columns: Collection[str]) -> dict[str, tuple[str, int]]:
    """Return label and leaf of each of the columns that are texts or binaries."""
    found, leaf = {}, 0
    for field in schema:
        if field.name in columns and (t.is_string(field.type) or t.is_binary(field.type)):
            found[field.name] = label_of(field) or "", leaf
        leaf += len(leaves_of(pa.schema([field])))
    return found


def _find_refused(batch: pa.RecordBatch) -> str | None:
    """Return the first column that can't be written alone; None if all of them can."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        table = pa.table([column], names=[name])
        try:
            pq.write_table(table, pa.MockOutputStream(), store_decimal_as_integer=True)
        except PARQUET_ERRORS:
            return str(name)
    return None


def _without_magic(pieces: list[bytes]) -> list[bytes]:
    # Parquet's writer begins with the magic, which `start` has already returned.
    if pieces[0] != MAGIC:
        raise InvalidInputError("the Parquet writer did not begin with the magic bytes")
    return pieces[1:]


def _build(
    frames: Sequence[FrameEntry],
    stats: Sequence[Piece],
    lengths: list[list[int]],
    crcs: list[list[int]],
    filtered: list[str],
) -> bytes:
    facts: dict[str, Any] = {"version": VERSION, "lengths": lengths, "crcs": crcs}
    if filtered:
        facts["filters"] = filtered
    pieces = json.dumps(facts).encode()
    raw = pieces[:-1] + b',"index":' + build_index(frames, stats) + b"}"
    if len(raw) > MAX_INDEX_BYTES:  # statistics are optional
        raw = pieces[:-1] + b',"index":' + build_index(frames) + b"}"
    if len(raw) > MAX_INDEX_BYTES:
        raise InvalidInputError(
            "a segment has too many frames and columns",
            remedy="set segment_rows or segment_bytes lower, or frame_rows higher",
            frames=len(frames),
            pieces=sum(map(len, lengths)),
        )
    return base64.b64encode(zstandard.ZstdCompressor(level=3).compress(raw))


def can_store(schema: pa.Schema) -> bool:
    """Tell whether Parquet restores a schema in normal form exactly."""
    return _leaf_paths(schema) is not None


@lru_cache(maxsize=64)
def _leaf_paths(schema: pa.Schema) -> tuple[str, ...] | None:
    """Return the path of each leaf in an empty file; None if that restores another schema."""
    sink = pa.BufferOutputStream()
    empty = pa.Table.from_batches([], schema=schema)  # `empty_table` would import pandas
    try:
        pq.write_table(empty, sink, store_decimal_as_integer=True)
        with pq.ParquetFile(pa.BufferReader(sink.getvalue())) as file:
            found, leaves = file.schema_arrow, file.schema
    except MemoryError:  # not caused by the schema, so it must not be cached
        raise
    except PARQUET_ERRORS:
        return None
    same = found.names == schema.names and all(
        ours.type.equals(theirs.type) for ours, theirs in zip(schema, found, strict=True)
    )
    if not same or len(leaves_of(schema)) != len(leaves_of(found)):
        return None
    return tuple(leaves.column(place).path for place in range(len(leaves)))
