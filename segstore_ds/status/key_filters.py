"""Filters of whole segments: made of those of their frames, some time after the commit.

No commit waits for this. After the acknowledgement the part that a spill wrote is written
again, with filters, in a commit of its own; merges of parts copy them. A part without them serves
every read, which opens its segments instead.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from segstore_ds.errors import FormatError, MissingObjectError
from segstore_ds.format import names
from segstore_ds.format.parts.segments import SegmentFilters, join_frames
from segstore_ds.format.root import PartRef, Root, SegmentEntry
from segstore_ds.format.segment import find_format
from segstore_ds.status.table_status import TableStatus
from segstore_ds.storage import Storage

MOST_LOOKED = 4096  # segments that one commit looks at; the next one goes on behind them
_THREADS = 16  # each mostly waits for the storage


def plan_key_filters(status: TableStatus, root: Root, *, complete: bool = False) -> PartRef | None:
    """Return the newest part whose filters were not collected yet; None if there is none.

    A part that is not in memory is read only if `complete`: the process that wrote it has it there.
    Parts in lists are passed over: each was the newest one once.
    """
    parts = (part for part in reversed(root.parts) if complete or status.table.holds(part))
    return next((part for part in parts if status.table.lacks_filters(part)), None)


def find_filters(storage: Storage, entries: Sequence[SegmentEntry]) -> list[SegmentFilters]:
    """Return the filters of segments, from their footers; several are fetched at once."""

    def look(entry: SegmentEntry) -> SegmentFilters:
        try:
            return segment_filters(storage, entry)
        except MissingObjectError:
            return None  # repair may bring it back
        except FormatError:
            return {}  # readers open it, and tell what is wrong

    with ThreadPoolExecutor(_THREADS, "segstore-key-filters") as threads:
        return list(threads.map(look, entries))


def segment_filters(storage: Storage, entry: SegmentEntry) -> SegmentFilters:
    """Return the filters of a segment: those of its frames, joined."""
    path = names.segment_object(entry.path)
    where = storage.describe(path)
    end = storage.get_range(path, entry.bytes - entry.footer_bytes, entry.bytes)
    index = find_format(entry.format, where=where).parse_index(
        end, object_bytes=entry.bytes, where=where, footer_crc=entry.footer_crc
    )
    return join_frames([frame.filters for frame in index.frames], segment_bytes=entry.bytes)
