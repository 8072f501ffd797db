"""The layout of written segments: the options of a write, checked and typed."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache

import pyarrow as pa

from segstore_ds.errors import InvalidInputError
from segstore_ds.format.arrow.frame import Frame, encode_frame
from segstore_ds.format.bounds import columns_with_stats
from segstore_ds.format.parquet.encodings import saves_enough
from segstore_ds.format.parquet.writer import ParquetEncoder
from segstore_ds.options import table as options
from segstore_ds.options.arguments import check_option

STATS_COLUMNS = 32
FRAME_BYTES = 8 << 20  # target size of a frame before compression
FEW_BYTES = 2048
PLAIN_BYTES = 160  # bytes of a column that compression would hardly reduce
TRIED_BYTES = 1 << 20  # from here on, it is cheap to compress a sample first
HOT = "hot"  # internal: Arrow, but Parquet-backed history stays Parquet


@dataclass(frozen=True, slots=True)
class Layout:
    """How segments are laid out; the fields are the write options of the same names.

    Attributes:
        compression: ``zstd``, ``lz4`` or ``none``.
        compression_level: For zstd, such as 15 for an archive that is read seldom.
        frame_rows: Most events of a frame, which is read as a whole.
        segment_rows: Most events of a segment; None for no limit.
        segment_bytes: Most encoded bytes of a segment, approximately.
        inline_bytes: A task with fewer encoded bytes writes no segment of its own.
        stats_columns: Columns whose bounds are kept; None for the first 32 that have bounds.
        segment_format: ``arrow``, ``parquet``, or ``auto``: Parquet for tasks of at least
            10,000 events and more than four times `inline_bytes`.

    Examples:
        >>> archive = segstore.Layout(compression_level=15, segment_format="parquet")
        >>> stream.append({"user": "ada", "n": 4}, layout=archive).rows
        1
    """

    compression: str = options.default("compression")
    compression_level: int = options.default("compressionLevel")
    frame_rows: int = options.default("frameRows")
    segment_rows: int | None = options.default("segmentRows")
    segment_bytes: int = options.default("segmentBytes")
    inline_bytes: int = options.default("inlineBytes")
    stats_columns: tuple[str, ...] | None = options.default("statsColumns")
    segment_format: str = options.default("segmentFormat")

    def __post_init__(self) -> None:
        """Check the fields."""
        for field in fields(self):
            if field.name == "segment_format" and self.segment_format == HOT:
                continue
            checked = check_option(field.name, getattr(self, field.name))
            object.__setattr__(self, field.name, checked)

    def chosen_stats(self, schema: pa.Schema, time_column: str | None = None) -> list[str]:
        """Return the names of the columns with statistics; the time column comes first."""
        if self.stats_columns is not None:
            found = set(schema.names)
            chosen = [name for name in self.stats_columns if name in found]
        else:
            chosen = columns_with_stats(schema)[:STATS_COLUMNS]
        if time_column is None or time_column not in schema.names:
            return chosen
        # A segment's entry keeps only the first few statistics.
        return list(dict.fromkeys([time_column, *chosen]))

    @property
    def _level(self) -> int | None:
        return self.compression_level if self.compression == "zstd" else None

    def encode(
        self,
        batch: pa.RecordBatch,
        stats_columns: Sequence[str],
        key_columns: Sequence[str] = (),
        into: memoryview | None = None,
    ) -> Frame:
        """Encode a frame of an Arrow segment; do not compress it if that saves little."""
        size = size_of(batch)
        tiny = batch.num_rows < PLAIN_BYTES and size < PLAIN_BYTES * batch.num_columns
        tried = size >= TRIED_BYTES and self.compression != "none"
        plain = tiny or (tried and not saves_enough(batch))
        return encode_frame(
            batch,
            compression="none" if plain else self.compression,  # type: ignore[arg-type]
            compression_level=None if plain else self._level,
            stats_columns=stats_columns,
            key_columns=key_columns,
            into=into,
        )

    def parquet_encoder(
        self, schema: pa.Schema, stats_columns: Sequence[str], key_columns: Sequence[str] = ()
    ) -> ParquetEncoder:
        """Return the encoder of a Parquet segment."""
        return ParquetEncoder(
            schema,
            compression=self.compression,
            compression_level=self._level,
            stats_columns=stats_columns,
            key_columns=key_columns,
        )


def size_of(batch: pa.RecordBatch) -> int:
    """Return the bytes of a batch's rows, or of its whole buffers if these are small."""
    size: int = batch.get_total_buffer_size()  # costs nothing, unlike `nbytes`
    return size if size <= FEW_BYTES else batch.nbytes


@cache
def _default_layout() -> Layout:
    return Layout()


def as_layout(given: Layout | None) -> Layout:
    """Return the caller's layout, or the default one for None."""
    if given is None:
        return _default_layout()
    if not isinstance(given, Layout):
        raise InvalidInputError(
            "not a layout", remedy="give segstore.Layout(frame_rows=...)", type=type(given).__name__
        )
    return given
