"""Running queries: limits as Spark applies them, progress, and streams that change meanwhile."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from checkpoints import start_query
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

import segstore_ds as segstore
from segstore_ds.read.micro_batch import BatchLimits, plan_batch_end
from segstore_ds.status.table_status import TableStatus
from segstore_ds.stream.connector.queries import BATCH_SEGMENTS
from segstore_ds.stream.stream import Stream

pytestmark = pytest.mark.slow

SCHEMA = pa.schema([("n", pa.int64())])


@pytest.fixture
def numbers(tmp_path: Path) -> Stream:
    """The source of numbered events."""
    return segstore.create(f"file://{tmp_path}/numbers", SCHEMA)


def extend(stream: Stream, count: int) -> None:
    """Append the next numbers; as Parquet, many would take too few bytes for limits of bytes."""
    tail = stream.refresh().tail
    layout = segstore.Layout(segment_format="arrow")
    stream.append(pa.table({"n": list(range(tail, tail + count))}, SCHEMA), layout=layout)


@pytest.fixture
def start(
    spark: SparkSession, numbers: Stream, url: str, tmp_path: Path
) -> Iterator[Callable[..., StreamingQuery]]:
    """Start a query from the numbers to the stream at `url`; all are stopped in the end."""
    queries = []

    def run(
        *,
        checkpoint: str = "checkpoint",
        now: bool = False,
        sink: str = "segstore",
        takeover: bool = False,
        **options: Any,
    ) -> StreamingQuery:
        events = spark.readStream.format("segstore").options(**options).load(numbers.url)
        writer = events.writeStream.format(sink).option("path", url).option("takeover", takeover)
        queries.append(start_query(writer, f"{tmp_path}/{checkpoint}", now=now))
        return queries[-1]

    yield run
    for query in queries:
        query.stop()


def values(url: str) -> list[int]:
    return segstore.open(url).read().read_all()["n"].to_pylist()


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ([1] * 20, {"maxRowsPerTrigger": 7}),
        (
            [20_000, *[1] * 5, 20_000],
            {"maxRowsPerTrigger": 15_000, "maxBytesPerTrigger": 30_000},
        ),
    ],
)
def test_batches_end_at_the_planned_offsets(
    numbers: Stream, start: Callable[..., StreamingQuery], sizes: list[int], options: dict[str, int]
) -> None:
    """Trigger.AvailableNow over many tiny and few huge segments, each limit and all together."""
    for size in sizes:
        extend(numbers, size)
    query = start(now=True, sink="noop", **options)
    progress = [p for p in query.recentProgress if p["numInputRows"]]
    found = [json.loads(p["sources"][0]["endOffset"])["offset"] for p in progress]
    limits = BatchLimits(
        options.get("maxRowsPerTrigger"), options.get("maxBytesPerTrigger"), BATCH_SEGMENTS
    )
    expected, cursor, root = [], 0, numbers._log.root
    while cursor < root.tail:
        segments = TableStatus(numbers._log.storage).segments(root, cursor, root.tail)
        cursor = plan_batch_end(segments, cursor, root.tail, limits)
        expected.append(cursor)
    assert found == expected
    assert len(found) > 1
    assert sum(p["numInputRows"] for p in progress) == sum(sizes)


def test_query_from_the_tail_delivers_what_comes_after_its_start(
    numbers: Stream, start: Callable[..., StreamingQuery], url: str
) -> None:
    """Its first batch is empty and fixes the place, so a restart misses nothing."""
    extend(numbers, 5)
    query = start(startCut="tail")
    query.processAllAvailable()
    assert query.recentProgress[0]["numInputRows"] == 0
    query.stop()
    extend(numbers, 3)
    query = start(startCut="tail")
    query.processAllAvailable()
    extend(numbers, 2)
    query.processAllAvailable()
    assert values(url) == [5, 6, 7, 8, 9]


def test_progress_shows_how_far_behind_a_query_is(
    numbers: Stream, start: Callable[..., StreamingQuery]
) -> None:
    """The tail beside the end of the batch."""
    extend(numbers, 10)
    query = start(now=True, sink="noop", maxRowsPerTrigger=4)
    [first, *_] = query.recentProgress
    [source] = first["sources"]
    assert json.loads(source["endOffset"])["offset"] == 4
    assert json.loads(source["latestOffset"])["offset"] == 10


def test_query_runs_to_its_end_and_waits_there(
    numbers: Stream, start: Callable[..., StreamingQuery], url: str
) -> None:
    """Nothing past `endCut`; only AvailableNow ends a query."""
    extend(numbers, 10)
    query = start(endCut=13)
    query.processAllAvailable()
    extend(numbers, 10)
    query.processAllAvailable()
    assert query.isActive
    assert values(url) == list(range(13))


def test_events_lost_behind_a_query_are_named(
    numbers: Stream, start: Callable[..., StreamingQuery], url: str
) -> None:
    """Loudly unless it was allowed."""
    extend(numbers, 4)
    start(now=True)
    extend(numbers, 4)
    numbers.overwrite(pa.table({"n": [8, 9]}, SCHEMA))
    with pytest.raises(StreamingQueryException, match=r"SEG_TRUNCATED.*\[4, 8\).*failOnDataLoss"):
        start(now=True)
    start(now=True, failOnDataLoss=False)
    assert values(url) == [0, 1, 2, 3, 8, 9]


def test_recreated_source_ends_the_query(
    numbers: Stream, start: Callable[..., StreamingQuery]
) -> None:
    """The offsets of the new stream name other events."""
    extend(numbers, 4)
    start(now=True)
    shutil.rmtree(numbers.url.removeprefix("file://"))
    extend(segstore.create(numbers.url, SCHEMA), 9)
    with pytest.raises(
        StreamingQueryException, match="SEG_POSITION: position belongs to another strea"
    ):
        start(now=True)


def test_sink_recreated_during_a_query_is_refused(
    numbers: Stream, start: Callable[..., StreamingQuery], url: str
) -> None:
    """No commit goes to what was deleted, and the new log gets one only by a takeover."""
    query = start()
    for _ in range(4):
        extend(numbers, 2)
        query.processAllAvailable()
    shutil.rmtree(url.removeprefix("file://"))
    extend(segstore.create(url, SCHEMA), 1)
    extend(numbers, 2)
    with pytest.raises(StreamingQueryException, match=r"none of the batches.*takeover"):
        query.processAllAvailable()
    assert values(url) == [0]
    start(takeover=True).processAllAvailable()
    assert values(url) == [0, 8, 9]
    segstore.open(url).verify().check()


def test_two_queries_at_once_on_one_stream(
    numbers: Stream, start: Callable[..., StreamingQuery], url: str
) -> None:
    """The second commit is rebased on the first: neither loses events."""
    queries = [start(checkpoint=name, maxRowsPerTrigger=3) for name in ("one", "two")]
    for _ in range(4):
        extend(numbers, 6)
    for query in queries:
        query.processAllAvailable()
    assert sorted(values(url)) == sorted([*range(24), *range(24)])
    segstore.open(url).verify().check()
