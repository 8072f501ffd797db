"""Retain: moves the head by a policy of size and age that respects tags and readers.

Events beyond a maximum are dropped, events within a minimum are kept, and a minimum wins. Without a
maximum, events that every live reader is done with are dropped. Events that a tag or a live reader
needs are kept, unless the policy does not respect them. Ages count from the commit that appended an
event, by the store's clock.

Every attempt of the commit reads the readers again; `retention.readers` says why.
"""

import datetime as dt
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types as t

from segstore_ds.errors import CorruptionError, InvalidInputError, NotFoundError
from segstore_ds.format.indexed_columns import find_time_field
from segstore_ds.format.parts.rows import Ints
from segstore_ds.format.policies import (
    RETENTION_PROPERTY,
    RetentionPolicy,
    as_policy,
    has_maximum,
    parse_policy,
)
from segstore_ds.format.root import Root, Tag
from segstore_ds.log.commit import Change, Committed
from segstore_ds.log.context import StreamContext
from segstore_ds.log.lookup import find_moment
from segstore_ds.options.quantities import to_moment
from segstore_ds.read.event_time import moment_of, resolve_event_time
from segstore_ds.read.reader_records import SeenReader, live_readers
from segstore_ds.retention.report import Blocker, Retained
from segstore_ds.retention.truncate import plan_truncate, trim_part
from segstore_ds.status.epochs import epoch_schema
from segstore_ds.status.history import Note
from segstore_ds.status.table import Slot
from segstore_ds.status.table_status import Run

EVERY_S = 60.0
_MOST_NAMED = 20
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Plan:
    """Where a policy moves the head."""

    offset: int  # the new head, never below the current one
    wanted: int  # the head by the maxima alone; without a maximum, by the readers alone
    least: int | None = None  # the offset from which `min_bytes` keeps events; None without it
    total: int = 0  # bytes of all kept events, if the policy bounds bytes


def plan_retain(
    root: Root,
    runs: Iterable[Run],
    policy: RetentionPolicy,
    *,
    aged: int,
    young: int,
    held: Collection[int] = (),
    tagged: Collection[int] = (),
) -> Plan:
    """Plan where to move the head. Pure.

    `runs` are all segments with kept events, in offset order; they are read only for a bound in
    bytes. Events before `aged` are older than a maximum age, those from `young` on are younger than
    `min_age`. `held` and `tagged` are the offsets of live readers and tags to respect.
    """
    measured = policy.max_bytes is not None or policy.min_bytes is not None
    borders, before = _borders(root, runs if measured else ())
    total, least = int(before[-1]), None
    if has_maximum(policy):
        ages = (policy.max_age, policy.max_event_age)
        wanted = root.head if ages == (None, None) else aged
        if policy.max_bytes is not None:
            place = np.searchsorted(before, total - policy.max_bytes)
            wanted = max(wanted, int(borders[place]))
    else:
        wanted = root.tail if held else root.head
    limits = [wanted, *held, *tagged]
    if policy.min_bytes is not None:
        place = np.searchsorted(before, max(total - policy.min_bytes, 0), "right") - 1
        least = int(borders[place])
        limits.append(least)
    if policy.min_age is not None:
        limits.append(young)
    return Plan(max(min(limits), root.head), wanted, least, total)


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


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one attempt of `apply_policy` read and planned."""

    before: Root
    plan: Plan
    young: int  # as in `plan_retain`
    readers: list[SeenReader]
    tags: Mapping[str, Tag]


def apply_policy(
    context: StreamContext, policy: RetentionPolicy, *, dry_run: bool = False
) -> Committed[Attempt]:
    """Move the head as far as a policy allows; safe to repeat. A dry run only plans it."""
    context.log.refresh()
    now_us = context.log.store_now_us()
    aged = max(_older(context, now_us, policy.max_age), _event_cut(context, now_us, policy))
    young = _older(context, now_us, policy.min_age)

    def build(root: Root, slot: Slot) -> Change[Attempt]:
        readers, tags = list[SeenReader](), dict[str, Tag]()
        if policy.respect_readers:
            readers = live_readers(context, now_us)
            tags = {
                name: tag
                for name, tag in root.tags.items()
                if tag.offset >= root.head and name not in root.kept
            }
        held = [seen.needs(root) for seen in readers]
        tagged = [tag.offset for tag in tags.values()]
        runs = context.status.runs(root, root.head, root.tail)
        plan = plan_retain(root, runs, policy, aged=aged, young=young, held=held, tagged=tagged)
        planned = None if dry_run else plan_truncate(root, plan.offset, slot)
        if planned is not None:
            planned = trim_part(context.status, replace(planned, client=context.client), slot)
            planned = context.status.tidy(planned, slot)
        note = Note(changed={"retention": True})
        return Change(planned, Attempt(root, plan, young, readers, tags), note)

    done = context.log.commit(build)
    for seen in done.result.readers:
        if seen.lags(done.result.before):
            _LOG.warning(
                "reader %r at %d (generation %d) is behind the head %d (generation %d) and keeps "
                "all events from being dropped until it lapses: continue with "
                "stream.readers.register(%r, start='head'), or free it with "
                "stream.readers.release(%r)",
                *(seen.name, seen.record.offset, seen.record.generation),
                *(done.root.head, done.root.generation, seen.name, seen.name),
            )
    return done


def run_retain(
    context: StreamContext, policy: RetentionPolicy, *, dry_run: bool = False
) -> Retained:
    """Move the head as far as a policy allows; report what keeps it from moving further."""
    done = apply_policy(context, policy, dry_run=dry_run)
    made = done.result
    dropped = made.plan.offset - made.before.head
    return Retained(made.plan.offset, dropped, tuple(_blockers(context, policy, made)))


def _blockers(context: StreamContext, policy: RetentionPolicy, made: Attempt) -> list[Blocker]:
    root, plan = made.before, made.plan
    if plan.wanted <= root.head:
        return _nothing_exceeds(context, policy, made)
    if plan.offset >= plan.wanted:
        return []
    blockers = _reader_blockers(made.readers, root, plan.wanted)
    blockers += _tag_blockers(made.tags, plan.wanted)
    if plan.least is not None and plan.least < plan.wanted:
        why = f"min_bytes={policy.min_bytes} keeps the events from {plan.least} on"
        blockers.append(Blocker("min_bytes", plan.least, why))
    young = made.young
    if policy.min_age is not None and young < plan.wanted:
        until = _comes_of_age(context, root, young, policy.min_age)
        why = f"min_age={policy.min_age} s keeps the events from {young} on{_until_text(until)}"
        blockers.append(Blocker("min_age", young, why, until=until))
    return sorted(blockers, key=lambda blocker: blocker.offset)[:_MOST_NAMED]


def _until_text(until: dt.datetime | None) -> str:
    """Return `` until <time>`` to end a sentence with; empty for None."""
    return "" if until is None else f" until {until.isoformat(timespec='seconds')}"


def _reader_blockers(readers: Iterable[SeenReader], root: Root, wanted: int) -> list[Blocker]:
    """Return the live readers that need events below the wanted head. Pure."""
    blockers = []
    for seen in readers:
        if (offset := seen.needs(root)) >= wanted:
            continue
        record, until = seen.record, to_moment(seen.renewed_us + seen.record.lapse_s * 1_000_000)
        owner = f" of {record.owner!r}" if record.owner else ""
        place = f"has read up to {record.offset}"
        if seen.lags(root):
            place = (
                f"is at {record.offset} of generation {record.generation}, behind the head "
                f"{root.head} of generation {root.generation}"
            )
        why = f"reader {seen.name!r}{owner} {place}; retention waits for it{_until_text(until)}"
        blockers.append(Blocker("reader", offset, why, seen.name, record.owner, until))
    return blockers


def _tag_blockers(tags: Mapping[str, Tag], wanted: int) -> list[Blocker]:
    """Return the tags below the wanted head. Pure."""
    lowest = sorted((tag.offset, name) for name, tag in tags.items() if tag.offset < wanted)
    return [
        Blocker("tag", offset, f"tag {name!r} is at {offset}", name)
        for offset, name in lowest[:_MOST_NAMED]
    ]


def _nothing_exceeds(
    context: StreamContext, policy: RetentionPolicy, made: Attempt
) -> list[Blocker]:
    root, blockers = made.before, []
    if root.head == root.tail:
        return [Blocker("no events", root.head, "the stream holds no events")]
    if not has_maximum(policy):
        why = "no live reader is registered, and there is no maximum"
        return [Blocker("no readers", root.head, why)]
    if policy.max_age is not None:
        until = _comes_of_age(context, root, root.head, policy.max_age)
        why = f"no event is older than max_age={policy.max_age} s{_until_text(until)}"
        blockers.append(Blocker("max_age", root.head, why, until=until))
    if policy.max_event_age is not None:
        why = f"the first event is within max_event_age={policy.max_event_age} s"
        blockers.append(Blocker("max_event_age", root.head, why))
    if policy.max_bytes is not None:
        why = f"the events have {made.plan.total} bytes, max_bytes={policy.max_bytes} allows them"
        blockers.append(Blocker("max_bytes", root.head, why))
    return blockers


def _comes_of_age(
    context: StreamContext, root: Root, offset: int, age_s: int
) -> dt.datetime | None:
    """Return when the event at an offset reaches an age; None if its commit time is unknown."""
    try:
        times = context.log.history.commit_times(root, offset, offset + 1)[1]
    except NotFoundError:
        return None
    return to_moment(int(times[0]) + age_s * 1_000_000) if len(times) else None


def policy_of(root: Root) -> RetentionPolicy | None:
    """Return the policy that is applied after commits; CorruptionError if it can't be read."""
    text = root.properties.get(RETENTION_PROPERTY)
    return None if text is None else parse_policy(text)


def build_retention(
    given: RetentionPolicy | Mapping[str, Any] | None, field: pa.Field | None
) -> str | None:
    """Return the property's text for a policy; None for none. `field` is the time column."""
    policy = None if given is None else as_policy(given)
    if policy is not None and policy.max_event_age is not None:
        check_event_age(field)
    return None if policy is None else policy.to_json()


class AutoRetain:
    """Applies the stream's policy after commits, at most once a minute."""

    def __init__(self, context: StreamContext) -> None:
        self._context = context
        self._applied_s = float("-inf")

    def apply_if_due(self) -> None:
        """Apply the policy if there is one and a minute has passed since the last time."""
        # This may read the root: after a merge with an unknown outcome, the handle has none.
        text = self._context.log.root.properties.get(RETENTION_PROPERTY)
        if text is None or (now_s := self._context.clock.boot_s()) - self._applied_s < EVERY_S:
            return
        self._applied_s = now_s
        apply_policy(self._context, parse_policy(text))


def _older(context: StreamContext, now_us: int, age_s: int | None) -> int:
    return tail_at(context, None if age_s is None else now_us - age_s * 1_000_000)


def tail_at(context: StreamContext, time_us: int | None) -> int:
    """Return the tail as of a time; the head if the time is None."""
    if time_us is None:
        return context.log.root.head
    moment = find_moment(context.log, context.log.refresh(), time_us)
    return moment.tail if moment else 0


def _event_cut(context: StreamContext, now_us: int, policy: RetentionPolicy) -> int:
    """Return the offset of the first event within `max_event_age`; the head without that age."""
    root = context.log.root
    if policy.max_event_age is None:
        return root.head
    field = find_time_field(root, epoch_schema(context.status, root.epoch))
    check_event_age(field)
    moment = moment_of(field, now_us - policy.max_event_age * 1_000_000)
    return resolve_event_time(context, root, moment, end=False)


def tells_age(field: pa.Field | None) -> bool:
    """Tell whether a column can say how old events are: it has dates, or a time zone."""
    return field is not None and bool(t.is_date(field.type) or getattr(field.type, "tz", None))


def check_event_age(field: pa.Field | None) -> None:
    """Raise InvalidInputError unless a time column can say how old events are."""
    if not tells_age(field):
        raise InvalidInputError(
            "max_event_age needs a time column of dates, or of timestamps with a zone",
            remedy="choose one with stream.settings.update(time_column=...); other times need a "
            "cut, such as stream.truncate('eventtime:2026-11-20')",
            column=field and field.name,
            type=field and str(field.type),
        )
