"""Every kind of job on a standalone cluster that loses a worker in the middle of it."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from checkpoints import start_query
from pyspark.sql import DataFrame, SparkSession
from sessions import Sessions
from standalone import Standalone, executor_settings

import segstore_ds as segstore
from segstore_ds.copy import segments
from segstore_ds.spark.parquet_scan import read as hybrid_read

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("verified")]

SEGMENTS, ROWS = 36, 1_000
EVENTS = SEGMENTS * ROWS


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    started = Standalone(tmp_path_factory.mktemp("cluster"))
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="module")
def spark(sessions: Sessions, cluster: Standalone) -> SparkSession:
    """A session whose executors run on the two workers."""
    folders = (Path(segstore.__file__).parents[1], Path(__file__).parent)
    settings = {"spark.master": cluster.url, **executor_settings(*folders)}
    session = sessions.get("standalone", settings)
    segstore.spark.register(session)
    return session


@pytest.fixture
def stream(url: str) -> segstore.Stream:
    """Many segments of numbered events, Arrow and Parquet by turns."""
    made = segstore.create(url, pa.schema([("n", pa.int64()), ("s", pa.string())]))
    for segment in range(SEGMENTS):
        numbers = list(range(segment * ROWS, (segment + 1) * ROWS))
        layout = segstore.Layout(segment_format=("arrow", "parquet")[segment % 2])
        made.append(pa.table({"n": numbers, "s": [f"s{n}" for n in numbers]}), layout=layout)
    return made


def events(url: str) -> list[dict[str, object]]:
    return segstore.open(url).read().read_all().to_pylist()


def expected() -> list[dict[str, object]]:
    return [{"n": n, "s": f"s{n}"} for n in range(EVENTS)]


def test_a_write_keeps_every_event_once_and_in_order(spark, cluster, url):
    """A repeated one is known, too: by the batch of the write that lost a worker."""
    frame = spark.range(0, EVENTS, 1, SEGMENTS).selectExpr("id AS n", "concat('s', id) AS s")
    once = {"writerId": "etl", "batchId": 1, "inlineBytes": 0}
    cluster.lose_worker_during(spark, lambda: segstore.spark.write(frame, url, **once))
    segstore.spark.write(frame, url, **once)
    assert events(url) == expected()
    assert segstore.open(url).version == 1  # the one commit that made it


@pytest.fixture(autouse=True)
def nothing_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tasks read and write, small as it is."""
    monkeypatch.setattr(hybrid_read, "MOST_BYTES", 0)
    monkeypatch.setattr(segments, "TASK_BYTES", 1)


@pytest.mark.parametrize("hybrid", [False, True])
def test_a_read_brings_every_event_once(spark, cluster, stream, url, hybrid):
    # Of a hybrid read, Spark reads the Parquet segments itself, in tasks of their own.
    spark.conf.set("spark.sql.files.minPartitionNum", SEGMENTS)
    read = spark.read.format("segstore").option("minPartitions", SEGMENTS)
    frame = segstore.spark.read(spark, url, minPartitions=SEGMENTS) if hybrid else read.load(url)
    rows = cluster.lose_worker_during(spark, frame.collect)
    assert sorted(row.n for row in rows) == list(range(EVENTS))


@pytest.mark.sweep  # the tasks of a redaction are run in the same way
def test_a_compaction_changes_no_event(spark, cluster, stream, url):
    opened = segstore.spark.open(spark, url)
    merged = cluster.lose_worker_during(spark, lambda: opened.compact(target_rows=3 * ROWS))
    assert merged.groups == len(stream.refresh()._log.root.entries) == SEGMENTS // 3
    assert events(url) == expected()


def in_many_tasks(rows: DataFrame) -> DataFrame:
    return rows.repartitionByRange(SEGMENTS, "n").sortWithinPartitions("n")


@pytest.mark.parametrize(
    "transform",
    [
        in_many_tasks,
        # Copies of segments: their tasks are run as those of a redaction are.
        pytest.param(None, marks=pytest.mark.sweep),
    ],
)
def test_a_copy_has_every_event_at_its_offset(spark, cluster, stream, url, transform):
    target = f"{url}-copy"
    cluster.lose_worker_during(
        spark, lambda: segstore.spark.copy(spark, url, target, "night", transform)
    )
    assert events(target) == expected()
    segstore.open(target).verify().check()


def test_a_redaction_finds_every_event(spark, cluster, stream, url):
    redact = partial(
        segstore.spark.open(spark, url).redact, [["n", ">=", 10]], columns=["s"], redact_id="r1"
    )
    assert cluster.lose_worker_during(spark, redact).rows == EVENTS - 10
    found = [row["s"] for row in events(url)]
    assert found == [f"s{n}" for n in range(10)] + [None] * (EVENTS - 10)


def test_a_query_moves_every_event_once(spark, cluster, stream, url, tmp_path):
    target = f"file://{tmp_path}/target"
    source = spark.readStream.format("segstore").option("minPartitions", SEGMENTS).load(url)
    writer = source.writeStream.format("segstore").options(path=target, inlineBytes=0)

    def run() -> None:
        with segstore.spark.activated(spark):
            start_query(writer, f"{tmp_path}/checkpoint", now=True)

    cluster.lose_worker_during(spark, run)
    assert events(target) == expected()
    segstore.open(target).verify().check()
