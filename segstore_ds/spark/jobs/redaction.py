"""`redact`: a redaction whose segments Spark's tasks look through and write."""

from collections.abc import Callable, Iterator, Sequence

from pyspark.sql import Column, SparkSession
from pyspark.sql.functions import udf

from segstore_ds.options import WRITE, parse_options
from segstore_ds.spark.boundary import in_sparks_words
from segstore_ds.spark.option_texts import as_location
from segstore_ds.spark.session import bound_source
from segstore_ds.stream.connector import (
    FilterLike,
    PlacedSegment,
    Redacted,
    RedactedSegment,
    RedactJob,
    RedactRequest,
    open_on,
    parse_answer,
    redact_place,
    redact_stream,
)

MOST_TASKS = 256


@in_sparks_words
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
    location = as_location(path)
    source = bound_source(spark)({"path": location})
    storage = source.open_storage(parse_options({"path": location}, WRITE))

    def work(job: RedactJob, chosen: Sequence[PlacedSegment]) -> Iterator[RedactedSegment]:
        tasks = min(len(chosen), MOST_TASKS)
        places = spark.range(0, len(chosen), 1, tasks)
        rows = places.select(_task(job, chosen)("id")).collect()
        return (parse_answer(row[0], chosen) for row in rows)

    stream = open_on(storage)
    redact_id = stream.context.clock.new_id() if redact_id is None else redact_id
    request = RedactRequest(filters, columns, reason, redact_id)
    return redact_stream(stream, request, work, forget=forget, short_grace=short_grace)


def _task(job: RedactJob, chosen: Sequence[PlacedSegment]) -> Callable[..., Column]:
    """Return the function of a segment's place that tasks call, once for each."""

    def run(place: int) -> str:
        return redact_place(job, chosen, place)

    # Functions of Arrow batches need pandas, which a job has no other use for.
    return udf(run, "string", useArrow=False).asNondeterministic()
