"""A streaming query of the soak in a process of its own: `python soak_query.py ROLE PLAN`."""

import sys
import time

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from soak_actors import LOOK_EVERY_S, TEXT, Plan

import segstore_ds as segstore

ROWS = 50


def main(role: str, path: str) -> None:
    """Write 50 numbered events a batch until the actors shall stop."""
    plan = Plan(role, path)
    conf = {"spark.ui.enabled": "false", "spark.driver.memory": "600m"}
    builder = SparkSession.builder.master("local[1]").config(map=conf)
    spark = builder.config(map=segstore.spark.recommended_conf()).getOrCreate()
    segstore.spark.register(spark, storage_options=plan.known["options"])
    rates = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS)
    rates = rates.option("numPartitions", 1).load()
    source, text = F.lit(role).alias("source"), F.lit(TEXT).alias("text")
    events = rates.select(source, F.col("value").alias("n"), text)
    writer = events.writeStream.format("segstore").option("path", plan.known["url"])
    writer = writer.option("checkpointLocation", str(plan.folder / f"{role}-checkpoint"))
    query = writer.trigger(processingTime="1 second").start()
    while query.isActive and not plan.ended:
        time.sleep(LOOK_EVERY_S)
    if (error := query.exception()) is not None:
        raise error
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
