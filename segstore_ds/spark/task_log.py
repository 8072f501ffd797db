"""What Spark's Python workers log: INFO where Spark collects it, and once that a write is slow.

Only a task learns the session's settings. So tasks tell the commit, whose log is the driver's.
"""

import logging
import os

from pyspark import TaskContext

_LOG = logging.getLogger(__name__)

# Set in a worker when spark.sql.pyspark.worker.logging.enabled is true.
_COLLECTED = "PYSPARK_SPARK_SESSION_UUID"


def show_info() -> None:
    """Let INFO records through if Spark collects them and nobody has chosen a level.

    Workers start with Python's default level, which drops INFO. A worker belongs to Spark, so there
    is no program whose choice this could override.
    """
    logger = logging.getLogger("segstore_ds")
    if _COLLECTED in os.environ and logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)


QUERY_ID = "sql.streaming.queryId"
BATCH_SIZING = "spark.sql.execution.arrow.maxBytesPerBatch"
MANY_ROWS = 1_000_000  # measuring them takes a task about half a second
_UNTUNED = (
    "Spark measured each row of this write, which takes up to two thirds of its speed: call "
    "segstore.spark.register(spark) first, or write with segstore.spark.write(df, url), or give "
    "segstore.spark.recommended_conf() to the session's builder"
)


def measured_rows(context: TaskContext, rows: int) -> int:
    """Return how many of a task's rows Spark measured: all, unless the session has the setting."""
    return rows if context.getLocalProperty(BATCH_SIZING) is None else 0


class Advice:
    """Warns once per process, when Spark has measured many rows of what it committed."""

    def __init__(self) -> None:
        self._measured = 0

    def add(self, measured: int) -> None:
        """Count the measured rows of a commit; a streaming query has one for each batch."""
        before, self._measured = self._measured, self._measured + measured
        if before < MANY_ROWS <= self._measured:
            _LOG.warning(_UNTUNED)


ADVICE = Advice()
