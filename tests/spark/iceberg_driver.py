"""A Spark that Iceberg's runtime knows, in its own process: TABLE TARGET OLDER OTHER.

Writes all rows of each snapshot of the table, and their row ids, as an Arrow file; also of those
that only an older metadata file names. Then tries to
delete files that the table does not name, as are the stream's own, and prints what was not refused,
and what a streaming query finds new in another table.
"""

import datetime as dt
import sys
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.spark_peers import INSTALLATIONS, start_session

_DAY = dt.timedelta(days=1, seconds=1)  # the procedures take nothing younger than a day


def write_snapshots(spark: SparkSession, table: str, target: Path) -> None:
    """Write what each snapshot of a table in a folder shows."""
    for row in spark.read.format("iceberg").load(f"{table}#snapshots").collect():
        reader = spark.read.format("iceberg").option("versionAsOf", row.snapshot_id)
        found = reader.load(table).select("*", "_row_id").orderBy("n").toArrow()
        path = str(target / f"{row.snapshot_id}.arrow")
        with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, found.schema) as writer:
            writer.write_table(found)


def try_deletions(spark: SparkSession, table: str) -> list[str]:
    """Return what of it went through, or failed for another reason, by Hadoop's catalog."""
    named = f"table => '`{table}`', older_than => TIMESTAMP '{dt.datetime.now(dt.UTC) - _DAY}'"
    done = []
    for call in (
        f"CALL local.system.remove_orphan_files({named})",
        f"CALL local.system.expire_snapshots({named}, retain_last => 1)",
        f"DROP TABLE local.`{table}` PURGE",
    ):
        try:
            spark.sql(call).collect()
        except Exception as refused:  # noqa: BLE001 - whatever it is, the caller checks the files
            if "GC is disabled" not in str(refused):
                done.append(f"{call}: {str(refused)[:200]}")
        else:
            done.append(call)
    return done


def stream_news(spark: SparkSession, table: str, target: str) -> list[int]:
    """Return what a streaming query finds in a table from its oldest snapshot on."""
    source = spark.readStream.format("iceberg").option("stream-from-timestamp", "0")
    for kind in ("overwrite", "delete"):
        source = source.option(f"streaming-skip-{kind}-snapshots", "true")
    sink = source.load(table).writeStream.format("parquet").option("path", f"{target}/news")
    sink = sink.option("checkpointLocation", f"{target}/checkpoint")
    sink.trigger(availableNow=True).start().awaitTermination()
    return sorted(row.n for row in spark.read.parquet(f"{target}/news").collect())


def main(table: str, target: str, older: str, other: str) -> None:
    """Read the table into its target."""
    spark = start_session(INSTALLATIONS["iceberg"], Path(table).parent, "tuned")
    for place in (table, older):
        write_snapshots(spark, place, Path(target))
    sys.stdout.write(f"streamed: {stream_news(spark, other, target)}\n")
    done = try_deletions(spark, Path(table).name)
    sys.stdout.write(f"deleted: {done}\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
