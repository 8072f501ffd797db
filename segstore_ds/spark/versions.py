"""What differs between Spark's versions and clients, detected by what they have, not by numbers.

Other modules of this package import these names only from here. Spark before 4.2 passes a streaming
source neither the start of a batch nor a limit, and has no class for either; before 4.1 it has no
streaming writer of Arrow batches. The client of Spark Connect, installed alone, has no py4j, and
its sessions have no JVM; in others the JVM keeps the active session of each thread.
`docs/start.md` says what users notice.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter
from pyspark.sql.pandas import types
from pyspark.sql.types import StructType

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:

    class DataSourceStreamArrowWriter(  # type: ignore[no-redef, misc]
        DataSourceStreamWriter, DataSourceArrowWriter
    ):
        """A streaming writer to which Spark 4.0 passes Arrow batches, as to a batch writer."""


try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxFiles,
        SupportsTriggerAvailableNow,
    )
except ImportError:

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Without effect: this Spark runs an `AvailableNow` query as one batch."""

    class ReadLimit:  # type: ignore[no-redef]
        """Never passed by this Spark."""

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        """As `ReadLimit`."""

    class ReadMaxFiles(ReadLimit):  # type: ignore[no-redef]
        """As `ReadLimit`."""

        def __init__(self, max_files: int) -> None:
            self.max_files = max_files


try:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
except ImportError:

    class Py4JError(Exception):  # type: ignore[no-redef]
        """Never raised: there is no JVM."""


__all__ = [
    "DataSourceStreamArrowWriter",
    "Py4JError",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxFiles",
    "SupportsTriggerAvailableNow",
    "to_arrow",
]

# Without such an argument, times with a zone are in UTC.
_ZONE: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in inspect.signature(types.to_arrow_schema).parameters else {}
)


def to_arrow(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark checks a reader's batches against: times are in UTC."""
    return types.to_arrow_schema(schema, **_ZONE)


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
    """Keep Spark from warning, with each streaming query, that an installed format is replaced.

    Each query clones the session, which registers all formats of the session again.
    """
    found = find_jvm(spark)
    if found is None:
        return
    jvm, session = found
    # This looks for installed formats first, so that a warning about a failure is still logged.
    if session.sessionState().dataSourceManager().dataSourceExists(name):
        log4j = jvm.org.apache.logging.log4j
        with suppress(TypeError):  # another logging library
            log4j.core.config.Configurator.setLevel(_REPLACES, log4j.Level.ERROR)


@contextmanager
def activated(spark: SparkSession) -> Iterator[None]:
    """Make a session the active one of this thread within a `with` block.

    `df.write.format(...).save()` looks for Python sources only in the thread's active session, and
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
