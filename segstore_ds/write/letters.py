"""Streams of dead letters: events that members of a reader gave up, or that rules refused.

Refused events are sent before the commit of their batch, so each event of an acknowledged batch is
in one of the two streams. They are sent under a name of the batch's writer, as whose owner an
identity of the letters stands: a digest of the events in any order, the rules, and the writer's
commit before. So a batch that is written again, after a crash between the two commits or by another
task attempt, sends none twice. If it has other events, or other rules refuse others, all are sent.

A late process must not send letters that another one has sent and committed. So it first checks
that they are still to be sent, and appends them only if no others came since that check. Letters of
a later batch follow the commit of this one, and so come after the check. It also finds a batch that
the stream would refuse, for which no letters may be sent.

Limits: if a write is never committed, its letters stay. A write without batch ids can't be
recognized when it is repeated, so it sends no letters: an event that breaks a rule fails the write.
"""

import hashlib
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa

from segstore_ds.errors import (
    MAYBE_COMMITTED,
    AlreadyExistsError,
    ConflictError,
    InternalError,
    InvalidInputError,
    NotFoundError,
    StorageError,
)
from segstore_ds.log.context import StreamContext, new_context
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.status.writers import SKIP, WriterKey, check_claim, find_repeated
from segstore_ds.storage import Storage, UrlLike, resolve_location
from segstore_ds.write.append import AppendPlan, check_preconditions
from segstore_ds.write.create import run_create
from segstore_ds.write.layout import Layout
from segstore_ds.write.request import WriteRequest
from segstore_ds.write.staged import StagedTask

_LOG = logging.getLogger(__name__)
_TRIES = 64  # others may send letters to the same stream
COLUMNS = {
    "_offset": pa.int64(),
    "_deliveries": pa.int64(),
    "_reason": pa.string(),
    "_member": pa.string(),
    "_reader": pa.string(),
    "_stream": pa.string(),
}


def open_letters(context: StreamContext, url: UrlLike, columns: pa.Schema) -> StreamContext:
    """Open the dead letters of a stream with such columns; create them if there are none."""
    place = url.url if isinstance(url, Storage) else resolve_location(url).url
    storage = url if isinstance(url, Storage) else context.storage.sibling(place)
    if storage.url == context.storage.url:
        raise InvalidInputError(
            "a stream can't hold its own dead letters",
            remedy="give the location of another stream",
            dead_letters=storage.url,
        )
    if taken := sorted({*columns.names} & COLUMNS.keys()):
        raise InvalidInputError(
            "columns of the stream have names that its dead letters need",
            remedy="rename them with stream.change_schema",
            columns=taken,
        )
    target = new_context(StreamLog(storage, clock=context.clock))
    try:
        target.log.open()
    except NotFoundError:
        with suppress(AlreadyExistsError):  # another process has just created it
            schema = pa.schema([*columns, *(pa.field(*each) for each in COLUMNS.items())])
            run_create(target, schema, spark_schema=None)
        target.log.open()
    return target


def as_letters(events: pa.Table, told: Mapping[str, Any]) -> pa.Table:
    """Return events with the columns of letters; `told` has a list of values, or one for all."""
    for name, kind in COLUMNS.items():
        if name not in events.column_names:
            value = told.get(name)
            column = (
                pa.array(value, kind)
                if isinstance(value, list)
                else pa.repeat(pa.scalar(value, kind), len(events))
            )
            events = events.append_column(name, column)
    return events


def send_refused(
    context: StreamContext,
    plan: AppendPlan,
    tasks: list[StagedTask],
    write: Callable[[StreamContext, WriteRequest, pa.Table], Any],
) -> None:
    """Send the events of a batch that its rules refused, once, unless the batch is committed."""
    rules, key = plan.job.rules, plan.job.request.writer
    refused = [each for task in tasks for each in task.refused]
    if not refused:
        return
    if rules is None or rules.dead_letters is None or key is None:
        raise InternalError("events were refused, and there is nowhere to send them")
    events = pa.Table.from_batches([batch for batch, _ in refused])
    told = {
        "_reason": [reason for _, reasons in refused for reason in reasons],
        "_member": key.writer_id,
        "_stream": context.storage.url,
    }
    target = open_letters(context, rules.dead_letters, events.schema)
    digest = _digest_rows(events)

    def wanted() -> WriterKey | None:
        root = context.log.refresh()
        if find_repeated(context.status, root, key, batch=None) is not None:
            return None
        check_claim(context.status.writers.find(root, key.claim) if key.claim else None, key)
        context.log.seams.of(root).before_staging(root)
        check_preconditions(root, plan)
        last = context.status.writers.find(root, key.writer_id)
        facts = f"{digest} {last and last.version} {rules.text}"
        identity = hashlib.blake2b(facts.encode(), digest_size=16).hexdigest()
        return letters_key(f"{root.stream_id}/writers/{key.writer_id}", key.batch_id, identity)

    if send_letters(target, as_letters(events, told), wanted, write):
        _LOG.warning(
            "batch %d of writer %r: %d events broke rules and went to %s",
            key.batch_id,
            key.writer_id,
            len(events),
            target.storage.url,
        )


def letters_key(name: str, number: int, identity: str) -> WriterKey:
    """Return the key under which letters are sent: those sent last are known by their identity."""
    return WriterKey(name, number, identity, takeover=True, on_repeat=SKIP)


def send_letters(
    target: StreamContext,
    letters: pa.Table,
    wanted: Callable[[], WriterKey | None],
    write: Callable[[StreamContext, WriteRequest, pa.Table], Any],
) -> bool:
    """Append letters, unless they were sent before; tell whether they were appended.

    `wanted` returns the key of the letters, or None if they are not to be sent any more.
    """
    for _ in range(_TRIES):
        # The order matters: no letters may have come since `wanted` was asked.
        root = target.log.refresh()
        key = wanted()
        if key is None or find_repeated(target.status, root, key, batch=None) is not None:
            return False
        request = WriteRequest(
            schema=letters.schema,
            layout=Layout(),
            client=target.client,
            writer=key,
            expected_tail=root.tail,
            merge_schema=True,
        )
        try:
            write(target, request, letters)
        except ConflictError:
            continue
        except MAYBE_COMMITTED as error:
            raise StorageError(
                "it is not known whether dead letters were committed",
                remedy="repeat the call: what was sent is not sent twice",
                dead_letters=target.storage.url,
            ) from error
        return True
    fact = "other writers sent dead letters first on every attempt"
    raise ConflictError(fact, dead_letters=target.storage.url)


def _digest_rows(events: pa.Table) -> int:
    """Digest events in any order: the sum of the digests of the rows."""
    total = 0
    for batch in events.to_batches():
        for row in range(len(batch)):
            alone = batch.take(pa.array([row]))  # unlike a slice, the same from whatever batch
            digest = hashlib.blake2b(alone.serialize(), digest_size=16).digest()
            total += int.from_bytes(digest, "big")
    return total % (1 << 128)
