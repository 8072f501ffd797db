"""What a Spark task tells at INFO, where Spark collects what its Python workers log."""

import logging
import os

# Set in a worker when spark.sql.pyspark.worker.logging.enabled is true.
_COLLECTED = "PYSPARK_SPARK_SESSION_UUID"


def show_info() -> None:
    """Let lines at INFO through if Spark collects them and nobody has chosen a level.

    Workers begin with Python's default, which drops them; a worker belongs to Spark, so there is no
    program whose choice this could be.
    """
    logger = logging.getLogger("segstore_ds")
    if _COLLECTED in os.environ and logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
