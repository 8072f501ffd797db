"""The active session of a thread: where Spark looks when a writer saves."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession


def find_jvm(spark: SparkSession) -> tuple[Any, Any] | None:
    """Return a session's JVM and the session inside it; None with Connect, which has no JVM."""
    jvm = getattr(spark, "_jvm", None)
    return None if jvm is None else (jvm, spark._jsparkSession)  # noqa: SLF001 - no public way


@contextmanager
def activated(spark: SparkSession) -> Iterator[None]:
    """Make a session this thread's active one: `DataFrameWriter.save()` looks nowhere else."""
    found = find_jvm(spark)
    if found is not None:
        jvm, session = found
        sessions = jvm.org.apache.spark.sql.SparkSession
        before = sessions.getActiveSession()
        sessions.setActiveSession(session)
        try:
            yield
        finally:
            if before.isDefined():
                sessions.setActiveSession(before.get())
            else:
                sessions.clearActiveSession()
    else:
        yield  # Connect: there is no thread-bound session
