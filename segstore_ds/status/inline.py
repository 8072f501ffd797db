"""Inline segments of a root: joins them, and writes them as objects."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import pyarrow as pa

from segstore_ds.errors import CorruptionError
from segstore_ds.format import names
from segstore_ds.format.arrow.frame import Frame, encode_frame, with_marks
from segstore_ds.format.bounds import label_of, merge
from segstore_ds.format.envelope import digest_of
from segstore_ds.format.indexed_columns import key_columns_of, time_column_of
from segstore_ds.format.inline import encoded_entry, frame_is_sound, index_of, lay_out, stored_frame
from segstore_ds.format.root import Root, SegmentEntry
from segstore_ds.format.statistics import Stats
from segstore_ds.storage import Storage

Schemas = Callable[[int], pa.Schema]


def join_inline(root: Root, schemas: Schemas) -> Root:
    """Return the root with each run of inline segments of one epoch joined to one.

    It has the number of the run's last one. A run with a damaged frame stays as it is: a new
    checksum would hide the damage.
    """
    found: list[SegmentEntry] = []
    for run in _runs(root):
        frames = _joined(root, run, schemas(run[0].epoch)) if run[0].frame else []
        found += [encoded_entry(run[-1].segment_id, frames[0])] if len(frames) == 1 else run
    return root.changed(entries=tuple(found))


def put_inline(storage: Storage, root: Root, schemas: Schemas) -> tuple[SegmentEntry, ...]:
    """Write each run of inline segments of one epoch as an object; return the root's new entries.

    The object has the number of the run's last segment. Its name has the version that it was
    planned on and a digest of its content, so no commit but the next one can name it first.
    """
    found: list[SegmentEntry] = []
    for run in _runs(root):
        inline = run[0].frame is not None
        found += [_put_run(storage, root, run, schemas(run[0].epoch))] if inline else run
    return tuple(found)


def _runs(root: Root) -> Iterator[list[SegmentEntry]]:
    """Yield runs of neighbouring segments of one epoch, either all inline or none."""
    for _, run in groupby(root.entries, key=lambda entry: (entry.frame is not None, entry.epoch)):
        yield list(run)


def _put_run(
    storage: Storage, root: Root, run: Sequence[SegmentEntry], schema: pa.Schema
) -> SegmentEntry:
    frames = [
        _marked(root, frame, schema, where=run[-1].path) if frame_is_sound(frame) else frame
        for frame in _joined(root, run, schema)
    ]
    data, laid = lay_out(frames)
    path = names.build_outlined_path(root.version, digest_of(data))
    storage.put_named(names.segment_object(path), data)
    return replace(laid, segment_id=run[-1].segment_id, path=path)


def _marked(root: Root, frame: Frame, schema: pa.Schema, *, where: str) -> Frame:
    """Return a frame with filters of the key columns and bounds of the time column."""
    keys, bounded = key_columns_of(root), time_column_of(root)
    return with_marks(frame, schema=schema, keys=keys, bounded=bounded, where=where)


def _joined(root: Root, run: Sequence[SegmentEntry], schema: pa.Schema) -> list[Frame]:
    """Return the events of a run as one frame, or its frames as they are if one is damaged."""
    batch = _decoded(run, schema) if len(run) > 1 else None
    if batch is None:
        return [stored_frame(each, each.frame) for each in run if each.frame]
    pieces = Stats.of_texts([entry.stats for entry in run]).pieces()
    stats = merge(zip([entry.rows for entry in run], pieces, strict=True))
    labels = {field.name: label_of(field) for field in schema}
    known = {label for piece in pieces for label in piece}
    chosen = [name for name in schema.names if labels[name] in known]
    timed = time_column_of(root)
    if timed in schema.names:
        chosen = list(dict.fromkeys([timed, *chosen]))  # first, as a segment keeps only a few
    # Bounds that every frame has need not be computed again.
    lacking = [name for name in chosen if labels[name] not in stats]
    frame = encode_frame(batch, compression="zstd", compression_level=None, stats_columns=lacking)
    stats |= frame.stats
    kept = [label for name in chosen if (label := labels[name]) in stats]
    return [replace(frame, stats={label: stats[label] for label in kept})]


def _decoded(run: Sequence[SegmentEntry], schema: pa.Schema) -> pa.RecordBatch | None:
    """Return the events of a run; None if a frame is damaged."""
    if not all(frame_is_sound(entry.frame) for entry in run if entry.frame):
        return None
    try:
        return pa.concat_batches(
            [
                index_of(entry, frame).decode(
                    0, [frame.data], schema=schema, columns=None, where=entry.path
                )
                for entry in run
                if (frame := entry.frame)
            ]
        )
    except (CorruptionError, ValueError):
        return None
