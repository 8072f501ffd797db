"""A session with Hive's catalog in a folder: it appends, and counts by a view."""

import sys

from pyspark.sql import SparkSession

import segstore_ds as segstore


def main(folder: str) -> None:
    """Append three events to the stream that the view names."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.hadoop.javax.jdo.option.ConnectionURL": (
            f"jdbc:derby:;databaseName={folder}/metastore;create=true"
        ),
    }
    spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
    segstore.spark.register(spark)
    url = f"{folder}/stream"
    segstore.spark.write(spark.range(3), url)
    if not spark.catalog.tableExists("clicks"):
        segstore.spark.create_view(spark, "clicks", url)
    sys.stdout.write(str(spark.table("clicks").count()))


if __name__ == "__main__":
    main(sys.argv[1])
