"""A session of the Spark that delta-spark knows, in a process of its own.

Called with TABLE TARGET NEWEST OTHER FAR ENDPOINT KEY SECRET. Writes all rows of each version of a
table and their row ids as an Arrow file, and of the first version of one on an S3 server. Counts
the rows of the newest through a Hive metastore, then tries to change the table in every way, prints
what was not refused, and then what a streaming query finds new in the other table.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.spark_peers import DELTA_JAR, INSTALLATIONS, Delta, start_session


def write_versions(spark: SparkSession, table: str, target: Path, newest: int) -> None:
    """Write what each version of a table in a folder shows."""
    for version in range(newest + 1):
        found = spark.read.format("delta").option("versionAsOf", version).load(table)
        rows = found.select("*", "_metadata.row_id").orderBy("n").toArrow()
        path = str(target / f"{version}.arrow")
        with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
            writer.write_table(rows)


def of_hive(folder: Path) -> dict[str, str]:
    """Return the configuration of a metastore in a folder, inside of Spark."""
    return {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": f"file://{folder}/warehouse",
        "spark.hadoop.javax.jdo.option.ConnectionURL": (
            f"jdbc:derby:;databaseName={folder}/metastore;create=true"
        ),
        "spark.hadoop.datanucleus.schema.autoCreateAll": "true",
        "spark.hadoop.datanucleus.connectionPoolingType": "NONE",
        "spark.hadoop.hive.metastore.schema.verification": "false",
        "spark.driver.extraJavaOptions": f"-Dderby.stream.error.file={folder}/derby.log",
    }


def count_registered(spark: SparkSession, table: str) -> int:
    """Tell the metastore of the table's location, count it by its name there, and drop it there."""
    spark.sql("CREATE DATABASE db")
    spark.sql(f"CREATE TABLE db.clicks USING delta LOCATION '{table}'")
    count = int(spark.sql("SELECT count(*) FROM db.clicks").collect()[0][0])
    spark.sql("DROP TABLE db.clicks")  # of an external table it deletes no file
    return count


def try_changes(spark: SparkSession, table: str) -> list[str]:
    """Return the changes that went through."""
    rows = spark.read.format("delta").load(table).limit(1)
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    place = f"delta.`{table}`"
    changes: dict[str, Callable[[], object]] = {
        "append": lambda: rows.write.format("delta").mode("append").save(table),
        "overwrite": lambda: rows.write.format("delta").mode("overwrite").save(table),
        "delete": lambda: spark.sql(f"DELETE FROM {place} WHERE n > 0").collect(),
        "update": lambda: spark.sql(f"UPDATE {place} SET n = 1").collect(),
        "optimize": lambda: spark.sql(f"OPTIMIZE {place}").collect(),
        "vacuum": lambda: spark.sql(f"VACUUM {place} RETAIN 0 HOURS").collect(),
        "restore": lambda: spark.sql(f"RESTORE TABLE {place} TO VERSION AS OF 0").collect(),
    }
    done = []
    for name, change in changes.items():
        try:
            change()
        except Exception as refused:  # noqa: BLE001 - whatever it is, the caller checks the files
            if "segstore" not in str(refused):
                done.append(f"{name}: {str(refused)[:200]}")
        else:
            done.append(name)
    return done


def stream_news(spark: SparkSession, table: str, target: Path) -> list[int]:
    """Return what a streaming query finds in a table from its first version on."""
    source = spark.readStream.format("delta").option("startingVersion", 0)
    news = source.option("skipChangeCommits", "true").load(table)
    sink = news.writeStream.format("parquet").option("path", f"{target}/news")
    sink = sink.option("checkpointLocation", f"{target}/checkpoint")
    sink.trigger(availableNow=True).start().awaitTermination()
    return sorted(row.n for row in spark.read.parquet(f"{target}/news").collect())


def of_s3(endpoint: str, key: str, secret: str) -> dict[str, str]:
    """Return the configuration of Hadoop's S3A for a server."""
    settings = {
        "endpoint": endpoint,
        "endpoint.region": "us-east-1",
        "access.key": key,
        "secret.key": secret,
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
        "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    }
    client = "org.apache.hadoop:hadoop-client"
    return {
        **{f"spark.hadoop.fs.s3a.{name}": value for name, value in settings.items()},
        "spark.jars.packages": f"{DELTA_JAR},org.apache.hadoop:hadoop-aws:3.5.0",
        "spark.jars.excludes": f"{client}-api,{client}-runtime",
    }


def main(table: str, target: str, newest: str, other: str, far: str, *server: str) -> None:
    """Read the tables into the target, then try to change the first."""
    installed, folder = INSTALLATIONS["delta"], Path(target)
    conf = {**installed.conf, **Delta.tuned, **of_s3(*server), **of_hive(folder)}
    spark = start_session(replace(installed, conf=conf), folder, "tuned")
    write_versions(spark, table, folder, int(newest))
    (folder / "far").mkdir()
    write_versions(spark, far, folder / "far", 0)
    sys.stdout.write(f"registered: {count_registered(spark, table)}\n")
    sys.stdout.write(f"changed: {try_changes(spark, table)}\n")
    sys.stdout.write(f"streamed: {stream_news(spark, other, folder)}\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
