"""The times of whole parts: found when segments spill, and later where nobody has looked.

The root says them, so a lookup by time fetches only the parts that may hold such events. Merges of
parts join what is known of them, and whatever writes a part again passes it on.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from segstore_ds.errors import FormatError
from segstore_ds.format.part_times import PartTimes, label_of, times_of
from segstore_ds.format.root import PartRef, Root, SegmentEntry
from segstore_ds.format.time_column import PROPERTY, find_time_field
from segstore_ds.status.inline import Schemas
from segstore_ds.status.segment_bounds import segment_bounds


def find_times(root: Root, schema_of: Schemas, entries: Sequence[SegmentEntry]) -> PartTimes | None:
    """Return what segments say of the times of their events; None without a time column."""
    field = _time_field(root, schema_of)
    if field is None:
        return None
    epochs = [entry.epoch for entry in entries]
    found = segment_bounds(
        [entry.stats for entry in entries],
        epochs,
        [entry.rows for entry in entries],
        field,
        {epoch: schema_of(epoch) for epoch in set(epochs)},
        where=lambda place: entries[place].path,
    )
    return times_of(field, found)


def lacks_times(root: Root, schema_of: Schemas) -> bool:
    """Tell whether nobody has looked at the times of a part that a root itself names."""
    return next(_lacking(root, schema_of), None) is not None


def add_times(
    root: Root, schema_of: Schemas, read: Callable[[PartRef], Sequence[SegmentEntry]]
) -> Root:
    """Return the root with the times of its parts where nobody has looked at them yet.

    A part that can't be read stays without.
    """
    found: dict[str, PartTimes | None] = {}
    for part in _lacking(root, schema_of):
        try:
            found[part.path] = find_times(root, schema_of, read(part))
        except FormatError:
            continue
    parts = [replace(part, times=found.get(part.path, part.times)) for part in root.parts]
    return replace(root, parts=tuple(parts))


def _lacking(root: Root, schema_of: Schemas) -> Iterator[PartRef]:
    field = _time_field(root, schema_of)
    if field is not None:
        label = label_of(field)
        for part in root.parts:
            if part.times is None or part.times.column != label:
                yield part


def _time_field(root: Root, schema_of: Schemas) -> pa.Field | None:
    if PROPERTY not in root.properties:
        return None
    return find_time_field(root, schema_of(root.epoch.number))
