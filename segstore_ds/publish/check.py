"""Finds and repairs damage of the published tables: their metadata, and files of their own.

The segments that a table lists belong to the stream, whose own check covers them.
"""

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq

from segstore_ds.errors import (
    CorruptionError,
    FencedError,
    FormatError,
    InvalidInputError,
    MissingObjectError,
)
from segstore_ds.log.clock import CLOCK_LIMIT_US
from segstore_ds.log.context import StreamContext
from segstore_ds.log.seams import best_effort
from segstore_ds.publish import delta, paths
from segstore_ds.publish.folder import is_foreign, list_table, read_marks, remove_table
from segstore_ds.publish.latest import find_latest, latest_storage, make_latest, rule_of
from segstore_ds.publish.life import CODECS, announce, check_shown, run_publish
from segstore_ds.publish.snapshot import Codec, File, Table
from segstore_ds.storage import Storage


def damaged_tables(context: StreamContext) -> Iterator[tuple[str, FormatError]]:
    """Yield the damaged objects of a stream's published tables, each with the error.

    Those are paths, or URLs of objects of the table of newest events.
    """
    for codec in CODECS.values():
        yield from _damaged(context, codec)
    latest, error = _find_latest_stream(context)
    if error is not None:
        yield latest_storage(context.storage).url, error
    if latest is not None:
        for codec in CODECS.values():
            for path, wrong in _damaged(latest, codec):
                yield f"{latest.storage.url}/{path}", wrong


def _find_latest_stream(context: StreamContext) -> tuple[StreamContext | None, FormatError | None]:
    """Return the stream of newest events, and the error if it is damaged; mirrors have none."""
    try:
        root = context.log.root
    except FormatError:
        return None, None  # damage of the stream itself, which `verify` reports
    if rule_of(root) is None or root.dropped:
        return None, None
    try:
        context.log.seams.of(root).before_staging(root)
        latest = find_latest(context)
    except FormatError as error:
        return None, error
    except (FencedError, InvalidInputError):
        return None, None
    return latest, None if latest else MissingObjectError("the table of newest events is missing")


def _damaged(context: StreamContext, codec: Codec) -> Iterator[tuple[str, FormatError]]:
    storage = context.storage
    listed = list_table(storage, codec)
    objects = {info.path: info for info in listed if paths.is_published(info.path)}
    # Upkeep deletes by the store's clock, even if nothing was published since.
    reads = [*codec.reads(storage, objects, context.clock.wall_us() + CLOCK_LIMIT_US)]
    marks = paths.build_marks_path(codec.KIND)
    reads.append((marks, partial(read_marks, storage, codec)))
    damage = [each for path, read in reads for each in _try(path, read)]
    yield from damage
    if not objects or damage:
        return
    table = codec.newest(storage)
    if table.note is None and marks in objects:  # without marks, there was no first commit
        yield codec.METADATA_FOLDER, MissingObjectError(f"{codec.TITLE} table lacks its metadata")
    for file in codec.read_files(storage, table)[1].values():
        if file.key != file.path:  # else a segment
            yield from _try(file.path, partial(_check_own, storage, file))


def mend_tables(context: StreamContext) -> Iterator[str]:
    """Publish damaged tables again, and rebuild lost newest events; yield what was done.

    Tables show only what the stream has, so a table is removed and published again. A commit that
    exists and fails its check may be another program's, so it is left to the user.
    """
    storage = context.storage
    for codec in CODECS.values():
        first = dict(_damaged(context, codec))
        # A second check leaves out what another publisher deleted after the first listing.
        wrong = {k: e for k, e in (_damaged(context, codec) if first else ()) if k in first}
        if wrong and not any(_may_be_foreign(storage, codec, path) for path in wrong):
            with best_effort(f"publishing the {codec.TITLE} table again"):
                _mend(context, codec, wrong)
                yield f"the {codec.TITLE} table in {storage.url}, published again"
    latest, error = _find_latest_stream(context)
    if isinstance(error, MissingObjectError):
        with best_effort("rebuilding the table of newest events"):
            latest = make_latest(context)
            yield f"the newest events in {latest.storage.url}, rebuilt"
    if latest is not None:
        yield from mend_tables(latest)


def _may_be_foreign(storage: Storage, codec: Codec, path: str) -> bool:
    with suppress(MissingObjectError):
        return codec.MAKES_TABLE.fullmatch(path) is not None and storage.info(path).size > 0
    return False


def _mend(context: StreamContext, codec: Codec, wrong: Mapping[str, FormatError]) -> None:
    storage, marks = context.storage, paths.build_marks_path(codec.KIND)
    own = any(info.path.endswith(".parquet") for info in storage.list(codec.KIND))
    table = Table(codec.FIRST - 1)
    with suppress(FormatError):  # the newest commit is one of those that are wrong
        table = codec.newest(storage)
    check_shown(context, codec, table.note, context.log.root)
    if marks in wrong:
        storage.put(marks, b"{}")  # then unused files stay for another grace
    if table.note is None or wrong.keys() - {codec.HINT, delta.LAST_CHECKPOINT, marks}:
        # The marks stay: without them, nothing would show that a killed repair left no table.
        remove_table(storage, context.log.root.stream_id, codec, keep=marks)
        context.memory.pop(codec.KIND, None)
        # A lost commit may have shown all events, with files of the table's own.
        shown = table.note.tail if table.note else 0
        run_publish(context, codec.KIND, upto=context.log.root.tail if own else shown)
        return
    if codec.HINT in wrong:
        if (wrong[codec.HINT].fields.get("named") or -1) > table.version:
            run_publish(context, codec.KIND)  # the newest commit is lost
        announce(storage, codec, codec.newest(storage))
    codec.checkpoint(storage, codec.newest(storage))


def _try(path: str, read: Callable[[], object]) -> Iterator[tuple[str, FormatError]]:
    try:
        read()
    except FormatError as error:
        yield path, error


def _check_own(storage: Storage, file: File) -> None:
    data, where = storage.get(file.path), storage.describe(file.path)
    if len(data) != file.bytes:
        raise CorruptionError(
            "a file of a published table has the wrong length",
            where=where,
            expected=file.bytes,
            actual=len(data),
        )
    try:
        with pq.ParquetFile(io.BytesIO(data), page_checksum_verification=True) as parquet:
            for group in range(parquet.num_row_groups):
                parquet.read_row_group(group)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptionError("a file of a published table can't be read", where=where) from error


def advise(storage: Storage, stream_id: str, path: str) -> str:
    """Return what to do about a damaged object of a published table."""
    folder = path.partition("/")[0]
    codec = next(c for c in CODECS.values() if folder in (c.KIND, c.METADATA_FOLDER))
    publish = f"segstore publish {storage.url} --format {codec.KIND}"
    if is_foreign(storage, codec, stream_id):
        return f"delete {storage.url}/{codec.METADATA_FOLDER} by hand, then call: {publish}"
    return f"call: {publish} --remove, then {publish}"
