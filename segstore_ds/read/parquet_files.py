"""Lists the Parquet-backed history of a stream as plain Parquet files, for other engines."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from segstore_ds.errors import InvalidInputError
from segstore_ds.format import names
from segstore_ds.format.clones import origins_of
from segstore_ds.format.root import Root
from segstore_ds.format.segment import PARQUET
from segstore_ds.status.table_status import Run, TableStatus


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
    status: TableStatus, root: Root, bounds: tuple[int, int], *, url: str, partial: bool
) -> list[ParquetFile]:
    """List the Parquet segments that hold events of ``bounds``, ``(start, end)``, in offset order.

    Raises:
        InvalidInputError: Some events are in no Parquet file, and `partial` does not allow that.
    """
    origins = list(origins_of(root))
    here = {info.path for info in status.storage.list(names.SEGMENTS_FOLDER)} if origins else set()
    files: list[ParquetFile] = []
    for run in status.runs(root, *bounds):
        for file in _files(run, bounds, url):
            shared = origins and file.path not in here
            files.append(replace(file, url=f"{origins[0].url}/{file.path}") if shared else file)
    away = [file for file in files if not file.url.startswith(f"{url}/")]
    if away:
        # A plain reader of the files makes no checks, so the origin is checked here.
        status.storage.info(away[0].path)
    if not partial:
        _check_complete(files, bounds)
    return files


def _files(run: Run, bounds: tuple[int, int], url: str) -> Iterator[ParquetFile]:
    columns = run.columns
    kinds = [place for place, kind in enumerate(columns.kind_names) if kind[0] == PARQUET]
    for row in np.flatnonzero(np.isin(columns.kinds, kinds)).tolist() if kinds else ():
        start, entry = int(run.starts[row]), columns.entry(row)
        path = names.segment_object(entry.path)
        yield ParquetFile(
            url=f"{url}/{path}",
            path=path,
            segment_id=entry.segment_id,
            epoch=entry.epoch,
            start=start,
            end=start + entry.rows,
            rows=entry.rows,
            bytes=entry.bytes,
            row_start=max(bounds[0] - start, 0),
            row_end=min(bounds[1] - start, entry.rows),
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
