"""Running queries over the streams of a folder, and over named sources, which come and go."""

from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from checkpoints import start_query
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

import segstore_ds as segstore
from segstore_ds.spark.versions import SupportsTriggerAvailableNow

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not hasattr(SupportsTriggerAvailableNow, "prepareForTriggerAvailableNow"),
        reason="this Spark does not say where a batch begins",
    ),
]
N = pa.schema([("n", pa.int64())])


@pytest.fixture
def start(spark: SparkSession, url: str, tmp_path: Path) -> Iterator[Callable[..., StreamingQuery]]:
    """Start a query from the folder `s` to the stream at `url`; all are stopped in the end."""
    queries = []

    def run(*names: str, now: bool = False, to: str = url, **options: Any) -> StreamingQuery:
        events = spark.readStream.format("segstore").options(**options).load(f"{tmp_path}/s/*")
        writer = events.select(*(names or ["*"])).writeStream.format("segstore").option("path", to)
        queries.append(start_query(writer, f"{tmp_path}/checkpoint", now=now))
        return queries[-1]

    yield run
    for query in queries:
        query.stop()


def extend(tmp_path: Path, name: str, count: int) -> segstore.Stream:
    """Append the next numbers to a stream, which may be new."""
    stream = segstore.create(f"file://{tmp_path}/s/{name}", N, exist_ok=True)
    tail = stream.refresh().tail
    stream.append(pa.table({"n": [*range(tail, tail + count)]}, N))
    return stream


def arrived(url: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for row in pa.table(segstore.open(url).scan()).to_pylist():
        found.setdefault(row["stream"], []).append(row["n"])
    return found


def test_streams_join_and_leave_a_query_that_stops_and_goes_on(tmp_path, start, url) -> None:
    """The limit holds in each batch, and no event comes twice over restarts."""
    for name in "abc":
        extend(tmp_path, name, 4)
    query = start(now=True, maxRowsPerTrigger=5)
    assert [p["numInputRows"] for p in query.recentProgress] == [5, 5, 2]
    query = start(failOnDataLoss=False)
    extend(tmp_path, "d", 2)
    dropped = extend(tmp_path, "a", 1)
    while len(arrived(url).get("d", ())) < 2 or len(arrived(url)["a"]) < 5:
        query.processAllAvailable()
    segstore.drop(dropped.url, confirm=dropped.url)
    extend(tmp_path, "b", 1)
    while len(arrived(url)["b"]) < 5:
        query.processAllAvailable()
    query.stop()
    extend(tmp_path, "c", 1)
    start(now=True, failOnDataLoss=False)
    assert arrived(url) == {"a": [*range(5)], "b": [*range(5)], "c": [*range(5)], "d": [0, 1]}
    segstore.drop(f"{tmp_path}/s/d", confirm=f"{tmp_path}/s/d")
    with pytest.raises(StreamingQueryException, match=r"streams were dropped.*'d'"):
        start(now=True)


def test_a_query_into_its_own_folder_is_an_error(tmp_path, start) -> None:
    """It would never end."""
    extend(tmp_path, "a", 1)
    query = start("n", to=extend(tmp_path, "z", 1).url)
    with pytest.raises(StreamingQueryException, match="writes to the stream that it reads"):
        query.awaitTermination(120)


@pytest.mark.skipif(not hasattr(DataStreamReader, "name"), reason="Spark 4.2 has the first")
def test_sources_with_names_come_and_go(spark: SparkSession, tmp_path: Path) -> None:
    """Each event comes once, also of a source that was left out for a while."""
    session = spark.newSession()
    session.conf.set("spark.sql.streaming.queryEvolution.enableSourceEvolution", "true")
    segstore.spark.register(session)
    streams = {
        name: segstore.create(tmp_path / name, pa.schema([("n", pa.int64())])) for name in "ab"
    }
    sent: dict[str, list[int]] = {"a": [], "b": []}

    def append(name: str) -> None:
        sent[name] += [1000 * ord(name) + len(sent[name]) + n for n in (0, 1)]
        streams[name].append(pa.table({"n": sent[name][-2:]}))

    def run(*names: str) -> list[int]:
        reader = session.readStream.format("segstore")
        rows = reduce(DataFrame.union, [reader.name(n).load(streams[n].url) for n in names])
        sink = rows.writeStream.format("segstore").option("path", f"{tmp_path}/out")
        start_query(sink, f"{tmp_path}/checkpoint", now=True)
        return sorted(segstore.open(f"{tmp_path}/out").read().read_all()["n"].to_pylist())

    append("a")
    append("b")
    assert run("a") == sent["a"]
    for appended, names in (("a", "ba"), ("ab", "ab"), ("b", "b"), ("a", "ab")):
        for name in appended:
            append(name)
        assert run(*names) == sent["a"] + sent["b"]
