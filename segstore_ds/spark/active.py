"""The active session of a thread: where Spark looks when a writer saves."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pyspark.sql import SparkSession

_REPLACES = "org.apache.spark.sql.execution.datasources.DataSourceManager"


def find_jvm(spark: SparkSession) -> tuple[Any, Any] | None:
    """Return a session's JVM and the session inside it; None with Connect, which has no JVM."""
    jvm = getattr(spark, "_jvm", None)
    return None if jvm is None else (jvm, spark._jsparkSession)  # noqa: SLF001 - no public way


def activate_if_none(spark: SparkSession) -> None:
    """Make a session this thread's active one if the thread has none."""
    found = find_jvm(spark)
    if found is not None:
        jvm, session = found
        sessions = jvm.org.apache.spark.sql.SparkSession
        if not sessions.getActiveSession().isDefined():
            sessions.setActiveSession(session)


def quiet_replacing(spark: SparkSession, name: str) -> None:
    """Keep Spark from warning, with each streaming query, that a format that it finds is replaced.

    Each query clones the session, which registers all formats of the session again.
    """
    found = find_jvm(spark)
    if found is None:
        return
    jvm, session = found
    # This looks for the formats that are installed, and warns if that fails, which must be seen.
    if session.sessionState().dataSourceManager().dataSourceExists(name):
        log4j = jvm.org.apache.logging.log4j
        with suppress(TypeError):  # another library of logs
            log4j.core.config.Configurator.setLevel(_REPLACES, log4j.Level.ERROR)


@contextmanager
def activated(spark: SparkSession) -> Iterator[None]:
    """Make a session the active one of this thread within a `with` block.

    `df.write.format(...).save()` looks for Python sources in the thread's active session alone, and
    a thread that your program starts has none: without this block Spark raises
    DATA_SOURCE_NOT_FOUND. At the end the thread has the active session that it had before. With
    Spark Connect, where any thread finds the format, it does nothing. `segstore.spark.write` and
    SQL need no such block.

    Args:
        spark: The session, with the format registered or installed.

    Examples:
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> more = spark.createDataFrame([("ada", 4)], "user string, n bigint")
        >>> def append():
        ...     with segstore.spark.activated(spark):
        ...         more.write.format("segstore").mode("append").save(stream.url)
        >>> with ThreadPoolExecutor(1) as threads:
        ...     threads.submit(append).result()
        >>> stream.refresh().tail
        4
    """
    found = find_jvm(spark)
    if found is None:  # Connect: there is no thread-bound session
        yield
        return
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
