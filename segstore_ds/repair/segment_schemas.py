"""Find the epoch of a schema by its fingerprint, and read schemas back from segments."""

import pyarrow as pa

from segstore_ds.errors import FormatError
from segstore_ds.format.parquet.segment import ParquetIndex
from segstore_ds.format.root import Root
from segstore_ds.format.schema.codec import fingerprint
from segstore_ds.read.segments import open_segment
from segstore_ds.repair.kept_versions import KeptVersions
from segstore_ds.status.epochs import epoch_schema
from segstore_ds.status.inline import with_inline


def epochs_by_fingerprint(kept: KeptVersions, root: Root) -> dict[str, int]:
    """Return the newest epoch of each schema of a root, as far as schemas can be read."""
    found: dict[str, int] = {}
    for epoch in root.epochs:
        try:
            schema: pa.Schema | None = epoch_schema(kept.status, epoch)
        except FormatError:
            schema = find_schema(kept, epoch.number)
        if schema is not None:
            found[fingerprint(schema)] = epoch.number
    return found


def find_schema(kept: KeptVersions, number: int) -> pa.Schema | None:
    """Return an epoch's schema as one of its segments stores it; None if none can be read."""
    root = kept.newest
    storage = with_inline(kept.storage, root)
    for placed in kept.segments_of(root, root.listed_start, root.tail, inline=True):
        if placed.entry.epoch != number:
            continue
        try:
            segment = open_segment(storage, placed.entry, whole=False)
            if isinstance(segment.index, ParquetIndex):
                schema = segment.index.schema.remove_metadata()
            else:
                with pa.ipc.open_stream(segment.stored(0)) as stream:
                    schema = stream.schema
        except (FormatError, pa.ArrowInvalid, OSError):
            continue
        if fingerprint(schema) == segment.frames[0].fingerprint:
            return schema
    return None
