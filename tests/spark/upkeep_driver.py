"""A driver that compacts or copies a stream with Spark's tasks, for tests that kill it.

`python upkeep_driver.py <compact|copy> <source> <target>`
"""

import sys

from pyspark.sql import SparkSession

import segstore_ds as segstore
from segstore_ds.spark.jobs import copy_helpers

COPY_ID = "night"
ROWS = 10


def main(verb: str, source: str, target: str) -> None:
    """Run one job to its end."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config(map=segstore.recommended_conf()).getOrCreate()
    segstore.register(spark)
    run(spark, verb, source, target)


def run(spark: SparkSession, verb: str, source: str, target: str) -> None:
    """Do the work, with a task per segment that is copied."""
    if verb == "compact":
        segstore.compact(spark, source, compactRows=4 * ROWS)
        return
    whole, copy_helpers.TASK_BYTES = copy_helpers.TASK_BYTES, 1
    try:
        segstore.copy(spark, source, target, COPY_ID)
    finally:
        copy_helpers.TASK_BYTES = whole


if __name__ == "__main__":
    main(*sys.argv[1:])
