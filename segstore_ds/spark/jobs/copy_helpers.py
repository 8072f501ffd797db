"""`copy` and `clone`: helpers for whole copies from a Spark session."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from segstore_ds.errors import InternalError, InvalidInputError, NotFoundError
from segstore_ds.options import COPIED, WRITE, parse_options
from segstore_ds.spark.active import activated
from segstore_ds.spark.jobs.copying import EVENTS, MOST_TASKS, SEGMENTS, TASK_BYTES
from segstore_ds.spark.jobs.event_copying import plan_events_copy
from segstore_ds.spark.option_texts import as_location, as_texts
from segstore_ds.spark.parquet_scan.read import read_in_order
from segstore_ds.spark.session import bound_source, save
from segstore_ds.stream.connector import (
    ROWS,
    Copied,
    CopyRequest,
    Storage,
    copied_of,
    find_rows_copy,
    open_on,
    plan_copy_job,
)

_WHOLE = ("head", "tail")


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
    ranges). By events, rows are written again and can be transformed on the way. The order is kept
    if the transformation keeps it, as row-local ones do (no joins, sorts or shuffles). The first
    call binds the range. If a job fails, the next call with the same id starts it again; until one
    succeeds, nobody can read the destination.

    Args:
        spark: A session with the format registered; this process opens both streams as well.
        source: The stream.
        target: A location without a stream, on any filesystem.
        copy_id: Letters, digits and dashes; repeating a finished copy with its id does nothing.
        transform: Turns the events into the rows that are written; needs mode ``events``.
        mode: ``segments`` or ``events``; None means ``events`` if there is a transformation.
        start: First event, for mode ``events``; any form of cut except a time object.
        end: The event after the last, likewise.
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
            remedy="use segments or events, or segstore.clone(...) to share segments",
            mode=mode,
        )
    source, target = as_location(source), as_location(target)
    options: dict[str, Any] = {"copyFrom": source, "copyId": copy_id}
    options |= {"seal": seal, "singleWriter": single_writer}
    if mode == EVENTS:
        cuts = (str(start), str(end))
        return _copy_events(spark, target, options, cuts, transform or (lambda rows: rows))
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
    transform: Callable[[DataFrame], DataFrame],
) -> Copied:
    single = options["singleWriter"]
    old, new = (_storage(spark, url, single_writer=single) for url in (options["copyFrom"], target))
    request = CopyRequest(options["copyId"], *cuts, options["seal"], ROWS)
    known = find_rows_copy(old, new, request)
    if known is not None and known.done:
        return copied_of(known, repeated=True)

    # The rows' schema must be known before the destination is created and binds the range.
    asked = {**options, "copyMode": EVENTS}
    parsed = {**parse_options(asked, WRITE), COPIED: json.dumps(cuts)}
    first, last = cuts if known is None else (known.start, known.end)
    asked_for = transform(_rows(spark, options, startCut=first, endCut=last))
    state = plan_events_copy(old, new, parsed, asked_for.schema).state
    given = {"singleWriter": single, "startCut": state.start, "endCut": state.end}
    rows = read_in_order(spark, options["copyFrom"], **given)
    save(transform(rows), target, "append", as_texts({**asked, COPIED: json.dumps(cuts)}))
    done = find_rows_copy(old, new, request)
    if done is None or not done.done:
        raise InternalError("a copy that was committed can't be found", url=new.url)
    return copied_of(done, repeated=False)


def _rows(spark: SparkSession, options: Mapping[str, Any], **asked: Any) -> DataFrame:
    reader = spark.read.format("segstore").options(singleWriter=options["singleWriter"], **asked)
    return reader.load(options["copyFrom"])


def _copy_segments(spark: SparkSession, target: str, options: Mapping[str, Any]) -> Copied:
    single = options["singleWriter"]
    old, new = (_storage(spark, url, single_writer=single) for url in (options["copyFrom"], target))
    request = CopyRequest(options["copyId"], SEGMENTS, SEGMENTS, options["seal"])
    done = plan_copy_job(old, new, request).done
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
    done = plan_copy_job(old, new, request).done
    if done is None:
        raise NotFoundError("the copy was dropped in the meantime", url=new.url)
    return Copied(done.start, done.end, done.segments, done.bytes)


def _storage(spark: SparkSession, url: str, *, single_writer: bool = False) -> Storage:
    source = bound_source(spark)({"path": url})
    return source.open_storage(parse_options({"path": url, "singleWriter": single_writer}, WRITE))
