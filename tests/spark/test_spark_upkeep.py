"""Upkeep after each kind of commit by Spark: the driver's process runs the round that is due."""

import pytest
from stream_kit import HOUR, STAGED, age_files, make_old, numbers, wait

import segstore_ds as segstore

pytestmark = [pytest.mark.usefixtures("verified"), pytest.mark.slow]

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


def rows(spark):
    """Return three events."""
    return spark.range(3).selectExpr("id AS n", "'s' AS s")


def batch(spark, url, _tmp_path):
    """Append a DataFrame."""
    rows(spark).write.format("segstore").mode("append").save(url)


def sink(spark, url, tmp_path):
    """Append a micro-batch."""
    rows(spark).write.parquet(str(tmp_path / "in"))
    source = spark.readStream.schema("n long, s string").parquet(str(tmp_path / "in"))
    writer = source.writeStream.format("segstore").option("path", url).option("compact", "off")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert writer.trigger(availableNow=True).start().awaitTermination(240)


def compaction(spark, url, _tmp_path):
    """Merge segments in tasks."""
    segstore.spark.open(spark, url).compact()


@pytest.mark.parametrize("commit", [batch, sink, compaction])
def test_round_follows_each_kind_of_commit(spark, old, tmp_path, commit):
    before = segstore.open(old)
    commit(spark, old, tmp_path)
    stream = segstore.open(old)
    operations = stream.history(before.version + 1).read_all()["operation"].to_pylist()
    assert operations == ["compact" if commit is compaction else "append", "upkeep"]
    assert stream._log.root.log_start > COMMITS // 2
    assert stream._log.files.numbers() == [*range(stream._log.root.log_start, stream.version + 1)]
    assert stream.read().read_all()["n"].to_pylist()[:COMMITS] == list(range(COMMITS))


@pytest.mark.parametrize("commit", [batch, sink])
def test_values_expire_beside_a_running_query(spark, old, tmp_path, commit):
    """A query that reads the stream gets each event once, whatever was rewritten meanwhile."""
    segstore.open(old).settings.update(expiry={"s": "1d"})
    copy, checkpoint = str(tmp_path / "copy"), str(tmp_path / "follows")
    source = spark.readStream.format("segstore").option("maxRowsPerTrigger", 10).load(old)
    writer = source.writeStream.format("segstore").option("path", copy)
    query = writer.option("checkpointLocation", checkpoint).start()
    query.processAllAvailable()
    commit(spark, old, tmp_path)
    query.processAllAvailable()
    query.stop()
    stream = segstore.open(old)
    assert "redact" in stream.history().read_all()["operation"].to_pylist()
    assert stream.read().read_all()["s"].to_pylist() == [None] * COMMITS + ["s"] * 3
    assert stream._log.root.redactions
    numbers = stream.read().read_all()["n"].to_pylist()
    assert sorted(segstore.open(copy).read().read_all()["n"].to_pylist()) == sorted(numbers)
