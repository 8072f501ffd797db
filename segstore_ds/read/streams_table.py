"""The metadata table `streams`: the streams below a folder, a row each.

A stream that can't be read, and a folder that can't be searched, is a row as well: it has the code
and the text of the error, and nulls for what could not be read. So one damaged stream hides no
other, and nothing is missing in silence.
"""

from typing import Any

import pyarrow as pa

from segstore_ds.errors import NotFoundError, SegstoreError
from segstore_ds.format import names
from segstore_ds.log.place import first_version
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.read.find_streams import Unsearched, search
from segstore_ds.read.metadata_tables import build_batches
from segstore_ds.storage import Storage

STREAMS_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("url", pa.string()),
        ("stream_id", pa.string()),
        ("version", pa.int64()),
        ("generation", pa.int64()),
        ("time", pa.timestamp("us", "UTC")),
        ("head", pa.int64()),
        ("tail", pa.int64()),
        ("events", pa.int64()),
        ("sealed", pa.bool_()),
        ("code", pa.string()),
        ("error", pa.string()),
    ]
)


def read_streams(storage: Storage, *, depth: int) -> pa.Table:
    """Return the streams of a folder, or the folder itself if it is one, ordered by location.

    Each folder takes one listing, and each stream the few requests of an open.

    Raises:
        NotFoundError: The folder does not exist.
        InvalidInputError: The location is a file.
        StorageError: The folder itself could not be listed.
    """
    rows = [
        _row_of_error(found.url, found.error) if isinstance(found, Unsearched) else found
        for found in search(storage, _read_stream, depth=depth)
    ]
    for row in rows:
        row["path"] = row["url"].removeprefix(storage.url).lstrip("/") or "."
    rows.sort(key=lambda row: str(row["url"]))
    return pa.Table.from_batches(build_batches(rows, STREAMS_SCHEMA), STREAMS_SCHEMA)


_DELETED = tuple(name for name in names.FOLDERS if name != names.LOG_FOLDER)  # by a drop


def _read_stream(folder: Storage) -> dict[str, Any] | None:
    """Return the row of a folder that holds a log; None if there is no commit in it."""
    log = StreamLog(folder)
    try:
        root = log.open()
    except NotFoundError as error:
        unfinished = any(True for name in _DELETED for _ in folder.list(name))
        gone = first_version(log.files) is not None and not unfinished
        return None if gone else _row_of_error(folder.url, error)
    except SegstoreError as error:
        return _row_of_error(folder.url, error)
    return {
        "url": folder.url,
        "stream_id": root.stream_id,
        "version": root.version,
        "generation": root.generation,
        "time": root.time_us,
        "head": root.head,
        "tail": root.tail,
        "events": root.tail - root.head,
        "sealed": root.sealed,
    }


def _row_of_error(url: str, error: SegstoreError) -> dict[str, Any]:
    return {"url": url, "code": error.code, "error": str(error)}
