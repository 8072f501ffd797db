"""Lists the segments of a stream that are Parquet files, for other engines."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from segstore_ds.errors import InvalidInputError
from segstore_ds.format import names
from segstore_ds.format.copies import origins_of
from segstore_ds.format.root import Root
from segstore_ds.format.segment import PARQUET
from segstore_ds.read.plan import Reading, plan_range
from segstore_ds.status.table_status import Slice, TableStatus


@dataclass(frozen=True, slots=True)
class ParquetFile:
    """One segment that is a Parquet file; its row n is the event at offset `start` + n.

    Attributes:
        url: The file's location.
        path: Its path in the stream's folder, or in the origin's folder if a clone shares the file.
        segment_id: The segment's id.
        epoch: The schema epoch that its columns belong to.
        start: The offset of its first row.
        end: The offset after its last row.
        rows: The number of rows in the file.
        bytes: The file's size.
        row_start: The first row within the requested range, counted from 0.
        row_end: The row after the last one within the requested range.
    """

    url: str
    path: str
    segment_id: int
    epoch: int
    start: int
    end: int
    rows: int
    bytes: int
    row_start: int
    row_end: int


def list_parquet_files(
    status: TableStatus, root: Root, reading: Reading, *, partial: bool
) -> list[ParquetFile]:
    """List the Parquet segments of a read without filters, in offset order."""
    url = status.storage.url
    origins = list(origins_of(root))
    here = {info.path for info in status.storage.list(names.SEGMENTS_FOLDER)} if origins else set()
    slices = plan_range(status, root, reading).select(PARQUET, reading.epochs)
    files = [parquet_file(placed, url) for placed in slices]
    if origins:
        there = origins[0].url
        files = [
            file if file.path in here else replace(file, url=f"{there}/{file.path}")
            for file in files
        ]
    away = [file for file in files if not file.url.startswith(f"{url}/")]
    if away:
        # Other engines make no checks, so the origin is checked here.
        status.storage.info(away[0].path)
    if not partial:
        _check_complete(files, (reading.start, reading.end))
    return files


def parquet_file(placed: Slice, url: str) -> ParquetFile:
    """Return a segment of a stream's folder as a file."""
    entry, path = placed.entry, names.segment_object(placed.entry.path)
    return ParquetFile(
        url=f"{url}/{path}",
        path=path,
        segment_id=entry.segment_id,
        epoch=entry.epoch,
        start=placed.start,
        end=placed.end,
        rows=entry.rows,
        bytes=entry.bytes,
        row_start=placed.rows[0],
        row_end=placed.rows[1],
    )


def _check_complete(files: Sequence[ParquetFile], bounds: tuple[int, int]) -> None:
    """Raise InvalidInputError if the files do not hold all events of the range."""
    covered = [(file.start + file.row_start, file.start + file.row_end) for file in files]
    edges = [bounds[0], *(edge for span in covered for edge in span), bounds[1]]
    gaps = [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if start < end]
    if gaps:
        raise InvalidInputError(
            "some events of the range are in no Parquet file",
            remedy="call stream.compact(layout=Layout(segment_format='parquet')) to merge "
            "small segments into Parquet files; or read the range with stream.read; or list "
            "only the files with partial=True",
            events=sum(end - start for start, end in gaps),
            first=f"[{gaps[0][0]}, {gaps[0][1]})",
        )
