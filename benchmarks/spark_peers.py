"""Table formats that Spark writes: how each is created, appended to, streamed into and measured.

Nothing here imports segstore before a session with it asks: Iceberg's Spark is older than ours.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.session import start_spark
from benchmarks.workload import folder_bytes

DELTA_JAR = "io.delta:delta-spark_2.13:4.4.0"
ICEBERG_JAR = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
MODES = ("default", "tuned")
PLAIN = ', format("segstore")'  # ends the names of scans by the plain source


@dataclass(frozen=True, slots=True)
class Peer:
    """A format whose tables are folders, as Spark's own file formats are.

    `syncs` says what it syncs to disk before a write returns; `tuned` is the SQL configuration that
    its documentation recommends on one machine.
    """

    folder: Path
    name: ClassVar[str] = "parquet"
    syncs: ClassVar[str] = "nothing"
    tuned: ClassVar[Mapping[str, str]] = {"spark.sql.parquet.compression.codec": "zstd"}

    def place(self, table: str) -> Path:
        """Return a table's folder."""
        return self.folder / table

    def prepare(self, spark: SparkSession, mode: str) -> None:
        """Set the configuration of a mode; the other peers' does not matter here."""
        if mode == "tuned":
            for key, value in self.tuned.items():
                spark.conf.set(key, value)

    def append(self, df: DataFrame, table: str) -> None:
        """Append a data frame, and create the table where it is missing."""
        df.write.format(self.name).mode("append").save(str(self.place(table)))

    def load(self, spark: SparkSession, table: str) -> DataFrame:
        """Return all rows."""
        return spark.read.format(self.name).load(str(self.place(table)))

    def ways(self, spark: SparkSession, table: str) -> dict[str, DataFrame]:
        """Return all rows by each way to read them; the first one, without a name, is `load`."""
        return {"": self.load(spark, table)}

    def stream(self, df: DataFrame, table: str) -> DataStreamWriter:
        """Return a writer of a query whose checkpoint is its own."""
        writer = df.writeStream.format(self.name).option("path", str(self.place(table)))
        return writer.option("checkpointLocation", f"{self.place(table)}-checkpoint")

    def compact(self, spark: SparkSession, table: str) -> None:
        """Write the small files again as large ones; Parquet has only a copy for that."""
        target = self.folder / f"{table}-compacted"
        self.load(spark, table).coalesce(1).write.parquet(str(target), mode="overwrite")

    def live_bytes(self, spark: SparkSession, table: str) -> int:
        """Add up the data that the table lists."""
        del spark
        return folder_bytes(self.place(table))

    def disk_bytes(self, table: str) -> int:
        """Add up all that lies in the table's folder."""
        return folder_bytes(self.place(table))

    def files(self, table: str) -> int:
        """Count the files of the table's folder, but for the checksums of Hadoop's local disk."""
        found = (path for path in self.place(table).rglob("*") if path.is_file())
        return sum(path.suffix != ".crc" for path in found)


class Segstore(Peer):
    """Our own format."""

    name = "segstore"
    syncs = "each segment, commit and folder"
    tuned: ClassVar[Mapping[str, str]] = {}  # its settings are those of a session's builder

    def append(self, df: DataFrame, table: str) -> None:
        """Append, also in a thread that has no active session."""
        import segstore_ds as segstore

        with segstore.spark.activated(df.sparkSession):
            Peer.append(self, df, table)

    def load(self, spark: SparkSession, table: str) -> DataFrame:
        """Return all rows as the documentation advises, without Python processes."""
        import segstore_ds as segstore

        return segstore.spark.read(spark, self.place(table))

    def ways(self, spark: SparkSession, table: str) -> dict[str, DataFrame]:
        """Return all rows by each way to read them: the plain source as well."""
        return {**Peer.ways(self, spark, table), PLAIN: Peer.load(self, spark, table)}

    def compact(self, spark: SparkSession, table: str) -> None:
        """Merge small segments."""
        import segstore_ds as segstore

        segstore.spark.open(spark, str(self.place(table))).compact()

    def live_bytes(self, spark: SparkSession, table: str) -> int:
        """Add up the listed segments, and the events that lie in the newest commit."""
        reader = spark.read.format("segstore").option("metadata", "segments")
        found = reader.load(str(self.place(table))).selectExpr("sum(bytes)").first()
        return int(found[0]) if found and found[0] else 0


class Delta(Peer):
    """Delta Lake, by path."""

    name = "delta"
    syncs = "nothing"
    tuned: ClassVar[Mapping[str, str]] = {
        # Its snapshots are Spark jobs of so many tasks; 50 and 200 are meant for clusters.
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.parquet.compression.codec": "zstd",
    }

    def compact(self, spark: SparkSession, table: str) -> None:
        """Run OPTIMIZE."""
        spark.sql(f"OPTIMIZE delta.`{self.place(table)}`")

    def live_bytes(self, spark: SparkSession, table: str) -> int:
        """Return the size that its own detail says."""
        row = spark.sql(f"DESCRIBE DETAIL delta.`{self.place(table)}`").first()
        return int(row["sizeInBytes"]) if row else 0


class Iceberg(Peer):
    """Iceberg in a catalog of folders."""

    name = "iceberg"
    syncs = "nothing"
    tuned: ClassVar[Mapping[str, str]] = {"spark.sql.shuffle.partitions": "2"}

    def place(self, table: str) -> Path:
        """Return the folder that the catalog gives a table."""
        return self.folder / "db" / table

    def append(self, df: DataFrame, table: str) -> None:
        """Append through the catalog."""
        self._create(df, table)
        df.writeTo(f"local.db.{table}").append()

    def load(self, spark: SparkSession, table: str) -> DataFrame:
        """Return all rows."""
        return spark.table(f"local.db.{table}")

    def stream(self, df: DataFrame, table: str) -> DataStreamWriter:
        """Return a writer of a query into the catalog's table, which is created here."""
        self._create(df, table)
        writer = df.writeStream.format("iceberg").outputMode("append")
        writer = writer.option("path", f"local.db.{table}").option("fanout-enabled", "true")
        return writer.option("checkpointLocation", f"{self.folder / table}-checkpoint")

    def compact(self, spark: SparkSession, table: str) -> None:
        """Run its procedure, for few files too."""
        spark.sql(
            f"CALL local.system.rewrite_data_files(table => 'db.{table}', "
            "options => map('min-input-files', '2'))"
        )

    def live_bytes(self, spark: SparkSession, table: str) -> int:
        """Add up the files that it lists."""
        files = spark.table(f"local.db.{table}.files")
        row = files.agg({"file_size_in_bytes": "sum"}).first()
        return int(row[0]) if row and row[0] else 0

    def _create(self, df: DataFrame, table: str) -> None:
        spark, name = df.sparkSession, f"local.db.{table}"
        if not self.place(table).exists():
            columns = ", ".join(f"`{f.name}` {f.dataType.simpleString()}" for f in df.schema.fields)
            spark.sql(f"CREATE TABLE {name} ({columns}) USING iceberg")


@dataclass(frozen=True, slots=True)
class Installation:
    """A session: the version of Spark, "" for what is installed here, and who takes part in it.

    `FOLDER` in what it needs is replaced by the folder of tables; the first peer is the yardstick.
    """

    pyspark: str
    conf: Mapping[str, str] = field(default_factory=dict)
    peers: tuple[type[Peer], ...] = (Peer,)


INSTALLATIONS = {
    "newest": Installation("", peers=(Peer, Segstore)),
    "delta": Installation(
        "4.2.1",
        {
            "spark.jars.packages": DELTA_JAR,
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        },
        (Peer, Segstore, Delta),
    ),
    "iceberg": Installation(
        "4.1.4",
        {
            "spark.jars.packages": ICEBERG_JAR,
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions."
            "IcebergSparkSessionExtensions",
            "spark.sql.catalog.local": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.local.type": "hadoop",
            "spark.sql.catalog.local.warehouse": "FOLDER",
        },
        (Peer, Iceberg),
    ),
}


def start_session(
    installation: Installation, folder: Path, mode: str, *, jars: str = ""
) -> SparkSession:
    """Start the session of an installation; segstore is registered where it takes part."""
    conf = {key: value.replace("FOLDER", str(folder)) for key, value in installation.conf.items()}
    if jars:
        conf["spark.jars.packages"] = ",".join(
            filter(None, [conf.get("spark.jars.packages"), jars])
        )
    if Segstore not in installation.peers:
        return start_spark(conf)
    import segstore_ds as segstore

    spark = start_spark(conf | (segstore.spark.recommended_conf() if mode == "tuned" else {}))
    segstore.spark.register(spark, tune=False)
    return spark


def say(**found: Any) -> None:
    """Print one finding as a line for the process that reads."""
    print(json.dumps(found), flush=True)
