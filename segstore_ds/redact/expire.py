"""Expiring values: rounds apply the rules of a stream as redactions that never end.

An event's age counts from its time, if the time column has dates or a time zone; otherwise, and
without a time, from its commit. A rule's record has the offset below which no value is left, where
a round begins. Bounds of times and counts of nulls then exclude all segments without newly due
values. Ages count in steps of 1/32 of the age, so a segment whose events become due one by one is
rewritten 32 times at most. A rule with filters begins again after other redactions of the columns
in its filters, since older events may match then.

A round may be killed anywhere: what it has committed stays, and the next round continues.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from segstore_ds.errors import ConflictError, CorruptionError, InvalidInputError, SegstoreError
from segstore_ds.format.indexed_columns import find_time_field
from segstore_ds.format.operation import Operation
from segstore_ds.format.redactions import (
    EXPIRY_PROPERTY,
    MOST_REASON,
    MOST_RULES,
    Expiry,
    Redaction,
    due_rules,
    expiry_of,
    redactions_of,
    with_redaction,
)
from segstore_ds.format.root import Root
from segstore_ds.format.schema.column_names import named_schema, stored_names
from segstore_ds.log.commit import Change
from segstore_ds.log.context import StreamContext
from segstore_ds.options.arguments import check_duration
from segstore_ds.read.event_time import moment_of, resolve_event_time, time_conditions
from segstore_ds.read.filters.conditions import Condition, Filters, all_of
from segstore_ds.read.filters.given import parse_filters
from segstore_ds.redact.plan import RedactRequest, check_columns
from segstore_ds.redact.rewrite import find_matches
from segstore_ds.redact.run import Progress, note_of
from segstore_ds.retention.retain import tail_at, tells_age
from segstore_ds.retention.upkeep import Round, deadline
from segstore_ds.status.epochs import epoch_schema
from segstore_ds.status.table import Slot

COMMIT_BYTES = 128 << 20  # of one commit: about what a round reads, encodes and syncs in a second
_RULE_KEYS = frozenset(("age", "filters"))


def parse_expiry(given: Mapping[str, Any], schema: pa.Schema) -> tuple[Expiry, ...]:
    """Return the rules in a user's mapping: by column an age, or a dict of age and filters."""
    if not isinstance(given, Mapping) or len(given) > MOST_RULES:
        raise InvalidInputError(
            "expiry is not a mapping of a few rules by column",
            remedy=f"give at most {MOST_RULES} rules, such as {{'email': '30d'}}, or "
            "{'email': {'age': '30d', 'filters': \"plan == 'free'\"}}",
            expiry=given,
        )
    rules = []
    for column, rule in given.items():
        known = rule if isinstance(rule, Mapping) else {"age": rule}
        age_s = check_duration("age", known.get("age"))
        filters = known.get("filters")
        if not age_s or not {*known} <= _RULE_KEYS or not isinstance(filters, str | None):
            raise InvalidInputError(
                "the rule of expiry is no age, and no dict of age and filters",
                remedy="give an age above 0, such as '30d', or a dict of 'age' and, as a text, "
                "'filters'",
                column=column,
                rule=rule,
            )
        check_columns([column], schema)
        parse_filters(filters, schema)
        rules.append(Expiry(column, age_s, filters))
    return tuple(rules)


def refuse_filtered(root: Root, schema: pa.Schema, changed: Collection[str]) -> None:
    """Raise InvalidInputError if the filters of a rule name a column that would change."""
    for rule in expiry_of(root):
        used = {*parse_filters(rule.filters, schema).columns} & {*changed}
        if used:
            raise InvalidInputError(
                "the filters of a rule of expiry use the column",
                remedy="first change the rule with stream.settings.update(expiry=...)",
                columns=sorted(used),
                filters=rule.filters,
            )


def may_expire(root: Root) -> bool:
    """Tell from the root alone whether a rule may be due. Pure."""
    try:
        return not root.dropped and bool(due_rules(root, root.time_us))
    except CorruptionError:
        return True  # the round raises the error, and no other round needs to


def run_expiry(context: StreamContext, budget_s: float = float("inf")) -> int:
    """Apply the stream's rules that are due; return how many events lost values.

    Safe to repeat, to kill at any point, and to run concurrently with everything else. After
    `budget_s` it begins no further commit; the next round continues. If a rule fails, the others
    are applied before its error is raised.
    """
    late, count, errors = deadline(context, budget_s), 0, list[SegstoreError]()
    root = context.log.refresh()
    if root.dropped or not expiry_of(root):
        return 0
    for rule, until_us in _due_rules(context, root, context.log.store_now_us()):
        try:
            count += _expire(context, rule, until_us, late)
        except SegstoreError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return count


def count_expired(context: StreamContext) -> int:
    """Return how many values a round would set to null now; changes nothing."""
    root, count = context.log.refresh(), 0
    for rule, until_us in _due_rules(context, root, context.clock.wall_us()):
        for progress in _passes(context, rule, until_us):
            job = progress.plan(root)
            for placed in progress.candidates(root, job):
                matched = find_matches(job, placed)
                count += 0 if matched is None else int(matched.sum())
    return count


def _due_rules(context: StreamContext, root: Root, now_us: int) -> list[tuple[Expiry, int]]:
    """Return the due rules whose column is in some epoch, each with its limit of time (us)."""
    known = {name for epoch in root.epochs for name in epoch_schema(context.status, epoch).names}
    return [due for due in due_rules(root, now_us) if due[0].column in known]


def _expire(context: StreamContext, rule: Expiry, until_us: int, late: Callable[[], bool]) -> int:
    root = context.log.refresh()
    record = _record(context, root, rule)
    before = record.rows
    start = max(_clean_start(context, root, until_us), record.start or 0)
    for progress in _passes(context, rule, until_us):
        try:
            while progress.sweep(context.log.refresh(), COMMIT_BYTES, late):
                if late():
                    break
        except ConflictError:
            # Another round or a compaction came first; the next round continues.
            return progress.record.rows - before
        record = progress.record
        if late() or context.log.root.epoch != root.epoch:
            return record.rows - before
    checked = root.version if rule.filters else None
    _finish(context, replace(record, start=start, until_us=until_us, checked=checked))
    return record.rows - before


def _record(context: StreamContext, root: Root, rule: Expiry) -> Redaction:
    """Return a rule's record; it starts at 0 if another redaction may let older events match."""
    known = redactions_of(root)
    reason = f"expiry of {rule.column}"[:MOST_REASON]
    new = Redaction(rule.redact_id, 0, 0, reason=reason, start=0, until_us=0)
    record = known.get(rule.redact_id, new)
    used = {*_filters(context, root, rule).columns}
    others = {each.redact_id for each in expiry_of(root) if each.column not in used}
    if used and any(
        each.version > (record.checked or 0)
        for name, each in known.items()
        if name != rule.redact_id and name not in others
    ):
        record = replace(record, start=0)
    return replace(record, tail=max(record.tail, root.tail), done=False)


def _filters(context: StreamContext, root: Root, rule: Expiry) -> Filters:
    """Return a rule's filters, with stored column names."""
    schema = epoch_schema(context.status, root.epoch)
    try:
        filters = parse_filters(rule.filters, named_schema(schema, root.epoch.names))
    except InvalidInputError as error:
        raise InvalidInputError(
            "the filters of a rule of expiry do not fit the stream's columns any more",
            remedy="change the rule with stream.settings.update(expiry=...)",
            column=root.epoch.names.get(rule.column) or rule.column,
            filters=rule.filters,
        ) from error
    return filters.renamed(stored_names(schema, root.epoch.names))


def _passes(context: StreamContext, rule: Expiry, until_us: int) -> Iterator[Progress]:
    """Yield a redaction of the events due by their times, and one of those due by their commits."""
    for filters, end in _due_events(context, rule, until_us):
        record = _record(context, context.log.root, rule)
        request = RedactRequest(filters, [rule.column], "", rule.redact_id, every=True)
        yield Progress(context, request, record, start=record.start or 0, end=end)


def _due_events(
    context: StreamContext, rule: Expiry, until_us: int
) -> Sequence[tuple[Filters, int | None]]:
    """Return filters of due events, each with the offset before which they count."""
    root = context.log.root
    schema, cut = epoch_schema(context.status, root.epoch), tail_at(context, until_us)
    wanted = _filters(context, root, rule)
    field = find_time_field(root, schema)
    if field is None or not tells_age(field):
        return [(wanted, cut)]
    old = Filters(time_conditions(field, (None, moment_of(field, until_us))))
    none = Filters((Condition(field.name, "is null", None, field.type),))
    return [(all_of([wanted, old]), None), (all_of([wanted, none]), cut)]


def _clean_start(context: StreamContext, root: Root, until_us: int) -> int:
    """Return the offset below which all events are due."""
    cut = min(tail_at(context, until_us), root.tail)
    field = find_time_field(root, epoch_schema(context.status, root.epoch))
    if field is None or not tells_age(field):
        return cut
    moment = moment_of(field, until_us)
    return min(cut, resolve_event_time(context, root, moment, end=False))


def _finish(context: StreamContext, record: Redaction) -> None:
    """Commit a rule's progress, unless another round has committed as much."""

    def build(root: Root, slot: Slot) -> Change[None]:
        known = redactions_of(root).get(record.redact_id, record)
        if known.done and (known.until_us or 0) >= (record.until_us or 0):
            return Change(None)
        done = replace(
            known,
            tail=max(known.tail, record.tail),
            start=record.start,
            until_us=record.until_us,
            checked=record.checked,
            time_us=slot.time_us,
            done=True,
        )
        change = replace(
            with_redaction(root, done), operation=Operation.REDACT, client=context.client
        )
        return Change(context.status.tidy(change, slot), None, note_of(done, 0))

    context.log.commit(build)


EXPIRY = Round("expiry", may_expire, run_expiry, EXPIRY_PROPERTY)
