"""A session with Hadoop's S3A, in a process of its own: ENDPOINT KEY SECRET URL."""

import sys
import warnings

from pyspark.sql import SparkSession

import segstore_ds as segstore


def main(endpoint: str, key: str, secret: str, url: str) -> None:
    """Read the stream but for three events, and write how, how many there are and their sum."""
    settings = {
        "endpoint": endpoint,
        "endpoint.region": "us-east-1",
        "access.key": key,
        "secret.key": secret,
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
        "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    }
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    jars = "org.apache.hadoop:hadoop-client-api,org.apache.hadoop:hadoop-client-runtime"
    builder = builder.config("spark.jars.excludes", jars)
    builder = builder.config("spark.jars.packages", "org.apache.hadoop:hadoop-aws:3.5.0")
    builder = builder.config(map={f"spark.hadoop.fs.s3a.{k}": v for k, v in settings.items()})
    spark = builder.getOrCreate()
    segstore.spark.register(spark, {"endpoint_url": endpoint, "key": key, "secret": secret})
    warnings.simplefilter("error", UserWarning)
    df = segstore.spark.read(spark, url, startCut=3, offsetColumn="o")
    shown = df._jdf.queryExecution().executedPlan().toString()
    how = "FileScan" if "FileScan parquet" in shown else "source"
    (scheme,) = {file.partition(":")[0] for file in df.inputFiles()}
    rows = df.collect()
    sys.stdout.write(f"{how} {scheme} {len(rows)} {sum(row.o for row in rows)}\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
