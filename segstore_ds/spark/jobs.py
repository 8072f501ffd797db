"""`compact`, `copy`, `clone` and `redact` of a session: small here, large by Spark's tasks."""

import hashlib
import inspect
import os
import pickle
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.types import StructType

from segstore_ds import Layout, Stream
from segstore_ds.errors import InvalidInputError
from segstore_ds.options.table import MERGE, TARGET_BYTES, TARGET_ROWS, WRITE, parse_options
from segstore_ds.reports import Compaction, Copied, Redacted
from segstore_ds.spark.batch.job_writer import EVENTS, MOST_TASKS, SEGMENTS
from segstore_ds.spark.batch.planning import storage_of
from segstore_ds.spark.batch.writer import build_request, client_of
from segstore_ds.spark.option_texts import HelperNotes, as_location, as_texts
from segstore_ds.spark.parquet_scan import read as hybrid
from segstore_ds.spark.parquet_scan.read import read_in_order
from segstore_ds.spark.session import bound_source, save
from segstore_ds.stream.connector.jobs import (
    CutLike,
    FilterLike,
    Job,
    cut_text,
    open_on_engine,
    plan_rows_copy,
)
from segstore_ds.stream.connector.reads import Storage

JOB_PIECES = 64  # of a transformed copy: what a job that fails has done in vain


def launch(spark: SparkSession, job: Job, rows: Sequence[Any]) -> Generator[Any, None, None]:
    """Run each row of a job in a task; an attempt that fails is made again. A `Launch`.

    What reads few bytes is run here: tasks take seconds to start after an idle minute.
    """
    if not rows or job.size(rows) <= hybrid.MOST_BYTES:
        yield from job.run(rows)
        return
    numbers = spark.range(0, len(rows), 1, min(len(rows), MOST_TASKS))
    packed = [pickle.dumps(row) for row in rows]  # a task unpacks only its own

    def run_row(number: int) -> bytes:
        return pickle.dumps([*job.run([pickle.loads(packed[number])])])  # noqa: S301 - our own

    # Functions of Arrow batches need pandas; a job does not.
    task = udf(run_row, "binary", useArrow=False).asNondeterministic()
    for row in numbers.select(task("id")).collect():
        yield from pickle.loads(row[0])  # noqa: S301 - our own tasks


def compact(
    spark: SparkSession,
    url: str | os.PathLike[str],
    *,
    start: CutLike | None = None,
    end: CutLike = "tail",
    mode: str = MERGE,
    target_rows: int = TARGET_ROWS,
    target_bytes: int = TARGET_BYTES,
    minor: tuple[int, int] | None = None,
    budget_bytes: int | None = None,
    layout: Layout | None = None,
    single_writer: bool = False,
) -> Compaction:
    """Compact a stream with Spark's tasks: they write the segments, this process plans and commits.

    It does the same as `Stream.compact`, with the same guarantees. Work on at most 16 MiB is done
    in this process, without a job. What the tasks of a job that failed have staged is deleted by
    upkeep.

    Args:
        spark: A session with the format registered; this process opens the stream as well.
        url: The stream.
        start: As for `Stream.compact`, like the next six.
        end: Where to end.
        mode: ``merge``, ``stitch`` or ``split``.
        target_rows: Most events of a segment.
        target_bytes: Most encoded bytes of a segment.
        minor: Only runs of at least ``(small, medium)`` segments; None takes every run.
        budget_bytes: Most encoded bytes to rewrite, the newest first; None for no limit.
        layout: Compression and frames of what is written.
        single_writer: Allow a filesystem without exclusive create.

    Returns:
        What was done; `commits` is 0 if there was nothing to do.

    Raises:
        SegstoreError: As `Stream.compact`.
        pyspark.errors.PySparkException: A job failed; the text names our error and the remedy.

    Examples:
        >>> _ = stream.append({"user": "ada", "n": 4})
        >>> done = segstore.spark.compact(spark, stream.url)
        >>> done.segments_before, done.segments_after
        (2, 1)
    """
    return _open(spark, url, single_writer=single_writer).compact(
        start,
        end,
        mode=mode,
        target_rows=target_rows,
        target_bytes=target_bytes,
        minor=minor,
        budget_bytes=budget_bytes,
        layout=layout,
    )


def copy(
    spark: SparkSession,
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    copy_id: str,
    transform: Callable[[DataFrame], DataFrame] | None = None,
    *,
    mode: str | None = None,
    start: CutLike = "head",
    end: CutLike = "tail",
    seal: bool = False,
    single_writer: bool = False,
) -> Copied:
    """Copy a stream with Spark's tasks, as one commit.

    It does the same as `Stream.copy_to`, with the same guarantees; by events, the events can be
    transformed on the way. The order is kept if the transformation keeps it: filters and new
    columns do; joins, sorts and shuffles don't. There is no stream at the destination before
    everything is copied.

    The first call fixes the range. If it fails, the next call with the same id continues where it
    stopped. A copy with a transformation runs about one Spark job for each 16 GiB, and continues
    after the last job that succeeded; if the transformation can't be pickled, or its code or its
    file has changed, it starts again. At most 16 MiB without a transformation are copied in this
    process, without a job.

    Args:
        spark: A session with the format registered; this process opens both streams as well.
        source: The stream.
        target: A location without a stream, on any filesystem.
        copy_id: Letters, digits and dashes; repeating a finished copy with its id does nothing.
        transform: A function from the events to the rows to write; needs mode ``events``.
        mode: As for `Stream.copy_to`; None means ``events`` with a transformation, else
            ``segments``.
        start: First event; a segment that it divides is rewritten.
        end: The event after the last, in the same forms.
        seal: Seal the copy after its last event.
        single_writer: Allow filesystems without exclusive create, for both streams.

    Returns:
        What was copied; `repeated` if the copy had been done before.

    Raises:
        InvalidInputError: A mode or a cut is not valid, or the id belongs to another copy.
        AlreadyExistsError: There is another stream at the destination.
        SegstoreError: As `Stream.copy_to` otherwise, for the checks before the job.
        pyspark.errors.PySparkException: The job failed; the text names our error and the remedy.

    Examples:
        >>> large = f"{stream.url}-large"
        >>> def select(events):
        ...     return events.where("n > 1")
        >>> segstore.spark.copy(spark, stream.url, large, "monday", select).end
        3
        >>> segstore.open(large).tail
        2
    """
    source, target = as_location(source), as_location(target)
    mode = mode or (SEGMENTS if transform is None else EVENTS)
    if transform is None:
        stream = _open(spark, source, single_writer=single_writer)
        to = _storage(spark, target, single_writer=single_writer)
        return stream.copy_to(to, copy_id=copy_id, mode=mode, start=start, end=end, seal=seal)
    if mode != EVENTS:
        raise InvalidInputError(
            "only a copy by events can be transformed",
            remedy='use mode="events", or no transformation',
            mode=mode,
        )
    options = as_texts({"singleWriter": single_writer})
    reader = spark.read.format("segstore").options(**options)
    schema, cuts = transform(reader.load(source)).schema, (cut_text(start), cut_text(end))
    plan = partial(
        plan_rows_copy,
        _storage(spark, source, single_writer=single_writer),
        _storage(spark, target, single_writer=single_writer),
        build_request(parse_options({}, WRITE), schema, client=_client(spark)),
        copy_id,
        cuts,
        seal=seal,
        made_by=_made_by(transform, schema),
    )
    work = plan().copy
    if work.to.done is not None:
        return work.to.done
    asked = {"copyFrom": source, "copyMode": mode, "copyId": copy_id, "seal": str(seal)}
    asked |= {"startCut": cuts[0], "endCut": cuts[1]}
    spans = work.missing(JOB_PIECES)
    for first, last in spans:
        rows = transform(read_in_order(spark, source, **options, startCut=first, endCut=last))
        notes = HelperNotes(piece=(first, last, work.made_by))
        save(rows, target, "append", options | asked | notes.as_options())
    if spans == [work.bounds]:  # one job of everything has committed it
        return replace(plan().copy.to.done or Copied(0, 0, 0, 0), repeated=False)
    return work.commit()


def clone(
    spark: SparkSession,
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    copy_id: str,
    *,
    version: int | None = None,
    end: int | str = "tail",
    seal: bool = False,
) -> Copied:
    """Make a stream that shares the segments of another one: three commits, and no job.

    It does the same as `Stream.copy_to` with mode ``clone``, with the session's storage options.

    Args:
        spark: A session with the format registered.
        source: The origin.
        target: A location without a stream, on the origin's filesystem.
        copy_id: Names the clone's pin in the origin; repeating the clone with its id does nothing.
        version: The kept version that it starts from; None for the newest one.
        end: The event after its last; any form of cut except a time object.
        seal: Seal the clone after its last event.

    Returns:
        What is shared; `repeated` if the clone had been made before.

    Raises:
        SegstoreError: As `Stream.copy_to`.

    Examples:
        >>> fork = f"{stream.url}-fork"
        >>> segstore.spark.clone(spark, stream.url, fork, "fork", end=2).end
        2
        >>> segstore.spark.read(spark, fork).count()
        2
    """
    return _open(spark, source).copy_to(
        as_location(target), copy_id=copy_id, mode="clone", version=version, end=end, seal=seal
    )


def _made_by(transform: Callable[[DataFrame], DataFrame], schema: StructType) -> str | None:
    """Return what tells a transformation from others, as far as its own file shows it.

    None if it can't be told: then the rows that other jobs made of events don't count.
    """
    try:
        code: bytes = cloudpickle.dumps(transform)  # type: ignore[no-untyped-call]
    except (pickle.PickleError, TypeError, ValueError, AttributeError, RuntimeError):
        return None
    source = inspect.getsourcefile(transform) if inspect.isroutine(transform) else None
    text = Path(source).read_bytes() if source and Path(source).is_file() else b""
    return hashlib.blake2b(code + text + schema.json().encode(), digest_size=6).hexdigest()


def _open(
    spark: SparkSession, url: str | os.PathLike[str], *, single_writer: bool = False
) -> Stream:
    """Open a stream in this process whose jobs run by Spark's tasks."""
    storage = _storage(spark, as_location(url), single_writer=single_writer)
    return open_on_engine(storage, partial(launch, spark), client=_client(spark))


def _client(spark: SparkSession) -> str:
    return client_of(spark.conf.get("spark.app.id", None))


def _storage(spark: SparkSession, url: str, *, single_writer: bool = False) -> Storage:
    source = bound_source(spark)({"path": url})
    return storage_of(source, parse_options({"path": url, "singleWriter": single_writer}, WRITE))


def redact(
    spark: SparkSession,
    url: str | os.PathLike[str],
    filters: FilterLike,
    *,
    columns: Sequence[str],
    reason: str = "",
    redact_id: str | None = None,
    forget: bool = False,
    short_grace: bool = False,
) -> Redacted:
    """Set columns of matching events to null for good, with Spark's tasks.

    It does the same as `Stream.redact`, with the same guarantees: tasks read the segments and write
    those that hold matching events, and this process plans and commits. At most 16 MiB are read in
    this process, without a job.

    Args:
        spark: A session with the format registered; this process opens the stream as well.
        url: The stream.
        filters: Conditions that the events satisfy, as for `Stream.scan`; at least one.
        columns: The columns to set to null.
        reason: What the stream keeps about it: a request's number, never the person.
        redact_id: The same id again is the same redaction; None makes a random one.
        forget: Also delete what still holds the values.
        short_grace: With `forget`: don't keep the replaced objects for the grace of upkeep.

    Returns:
        What was redacted, the id and the bound tail; `forgotten` is the report of `forget`.

    Raises:
        SegstoreError: As `Stream.redact`.
        pyspark.errors.PySparkException: A job failed; the text names our error and the remedy.

    Examples:
        >>> segstore.spark.redact(spark, stream.url, "user == 'ada'", columns=["user"]).rows
        1
        >>> segstore.spark.read(spark, stream.url).where("user IS NULL").count()
        1
    """
    return _open(spark, url).redact(
        filters,
        columns=columns,
        reason=reason,
        redact_id=redact_id,
        forget=forget,
        short_grace=short_grace,
    )
