"""A session of the Spark that Iceberg's runtime knows, in a process of its own: TABLE TARGET...

Writes all rows of each snapshot of a table, and in version 3 their row ids, as an Arrow file.
"""

import sys
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.spark_peers import INSTALLATIONS, start_session


def write_snapshots(spark: SparkSession, table: str, target: Path) -> None:
    """Write what each snapshot of a table in a folder shows."""
    ids = ["_row_id"] if "-3" in target.name else []
    for row in spark.read.format("iceberg").load(f"{table}#snapshots").collect():
        reader = spark.read.format("iceberg").option("versionAsOf", row.snapshot_id)
        found = reader.load(table).select("*", *ids).orderBy("n").toArrow()
        path = str(target / f"{row.snapshot_id}.arrow")
        with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, found.schema) as writer:
            writer.write_table(found)


def main(*places: str) -> None:
    """Read each table into its target, by one session."""
    spark = start_session(INSTALLATIONS["iceberg"], Path(places[0]).parent, "tuned")
    for table, target in zip(places[::2], places[1::2], strict=True):
        write_snapshots(spark, table, Path(target))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
