"""The option `metadata`: metadata tables of a stream as DataFrames."""

from datetime import UTC
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

import segstore_ds as segstore
from segstore_ds.stream.stream import Stream

SCHEMA = pa.schema([("n", pa.int64())])


@pytest.fixture
def stream(url: str) -> Stream:
    """A stream of three segments, with a writer, a reader and a tag."""
    made = segstore.create(url, SCHEMA)
    for start in (0, 10, 20):
        made.append(
            pa.table({"n": list(range(start, start + 10))}, SCHEMA), writer_id="w", batch_id=start
        )
    made.readers.register("etl", start=5)
    made.tags.set("eod", 20)
    return made


@pytest.fixture
def load(spark: SparkSession, stream: Stream):
    """Load a metadata table."""

    def load(name: str, **options: object) -> DataFrame:
        given = spark.read.format("segstore").option("metadata", name).options(**options)
        return given.load(stream.url)

    return load


def test_metadata_tables_are_dataframes(stream: Stream, load) -> None:
    """What the engine says, as Spark shows it."""
    found = load("segments").where("rows > 5").orderBy("start").collect()
    assert [(row.start, row.end) for row in found] == [(0, 10), (10, 20), (20, 30)]
    assert [row.segment_id for row in found] == [0, 1, 2]
    assert load("FRAMES").count() == 3
    assert [(row.writer_id, row.batch_id) for row in load("writers").collect()] == [("w", 20)]
    (reader,) = load("readers").select("name", "offset", "live", "behind").collect()
    assert tuple(reader) == ("etl", 5, True, 25)
    (info,) = load("info").select("events", "segments", "sealed").collect()
    assert tuple(info) == (30, 3, False)
    (tag,) = load("tags").collect()
    assert (tag.name, tag.offset) == ("eod", 20)
    assert tag.time is not None


def test_table_is_pinned_like_any_read(stream: Stream, load) -> None:
    """A DataFrame is of the version that it was loaded at."""
    segments = load("segments")
    stream.append(pa.table({"n": [30]}, SCHEMA))
    assert segments.count() == 3
    assert load("segments").count() == 4


def test_streams_below_a_path_are_a_dataframe(
    spark: SparkSession, stream: Stream, tmp_path: Path
) -> None:
    """As segstore.streams says, damaged ones included; there is no version to pin."""
    folder, below = stream.url.rpartition("/")[::2]
    segstore.create(f"{folder}/other", SCHEMA)
    (tmp_path / "other" / "log" / f"{0:020}").write_bytes(b"")
    reader = spark.read.format("segstore").option("metadata", "streams")
    found = {row.path: row for row in reader.load(folder).collect()}
    expected = segstore.streams(stream.url).to_pylist()[0] | {"path": below}
    shown = found[below].asDict()
    assert shown.pop("time").replace(tzinfo=UTC) == expected.pop("time")
    assert shown == expected
    assert (found[below].events, found["other"].code) == (30, "SEG_EMPTY_OBJECT")
    sound = (
        segstore.spark.read(spark, folder, metadata="streams").where("code IS NULL").select("path")
    )
    assert [row.path for row in sound.collect()] == [below]
    with pytest.raises(AnalysisException, match="a metadata table is read as a whole"):
        reader.option("versionAsOf", 1).load(folder).count()
