"""Finds what is damaged of the published tables: what other engines need to read them.

Segments that a table lists are the stream's, and so is the check of them.
"""

import io
from collections.abc import Callable, Iterator
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq

from segstore_ds.errors import CorruptionError, FormatError
from segstore_ds.publish import paths
from segstore_ds.publish.folder import is_foreign, list_table
from segstore_ds.publish.formats import CODECS
from segstore_ds.publish.snapshot import File
from segstore_ds.storage import Storage


def damaged_tables(storage: Storage) -> Iterator[tuple[str, FormatError]]:
    """Yield what is damaged of a stream's published tables: the object, and what is wrong."""
    for codec in CODECS.values():
        listed = list_table(storage, codec)
        objects = {info.path: info for info in listed if paths.is_published(info.path)}
        damage = [each for path, read in codec.reads(storage, objects) for each in _try(path, read)]
        yield from damage
        if objects and not damage:
            _, files = codec.read_files(storage, codec.newest(storage))
            for file in files.values():
                if file.key != file.path:  # else a segment
                    yield from _try(file.path, partial(_check_own, storage, file))


def _try(path: str, read: Callable[[], object]) -> Iterator[tuple[str, FormatError]]:
    try:
        read()
    except FormatError as error:
        yield path, error


def _check_own(storage: Storage, file: File) -> None:
    data, where = storage.get(file.path), storage.describe(file.path)
    if len(data) != file.bytes:
        raise CorruptionError(
            "file of a table has the wrong length",
            where=where,
            expected=file.bytes,
            actual=len(data),
        )
    try:
        with pq.ParquetFile(io.BytesIO(data), page_checksum_verification=True) as found:
            for group in range(found.num_row_groups):
                found.read_row_group(group)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptionError("file of a table can't be read", where=where) from error


def advise(storage: Storage, stream_id: str, path: str) -> str:
    """Return what to do about a damaged object of a published table."""
    folder = path.partition("/")[0]
    codec = next(c for c in CODECS.values() if folder in (c.KIND, c.METADATA_FOLDER))
    publish = f"segstore publish {storage.url} --format {codec.KIND}"
    if is_foreign(storage, codec, stream_id):
        return f"delete {storage.url}/{codec.METADATA_FOLDER} by hand, then call: {publish}"
    return f"call: {publish} --remove, then {publish}"
