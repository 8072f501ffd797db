"""Spark writes to a stream with followers: tasks ship, the driver commits; what tasks log."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import segstore_ds as segstore

pytestmark = [pytest.mark.usefixtures("verified"), pytest.mark.slow]
SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture
def follower(url: str, tmp_path: Path) -> str:
    """A folder that follows the stream at `url`."""
    segstore.create(url, SCHEMA).followers.add(f"{tmp_path}/follower")
    return f"{tmp_path}/follower"


def objects(url: str) -> dict[str, bytes]:
    """Return what a folder holds, hints aside."""
    root = Path(url.removeprefix("file://"))
    files = (path for path in root.rglob("*") if path.is_file())
    return {
        str(path.relative_to(root)): path.read_bytes() for path in files if path.name != "_latest"
    }


def test_batch_writes_reach_the_follower(
    spark: SparkSession, url: str, follower: str, append: Callable[..., None]
) -> None:
    """Tasks ship what they stage, tiny ones are shipped by the driver, an overwrite too."""
    append(spark.range(0, 4_000_000, 1, 3), inlineBytes=0, compression="none")
    append(spark.range(0, 10, 1, 4))
    append(spark.range(0, 50_000, 1, 2), mode="overwrite", inlineBytes=0)
    assert objects(follower) == objects(url)
    copy = segstore.open(follower)
    assert sorted(copy.read().read_all()["id"].to_pylist()) == list(range(50_000))
    assert copy.verify().ok


def test_each_micro_batch_reaches_the_follower(
    spark: SparkSession, url: str, follower: str, tmp_path: Path
) -> None:
    """Also the compaction that runs after some of them."""
    source = segstore.create(f"{tmp_path}/source", SCHEMA)
    for start in range(0, 3000, 100):
        source.append(pa.table({"id": list(range(start, start + 100))}, SCHEMA))
    events = spark.readStream.format("segstore").option("maxRowsPerTrigger", 300)
    query = (
        events.load(source.url)
        .writeStream.format("segstore")
        .option("checkpointLocation", f"{tmp_path}/checkpoint")
        .option("path", url)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert objects(follower) == objects(url)
    found = segstore.open(follower).read().read_all()["id"].to_pylist()
    assert sorted(found) == list(range(3000))


def test_replicated_reads_end_where_the_follower_ends(
    spark: SparkSession, url: str, follower: str, tmp_path: Path
) -> None:
    """In batch and in streaming; a follower that is gone is an error."""
    stream = segstore.open(url)
    stream.append(pa.table({"id": [1, 2]}, SCHEMA))
    stream.append(pa.table({"id": [3]}, SCHEMA))
    newest = Path(follower) / "log" / f"{stream.version:020d}"
    newest.rename(tmp_path / "aside")  # as if the primary had died before it was shipped

    def batch(only: str) -> list[int]:
        reads = spark.read.format("segstore").option("replicatedOnly", only)
        return sorted(row.id for row in reads.load(url).collect())

    def streamed() -> list[int]:
        reads = spark.readStream.format("segstore").option("replicatedOnly", "true")
        writes = reads.load(url).writeStream.format("segstore").trigger(availableNow=True)
        checkpoint = f"{tmp_path}/checkpoint"
        query = writes.option("checkpointLocation", checkpoint).start(f"{tmp_path}/copy")
        query.awaitTermination()
        return sorted(segstore.open(f"{tmp_path}/copy").read().read_all()["id"].to_pylist())

    assert (batch("false"), batch("true"), streamed()) == ([1, 2, 3], [1, 2], [1, 2])
    (tmp_path / "aside").rename(newest)
    assert (batch("true"), streamed()) == ([1, 2, 3], [1, 2, 3])
    Path(follower).rename(tmp_path / "gone")
    with pytest.raises(Exception, match="can't be asked which commits it has"):
        batch("true")
    (tmp_path / "gone").rename(follower)


def test_worker_log_holds_the_counters_of_the_write_cache(
    spark: SparkSession, append: Callable[..., None]
) -> None:
    """At INFO, where Spark collects what Python workers log."""
    spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
    try:
        append(spark.range(0, 100_000, 1, 2), inlineBytes=0)
        logs = spark.tvf.python_worker_logs().where("logger like 'segstore_ds.%'").collect()
    finally:
        spark.conf.unset("spark.sql.pyspark.worker.logging.enabled")
    lines = [row.msg for row in logs if row.level == "INFO"]
    assert (
        len([line for line in lines if "staged 50000 rows; write cache: accepted_records=" in line])
        == 2
    )
    assert all("bytes_per_write=" in line for line in lines)
