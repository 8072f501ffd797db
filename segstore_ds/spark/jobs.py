"""`open` and `copy` of a session: small work is done in this process, large work in Spark tasks."""

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

from segstore_ds import Stream
from segstore_ds.errors import InvalidInputError
from segstore_ds.options.table import WRITE, parse_options
from segstore_ds.reports import Copied
from segstore_ds.spark.batch.job_writer import EVENTS, MOST_TASKS, SEGMENTS
from segstore_ds.spark.batch.planning import storage_of
from segstore_ds.spark.batch.writer import build_request, client_of
from segstore_ds.spark.option_texts import HelperNotes, as_location, as_texts
from segstore_ds.spark.parquet_scan import read as hybrid
from segstore_ds.spark.parquet_scan.read import read_in_order
from segstore_ds.spark.session import bound_source, save
from segstore_ds.stream.connector.jobs import CutLike, Job, cut_text, open_on_engine, plan_rows_copy
from segstore_ds.stream.connector.reads import Storage

JOB_PIECES = 64  # in one job of a transformed copy; a job that fails has done them in vain


def launch(spark: SparkSession, job: Job, rows: Sequence[Any]) -> Generator[Any, None, None]:
    """Run each row of a job in a task, which Spark retries if it fails. A `Launch`.

    A job that reads few bytes runs here: tasks take seconds to start after an idle minute.
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


def open(  # noqa: A001 - segstore.spark.open(spark, url)
    spark: SparkSession, url: str | os.PathLike[str], *, single_writer: bool = False
) -> Stream:
    """Open a stream whose compactions, copies and redactions run in Spark's tasks.

    All methods are those of `segstore.open`, with the same guarantees. For `compact`, `redact` and
    `copy_to`, this process plans and commits, and tasks read and write the segments. Work on at
    most 16 MiB is done in this process, without a job. Upkeep deletes what the tasks of a failed
    job have staged.

    Args:
        spark: A session with the format registered; its storage options open the stream.
        url: The stream.
        single_writer: Allow a filesystem without exclusive create.

    Returns:
        The stream. A job that fails raises pyspark.errors.PySparkException, whose text names our
        error and the remedy.

    Raises:
        NotFoundError: There is no stream.

    Examples:
        >>> _ = stream.append({"user": "ada", "n": 4})
        >>> done = segstore.spark.open(spark, stream.url).compact()
        >>> done.segments_before, done.segments_after
        (2, 1)
    """
    storage = _storage(spark, as_location(url), single_writer=single_writer)
    return open_on_engine(storage, partial(launch, spark), client=_client(spark))


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
        stream = open(spark, source, single_writer=single_writer)
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
    if spans == [work.bounds]:  # a single job has copied everything and committed it
        return replace(plan().copy.to.done or Copied(0, 0, 0, 0), repeated=False)
    return work.commit()


def _made_by(transform: Callable[[DataFrame], DataFrame], schema: StructType) -> str | None:
    """Return a digest of a transformation, its file and the schema of its rows.

    None if it can't be pickled: then rows that earlier jobs staged are not used.
    """
    try:
        code: bytes = cloudpickle.dumps(transform)  # type: ignore[no-untyped-call]
    except (pickle.PickleError, TypeError, ValueError, AttributeError, RuntimeError):
        return None
    source = inspect.getsourcefile(transform) if inspect.isroutine(transform) else None
    text = Path(source).read_bytes() if source and Path(source).is_file() else b""
    return hashlib.blake2b(code + text + schema.json().encode(), digest_size=6).hexdigest()


def _client(spark: SparkSession) -> str:
    return client_of(spark.conf.get("spark.app.id", None))


def _storage(spark: SparkSession, url: str, *, single_writer: bool = False) -> Storage:
    source = bound_source(spark)({"path": url})
    return storage_of(source, parse_options({"path": url, "singleWriter": single_writer}, WRITE))
