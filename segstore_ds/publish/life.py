"""Creates, updates and removes published tables, of any format.

Publishers keep no state besides the table: each commit says which version of the stream it shows,
and one exclusive create decides the commit. So several publishers may run at once, and each may
stop anywhere: what it staged is in no commit, and the next call publishes what is missing. What a
publisher remembers of a table is a hint: the create fails if others came first. After the create
the previous commit must still be there; if not, the table was removed meanwhile.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from segstore_ds.compact.rewrite import join_small
from segstore_ds.compact.run import run_compact
from segstore_ds.errors import (
    ConflictError,
    CorruptionError,
    InvalidInputError,
    MissingObjectError,
    NotFoundError,
    SnapshotExpiredError,
)
from segstore_ds.format.redactions import Redaction, clean_since
from segstore_ds.format.root import PartRef, Root
from segstore_ds.format.segment import PARQUET
from segstore_ds.log.clock import CLOCK_LIMIT_US
from segstore_ds.log.context import StreamContext
from segstore_ds.options.arguments import CompactRules
from segstore_ds.publish import delta, iceberg, paths
from segstore_ds.publish.folder import (
    MAKING_US,
    delete_unused,
    list_table,
    mark_table,
    refuse_foreign,
    remove_table,
)
from segstore_ds.publish.listing import Listing, plan_changes, plan_listing, plan_step, shared_parts
from segstore_ds.publish.snapshot import Change, Codec, Columns, File, Note, Published, Table
from segstore_ds.read.plan import whole_reading
from segstore_ds.read.request import plan_reading
from segstore_ds.read.scan import open_reader
from segstore_ds.status.epochs import epoch_schema
from segstore_ds.storage import ObjectInfo, Storage
from segstore_ds.write.layout import Layout

CLEAN_EVERY = 10  # commits of the table
CODECS: Mapping[str, Codec] = {delta.KIND: delta, iceberg.KIND: iceberg}
_ATTEMPTS = 10
_FRAME_ROWS = 65_536  # in own files
_FRESH_S = 60.0  # far below the hour in which no superseded version is purged
_KNOWN_S = 3600.0  # far below the grace, so the next version's name is not free again


def codec_of(name: str) -> Codec:
    """Return the codec of a format; InvalidInputError if there is none."""
    if name not in CODECS:
        raise InvalidInputError(
            "not a table format", remedy=f"choose from {sorted(CODECS)}", format=name
        )
    return CODECS[name]


@dataclass(frozen=True, slots=True)
class _Known:
    """A table after this handle's last commit, and the stream's version that it published."""

    table: Table
    root: Root
    time_s: float


def run_publish(
    context: StreamContext,
    kind: str,
    *,
    settle: bool = False,
    strict: bool = False,
    since: int = 0,
    upto: int = 0,
) -> Published:
    """Bring the stream's table up to its newest version; make the table if there is none.

    `settle` publishes all events, and `strict` refuses to leave columns out. Versions below `since`
    had values that were redacted. Events below `upto` are published even if no Parquet has them.
    """
    codec = codec_of(kind)
    known: _Known | None = context.memory.get(codec.KIND)
    if known is not None and context.clock.boot_s() - known.time_s > _KNOWN_S:
        known = None
    missed = False
    for _ in range(_ATTEMPTS):
        if settle:
            run_compact(context, CompactRules(), Layout(segment_format=PARQUET))
        began_s = context.clock.boot_s()
        try:
            root, table = _newest(context, codec, known)
            known = None
            least = root.tail if settle else min(upto, root.tail)
            done = _bring_up(context, codec, table, root, strict=strict, since=since, least=least)
        except MissingObjectError:
            if missed:
                raise
            known, missed = None, True  # another publisher removed the table, or it is damaged
            continue
        if done is None:
            continue
        if context.clock.boot_s() - began_s < _FRESH_S:
            return done
        # After a pause, planned segments may have been dropped and deleted before the put.
        if context.log.refresh().log_start <= root.version:
            return done
    raise ConflictError(
        "other publishers committed first on every attempt",
        remedy="publish again",
        attempts=_ATTEMPTS,
    )


def run_unpublish(context: StreamContext, kind: str) -> int:
    """Delete a table's metadata and own files; return how many objects there were."""
    codec = codec_of(kind)
    context.memory.pop(codec.KIND, None)
    return remove_table(context.storage, context.log.root.stream_id, codec)


def remove_tables(storage: Storage, stream_id: str) -> int:
    """Delete a stream's tables, and no others; return how many objects there were."""
    count = 0
    for codec in CODECS.values():
        with suppress(InvalidInputError):
            count += remove_table(storage, stream_id, codec)
    return count


def published(context: StreamContext, kind: str) -> Published | None:
    """Return what the stream's table shows, with its lag; None if there is no table."""
    codec = codec_of(kind)
    table = codec.newest(context.storage, visible=True)
    return _describe(context, codec, table) if table.note is not None else None


def _newest(context: StreamContext, codec: Codec, known: _Known | None) -> tuple[Root, Table]:
    """Return the newest version, and the table: `known` if there is a newer version to publish.

    With `known` one request for the next version is enough: if the stream's folder was deleted
    meanwhile, `is_in_place` notices it.
    """
    if known is not None and known.table.note is not None:
        root = context.log.recent()
        if context.log.files.exists(root.version + 1):
            root = context.log.refresh()
        if known.table.note.version < root.version:
            return root, known.table
    return context.log.follow(), codec.newest(context.storage)


def _bring_up(
    context: StreamContext,
    codec: Codec,
    table: Table,
    root: Root,
    *,
    strict: bool,
    since: int,
    least: int,
) -> Published | None:
    """Bring a table up to a version, in one commit or two, see `plan_step`.

    Returns None if another publisher committed first.
    """
    storage = context.storage
    context.log.check_open(root)
    if root.origins:
        raise InvalidInputError(
            "a clone that shares files with its origin can't be published",
            remedy="call stream.materialize() first",
            url=storage.url,
        )
    check_shown(context, codec, table.note, root)
    columns = _columns_of(context, codec, root, strict=strict)
    recalled = _recall(context, codec, table, root)
    if recalled is None:
        table, files = codec.read_files(storage, table)
        known: frozenset[PartRef] = frozenset()
    else:
        known, files = recalled
    # A table keeps the events that it showed: readers of changes would take them for deleted.
    least = max(least, table.note.tail if table.note else 0)
    plan = partial(plan_listing, context.status, root, folder=codec.KIND, least=least, known=known)
    wanted = listing = plan()
    since = max(since, clean_since(root))
    # Older metadata may hold redacted values as bounds.
    shown = table.note
    fresh = (
        since > 0
        and shown is not None
        and (shown.generation != root.generation or shown.version < since)
    )
    if not fresh and not table.moved and not _is_due(table.note, root, wanted):
        if not table.hinted:
            announce(storage, codec, table)
    else:
        listing, change = _plan(
            context, table, root, columns, plan, wanted=wanted, files=files, fresh=fresh
        )
        committed = _commit(context, codec, table, change)
        if committed is None:
            return None
        table, size = committed
        nth = table.version > codec.FIRST and table.version % CLEAN_EVERY == 0
        if fresh or nth or size > codec.LARGE_BYTES:
            codec.checkpoint(storage, table)
            used = {file.key for file in listing.files}
            delete_unused(storage, codec, table, used, log_grace_s=context.log.grace_s)
    # Delta's state may be large; the next commit reads it if `_recall` can't do without.
    state = table.state if codec.TRAVELS else None
    kept = replace(table, state=state, hinted=True)
    context.memory[codec.KIND] = _Known(kept, root, context.clock.boot_s())
    if listing is not wanted:
        return _bring_up(context, codec, kept, root, strict=strict, since=since, least=least)
    return _describe(context, codec, table)


def check_shown(context: StreamContext, codec: Codec, note: Note | None, root: Root) -> None:
    """Raise InvalidInputError if a table belongs to another stream or program."""
    if note is None:
        refuse_foreign(context.storage, root.stream_id, codec)
    elif note.stream_id != root.stream_id:
        raise InvalidInputError(
            "the folder holds the published table of another stream",
            remedy="move that table to a folder of its own",
            url=context.storage.url,
            stream_id=note.stream_id,
        )


def _columns_of(context: StreamContext, codec: Codec, root: Root, *, strict: bool) -> Columns:
    columns = codec.columns(epoch_schema(context.status, root.epoch), root.epoch.names)
    if not columns.names or (strict and columns.left_out):
        raise InvalidInputError(
            f"{codec.TITLE} has no type for some columns",
            remedy="cast them"
            + (", or publish without strict=True, which leaves them out" if columns.names else ""),
            columns=columns.left_out,
        )
    return columns


def _recall(
    context: StreamContext, codec: Codec, table: Table, root: Root
) -> tuple[frozenset[PartRef], dict[str, File]] | None:
    """Return what a table lists without reading it: the parts shared with `root`, and other files.

    Both follow from the version that it shows. Returns None if that version is gone, or if the
    table has files of its own or may need some.
    """
    note = table.note
    if note is None or note.own or table.moved or note.generation != root.generation:
        return None
    known: _Known | None = context.memory.get(codec.KIND)
    try:
        shown = note.stream_id, note.generation, note.version
        old = known.root if known is not None else root
        if (old.stream_id, old.generation, old.version) != shown:
            old = context.log.read_version(note.version)
    except (SnapshotExpiredError, NotFoundError):
        return None
    if old.epoch.number != root.epoch.number:
        return None
    shared = shared_parts(context.status, old, root, (note.head, note.tail))
    listing = plan_listing(context.status, old, folder=codec.KIND, known=shared, end=note.tail)
    return shared, {file.key: file for file in listing.files}


def _is_due(shown: Note | None, root: Root, listing: Listing) -> bool:
    """Tell whether a table shows less than a version; another publisher may have shown more."""
    if shown is None or shown.generation != root.generation:
        return shown is None or shown.generation < root.generation
    if shown.version == root.version:  # completely, or only the first of two commits
        return shown.tail < listing.end or (shown.tail == listing.end and shown.own != listing.own)
    return shown.version < root.version


def _plan(
    context: StreamContext,
    table: Table,
    root: Root,
    columns: Columns,
    plan: Callable[..., Listing],
    *,
    wanted: Listing,
    files: Mapping[str, File],
    fresh: bool,
) -> tuple[Listing, Change]:
    """Plan a table's next commit, and write the own files that it needs."""
    shown, listing, same = table.note, wanted, False
    if shown is not None and shown.generation == root.generation:
        # Whether an offset means the same event in the table and in the version.
        same = shown.version >= clean_since(root)
        if not table.moved:
            divide = partial(plan, cut=shown.tail)
            listing = plan_step(shown.tail, files, wanted, divide, same_events=same)
    span = (shown.head, shown.tail) if shown else (0, 0)
    added, removed = plan_changes(span, files, listing, same_events=same)
    change = Change(
        table.version + 1,
        Note(
            root.stream_id,
            root.generation,
            root.version,
            listing.start,
            listing.end,
            shown.created_ms if shown else root.time_us // 1000,
            listing.own,
        ),
        root.time_us // 1000,
        epoch_schema(context.status, root.epoch),
        columns,
        tuple((_written(context, root, columns, file), changes) for file, changes in added),
        removed,
        tuple(files[file.key] for file, _ in added if file.key in files),
        fresh,
        context.client,
    )
    return listing, change


def _written(context: StreamContext, root: Root, columns: Columns, wanted: File) -> File:
    """Return a file that exists: writes an own file, in the columns of the newest schema.

    Its name is unique, so no other publisher's file is replaced.
    """
    if not wanted.is_wanted:
        return wanted
    called = [root.epoch.names.get(stored) or stored for stored in columns.names]
    span = (wanted.start, wanted.end)
    reading = plan_reading(context, root, *span, columns=called, read_cache_bytes=0)
    schema = reading.as_stored(reading.result_schema)
    tasks = whole_reading(context, reading, root=root)
    encoder = Layout().parquet_encoder(schema, ())
    path = f"{wanted.key}-{context.clock.new_id()[:12]}.parquet"
    with context.storage.open_staged(path) as file:
        file.write(encoder.start())
        for frame in join_small(open_reader(reading, tasks), _FRAME_ROWS):
            stored = pa.RecordBatch.from_arrays(frame.columns, schema=schema)
            file.write_all(encoder.add(stored)[0])
        file.write(encoder.finish()[0])
        return replace(wanted, path=path, bytes=file.commit())


def _commit(
    context: StreamContext, codec: Codec, table: Table, change: Change
) -> tuple[Table, int] | None:
    """Commit a change; return the table and the commit's size, None if another one came first."""
    storage = context.storage
    staged = codec.stage(storage, table, change, context.clock.new_id)
    if not storage.create(staged.path, staged.data) and storage.get(staged.path) != staged.data:
        return None
    if table.mark is not None and not codec.is_in_place(storage, table, change.number):
        # The table was removed before this commit was put: take the commit back.
        own = [file.path for file, _ in change.added if file.key != file.path]
        for late in (staged.path, *staged.paths, *own):
            storage.delete(late)
        return None
    announce(storage, codec, staged.table)
    if change.number == codec.FIRST:
        mark_table(storage, codec, staged.path)
    return staged.table, len(staged.data)


def announce(storage: Storage, codec: Codec, table: Table) -> None:
    """Put the hint that names the newest commit."""
    storage.put(codec.HINT, str(table.version).encode())


def _describe(context: StreamContext, codec: Codec, table: Table) -> Published:
    root, note = context.log.root, table.note
    if note is None:  # removed meanwhile: every commit that was read has a note
        raise _not_published(context.storage)
    lag = max(root.tail - note.tail, 0)
    reason = f"{lag:,} events are left out, as " if lag else ""
    if lag and _is_settled(context, root, note.tail):
        reason += f"the table shows version {note.version} of {root.version}; publish it again"
    elif lag:
        reason += "the first of them is in no Parquet file yet; settle=True (--settle) merges them"
    left_out = codec.columns(epoch_schema(context.status, root.epoch), root.epoch.names).left_out
    metadata = f"{paths.location_of(context.storage.url)}/{codec.commit_path(table.version)}"
    return Published(
        codec.KIND,
        context.storage.url,
        table.version,
        note.version,
        note.head,
        note.tail,
        lag,
        reason,
        left_out,
        metadata if codec.POINTED else None,
    )


def _is_settled(context: StreamContext, root: Root, offset: int) -> bool:
    """Tell whether a committed event is in a Parquet file."""
    placed = next(iter(context.status.segments(root, max(offset, root.head), root.tail)), None)
    return placed is not None and placed.entry.format == PARQUET


def _not_published(storage: Storage) -> InvalidInputError:
    return InvalidInputError(
        "the stream is not published", remedy="call stream.publish(format) first", url=storage.url
    )


def clean_tables(context: StreamContext) -> None:
    """Delete superseded and unused objects of a stream's tables; does not publish them."""
    storage = context.storage
    for codec in CODECS.values():
        if any(paths.is_published(info.path) for info in list_table(storage, codec)):
            table = codec.newest(storage)
            ours = table.note is not None and table.note.stream_id == context.log.root.stream_id
            if ours and not table.moved:
                _clean(context, codec, table, now_us=context.log.store_now_us())


def _clean(
    context: StreamContext, codec: Codec, table: Table, *, now_us: int, at_once: bool = False
) -> list[ObjectInfo]:
    storage, log_grace_s = context.storage, context.log.grace_s
    own = codec.read_files(storage, table)[1] if table.note is not None and table.note.own else ()
    ages = {"grace_s": 0.0, "log_grace_s": 0.0} if at_once else {"log_grace_s": log_grace_s}
    return delete_unused(storage, codec, table, own, now_us=now_us, **ages)


def forget_tables(context: StreamContext, record: Redaction) -> Iterator[tuple[str, str, str, int]]:
    """Delete what may hold redacted values in a stream's tables.

    One commit replaces all of it, so readers see the old or the redacted events. Objects of older
    commits are deleted at once: their readers get an error. Yields what is left, why, the call that
    deletes it if another is needed, and the time (us) from which a repeated call can.
    """
    storage = context.storage
    for kind, codec in CODECS.items():
        if not any(paths.is_published(info.path) for info in list_table(storage, codec)):
            continue
        try:
            if codec.newest(storage).note is None:
                raise _not_published(storage)
            run_publish(context, kind, since=record.version)
            table = codec.newest(storage)
            codec.checkpoint(storage, table)
            made = _clean(context, codec, table, now_us=context.log.store_now_us(), at_once=True)
        except (CorruptionError, InvalidInputError) as error:
            call = f'published.remove("{kind}"), then publish("{kind}") again'
            yield f"the published {kind} table", str(error), call, 0
            continue
        # Files that may be older than the redaction, given how far clocks may differ.
        times = [info.modified_us for info in made]
        times = [us for us in times if us <= record.time_us + CLOCK_LIMIT_US]
        if times:
            what = f"files of the published {kind} table: {len(times)}"
            yield what, "another publisher may be using them", "", max(times) + MAKING_US
