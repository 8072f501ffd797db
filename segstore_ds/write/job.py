"""A write job: what the planner decides once, for all tasks and the commit."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING

import pyarrow as pa

from segstore_ds.cache.counters import CacheCounters
from segstore_ds.errors import (
    ConflictError,
    FencedError,
    InvalidInputError,
    SchemaMismatchError,
    SealedError,
)
from segstore_ds.format import names
from segstore_ds.format.indexed_columns import key_columns_of, refuse_lost_keys, time_column_of
from segstore_ds.format.root import RULES_PROPERTY, Root
from segstore_ds.format.schema.codec import decode_schema, encode_schema, normalise_schema
from segstore_ds.format.schema.column_names import named_schema, store_columns, with_names
from segstore_ds.format.schema.widening import in_units_of, plan_schema
from segstore_ds.log.context import StreamContext
from segstore_ds.status.epochs import SchemaChange
from segstore_ds.status.writers import find_repeated
from segstore_ds.storage import Storage
from segstore_ds.write.inputs import ArrowInput
from segstore_ds.write.request import Target, WriteRequest
from segstore_ds.write.staged import StagedTask, delete_staged
from segstore_ds.write.task_writer import TaskWriter, stage_few

if TYPE_CHECKING:
    from segstore_ds.write.rules import BoundRules

STAGE_THREADS = 4  # of one large write; each has its own segment and buffers


@dataclass(frozen=True, slots=True)
class WriteJob:
    """One logical write; picklable, so that any process can stage it."""

    storage: Storage = field(repr=False)  # the stream's folder; pickles without its connections
    token: str  # the folder of this job's staged objects
    transaction: str  # the id of the commit, the same for every attempt
    request: WriteRequest
    schema: pa.Schema = field(repr=False)  # batches are converted to it when they are staged
    # None to append; else the new head: the tail that the overwrite was planned on.
    overwrite_to: int | None = None
    repeated: bool = False  # the writer's batch was committed before, so there is nothing to stage
    # The stream that was planned on; None if it can't have been recreated since.
    stream_id: str | None = None
    key_columns: tuple[str, ...] = ()  # columns for which frames get a Bloom filter
    time_column: str | None = None  # column whose bounds are kept whatever the layout says
    names: tuple[str, ...] = ()  # column names in batches, if they differ from the stored names
    rules: "BoundRules | None" = None  # rules for the rows; None also if rows are only counted

    @property
    def change(self) -> SchemaChange:
        """The schema, and how it may change that of the stream."""
        asked = self.request
        return SchemaChange(
            self.schema, asked.spark_schema, asked.merge_schema, asked.replace_schema, self.names
        )

    @property
    def target(self) -> Target:
        """Where tasks write; without a token if the batch is committed, so that they only count."""
        token, layout = None if self.repeated else self.token, self.request.layout
        if self.names and layout.stats_columns is not None:
            stored = dict(zip(self.names, self.schema.names, strict=True))
            chosen = tuple(stored[name] for name in layout.stats_columns)
            layout = replace(layout, stats_columns=chosen)
        return Target(
            self.storage,
            self.schema,
            layout,
            token,
            self.key_columns,
            self.time_column,
            self.names,
            self.rules and replace(self.rules, keyed=self.request.writer is not None),
        )

    def open_task(
        self,
        task: int,
        attempt: str,
        *,
        readable: bool = False,
        counters: CacheCounters | None = None,
        first: int = 0,
    ) -> TaskWriter:
        """Begin to stage the output of a task; nothing is visible before a commit.

        Events are ordered by `task` (>= 0). `attempt` consists of letters, digits and dashes, and
        differs for every attempt of any task. With `readable`, rows may be read back before the
        commit. Errors count rows from `first`.
        """
        return TaskWriter(
            self.target, task, attempt, readable=readable, counters=counters, first=first
        )

    def stage(self, task: int, attempt: str, batches: Iterable[pa.RecordBatch]) -> StagedTask:
        """Stage all rows of a task; after a failure, delete what it staged.

        The memory of a batch may change when the next one is requested.
        """
        return self.open_task(task, attempt).stage(batches, lent=True)

    def stage_all(self, data: ArrowInput) -> list[StagedTask]:
        """Stage all rows of the job here, as several tasks if they are many and in memory.

        Each task has its own thread and buffers. After a failure, delete what all of them staged.
        """
        few = None if self.repeated else data.few()
        inline = None if few is None else stage_few(self.target, few)
        if inline is not None:
            return [inline]
        parts = data.parts(STAGE_THREADS)
        if len(parts) == 1:
            return [self.open_task(0, "0").stage(data, lent=data.lent)]
        with ThreadPoolExecutor(len(parts), thread_name_prefix="segstore-stage") as pool:
            firsts = accumulate([part.rows for part in parts], initial=0)
            staging = [
                pool.submit(self.open_task(n, "0", first=first).stage, part)
                for n, (part, first) in enumerate(zip(parts, firsts, strict=False))
            ]
        errors = [error for task in staging if (error := task.exception()) is not None]
        if not errors:
            return [task.result() for task in staging]
        for task in staging:
            if task.exception() is None:
                delete_staged(self.storage, task.result().segments)
        raise errors[0]


def plan_job(context: StreamContext, request: WriteRequest) -> WriteJob:
    """Plan one logical write against the newest root."""
    # An overwrite must see the newest tail; an append may use a root from the last minute.
    root = context.log.refresh() if request.overwrite else context.log.recent()
    try:
        repeated, staged, called = _admit(context, root, request)
    except (ConflictError, FencedError, SchemaMismatchError):
        # The root may be too old: others may have written, taken the writer over, extended the
        # schema, or made this folder the primary.
        root = context.log.refresh()
        repeated, staged, called = _admit(context, root, request)
    check_arguments(request, called or staged.names)
    ruled = RULES_PROPERTY in root.properties
    return WriteJob(
        storage=context.storage if repeated else context.log.seams.staging(root),
        token=names.build_token(root.version, context.log.clock.new_id()[:12]),
        transaction=context.log.new_transaction(),
        request=request,
        schema=staged,
        overwrite_to=root.tail if request.overwrite else None,
        repeated=repeated,
        stream_id=root.stream_id,
        key_columns=key_columns_of(root),
        time_column=time_column_of(root),
        names=called,
        rules=_bind(root, staged, called) if ruled and not repeated else None,
    )


def _bind(root: Root, staged: pa.Schema, called: tuple[str, ...]) -> "BoundRules | None":
    from segstore_ds.write.rules import bind_rules  # noqa: PLC0415 - few streams have rules

    return bind_rules(root, with_names(staged, called) if called else staged)


def _admit(
    context: StreamContext, root: Root, request: WriteRequest
) -> tuple[bool, pa.Schema, tuple[str, ...]]:
    """Return whether the batch is committed, the schema to stage in, and the columns' names.

    The names are empty if they are the stored ones. Raises if the write can't be committed, before
    data is consumed that may be readable only once.
    """
    writer = request.writer
    repeated = writer is not None and (
        find_repeated(context.status, root, writer, batch=None) is not None
    )
    # Stage nothing in a folder that takes no commits.
    context.log.seams.of(root).before_staging(root)
    if not repeated:
        if root.sealed:
            raise SealedError("stream is sealed", url=context.storage.url, tail=root.tail)
        request.check_expected(root)
    anew, epoch = repeated or request.replace_schema, root.epochs[-1]
    if anew and not epoch.names:
        return repeated, _normal(request.schema), ()
    text, _ = context.status.schema_texts(epoch)
    if request.schema is decode_schema(text) and not (anew or epoch.names):
        return repeated, request.schema, ()  # events: their batch was made by it
    known = (*epoch.names.items(),)
    merge = None if anew else request.merge_schema
    try:
        staged, called = _fitted(text, known, request.schema.serialize().to_pybytes(), merge)
    except OSError:
        normalise_schema(request.schema)  # has its own error if columns are nested too deeply
        raise
    if merge:
        refuse_lost_keys(root, decode_schema(text), staged)
    return repeated, staged, called


def check_arguments(request: WriteRequest, columns: Sequence[str]) -> None:
    """Raise InvalidInputError for arguments that conflict or name unknown columns. Pure."""
    if request.replace_schema and not request.overwrite:
        raise InvalidInputError(
            "the schema can only be replaced together with the events",
            remedy="overwrite the events as well, or set merge_schema=True to extend the schema",
        )
    unknown = sorted(set(request.layout.stats_columns or ()) - set(columns))
    if unknown:
        raise InvalidInputError("stats_columns names unknown columns", columns=unknown)


@lru_cache(maxsize=64)
def _fitted(
    text: str, known: tuple[tuple[str, str | None], ...], incoming: bytes, merge: bool | None
) -> tuple[pa.Schema, tuple[str, ...]]:
    """Return the schema to stage incoming data in, and the columns' names as `_admit` does; cached.

    `text` is the stream's schema. `incoming` is the schema of the data as an Arrow message, which
    includes its metadata. With a `merge` of None the stream's schema is replaced.
    """
    current, given = decode_schema(text), pa.ipc.read_schema(pa.py_buffer(incoming))
    if not known:
        given = in_units_of(current, given)
        return _normal(plan_schema(current, given, merge=bool(merge))), ()
    called = named_schema(current, dict(known))
    planned = given
    if merge is not None:
        planned = plan_schema(called, in_units_of(called, given), merge=merge)
    planned = normalise_schema(planned)
    stored = _normal(store_columns(planned, current, dict(known)))
    return stored, () if stored.names == planned.names else tuple(planned.names)


def _normal(schema: pa.Schema) -> pa.Schema:
    """Return a schema as a reader of the stream decodes it."""
    return decode_schema(encode_schema(normalise_schema(schema)))
