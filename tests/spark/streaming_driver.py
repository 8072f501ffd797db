"""A driver of streaming queries in a process of its own, so that tests can kill it.

`python streaming_driver.py <available|forever> <rows per trigger> <ready file>
<source> <sink> <checkpoint> ...`
runs one query per triple; each source but a folder of streams publishes its position as the reader
`hop-N`. It makes the ready file when the first query has begun.
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

import segstore_ds as segstore


def main(trigger: str, rows: str, ready: str, *hops: str) -> None:
    """Run the queries one after the other to their end, or all at once until killed."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "1")
    spark = builder.config(map=segstore.spark.recommended_conf()).getOrCreate()
    segstore.spark.register(spark)
    queries = []
    triples = zip(hops[::3], hops[1::3], hops[2::3], strict=True)
    for number, (source, sink, checkpoint) in enumerate(triples):
        events = spark.readStream.format("segstore").option("maxRowsPerTrigger", rows)
        if "*" not in source:
            events = events.option("readerName", f"hop-{number}")
        writer = events.load(source).where("n >= 0").writeStream.format("segstore")
        writer = writer.option("checkpointLocation", checkpoint).option("path", sink)
        if trigger == "available":
            writer.trigger(availableNow=True).start().awaitTermination()
        else:
            queries.append(writer.trigger(processingTime="0 seconds").start())
            Path(ready).touch()
    for query in queries:
        query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
