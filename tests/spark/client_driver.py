"""What a user does with Spark Connect's client alone, which has neither a JVM nor py4j."""

# ruff: noqa: E402 - after py4j is hidden

import faulthandler
import json
import sys
import warnings
from pathlib import Path

sys.modules["py4j"] = None  # as where the client alone is installed

import pyspark
from listener_kit import listening
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession

import segstore_ds as segstore


def main(remote: str, folder: str) -> None:
    """Write, read, stream, compact, copy and listen; print what was found as JSON."""
    assert not (Path(pyspark.__file__).parent / "jars").exists()
    spark = SparkSession.builder.remote(remote).getOrCreate()
    segstore.spark.register(spark)
    url, found = f"{folder}/events", {}
    rows = spark.range(0, 1000, 1, 2).selectExpr("id", "concat('u', id % 5) AS user")
    commit = segstore.spark.write(rows, url, segmentFormat="parquet", inlineBytes=0)
    found["written"] = commit.end
    rows.limit(5).write.format("segstore").mode("append").save(url)
    source = spark.read.format("segstore").option("offsetColumn", "o").load(url)
    found["source"] = sorted(row.o for row in source.where("user = 'u3'").limit(2).collect())
    small = segstore.spark.read(spark, url, startCut=990)
    found["small"] = [small.count(), "BatchScan" in small._explain_string()]
    from segstore_ds.spark.parquet_scan import read as hybrid

    hybrid.MOST_BYTES = 0  # as larger scans: through the source, which a warning says once
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        found["large"] = [segstore.spark.read(spark, url).count() for _ in range(2)]
    found["warned"] = [str(each.message) for each in warned if "Spark Connect" in str(each.message)]
    done = segstore.spark.copy(spark, url, f"{folder}/copy", "c", lambda df: df.where("id < 7"))
    found["copied"] = [done.end, segstore.open(f"{folder}/copy").tail]
    registry = CollectorRegistry()
    listener = segstore.spark.listener(f"{folder}/sink", registry=registry)
    writer = spark.readStream.format("segstore").load(url).writeStream.format("segstore")
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    with listening(spark, listener):
        query = writer.start(f"{folder}/sink")
        assert query.awaitTermination(240)
    found["streamed"] = segstore.open(f"{folder}/sink").tail
    found["metrics"] = "segstore_query_running" in {one.name for one in registry.collect()}
    sys.stdout.write(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    # Shows where each thread waits, before the test gives up: calls of Connect have no deadline.
    faulthandler.dump_traceback_later(420, exit=True)
    main(*sys.argv[1:])
