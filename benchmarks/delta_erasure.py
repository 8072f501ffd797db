"""Deletes for good through Delta's Spark: `python -m benchmarks.delta_erasure FOLDER`.

Each line of the input names a table and the condition of its rows, as JSON. The table gets deletion
vectors before the time is taken. Then come DELETE, REORG ... APPLY (PURGE) and VACUUM. The answer
is a line with the seconds of each and the bytes that they wrote.
"""

import json
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.spark_peers import INSTALLATIONS, Delta, say, start_session
from benchmarks.workload import folder_bytes


def erase(spark: SparkSession, table: str, condition: str) -> dict[str, float]:
    """Delete rows so that no file holds them any more."""
    place = f"delta.`{table}`"
    properties = "'delta.enableDeletionVectors' = 'true'"
    spark.sql(f"ALTER TABLE {place} SET TBLPROPERTIES ({properties})").collect()
    steps = {
        "delete": f"DELETE FROM {place} WHERE {condition}",  # noqa: S608 - our own
        "purge": f"REORG TABLE {place} APPLY (PURGE)",
        "vacuum": f"VACUUM {place} RETAIN 0 HOURS",
    }
    found: dict[str, float] = {"bytes": 0}
    for name, statement in steps.items():
        before, start = folder_bytes(Path(table)), time.perf_counter()
        spark.sql(statement).collect()
        found[name] = time.perf_counter() - start
        found["bytes"] += max(folder_bytes(Path(table)) - before, 0)
    return found


def main(folder: str) -> None:
    """Answer until the input ends."""
    spark = start_session(INSTALLATIONS["delta"], Path(folder), "tuned")
    Delta(Path(folder)).prepare(spark, "tuned")
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    # VACUUM lists a folder in so many tasks; 10,000 is meant for clusters.
    spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "2")
    say(spark=spark.version)
    for line in sys.stdin:
        asked = json.loads(line)
        say(**erase(spark, asked["table"], asked["condition"]))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
