"""Newest commits of a stream are gone: streaming queries from and to it say so."""

from pathlib import Path

import pyarrow as pa
import pytest
from checkpoints import start_query
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import segstore_ds as segstore

pytestmark = pytest.mark.slow

SCHEMA = pa.schema([("n", pa.int64())])


def _numbers(start: int, end: int) -> pa.Table:
    return pa.table({"n": list(range(start, end))}, SCHEMA)


def _lose(folder: Path, *versions: int) -> None:
    for version in versions:
        (folder / f"log/{version:020d}").unlink()
    (folder / "log/_latest").unlink()


def _drain(spark: SparkSession, folder: Path, **options: object) -> None:
    events = spark.readStream.format("segstore").option("maxRowsPerTrigger", 5)
    writer = events.load(str(folder / "a")).writeStream.format("segstore").options(**options)
    start_query(writer.option("path", str(folder / "b")), str(folder / "checkpoint"), now=True)


@pytest.mark.parametrize("grown", [False, True])
def test_a_source_that_lost_what_was_read_is_refused(spark, tmp_path, grown) -> None:
    """Beyond the tail, and also where new events took the offsets: none is passed over."""
    stream = segstore.create(tmp_path / "a", SCHEMA)
    for start in (0, 5, 10):
        stream.append(_numbers(start, start + 5))
    _drain(spark, tmp_path)
    _lose(tmp_path / "a", 3)
    if grown:
        segstore.open(stream.url).append(_numbers(100, 110))
    with pytest.raises(StreamingQueryException, match="was taken at a commit that is gone"):
        _drain(spark, tmp_path)
    assert segstore.open(tmp_path / "b").tail == 15


def test_a_sink_that_lost_batches_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """The checkpoint counts on; one that is set to go on does, without them."""
    stream = segstore.create(tmp_path / "a", SCHEMA)
    stream.append(_numbers(0, 15))
    _drain(spark, tmp_path, compact="off")
    newest = segstore.open(tmp_path / "b").version
    _lose(tmp_path / "b", newest, newest - 1)
    stream.append(_numbers(15, 18))
    with pytest.raises(StreamingQueryException, match="are gone"):
        _drain(spark, tmp_path, compact="off")
    assert segstore.open(tmp_path / "b").tail == 5
    try:
        _drain(spark, tmp_path, compact="off", takeover="true")
    except StreamingQueryException as error:
        # A process that committed them, and was idle since, refuses as well. Spark ends it.
        assert "are gone" in str(error)  # noqa: PT017 - it may come or not
        _drain(spark, tmp_path, compact="off", takeover="true")
    kept = segstore.open(tmp_path / "b").read().read_all()["n"].to_pylist()
    assert kept == [*range(5), *range(15, 18)]
