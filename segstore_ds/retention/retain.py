"""Retain: moves the head by a policy of size and age that respects tags and readers.

Events beyond a maximum are dropped, events within a minimum are kept, and a minimum wins. Without a
maximum, events that every live reader is done with are dropped. Events that a tag or a live reader
needs are kept, unless the policy does not respect them. Ages count from the commit that appended an
event, by the store's clock.

Readers are read within every attempt of the commit; `retention.readers` describes the race that
this closes.
"""

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from segstore_ds.commit.commit import Change, Committed
from segstore_ds.commit.context import StreamContext
from segstore_ds.commit.lookup import moment_at
from segstore_ds.commit.properties import run_set_properties
from segstore_ds.errors import (
    CorruptionError,
    InvalidInputError,
    SnapshotExpiredError,
)
from segstore_ds.format.parts.packed import Ints
from segstore_ds.format.retention import PROPERTY, RetentionPolicy, parse_policy
from segstore_ds.format.root import Root
from segstore_ds.log.transition import Slot
from segstore_ds.read.reader_records import SeenReader, live_readers, store_now_us
from segstore_ds.retention.truncate import finish_truncate, plan_truncate
from segstore_ds.status.table_status import Run

EVERY_S = 60.0
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Offsets:
    """What ages, readers and tags stand for.

    Events before `aged` are older than `max_age_s`; events from `young` on are younger than
    `min_age_s`. `held` and `tagged` are offsets that live readers and tags need; both are empty if
    the policy does not respect them.
    """

    aged: int
    young: int
    held: Collection[int] = ()
    tagged: Collection[int] = ()


def plan_retain(root: Root, runs: Iterable[Run], policy: RetentionPolicy, offsets: Offsets) -> int:
    """Return the offset to move the head to, never below the current head. Pure.

    `runs` are all segments that hold kept events, in offset order; they are read only for a bound
    in bytes.

    Raises:
        CorruptionError: The sum of the sizes overflows.
    """
    measured = policy.max_bytes is not None or policy.min_bytes is not None
    borders, before = _borders(root, runs if measured else ())
    total = int(before[-1])
    if policy.max_bytes is None and policy.max_age_s is None:
        target = root.tail if offsets.held else root.head
    else:
        target = offsets.aged if policy.max_age_s is not None else root.head
        if policy.max_bytes is not None:
            place = np.searchsorted(before, total - policy.max_bytes)
            target = max(target, int(borders[place]))
    if policy.min_bytes is not None:
        place = np.searchsorted(before, max(total - policy.min_bytes, 0), "right") - 1
        target = min(target, int(borders[place]))
    if policy.min_age_s is not None:
        target = min(target, offsets.young)
    return max(min([target, *offsets.held, *offsets.tagged]), root.head)


def _borders(root: Root, runs: Iterable[Run]) -> tuple[Ints, Ints]:
    """Return the offsets between segments from the head on, and the bytes before each."""
    offsets, sizes = [np.array([root.head])], [np.zeros(1, np.int64)]
    for run in runs:
        starts, columns = run.starts, run.columns
        size = columns.bytes.copy()
        if starts[0] < root.head:
            rows = int(columns.rows[0])
            size[0] = int(size[0]) * (rows - (root.head - int(starts[0]))) // rows
        offsets.append(starts + columns.rows)
        sizes.append(size)
    before = np.cumsum(np.concatenate(sizes))
    if np.any(np.diff(before) < 0):
        raise CorruptionError(
            "sizes of segments add up to more than an int64", stream=root.stream_id
        )
    return np.concatenate(offsets), before


def run_retain(context: StreamContext, policy: RetentionPolicy) -> Committed[list[SeenReader]]:
    """Move the head as far as a policy allows; safe to repeat. The result: readers that lag."""
    context.log.refresh()
    now_us = store_now_us(context)
    aged = _tail_at(context, now_us, policy.max_age_s)
    young = _tail_at(context, now_us, policy.min_age_s)

    def build(root: Root, slot: Slot) -> Change[list[SeenReader]]:
        held, tagged, lagging = list[int](), list[int](), list[SeenReader]()
        if policy.respect_readers:
            readers = live_readers(context, now_us)
            held = [seen.needs(root) for seen in readers]
            lagging = [seen for seen in readers if seen.lags(root)]
            tagged = [
                tag.offset for tag in context.status.tags(root).values() if tag.offset >= root.head
            ]
        runs = context.status.runs(root, root.head, root.tail)
        offset = plan_retain(root, runs, policy, Offsets(aged, young, held, tagged))
        planned = plan_truncate(root, offset, slot)
        root_after = None if planned is None else finish_truncate(context, planned, slot)
        return Change(root_after, lagging)

    done = context.log.commit(build)
    for seen in done.result:
        _LOG.warning(
            "reader %r at %d (generation %d) is behind the head %d (generation %d) and keeps "
            "all events from being dropped until it lapses: continue with stream.reader(%r, "
            "start='head'), or free it with stream.release_reader(%r)",
            *(seen.name, seen.record.offset, seen.record.generation),
            *(done.root.head, done.root.generation, seen.name, seen.name),
        )
    return done


def policy_of(root: Root) -> RetentionPolicy | None:
    """Return the policy that is applied after commits; CorruptionError if it can't be read."""
    text = root.properties.get(PROPERTY)
    return None if text is None else parse_policy(text)


def run_set_policy(context: StreamContext, policy: RetentionPolicy | None) -> None:
    """Set the policy that every committer applies after its commits; None ends it."""
    if policy is not None and not isinstance(policy, RetentionPolicy):
        raise InvalidInputError(
            "not a retention policy",
            remedy="give segstore.RetentionPolicy(max_age_s=...), or None to remove the policy",
            type=type(policy).__name__,
        )
    text = None if policy is None else policy.to_json()
    run_set_properties(context, {PROPERTY: text})


class AutoRetain:
    """Applies a stream's own policy after commits, at most once a minute."""

    def __init__(self, context: StreamContext) -> None:
        self._context = context
        self._applied_s = float("-inf")

    def apply_if_due(self) -> None:
        """Apply the policy if there is one and a minute has passed since the last time."""
        text = self._context.log.root.properties.get(PROPERTY)
        now = self._context.clock.boot_s()
        if text is None or now - self._applied_s < EVERY_S:
            return
        self._applied_s = now
        run_retain(self._context, parse_policy(text))


def _tail_at(context: StreamContext, now_us: int, age_s: int | None) -> int:
    """Return the offset before which all events are older; the head if that is unknown."""
    if age_s is None:
        return context.log.root.head
    try:
        found = moment_at(context.log, now_us - age_s * 1_000_000)
    except SnapshotExpiredError:
        return context.log.root.head
    return found.tail if found else 0
