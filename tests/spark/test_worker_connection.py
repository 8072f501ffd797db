"""What Spark sends over TCP does not wait for a delayed acknowledgement."""

import json
import pickle
import socket
import sys
from pathlib import Path

import pytest
from process_kit import plain_environment
from sessions import run_program

from segstore_ds.spark import boundary
from segstore_ds.spark.batch.parts import PartsReader
from segstore_ds.spark.source import SegstoreDataSource

ROOT = Path(__file__).parents[2]
LINUX = pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="others don't delay so")

# As installed: nothing chooses unix sockets. Each task notes its connection and whether it sends
# without waiting; then a stream is written and read.
DRIVER = """
import json, sys
import pyarrow as pa
from pyspark.sql import SparkSession
from segstore_ds.spark import workers
from segstore_ds.spark.source import SegstoreDataSource

def note(batches):
    workers.acknowledge()
    found = workers.connection()
    for _ in batches:
        peer, nodelay = found.getpeername()[0], found.getsockopt(6, 1)
        yield pa.RecordBatch.from_pydict({"peer": [f"{peer} {nodelay}"]})

builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = builder.getOrCreate()
spark.dataSource.register(SegstoreDataSource)  # a checkout is not found by itself
noted = spark.range(2, numPartitions=2).mapInArrow(note, "peer string")
peers = noted.toArrow()["peer"].to_pylist()
spark.range(100, numPartitions=4).write.format("segstore").mode("append").save(sys.argv[1])
count = spark.read.format("segstore").load(sys.argv[1]).count()
print(json.dumps({"peers": peers, "count": count}))
spark.stop()
"""


@pytest.mark.parametrize(
    ("sent", "name", "wanted"),
    [
        (PartsReader(print, [{"n": 1}]), "parts", ()),
        (SegstoreDataSource({"n": "1"}), "options", {"n": "1"}),
    ],
    ids=["a state of its own", "a plain one"],
)
def test_what_spark_calls_acknowledges_its_command_on_arrival(sent, name, wanted, monkeypatch):
    did = []
    monkeypatch.setattr(boundary, "acknowledge", lambda: did.append("acknowledge"))
    arrived = pickle.loads(pickle.dumps(sent))  # noqa: S301 - ours
    assert (did, getattr(arrived, name)) == (["acknowledge"], wanted)


@pytest.mark.slow
@LINUX
def test_workers_as_installed_find_their_connection(tmp_path):
    environment = plain_environment(PYSPARK_PYTHON=sys.executable, PYTHONPATH=str(ROOT))
    printed = run_program("-c", DRIVER, tmp_path / "stream", env=environment)
    assert json.loads(printed.splitlines()[-1]) == {"peers": ["127.0.0.1 1"] * 2, "count": 100}
