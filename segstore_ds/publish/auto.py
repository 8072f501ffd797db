"""Publishing by itself: after commits, in the background, at most about once a minute.

Nobody waits for it, and nobody has to: what one process leaves undone, the next round of any
writer does. The property of the stream says whether; how long ago the last time was, the store's
time of what that wrote. It is compared with the time of the newest commit, so clocks that differ
make rounds rarer or more frequent, by no more than commit times may differ from the store's.
"""

from collections.abc import Collection

from segstore_ds.format.record import build_json
from segstore_ds.format.root import Root, property_of
from segstore_ds.log.context import StreamContext
from segstore_ds.publish.formats import CODECS
from segstore_ds.publish.life import run_publish, run_unpublish
from segstore_ds.write.create import run_set_properties

PROPERTY = "publish"  # On disk. Never change; add a new one.
EVERY_US = 60_000_000


def auto_publish_of(root: Root) -> tuple[str, ...]:
    """Return the formats of a stream's published tables; CorruptionError if it can't be read."""
    return property_of(root, PROPERTY, tuple[str, ...]) or ()


def run_set_auto_publish(context: StreamContext, kind: str, *, on: bool) -> None:
    """Let commits keep a table up to date, or no more; no commit if that is so already."""
    formats = auto_publish_of(context.log.refresh())
    if (kind in formats) != on:
        wanted = {*formats, kind} if on else {*formats} - {kind}
        run_set_properties(context, {PROPERTY: build_auto_publish(wanted)})


def build_auto_publish(formats: Collection[str]) -> str | None:
    """Return the property's text for formats; None for none."""
    return build_json(sorted(formats)).decode() if formats else None


def may_auto_publish(root: Root) -> bool:
    """Tell whether commits publish, as far as the root alone says. Pure."""
    return PROPERTY in root.properties and not root.dropped and not root.origins


def run_auto_publish(context: StreamContext, *, at_once: bool = False) -> None:
    """Bring the stream's tables up to date, unless `at_once` only those that were not just now."""
    root = context.log.follow()
    if not may_auto_publish(root):
        return
    for kind in auto_publish_of(root):
        codec = CODECS.get(kind)  # a newer client may know others
        if codec is None:
            continue
        if not at_once and codec.written_us(context.storage) + EVERY_US > root.time_us:
            continue
        done = run_publish(context, kind)
        # A table that was removed meanwhile was made anew: its user wants none.
        if done.table_version == codec.FIRST and kind not in auto_publish_of(context.log.follow()):
            run_unpublish(context, kind)
