"""Sources with names: a query may add, reorder and drop them, and each keeps its place."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

import segstore_ds as segstore

EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.skipif(not hasattr(DataStreamReader, "name"), reason="Spark 4.2 has the first"),
]


def test_sources_with_names_come_and_go(spark: SparkSession, tmp_path: Path) -> None:
    """Each event comes once, also of a source that was left out for a while."""
    session = spark.newSession()
    session.conf.set(EVOLUTION, "true")
    segstore.spark.register(session)
    sent = {"a": 0, "b": 100}

    def append(name: str) -> None:
        numbers = pa.table({"n": [sent[name], sent[name] + 1]})
        segstore.open(f"{tmp_path}/{name}").append(numbers)
        sent[name] += 2

    def read(name: str) -> DataFrame:
        named = session.readStream.format("segstore").name(name)
        return named.load(f"{tmp_path}/{name}")

    def run(*names: str) -> list[int]:
        rows = read(names[0])
        for name in names[1:]:
            rows = rows.union(read(name))
        sink = rows.writeStream.format("segstore").option("path", f"{tmp_path}/out")
        sink = sink.option("checkpointLocation", f"{tmp_path}/checkpoint")
        sink.trigger(availableNow=True).start().awaitTermination()
        return sorted(segstore.open(f"{tmp_path}/out").read().read_all()["n"].to_pylist())

    def numbers(*names: str) -> list[int]:
        firsts = {"a": 0, "b": 100}
        return sorted(n for name in names for n in range(firsts[name], sent[name]))

    for name in sent:
        segstore.create(f"{tmp_path}/{name}", pa.schema([("n", pa.int64())]))
        append(name)
    assert run("a") == numbers("a")
    append("a")
    assert run("b", "a") == numbers("a", "b")
    for name in sent:
        append(name)
    assert run("a", "b") == numbers("a", "b")
    append("b")
    assert run("b") == numbers("a", "b")
    append("a")
    assert run("a", "b") == numbers("a", "b")
