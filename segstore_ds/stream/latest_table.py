"""Tables of the newest event of each key: published on request and by rounds, forgotten, removed.

A property of the stream says which are wanted, and a stream beside it holds the newest events. A
removal deletes the property first and then drops that stream; whoever creates that stream checks
the property again before it appends events.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter

import pyarrow as pa

from segstore_ds.compact.run import run_due_merge
from segstore_ds.errors import AlreadyExistsError, CorruptionError, InvalidInputError, NotFoundError
from segstore_ds.format import compute as pc
from segstore_ds.format.properties import LATEST_PROPERTY
from segstore_ds.format.redactions import Redaction, redactions_of
from segstore_ds.format.root import Root
from segstore_ds.log.context import StreamContext
from segstore_ds.publish.auto import EVERY_US
from segstore_ds.publish.latest import (
    WRITER,
    LatestRule,
    as_latest,
    bring_up,
    build_rule,
    create_latest,
    find_latest,
    rule_of,
)
from segstore_ds.publish.life import clean_tables, codec_of, forget_tables, run_publish
from segstore_ds.publish.snapshot import Published
from segstore_ds.read.latest import check_key
from segstore_ds.redact.forget import forget_before
from segstore_ds.retention.deletion import run_maintain
from segstore_ds.retention.drop import drop_latest
from segstore_ds.retention.upkeep import LONG_S, Round, run_upkeep
from segstore_ds.status.epochs import stream_schema
from segstore_ds.write.create import run_set_properties


def publish_latest(
    context: StreamContext,
    kind: str,
    key: Sequence[str],
    tombstone: str | None,
    *,
    auto: bool | None = None,
    strict: bool = False,
) -> Published:
    """Publish the newest event of each key in a format, or bring that table up to date."""
    codec_of(kind)
    root = context.log.refresh()
    context.log.check_open(root)
    if root.origins:
        raise InvalidInputError(
            "a clone that shares files with its origin can't be published",
            remedy="call stream.materialize() first",
            url=context.storage.url,
        )
    key = (key,) if isinstance(key, str) else tuple(key)
    check_key(stream_schema(context.status, root), key, tombstone)
    find_latest(context)  # raises if another stream is in its place
    rule = _set_rule(context, LatestRule(key, tombstone))
    done = _publish(context, rule, kind, strict=strict)
    if auto is not None:
        _set_rule(context, rule, **{"add" if auto else "without": kind})
    return done


def _set_rule(
    context: StreamContext, wanted: LatestRule, *, add: str = "", without: str = ""
) -> LatestRule:
    """Set a rule, or the formats that rounds publish; no commit if nothing changes."""
    known = rule_of(context.log.refresh())
    if known is not None and (known.key, known.tombstone) != (wanted.key, wanted.tombstone):
        raise InvalidInputError(
            "the newest events are published by another key or tombstone",
            remedy="call published.remove_latest() first",
            latest_by=known.key,
            tombstone=known.tombstone,
        )
    formats = {*(known or wanted).formats, add} - {without, ""}
    rule = replace(wanted, formats=tuple(sorted(formats)))
    if rule != known:
        root = context.log.root
        changes = {LATEST_PROPERTY: build_rule(rule, root)}
        run_set_properties(context, changes, epoch=root.epoch.number)
    return rule


def _publish(
    context: StreamContext, rule: LatestRule, kind: str, *, strict: bool = False
) -> Published:
    beside = _beside(context)
    bring_up(context, beside, rule)
    redactions = redactions_of(context.log.root).values()
    newest = max(redactions, key=attrgetter("version"), default=None)
    clean = _clean_from(beside, beside.log.refresh(), newest) if newest else 0
    done = run_publish(beside, kind, settle=True, strict=strict, since=clean)
    if newest:
        clean_tables(beside)
    _keep_up(beside)
    return as_latest(context, beside, rule, done)


def _beside(context: StreamContext) -> StreamContext:
    """Return the stream with the newest events; create it if it is missing."""
    found = find_latest(context)
    if found is None:
        with suppress(AlreadyExistsError):
            create_latest(context)
        found = find_latest(context)
    if found is None or not _is_wanted(context):
        _drop(context, context.log.root)
        raise NotFoundError("the table was removed meanwhile", url=context.storage.url)
    return found


def _is_wanted(context: StreamContext) -> bool:
    try:
        return LATEST_PROPERTY in context.log.refresh().properties
    except NotFoundError:
        return False


def _keep_up(beside: StreamContext) -> None:
    run_due_merge(beside)
    run_upkeep(beside, budget_s=LONG_S)


def may_publish_latest(root: Root) -> bool:
    """Tell by a root whether commits may publish newest events. Pure."""
    if root.dropped or root.origins:
        return False
    try:
        rule = rule_of(root)
    except CorruptionError:
        return True  # this round raises the error, so that no other round fails
    return rule is not None and bool(rule.formats)


def run_latest(context: StreamContext, *, at_once: bool = False) -> None:
    """Bring the tables that rounds publish up to date, unless one did so within the minute."""
    root = context.log.follow()
    rule = rule_of(root) if may_publish_latest(root) else None
    if rule is None:
        return
    beside = None if at_once else find_latest(context)
    if beside is not None and beside.log.root.time_us + EVERY_US > root.time_us:
        return
    try:
        for kind in rule.formats:
            _publish(context, rule, kind)
    except NotFoundError:
        if _is_wanted(context):  # else it was removed meanwhile
            raise


def maintain_latest(context: StreamContext) -> None:
    """Publish newest events as rounds do; maintain the stream that holds them in any case."""
    run_latest(context, at_once=True)
    beside = find_latest(context) if rule_of(context.log.root) is not None else None
    if beside is not None:
        run_maintain(beside)
        clean_tables(beside)


LATEST = Round(
    "publishing newest events", may_publish_latest, lambda own, _: run_latest(own), LATEST_PROPERTY
)


def remove_latest(context: StreamContext) -> int:
    """Remove the tables of the newest events; return how many objects were deleted."""
    root = context.log.refresh()
    run_set_properties(context, {LATEST_PROPERTY: None})
    return _drop(context, root)


def _drop(context: StreamContext, root: Root) -> int:
    return drop_latest(context.storage, root, clock=context.clock, client=context.client)


def forget_published(
    context: StreamContext, record: Redaction, grace_s: float
) -> Iterator[tuple[str, str, str, int]]:
    """Delete what may hold redacted values in tables and in newest events; as `forget_tables`."""
    yield from forget_tables(context, record)
    what, call = "the table of newest events", "published.remove_latest()"
    rule = rule_of(context.log.root)
    try:
        beside = find_latest(context)
        if beside is not None and rule is not None:
            bring_up(context, beside, rule)
    except (CorruptionError, InvalidInputError) as error:
        if rule is not None or isinstance(error, CorruptionError):
            yield what, str(error), call, 0
        return
    if beside is None:
        return
    if rule is None:  # a removal was interrupted, or the stream was put back from a backup
        yield what, "the stream has no such table any more, but its files are there", call, 0
        return
    root = beside.log.refresh()
    mine = replace(record, version=_clean_from(beside, root, record), time_us=root.time_us)
    done = forget_before(beside, mine, lambda own, it, _: forget_tables(own, it), grace_s)
    due_us = int(done.due.timestamp() * 1e6) if done.due else 0
    for left in done.left:
        yield f"{left.what} in {left.where}", left.why, left.call, due_us


def _clean_from(beside: StreamContext, root: Root, record: Redaction) -> int:
    """Return the first version of newest events that was made from a redacted source.

    The version alone does not tell: the source may have had others, and was put back from a backup.
    """
    for batch in beside.log.history.batches(root):
        ours = pc.equal(batch["writer_id"], WRITER)
        later = pc.greater_equal(batch["time"], pa.scalar(record.time_us, batch["time"].type))
        clean = pc.and_(pc.and_(ours, later), pc.greater_equal(batch["batch_id"], record.version))
        found = batch["version"].filter(clean)
        if len(found):
            return int(found[0].as_py())
    return root.version
