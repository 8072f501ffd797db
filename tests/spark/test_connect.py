"""Spark Connect: the same through a client that has no JVM."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from process_kit import plain_environment
from pyspark.sql import SparkSession
from sessions import error_of, run_program

import segstore_ds as segstore

pytest.importorskip("grpc", reason="Spark Connect needs grpcio")

SIZING = "spark.sql.execution.arrow.maxBytesPerBatch"

pytestmark = [pytest.mark.usefixtures("verified"), pytest.mark.slow]


@pytest.fixture(scope="module")
def connect(sessions) -> SparkSession:
    found = sessions.get("connect")
    found.conf.unset(SIZING)  # the server has the settings of `recommended_conf`
    return found


def test_write_read_and_repeat(connect, url):
    """The session is tuned by `register` once, and for one write by the helper."""
    assert dict(segstore.spark.register(connect).settings) == {SIZING: "2147483647"}
    assert dict(segstore.spark.register(connect).settings) == {}
    connect.conf.unset(SIZING)
    df = connect.range(0, 1000, 1, 3).selectExpr("id", "concat('u', id % 5) AS user")
    df.write.format("segstore").mode("append").option("inlineBytes", 0).save(url)
    for _ in range(2):
        segstore.spark.write(df, url, writerId="etl", batchId=1)
    assert connect.conf.get(SIZING, None) is None
    reader = connect.read.format("segstore").option("offsetColumn", "o")
    back = reader.load(url)
    assert [row.o for row in back.filter("user = 'u3'").orderBy("o").limit(2).collect()] == [3, 8]
    assert reader.option("startCut", 10).option("endCut", 12).load(url).toArrow().num_rows == 2
    assert back.union(back).count() == 4000


def test_views_and_tables(connect, url):
    segstore.spark.register(connect)
    segstore.create(url, pa.schema([("id", pa.int64())])).append(pa.table({"id": [1, 2]}))
    connect.sql(f"CREATE OR REPLACE TEMPORARY VIEW v USING segstore OPTIONS (path '{url}')")
    connect.sql("INSERT INTO v VALUES (3)")
    assert segstore.open(url).tail == 3
    try:
        connect.sql("CREATE TABLE t (id BIGINT) USING segstore")
        found = connect.sql(f"SELECT * FROM t WITH (path = '{url}', startCut = '1')").collect()
        assert sorted(row.id for row in found) == [2, 3]
        assert "Spark forgets a catalog table's options" in error_of(connect.table("t").collect)
        segstore.spark.create_view(connect, "late", url, startCut=1)
        assert sorted(row.id for row in connect.table("late").collect()) == [2, 3]
        assert "ALREADY_EXISTS" in error_of(
            lambda: segstore.spark.create_view(connect, "late", url)
        )
    finally:
        connect.sql("DROP VIEW IF EXISTS late")
        for name in ("t", "late__columns"):
            connect.sql(f"DROP TABLE IF EXISTS {name}")


def test_batches_are_written_once_by_a_function(connect, url, tmp_path):
    segstore.spark.register(connect)
    source, at = f"{url}-source", str(tmp_path / "at")
    segstore.create(source, pa.schema([("id", pa.int64())])).append(pa.table({"id": [1, 2]}))

    def keep(batch, number):
        for _ in range(2):
            segstore.spark.write_batch(batch, number, url, checkpoint=at)

    rows = connect.readStream.format("segstore").load(source)
    query = rows.writeStream.foreachBatch(keep).option("checkpointLocation", at)
    query = query.trigger(availableNow=True).start()
    query.awaitTermination()
    (writer,) = segstore.open(url).metadata("writers").read_all().to_pylist()
    assert (segstore.open(url).tail, writer["writer_id"]) == (2, f"batches-{query.id}")
    with pytest.raises(segstore.errors.InvalidInputError, match="no checkpoint"):
        segstore.spark.write_batch(connect.range(1), 0, url, checkpoint=str(tmp_path))


def test_errors_hold_our_text(connect, url):
    segstore.spark.register(connect, storage_options={"auto_mkdir": "env:SEGSTORE_NO_SUCH"})
    reader = connect.read.format("segstore")
    assert "SEGSTORE_NO_SUCH" in error_of(lambda: reader.load(url).schema)
    segstore.spark.register(connect)
    assert "SEG_NOT_FOUND" in error_of(lambda: reader.load(url).schema)
    writer = connect.sql("SELECT INTERVAL '1' YEAR AS bad").write.format("segstore").mode("append")
    assert "column='bad'" in error_of(lambda: writer.save(url))
    refused = connect.range(1).write.format("segstore").mode("ignore")
    assert "ignore" in error_of(lambda: refused.save(url)).lower()
    assert not segstore.exists(url)


def test_copies_and_clones(connect, url, tmp_path):
    segstore.spark.register(connect)
    stream = segstore.create(tmp_path / "source", pa.schema([("id", pa.int64())]))
    stream.append(pa.table({"id": range(100)}))
    for _ in range(2):
        done = segstore.spark.copy(connect, stream.url, url, "c", lambda rows: rows.where("id < 7"))
    assert (done.end, done.repeated, segstore.open(url).tail) == (100, True, 7)
    segments = f"file://{tmp_path}/segments"
    assert segstore.spark.copy(connect, stream.url, segments, "c", seal=True).segments == 1
    clone = f"file://{tmp_path}/clone"
    segstore.spark.open(connect, stream.url).copy_to(clone, copy_id="c", mode="clone")
    assert connect.read.format("segstore").load(clone).count() == 100


ROOT = Path(segstore.__file__).parents[1]
DRIVER = Path(__file__).parent / "client_driver.py"


@pytest.fixture(scope="module")
def client(tmp_path_factory) -> Path:
    """A folder with Spark's client alone, which hides the whole Spark of this environment."""
    folder = tmp_path_factory.mktemp("client")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    wanted = ["--no-deps", "--target", str(folder), "pyspark-client>=4.2"]
    done = subprocess.run([*install, *wanted], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"pip can't install pyspark-client: {done.stderr.strip()[-200:]}")
    return folder


def test_everything_works_through_the_client_alone(connect, client, tmp_path):
    """A user's machine without a JVM and without py4j, and a server elsewhere."""
    token = os.environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"]
    environment = plain_environment(
        PYTHONPATH=os.pathsep.join([str(client), str(ROOT)]),
        SPARK_CONNECT_AUTHENTICATE_TOKEN=token,
    )
    remote = f"sc://{connect.client._builder.endpoint}"
    printed = run_program(DRIVER, remote, f"file://{tmp_path}", env=environment)
    found = json.loads(printed.splitlines()[-1])
    (warned,) = found.pop("warned")
    assert "the session uses Spark Connect" in warned
    assert found == {
        "written": 1000,
        "source": [3, 8],
        "small": [15, False],
        "large": [1005, 1005],
        "copied": [1005, 12],
        "streamed": 1005,
        "metrics": True,
    }
