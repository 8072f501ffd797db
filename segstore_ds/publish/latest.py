"""The newest event of each key as a table: a second stream, published like any other.

The stream `<url>_latest` holds, for each key, the newest of the kept events with its offset. Its
content is a function of one version of its source. A round reads that content without the events
that are below the head now, adds the events appended since, and overwrites it in one commit, whose
batch id is the source's version, and whose owner names that version's transaction. So a killed
round can be repeated; if two run at once, the later commit is refused and planned again. After a
redaction or a change of the schema, and if the source has no such version, because it was put back
from a backup, the content may be outdated, so a round reads all kept events again.
"""

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa

from segstore_ds.errors import (
    MAYBE_COMMITTED,
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    SegstoreError,
    SnapshotExpiredError,
)
from segstore_ds.format import compute as pc
from segstore_ds.format.policies import DAY_S, UPKEEP_PROPERTY, UpkeepPolicy, build_upkeep
from segstore_ds.format.properties import LATEST, LATEST_OF, LATEST_PROPERTY
from segstore_ds.format.record import build_json, from_json, to_json
from segstore_ds.format.redactions import clean_since
from segstore_ds.format.root import Root, Writer
from segstore_ds.log.context import StreamContext
from segstore_ds.log.seen import Seen, is_included
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.publish.life import CODECS, published, run_publish
from segstore_ds.publish.snapshot import Published
from segstore_ds.read.latest import check_key, newest_by_key
from segstore_ds.read.plan import whole_reading
from segstore_ds.read.request import plan_reading
from segstore_ds.read.scan import open_reader
from segstore_ds.status.epochs import stream_schema
from segstore_ds.status.writers import SKIP, WriterKey
from segstore_ds.storage import Storage
from segstore_ds.write.append import Appender, AppendPlan
from segstore_ds.write.create import run_create
from segstore_ds.write.inputs import as_input
from segstore_ds.write.job import plan_job
from segstore_ds.write.layout import Layout
from segstore_ds.write.request import WriteRequest
from segstore_ds.write.staged import delete_staged

WRITER = "latest"  # On disk: the id under which rounds commit to it. Never change.
OFFSET = "_offset"  # On disk: the column with the offsets in the source. Never change.
_SUFFIX = "_latest"  # On disk: how its location ends. Never change.
_POLICY = UpkeepPolicy(keep_s=3600, grace_s=DAY_S)  # a round replaces all that it holds
_LAYOUT = Layout(segment_format="parquet", inline_bytes=0)
_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class LatestRule:
    """The key columns of the newest events, and the column that marks a key as deleted.

    Automatic rounds publish the table in `formats`.
    """

    key: tuple[str, ...]
    tombstone: str | None = None
    formats: tuple[str, ...] = ()


def rule_of(root: Root) -> LatestRule | None:
    """Return a stream's rule, with current column names; CorruptionError if it can't be read."""
    names, value = root.epoch.names, LATEST.parse(root.properties)
    called = LATEST.renamed(value, lambda stored: names.get(stored) or stored)
    return None if called is None else from_json(LatestRule, called, where=LATEST_PROPERTY)


def build_rule(rule: LatestRule, root: Root) -> str:
    """Return the property's text for a rule, with stored column names."""
    stored = {name: stored for stored, name in root.epoch.names.items() if name is not None}
    value = LATEST.renamed(to_json(rule), lambda name: stored.get(name, name))
    return build_json(value).decode()


def latest_storage(storage: Storage) -> Storage:
    """Return the folder of a stream's newest events; sends no request."""
    if storage.outer() is None:
        raise InvalidInputError(
            "a stream at the root of a bucket can't have a table of newest events beside it",
            remedy="copy it to a folder",
            url=storage.url,
        )
    return storage.sibling(f"{storage.url}{_SUFFIX}")


def find_latest(context: StreamContext) -> StreamContext | None:
    """Return the stream with the newest events of a stream's keys; None if there is none."""
    storage = latest_storage(context.storage)
    log = StreamLog(storage, clock=context.clock, grace_s=context.log.grace_s)
    try:
        root = log.open()
    except NotFoundError:
        return None
    if root.properties.get(LATEST_OF) != context.log.root.stream_id:
        raise InvalidInputError(
            "the folder for the newest events holds another stream",
            remedy="drop or move that stream",
            url=storage.url,
        )
    return StreamContext.of(log, client=context.client)


def create_latest(context: StreamContext) -> None:
    """Create the stream for a stream's newest events."""
    root, log = context.log.root, StreamLog(latest_storage(context.storage), clock=context.clock)
    run_create(
        StreamContext.of(log, client=context.client),
        _schema(context, root),
        spark_schema=None,
        properties={LATEST_OF: root.stream_id, UPKEEP_PROPERTY: build_upkeep(_POLICY)},
    )


def make_latest(context: StreamContext) -> StreamContext:
    """Create a lost stream of newest events again, and publish its automatic tables."""
    with suppress(AlreadyExistsError):
        create_latest(context)
    latest, rule = find_latest(context), rule_of(context.log.refresh())
    if latest is None or rule is None:
        raise NotFoundError("the table was removed meanwhile", url=context.storage.url)
    bring_up(context, latest, rule)
    for kind in rule.formats:
        run_publish(latest, kind, settle=True)
    return latest


def _schema(context: StreamContext, root: Root) -> pa.Schema:
    schema = stream_schema(context.status, root)
    if OFFSET in schema.names:
        raise InvalidInputError(
            "a table of newest events adds a column of this name",
            remedy="rename the stream's column",
            column=OFFSET,
        )
    return schema.append(pa.field(OFFSET, pa.int64()))


def bring_up(context: StreamContext, latest: StreamContext, rule: LatestRule) -> None:
    """Bring the stream of newest events up to the source's newest version; safe to repeat.

    Reads the events appended since the last round and all that it holds, and replaces all of it.
    """
    for _ in range(_ATTEMPTS):
        root, held = context.log.refresh(), latest.log.refresh()
        owner = f"{_made_by(root, rule)}/{root.transaction}"
        made = latest.status.writers.find(held, WRITER)
        shown = _find_shown(context, latest, rule)
        if shown is not None and shown.batch_id >= root.version:
            return
        if shown is None and made and (made.owner, made.batch_id) == (owner, root.version):
            owner = ""  # others changed its result: a batch with the same owner would be skipped
        schema = _schema(context, root)
        check_key(schema, rule.key, rule.tombstone)
        events = _events(context, root, latest, held, shown)
        newest = newest_by_key(events, schema, rule.key, rule.tombstone)
        writer = WriterKey(WRITER, root.version, owner, takeover=True, on_repeat=SKIP)
        try:
            _overwrite(latest, newest, held, writer)
        except ConflictError:
            continue  # another round came first
        if owner:
            return
    raise ConflictError(
        "other rounds committed first on every attempt", remedy="publish again", attempts=_ATTEMPTS
    )


def _made_by(root: Root, rule: LatestRule) -> str:
    """Return what names rounds with the same source, columns and rule."""
    made = [root.stream_id, root.generation, root.epoch.number, rule.key, rule.tombstone]
    return hashlib.blake2b(build_json(made), digest_size=8).hexdigest()


def _find_shown(context: StreamContext, latest: StreamContext, rule: LatestRule) -> Writer | None:
    """Return the round whose commit made all of the content; None if there is none."""
    held, root = latest.log.root, context.log.root
    known = latest.status.writers.find(held, WRITER)
    if known is None or (known.end - known.rows, known.end) != (held.head, held.tail):
        return None
    if known.batch_id > root.version:
        root = context.log.refresh()  # another process made it meanwhile, or it is of lost commits
    made_by, _, transaction = known.owner.partition("/")
    if made_by != _made_by(root, rule):
        return None
    seen = Seen(root.stream_id, root.generation, known.batch_id, transaction)
    return known if is_included(context.log.history, seen, root) else None


def _events(
    context: StreamContext, root: Root, latest: StreamContext, held: Root, shown: Writer | None
) -> Iterator[pa.RecordBatch]:
    """Yield the events among which are the newest of a version, in order, with offsets."""
    covered = None
    if shown is not None and shown.batch_id >= clean_since(root):
        covered = _tail_at(context, root, shown.batch_id)
    if covered is not None:
        for batch in _read(latest, held, held.head, None):
            yield batch.filter(pc.greater_equal(batch[OFFSET], root.head))
    yield from _read(context, root, max(root.head, covered or 0), OFFSET)


def _tail_at(context: StreamContext, root: Root, version: int) -> int | None:
    try:
        moment = context.log.history.moment(root, version)
    except SnapshotExpiredError:
        return None
    return None if moment is None else moment.tail


def _read(
    context: StreamContext, root: Root, start: int, offset_column: str | None
) -> pa.RecordBatchReader:
    reading = plan_reading(
        context, root, start, root.tail, offset_column=offset_column, read_cache_bytes=0
    )
    return open_reader(reading, whole_reading(context, reading, root=root))


def _overwrite(latest: StreamContext, newest: pa.Table, held: Root, writer: WriterKey) -> None:
    """Replace all content in one commit, which may only follow the version `held`."""
    request = WriteRequest(
        schema=newest.schema,
        layout=_LAYOUT,
        client=latest.client,
        writer=writer,
        overwrite=True,
        replace_schema=True,
        expected_version=held.version,
    )
    job = plan_job(latest, request)
    tasks = job.stage_all(as_input(newest))
    staged = [segment for task in tasks for segment in task.segments]
    try:
        Appender(latest).commit(AppendPlan.of(job, staged, tasks))
    except MAYBE_COMMITTED:
        raise
    except SegstoreError:
        delete_staged(latest.storage, staged)
        raise


def latest_tables(context: StreamContext) -> Iterator[Published]:
    """Yield the tables of a stream's newest events, each with its lag behind the stream."""
    rule, latest = rule_of(context.log.root), None
    if rule is not None:
        with suppress(InvalidInputError):  # another stream is there; rounds report it
            latest = find_latest(context)
    if rule is None or latest is None:
        return
    for kind in CODECS:
        table = published(latest, kind)
        if table is not None:
            yield as_latest(context, latest, rule, table)


def as_latest(
    context: StreamContext, latest: StreamContext, rule: LatestRule, table: Published
) -> Published:
    """Return what a table of newest events shows, in versions and offsets of the source."""
    root, shown = context.log.root, _find_shown(context, latest, rule)
    covered, version = None, 0
    if shown is not None and shown.version <= table.version:
        version, covered = shown.batch_id, _tail_at(context, root, shown.batch_id)
    tail = max(covered or 0, root.head)
    lag = root.tail - tail
    reason = f"{lag:,} events are newer than the table, or may be; publish it again"
    return replace(
        table,
        version=version,
        head=root.head,
        tail=tail,
        lag=lag,
        reason=reason if lag else "",
        latest_by=rule.key,
    )
