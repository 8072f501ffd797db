"""Automatic publishing: after commits, in the background, at most about once a minute.

A property of the stream names the formats. No commit waits for a round. What one process leaves
undone, the next round of any writer does. A round is due a minute after the last one wrote: that
time is the store's, and is compared with the newest commit's. If the clocks differ, rounds run
earlier or later by at most that difference.

Small batches are Arrow segments, which no table lists. Once these are old or many, a round merges
them into Parquet segments, piece by piece for a bounded time, and the table shows the events up to
there.
"""

from collections.abc import Collection
from contextlib import suppress

from segstore_ds.compact.run import AUTO_PARQUET_ROWS, run_compact
from segstore_ds.errors import ConflictError, SnapshotExpiredError
from segstore_ds.format.record import build_json
from segstore_ds.format.root import Root, property_of
from segstore_ds.format.segment import PARQUET
from segstore_ds.log.context import StreamContext
from segstore_ds.log.lookup import find_moment
from segstore_ds.options.arguments import CompactRules
from segstore_ds.publish.life import CODECS, run_publish, run_unpublish
from segstore_ds.write.create import run_set_properties
from segstore_ds.write.layout import Layout

PROPERTY = "publish"  # On disk. Never change; add a new one.
EVERY_US = 60_000_000
SETTLE_ROWS, SETTLE_US = 100_000, 600_000_000  # merge when events are so many or so old
SETTLE_BYTES = 32 << 20  # most that is merged at once
SETTLE_S = 20.0  # after which a round merges no more for a table


def auto_publish_of(root: Root) -> tuple[str, ...]:
    """Return the formats of a stream's published tables; CorruptionError if it can't be read."""
    return property_of(root, PROPERTY, tuple[str, ...]) or ()


def run_set_auto_publish(context: StreamContext, kind: str, *, on: bool) -> None:
    """Switch automatic publishing of a table on or off; commits nothing if it is so already."""
    formats = auto_publish_of(context.log.refresh())
    if (kind in formats) != on:
        wanted = {*formats, kind} if on else {*formats} - {kind}
        run_set_properties(context, {PROPERTY: build_auto_publish(wanted)})


def build_auto_publish(formats: Collection[str]) -> str | None:
    """Return the property's text for formats; None for none."""
    return build_json(sorted(formats)).decode() if formats else None


def may_auto_publish(root: Root) -> bool:
    """Tell whether a commit of this root should start a round. Pure."""
    return PROPERTY in root.properties and not root.dropped and not root.origins


def run_auto_publish(context: StreamContext, *, at_once: bool = False) -> None:
    """Bring the stream's tables up to date; a table that was just written only if `at_once`."""
    root = context.log.follow()
    if not may_auto_publish(root):
        return
    for kind in auto_publish_of(root):
        codec = CODECS.get(kind)
        if codec is None:  # a newer client may have set a format that this one lacks
            continue
        if not at_once and codec.written_us(context.storage) + EVERY_US > root.time_us:
            continue
        done = run_publish(context, kind)
        upto, until_s = done.tail, context.clock.boot_s() + SETTLE_S
        now_us = context.clock.wall_us() if at_once else root.time_us
        while done.lag and (end := _settle(context, upto, now_us)) > upto:
            upto = end
            if context.clock.boot_s() > until_s:
                break
        if upto > done.tail:
            done = run_publish(context, kind, upto=upto)
        # A user removed the table meanwhile, and this round made it again: remove it.
        if done.table_version == codec.FIRST and kind not in auto_publish_of(context.log.follow()):
            run_unpublish(context, kind)


def _settle(context: StreamContext, start: int, now_us: int) -> int:
    """Merge the events that a table lacks, those from `start` on, if due; return the end offset."""
    root = context.log.refresh()
    if root.tail - start < SETTLE_ROWS:
        try:
            old = find_moment(context.log, root, now_us - SETTLE_US)
        except SnapshotExpiredError:
            old = None
        if old is None or old.tail <= start:
            return start
    end, size = start, 0
    for placed in context.status.segments(root, start, root.tail):
        size += placed.entry.bytes
        if size > SETTLE_BYTES and end > start:
            break
        end = placed.end
    rules = CompactRules(target_rows=AUTO_PARQUET_ROWS, target_bytes=SETTLE_BYTES)
    with suppress(ConflictError):  # others merge the same; else the table gets files of its own
        run_compact(context, rules, Layout(segment_format=PARQUET), bounds=(start, end))
    return end
