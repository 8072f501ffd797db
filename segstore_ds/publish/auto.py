"""Publishing by itself: after commits, in the background, at most about once a minute.

Nobody waits for it, and nobody has to: what one process leaves undone, the next round of any
writer does. The property of the stream says whether; how long ago the last time was, the store's
time of what that wrote. It is compared with the time of the newest commit, so clocks that differ
make rounds rarer or more frequent, by no more than commit times may differ from the store's.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from segstore_ds.errors import MissingObjectError
from segstore_ds.format import names
from segstore_ds.format.auto_publish import PROPERTY, auto_publish_of, build_auto_publish
from segstore_ds.format.root import Root
from segstore_ds.log.context import StreamContext
from segstore_ds.publish.delta import run_publish_delta, run_unpublish_delta
from segstore_ds.publish.iceberg import run_publish_iceberg, run_unpublish_iceberg
from segstore_ds.publish.iceberg_table import HINT
from segstore_ds.publish.life_cycle import Published
from segstore_ds.storage import ObjectInfo, Storage
from segstore_ds.write.create import run_set_properties

EVERY_US = 60_000_000


def _delta_files(storage: Storage) -> set[ObjectInfo]:
    return set(storage.list(names.DELTA_LOG_FOLDER))


def _iceberg_hint(storage: Storage) -> set[ObjectInfo]:
    """Return what each publication replaces: the folder lists a week of metadata."""
    try:
        return {storage.info(HINT)}
    except MissingObjectError:
        return set()


@dataclass(frozen=True, slots=True)
class _Format:
    """How tables of a format are published and removed.

    Attributes:
        written: Returns what the newest publication wrote, maybe among older objects.
        was_removed: Tells whether a table that was published was removed since those were listed.
    """

    written: Callable[[Storage], set[ObjectInfo]]
    publish: Callable[[StreamContext], Published]
    unpublish: Callable[[StreamContext], object]
    was_removed: Callable[[Storage, set[ObjectInfo], Published], bool]


_FORMATS = {
    "delta": _Format(
        _delta_files,
        lambda context: run_publish_delta(context, settle=False, strict=False),
        run_unpublish_delta,
        lambda storage, before, _: before.isdisjoint(_delta_files(storage)),
    ),
    "iceberg": _Format(
        _iceberg_hint,
        lambda context: run_publish_iceberg(
            context, settle=False, strict=False, format_version=None
        ),
        run_unpublish_iceberg,
        lambda _, __, done: done.table_version == 1,  # its publisher makes it anew
    ),
}


def run_set_auto_publish(context: StreamContext, formats: Collection[str] | None) -> None:
    """Choose the formats that commits keep up to date; publishes them, so that errors are raised.

    Raises:
        InvalidInputError: A format is unknown, or the stream can't be published.
    """
    text = build_auto_publish(formats, _FORMATS)
    for name in formats or ():
        _FORMATS[name].publish(context)
    run_set_properties(context, {PROPERTY: text})


def end_auto_publish(context: StreamContext, name: str) -> None:
    """Let no further commit publish in a format; no commit if that is so already."""
    formats = auto_publish_of(context.log.refresh())
    if name in formats:
        kept = [other for other in formats if other != name]
        run_set_properties(context, {PROPERTY: build_auto_publish(kept, formats)})


def may_auto_publish(root: Root) -> bool:
    """Tell whether commits publish, as far as the root alone says. Pure."""
    return PROPERTY in root.properties and not root.dropped and not root.origins


def run_auto_publish(context: StreamContext, *, at_once: bool = False) -> None:
    """Bring the stream's tables up to date, unless `at_once` only those that were not just now."""
    root = context.log.follow()
    if not may_auto_publish(root):
        return
    for name in auto_publish_of(root):
        table = _FORMATS.get(name)  # a newer client may know others
        if table is None:
            continue
        before = table.written(context.storage)
        newest_us = max((info.modified_us for info in before), default=0)
        if newest_us + EVERY_US > root.time_us and not at_once:
            continue
        done = table.publish(context)
        ended = name not in auto_publish_of(context.log.follow())
        # What was put into a table while it was removed names what is gone.
        if ended and table.was_removed(context.storage, before, done):
            table.unpublish(context)
