"""What a scan does when a segment is damaged or missing: another copy, or the right error.

A task has no handle on its stream, so the log is opened here, and only when something is wrong.
"""

import logging
from collections.abc import Iterator
from itertools import islice

import pyarrow as pa

from segstore_ds.errors import (
    FormatError,
    MissingObjectError,
    NotFoundError,
    SnapshotExpiredError,
    StorageError,
)
from segstore_ds.format import names
from segstore_ds.log.context import StreamContext
from segstore_ds.log.seen import replaced_stream
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.read.decode import SliceDecoder
from segstore_ds.read.plan import Reading
from segstore_ds.status.inline import with_inline
from segstore_ds.status.table_status import PlacedSegment

_LOG = logging.getLogger(__name__)


def read_or_fall_back(
    slice_: SliceDecoder, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield a slice's batches; if its segment is missing or damaged, the rest from another copy.

    Raises:
        SnapshotExpiredError: The segment is missing because its version has expired.
        NotFoundError: It is missing because the stream was dropped.
    """
    done = 0
    try:
        for batch in batches:
            yield batch
            done += 1
    except FormatError as error:
        damage = error
    else:
        return
    reading, path = slice_.decoder.reading, slice_.slice.entry.path
    for folder in reading.mirrors.folders(reading.storage) if reading.mirrors else ():
        try:
            storage = folder
            if names.is_inline(path):
                storage = with_inline(storage, StreamLog(storage).read_version(reading.version))
            # The same bytes give the same batches: skip those that were already yielded.
            for batch in islice(slice_.batches(storage), done, None):
                yield batch
                done += 1
        except (FormatError, NotFoundError, StorageError) as error:
            _LOG.warning("%s has no intact copy of %s: %s", folder.url, path, error)
            continue
        _LOG.warning("%s is damaged here and was read from %s: %s", path, folder.url, damage)
        return
    if isinstance(damage, MissingObjectError) and not _is_listed(reading, slice_.slice):
        raise SnapshotExpiredError(
            "segments of this version were deleted",
            stream=reading.stream_id,
            version=reading.version,
            segment=path,
        ) from damage
    raise damage


def _is_listed(reading: Reading, slice_: PlacedSegment) -> bool:
    """Tell whether the newest version still has a slice's segment."""
    context = StreamContext.of(StreamLog(reading.storage))
    root = context.log.reopen()
    if root.stream_id != reading.stream_id:
        raise replaced_stream(reading.storage.url, reading.stream_id, root)
    end = slice_.start + slice_.claim[1]
    placed = context.status.segments(root, slice_.start, end)
    return any(segment.entry.path == slice_.entry.path for segment in placed)
