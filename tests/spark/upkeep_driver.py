"""A driver that compacts or copies a stream with Spark's tasks, for tests that kill it.

`python upkeep_driver.py <compact|copy|events> <source> <target>`
"""

import sys
from unittest.mock import patch

from pyspark.sql import SparkSession

import segstore_ds as segstore
from segstore_ds.copy import events, segments
from segstore_ds.spark.parquet_scan import read as hybrid

COPY_ID = "night"
ROWS = 10


def main(verb: str, source: str, target: str) -> None:
    """Run one job to its end."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config(map=segstore.spark.recommended_conf()).getOrCreate()
    segstore.spark.register(spark)
    run(spark, verb, source, target)


def run(spark: SparkSession, verb: str, source: str, target: str) -> None:
    """Do the work, with a task per segment, or per ten events, that is copied."""
    with (
        patch.object(hybrid, "MOST_BYTES", -1),
        patch.object(segments, "TASK_BYTES", 1),
        patch.object(events, "PIECE_BYTES", 1),
        patch.object(events, "LEAST_PIECE_ROWS", ROWS),
    ):
        if verb == "compact":
            segstore.spark.open(spark, source).compact(target_rows=4 * ROWS)
        else:
            mode = "events" if verb == "events" else "segments"
            segstore.spark.copy(spark, source, target, COPY_ID, mode=mode)


if __name__ == "__main__":
    main(*sys.argv[1:])
