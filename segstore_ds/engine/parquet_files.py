"""The settled part of a stream as what it is: plain Parquet files, for whoever reads those."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from segstore_ds.engine.origins import origins_of
from segstore_ds.engine.table_status import Run, TableStatus
from segstore_ds.format import names
from segstore_ds.format.root import Root
from segstore_ds.format.segment import PARQUET


@dataclass(frozen=True, slots=True)
class ParquetFile:
    """One segment that is a Parquet file; row n of it is the event at offset `start` + n.

    Attributes:
        url: Where it lies.
        path: The same within the folder of the stream, or of its origin where a clone shares it.
        segment_id: Of the segment.
        epoch: The generation of the schema that its columns are of.
        start: Offset of its first row.
        end: Offset behind its last row.
        rows: How many rows it has.
        bytes: Its size.
    """

    url: str
    path: str
    segment_id: int
    epoch: int
    start: int
    end: int
    rows: int
    bytes: int


def list_parquet_files(
    status: TableStatus, root: Root, bounds: tuple[int, int], *, url: str
) -> Iterator[ParquetFile]:
    """Yield the Parquet segments that hold events of a range, in offset order.

    Args:
        status: The stream's table status.
        root: The version to look at.
        bounds: ``(start, end)`` offsets.
        url: The stream's.

    Raises:
        FormatError: A status part can't be read.
        StorageError: The storage failed.
    """
    origins = [origin.url for origin in origins_of(root)]
    here = {info.path for info in status.storage.list(names.SEGMENTS_FOLDER)} if origins else set()
    for run in status.runs(root, *bounds):
        for file in _files(run, url):
            shared = origins and file.path not in here
            yield replace(file, url=f"{origins[0]}/{file.path}") if shared else file


def _files(run: Run, url: str) -> Iterator[ParquetFile]:
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
        )
