"""What follows a commit by Spark: followers have it, upkeep that is due runs in the driver."""

from pathlib import Path

import pyarrow as pa
import pytest
from checkpoints import start_query
from sessions import session_settings
from stream_kit import HOUR, STAGED, age_files, make_old, numbers, wait

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


def test_batch_writes_reach_the_follower(spark, url, follower, append) -> None:
    """Tasks ship what they stage, tiny ones are shipped by the driver, an overwrite too."""
    append(spark.range(0, 4_000_000, 1, 3), inlineBytes=0, compression="none")
    append(spark.range(0, 10, 1, 4))
    append(spark.range(0, 50_000, 1, 2), mode="overwrite", inlineBytes=0)
    assert objects(follower) == objects(url)
    copy = segstore.open(follower)
    assert sorted(copy.read().read_all()["id"].to_pylist()) == list(range(50_000))
    assert copy.verify().ok


def test_replicated_reads_end_where_the_follower_ends(spark, url, follower, tmp_path) -> None:
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
        writer = reads.load(url).writeStream.format("segstore").option("path", f"{tmp_path}/copy")
        start_query(writer, f"{tmp_path}/checkpoint", now=True)
        return sorted(segstore.open(f"{tmp_path}/copy").read().read_all()["id"].to_pylist())

    assert (batch("false"), batch("true"), streamed()) == ([1, 2, 3], [1, 2], [1, 2])
    (tmp_path / "aside").rename(newest)
    assert (batch("true"), streamed()) == ([1, 2, 3], [1, 2, 3])
    Path(follower).rename(tmp_path / "gone")
    with pytest.raises(Exception, match="unknown which commits it has"):
        batch("true")
    (tmp_path / "gone").rename(follower)


def test_worker_log_holds_the_counters_of_the_write_cache(spark, append) -> None:
    """At INFO, where Spark collects what Python workers log."""
    with session_settings(spark, {"spark.sql.pyspark.worker.logging.enabled": "true"}):
        append(spark.range(0, 100_000, 1, 2), inlineBytes=0)
        logs = spark.tvf.python_worker_logs().where("logger like 'segstore_ds.%'").collect()
    lines = [row.msg for row in logs if row.level == "INFO"]
    assert sum("staged 50000 rows; write cache: accepted_records=" in line for line in lines) == 2
    assert all("bytes_per_write=" in line for line in lines)


COMMITS = 40


@pytest.fixture
def old(url, tmp_path):
    """Return a stream that was written for two days, the last time more than a day ago."""
    stream, storage = make_old(tmp_path / "stream", 4)
    for n in range(COMMITS):
        wait(storage, HOUR)
        stream.append(numbers(n, n + 1), layout=STAGED)
    stream.settings.update(upkeep=segstore.UpkeepPolicy())
    age_files(storage, tmp_path / "stream")
    return url


@pytest.mark.parametrize("kind", ["batch", "sink", "compaction"])
def test_round_follows_each_kind_of_commit(spark, old, tmp_path, kind):
    """So do values expire, and the events stay at their offsets."""
    segstore.open(old).settings.update(expiry={"s": "1d"})
    before, rows = segstore.open(old), spark.range(3).selectExpr("id AS n", "'s' AS s")
    if kind == "batch":
        rows.write.format("segstore").mode("append").save(old)
    elif kind == "sink":
        rows.write.parquet(str(tmp_path / "in"))
        source = spark.readStream.schema("n long, s string").parquet(str(tmp_path / "in"))
        writer = source.writeStream.format("segstore").option("path", old).option("compact", "off")
        start_query(writer, str(tmp_path / "checkpoint"), now=True)
    else:
        segstore.spark.open(spark, old).compact()
    stream = segstore.open(old)
    operations = stream.history(before.version + 1).read_all()["operation"].to_pylist()
    assert operations[0] == ("compact" if kind == "compaction" else "append")
    assert {*operations[1:]} == {"redact", "upkeep"}
    assert stream._log.root.log_start > COMMITS // 2
    assert stream._log.files.numbers() == [*range(stream._log.root.log_start, stream.version + 1)]
    new = stream.tail - COMMITS
    found = stream.read().read_all()["n"].to_pylist()
    assert found[:COMMITS] == list(range(COMMITS))
    assert sorted(found[COMMITS:]) == list(range(new))
    assert stream.read().read_all()["s"].to_pylist() == [None] * COMMITS + ["s"] * new
