"""The demo's snippets: printed, then run. They use `month`, `url` and names of earlier snippets."""

SESSION = """
import os, sys
os.environ["PYSPARK_PYTHON"] = sys.executable    # Spark's workers would take the PATH's python3

from pyspark.sql import SparkSession
import segstore_ds as segstore

builder = SparkSession.builder.master("local[2]").config(map=segstore.recommended_conf())
spark = builder.getOrCreate()
segstore.register(spark)
"""

APPEND = """
flights = spark.read.parquet(month)
append = flights.write.format("segstore").mode("append").options(writerId="demo", batchId=1)
append.save(url)
print(segstore.open(url))
"""

CUTS = """
reader = spark.read.format("segstore").options(startCut=1000, endCut=1005, offsetColumn="offset")
few = reader.load(url)
few.select("offset", "time_hour", "carrier", "flight", "origin", "dest", "dep_delay").show()
"""

REPEAT = """
append.save(url)    # the same writerId and batchId: a job that runs twice, a retry after a timeout
print(segstore.open(url))
print(spark.read.format("segstore").load(url).count(), "events")
"""

APPEND_PYTHON = """
import pyarrow.parquet as pq
import segstore_ds as segstore

flights = pq.read_table(month)
stream = segstore.create(url, flights.schema)
print(stream.append(flights, writer_id="demo", batch_id=1))
"""

CUTS_PYTHON = """
columns = ["time_hour", "carrier", "flight", "origin", "dest", "dep_delay"]
reader = stream.read(1000, 1005, columns=columns, offset_column="offset")
for event in reader.read_all().to_pylist():
    print(event["offset"], event["time_hour"], *[event[name] for name in columns[1:]])
"""

REPEAT_PYTHON = """
print(stream.append(flights, writer_id="demo", batch_id=1))    # a retry after a timeout
print(stream)
"""

READ = """
filters = [["origin", "==", "JFK"], ["time_hour", ">=", "2013-01-15T00:00:00Z"]]
reader = segstore.open(url).read(columns=["carrier", "dep_delay"], filters=filters)
"""

QUERY_DUCKDB = """
import duckdb

print(duckdb.sql(\"\"\"
    SELECT carrier, count(*) AS flights, round(avg(dep_delay), 1) AS delay
    FROM reader GROUP BY carrier ORDER BY flights DESC LIMIT 5
\"\"\"))
"""

QUERY_ARROW = """
delays = reader.read_all().group_by("carrier").aggregate([([], "count_all"), ("dep_delay", "mean")])
for carrier in delays.sort_by([("count_all", "descending")]).slice(0, 5).to_pylist():
    print(carrier)
"""
