"""`compact`, `copy`, `clone` and `redact` of a session: jobs that Spark's tasks carry out."""

import hashlib
import inspect
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.types import StructType

from segstore_ds.errors import InvalidInputError, NotFoundError
from segstore_ds.options import BY_NAME, READ, WRITE, parse_options
from segstore_ds.reports import Copied, Redacted
from segstore_ds.spark.active import activated
from segstore_ds.spark.batch.job_writer import EVENTS, MOST_TASKS, SEGMENTS, plan_event_rows
from segstore_ds.spark.batch.metadata_reader import PLAN
from segstore_ds.spark.batch.writer import client_of
from segstore_ds.spark.boundary import translate_errors
from segstore_ds.spark.option_texts import CopiedRows, HelperNotes, as_location, as_texts
from segstore_ds.spark.parquet_scan.read import read_in_order
from segstore_ds.spark.session import bound_source, save
from segstore_ds.stream.connector import (
    FilterLike,
    RowsCopy,
    Storage,
    copy_events,
    open_on,
    plan_segments_copy,
    redact_stream,
)

TASK_BYTES = 32 << 20
JOB_PIECES = 64  # of a transformed copy: what a job that fails has done in vain
ROUNDS = 8
_WHOLE = ("head", "tail")


def launch(spark: SparkSession, run: Callable[[list[Any]], Iterator[Any]], rows: Any) -> list[Any]:
    """Run each row in a task and return the results; an attempt that fails is made again."""

    def run_row(number: int) -> bytes:
        return pickle.dumps([*run([rows[number]])])

    # Functions of Arrow batches need pandas, which a job has no other use for.
    task = udf(run_row, "binary", useArrow=False).asNondeterministic()
    numbers = spark.range(0, len(rows), 1, max(1, min(len(rows), MOST_TASKS)))
    done = numbers.select(task("id")).collect() if rows else []
    return [one for row in done for one in pickle.loads(row[0])]  # noqa: S301 - our own tasks


@translate_errors
def compact(spark: SparkSession, path: str, **options: Any) -> int:
    """Compact a stream with Spark's tasks: plan, merge and commit until there is nothing to do.

    Each round is one commit. It is safe to repeat, and to run beside readers and writers.

    Args:
        spark: A session with the format registered.
        path: The stream.
        options: As in docs/options.md, for example ``compactBytes="256m"``.

    Returns:
        How many groups of segments were rewritten.

    Raises:
        InvalidInputError: An option or the location is not valid.
        pyspark.errors.PySparkException: The job failed; the text names our error and the remedy.
    """
    path = as_location(path)
    reads, writes = _split(options, READ), _split(options, WRITE)
    known = {*reads, *writes}
    if known != {*options}:
        raise InvalidInputError("unknown options", options=sorted({*options} - known))
    total, planned = 0, -1
    for _ in range(ROUNDS):
        plan = spark.read.format("segstore").options(**reads, metadata=PLAN).load(path)
        groups, version = plan.selectExpr("count(*)", "max(version)").collect()[0]
        # Planned on the same version again: the result was no gain, so it was not committed.
        if not groups or version == planned:
            break
        planned = version
        writer = plan.write.format("segstore").mode("append")
        with activated(spark):
            writer.options(**writes, operation="compact").save(path)
        total += groups
    return total


def _split(options: Mapping[str, Any], scope: str) -> dict[str, Any]:
    def takes(name: str) -> bool:
        option = BY_NAME.get(name.lower())
        return option is not None and scope in option.scopes

    return {name: value for name, value in options.items() if takes(name)}


def copy(
    spark: SparkSession,
    source: str,
    target: str,
    copy_id: str,
    transform: Callable[[DataFrame], DataFrame] | None = None,
    *,
    mode: str | None = None,
    start: int | str = "head",
    end: int | str = "tail",
    seal: bool = False,
    single_writer: bool = False,
) -> Copied:
    """Copy a stream with Spark's tasks, as one commit.

    By segments, the objects are copied (`segstore_ds.Stream.copy_to` also copies empty streams and
    ranges). By events, they are written again and can be transformed on the way. The order is kept
    if the transformation keeps it, as row-local ones do (no joins, sorts or shuffles). The first
    call binds the range. If it fails, the next call with the same id goes on where it stopped; if
    the transformation was changed since, or can't be pickled, it begins again. Until all is there,
    there is no stream at the destination.

    Transformed events are the work of one Spark job for each 16 GiB or so, and go on after the last
    one that succeeded. That a transformation has changed is seen in its own code and file.

    Args:
        spark: A session with the format registered; this process opens both streams as well.
        source: The stream.
        target: A location without a stream, on any filesystem.
        copy_id: Letters, digits and dashes; repeating a finished copy with its id does nothing.
        transform: Turns the events into the rows that are written; needs mode ``events``.
        mode: ``segments`` or ``events``; None means ``events`` if there is a transformation.
        start: First event, for mode ``events``; any form of cut except a time object.
        end: The event after the last, in the same forms.
        seal: Seal the copy after its last event.
        single_writer: Allow filesystems without exclusive create, for both streams.

    Returns:
        What was copied; `repeated` if the copy had been done before.

    Raises:
        InvalidInputError: A mode or a cut is not valid, or the id belongs to another copy.
        AlreadyExistsError: There is another stream at the destination.
        SegstoreError: As `segstore_ds.Stream.copy_to` otherwise, for the checks before the job.
        pyspark.errors.PySparkException: The job failed; the text names our error and the remedy.
    """
    mode = mode or (EVENTS if transform is not None else SEGMENTS)
    if mode not in (EVENTS, SEGMENTS):
        raise InvalidInputError(
            "unknown copy mode",
            remedy="use segments or events, or segstore.spark.clone(...) to share segments",
            mode=mode,
        )
    source, target = as_location(source), as_location(target)
    options: dict[str, Any] = {"copyFrom": source, "copyId": copy_id}
    options |= {"seal": seal, "singleWriter": single_writer}
    if mode == EVENTS:
        cuts = (str(start), str(end))
        return _copy_events(spark, target, options, cuts, transform)
    if transform is not None or (str(start), str(end)) != _WHOLE:
        raise InvalidInputError(
            'mode="segments" copies the whole stream unchanged',
            remedy='use mode="events", or Stream.copy_to for a range of segments',
        )
    return _copy_segments(spark, target, options)


def clone(
    spark: SparkSession,
    source: str,
    target: str,
    copy_id: str,
    *,
    version: int | None = None,
    end: int | str = "tail",
    seal: bool = False,
) -> Copied:
    """Make a stream that shares the segments of another one: three commits, and no job.

    As `segstore_ds.Stream.copy_to` with mode ``clone``, with the session's storage options.

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
        SegstoreError: As `segstore_ds.Stream.copy_to`.
    """
    stream = open_on(_storage(spark, source))
    return stream.copy_to(
        target, copy_id=copy_id, mode="clone", version=version, end=end, seal=seal
    )


def _copy_events(
    spark: SparkSession,
    target: str,
    options: Mapping[str, Any],
    cuts: tuple[str, str],
    transform: Callable[[DataFrame], DataFrame] | None,
) -> Copied:
    single = options["singleWriter"]
    old, new = (_storage(spark, url, single_writer=single) for url in (options["copyFrom"], target))
    if transform is None:
        return copy_events(
            old,
            new,
            options["copyId"],
            cuts,
            partial(launch, spark),
            seal=options["seal"],
            client=client_of({}),
        )

    asked = {**options, "copyMode": EVENTS}
    schema = transform(_rows(spark, options)).schema
    copied = CopiedRows(cuts, made_by=_made_by(transform, schema))

    def plan() -> RowsCopy:
        return plan_event_rows(old, new, parse_options(asked, WRITE), schema, copied)

    copy = plan().copy
    if copy.to.done is not None:
        return copy.to.done
    spans = copy.missing(JOB_PIECES)
    for span in spans:
        rows = read_in_order(
            spark, options["copyFrom"], singleWriter=single, startCut=span[0], endCut=span[1]
        )
        notes = HelperNotes(copied=replace(copied, made_by=copy.made_by, span=span))
        save(transform(rows), target, "append", as_texts(asked) | notes.as_options())
    if spans == [copy.bounds]:  # one job of everything has committed it
        return replace(plan().copy.to.done or Copied(0, 0, 0, 0), repeated=False)
    return copy.commit()


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


def _copy_segments(spark: SparkSession, target: str, options: Mapping[str, Any]) -> Copied:
    single = options["singleWriter"]
    old, new = (_storage(spark, url, single_writer=single) for url in (options["copyFrom"], target))

    def find() -> Copied | None:
        copy_id, seal = options["copyId"], options["seal"]
        return plan_segments_copy(old, new, copy_id, seal=seal, client="").to.done

    done = find()
    if done is not None:
        return done
    rows = _rows(spark, options, metadata=SEGMENTS)
    segments, encoded = rows.selectExpr("count(*)", "coalesce(sum(bytes), 0)").first() or (0, 0)
    tasks = min(segments, MOST_TASKS, encoded // TASK_BYTES + 1)
    if tasks > 1:
        rows = rows.repartition(tasks)
    writer = rows.write.format("segstore").mode("append")
    with activated(spark):
        writer.options(operation="copy", **options).save(target)
    done = find()
    if done is None:
        raise NotFoundError("the copy was dropped in the meantime", url=new.url)
    return replace(done, repeated=False)


def _rows(spark: SparkSession, options: Mapping[str, Any], **asked: Any) -> DataFrame:
    reader = spark.read.format("segstore").options(singleWriter=options["singleWriter"], **asked)
    return reader.load(options["copyFrom"])


def _storage(spark: SparkSession, url: str, *, single_writer: bool = False) -> Storage:
    source = bound_source(spark)({"path": url})
    return source.open_storage(parse_options({"path": url, "singleWriter": single_writer}, WRITE))


@translate_errors
def redact(
    spark: SparkSession,
    path: str,
    filters: FilterLike,
    *,
    columns: Sequence[str],
    reason: str = "",
    redact_id: str | None = None,
    forget: bool = False,
    short_grace: bool = False,
) -> Redacted:
    """Set columns of matching events to null with Spark's tasks.

    As `segstore_ds.Stream.redact`, which says what is guaranteed. Tasks look through segments and
    write them; this process plans and commits.

    Args:
        spark: A session with the format registered; this process opens the stream as well.
        path: The stream.
        filters: Conditions that the events satisfy; at least one.
        columns: The columns to set to null.
        reason: What the stream keeps about it: a request's number, never the person.
        redact_id: The same id again is the same redaction; None makes a random one.
        forget: Delete what still holds the values.
        short_grace: With `forget`: don't wait for the grace.

    Returns:
        What was redacted.

    Raises:
        SegstoreError: As `segstore_ds.Stream.redact`.
        pyspark.errors.PySparkException: A job failed; the text names our error and the remedy.
    """
    return redact_stream(
        _storage(spark, as_location(path)),
        filters,
        columns,
        partial(launch, spark),
        reason=reason,
        redact_id=redact_id,
        forget=forget,
        short_grace=short_grace,
    )
