"""What Spark sends over TCP does not wait for a delayed acknowledgement."""

import fcntl
import json
import pickle
import socket
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from process_kit import plain_environment

from segstore_ds.spark import boundary, workers
from segstore_ds.spark.batch.parts import PartsReader
from segstore_ds.spark.source import SegstoreDataSource

ROOT = Path(__file__).parents[2]
EXCHANGES = 50
TRIES = 50
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
    workers.hasten()
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


def unacknowledged(connection: socket.socket) -> int:
    """Return how many bytes that a connection has sent wait for an acknowledgement."""
    return struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, b"\0" * 4))[0]


@pytest.fixture
def ends():
    """The two ends of a connection on which, so far, each answered the other."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        spark = socket.create_connection(server.getsockname())
        worker, _ = server.accept()
    with spark, worker:
        for _ in range(EXCHANGES):
            for sender, receiver in ((spark, worker), (worker, spark)):
                sender.sendall(b"x")
                assert receiver.recv(1) == b"x"
        yield spark, worker


@LINUX
def test_what_was_read_is_acknowledged_at_once(ends, monkeypatch):
    spark, worker = ends
    monkeypatch.setattr(workers, "connection", lambda: worker)
    found = []
    for _ in range(TRIES):
        spark.sendall(b"command")
        assert worker.recv(7) == b"command"
        before = unacknowledged(spark)
        workers.hasten()
        found.append((before, unacknowledged(spark)))
        worker.sendall(b"x")
        assert spark.recv(1) == b"x"
    # Not in each try: on a busy machine the delay may end between two lines.
    assert found.count((7, 0)) > found.count((7, 7))


@pytest.mark.parametrize(
    ("sent", "name", "wanted"),
    [
        (PartsReader(print, [{"n": 1}]), "parts", ()),
        (SegstoreDataSource({"n": "1"}), "options", {"n": "1"}),
    ],
    ids=["a state of its own", "a plain one"],
)
def test_what_spark_calls_hastens_the_rest_when_it_arrives(sent, name, wanted, monkeypatch):
    did = []
    monkeypatch.setattr(boundary, "hasten", lambda: did.append("hasten"))
    arrived = pickle.loads(pickle.dumps(sent))  # noqa: S301 - ours
    assert (did, getattr(arrived, name)) == (["hasten"], wanted)


def test_nothing_is_looked_for_outside_of_workers():
    assert workers.connection() is None
    workers.hasten()


def test_a_system_that_refuses_is_left_alone(monkeypatch):
    def refuse():
        raise OSError

    monkeypatch.setitem(sys.modules, "pyspark.worker_util", object())
    monkeypatch.setattr(workers, "_find", refuse)
    assert workers.connection.__wrapped__() is None


def test_workers_on_unix_sockets_have_nothing_to_acknowledge(spark):
    def note(batches):
        import pyarrow as pa

        from segstore_ds.spark.workers import connection, hasten

        hasten()
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"none": [connection() is None]})

    assert [row.none for row in spark.range(1).mapInArrow(note, "none boolean").collect()] == [True]


@pytest.mark.slow
@LINUX
def test_workers_as_installed_find_their_connection(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(tmp_path / "stream")],
        env=plain_environment(PYSPARK_PYTHON=sys.executable, PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"peers": ["127.0.0.1 1"] * 2, "count": 100}
