"""What a Spark task logs at INFO, where Spark collects the logs of its Python workers."""

import logging
import os

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
