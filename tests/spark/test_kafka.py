"""The page on Kafka against a real broker: its code is the driver, and it is killed."""

import json
import os
import random
import re
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from fixtures_servers import FETCHES
from kafka_broker import fetch_broker, running_broker
from object_servers import ServerUnavailableError
from process_kit import spark_environment

import segstore_ds as segstore

pytestmark = FETCHES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "segstore_ds/docs/kafka.md").read_text()
KEEP, SPLIT, SEND = (
    re.search(rf"^```python {kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[1]
    for kind in ("kafka", "payloads", "to_kafka")
)
AVRO = "org.apache.spark:spark-avro_2.13:4.1.1"
# Each start of Spark takes ten seconds, so thirty kills are run by hand.
KILLS = int(os.environ.get("SEGSTORE_KAFKA_KILLS", "1"))
EVENTS, PARTITIONS, A_BATCH = 6_000 + 2_000 * KILLS, 4, 500
# A busy machine may take minutes; and a batch that comes before its topic has a leader is repeated,
# which succeeds only if no later batch has overtaken it.
PATIENT = '.option("kafka.delivery.timeout.ms", 600000)'
PATIENT += '.option("kafka.max.in.flight.requests.per.connection", 1)'
TO_THE_END = "trigger(availableNow=True).start()"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker."""
    try:
        fetch_broker()
    except ServerUnavailableError as missing:
        pytest.skip(str(missing))
    with running_broker(tmp_path_factory.mktemp("kafka")) as address:
        yield address


class Job:
    """The page's code as a program of its own, in a folder of its own."""

    def __init__(self, broker: str, topic: str, folder: Path, python: str) -> None:
        self.folder = folder
        self._python = python
        self._names = {"localhost:9092": broker, '"clicks"': f'"{topic}"', "/tmp/": f"{folder}/"}  # noqa: S108

    @contextmanager
    def running(self, code: str) -> "Iterator[subprocess.Popen[bytes]]":
        """Run code in a group of processes, all of which are killed at the end."""
        for name, ours in self._names.items():
            code = code.replace(name, ours)
        (self.folder / "job.py").write_text(code)
        inside = spark_environment(PYTHONPATH=str(ROOT), PYSPARK_PYTHON=self._python)
        with (self.folder / "log").open("ab") as log:
            job = subprocess.Popen(
                [sys.executable, str(self.folder / "job.py")],
                cwd=self.folder,
                env=inside,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield job
        finally:
            with suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
            job.wait()

    def finish(self, code: str) -> None:
        """Run code to its end."""
        with self.running(code) as job:
            status = job.wait(400)
        log = (self.folder / "log").read_text()
        if status and "unresolved dependency" in log:
            pytest.skip("Spark's connector can't be fetched here: see spark.jars.packages")
        assert status == 0, log[-3000:]

    def tail(self, name: str) -> int:
        """Return the tail of a stream, 0 where there is none."""
        try:
            return segstore.open(self.folder / name).tail
        except segstore.errors.NotFoundError:
            return 0

    def await_more(self, name: str, tail: int, job: "subprocess.Popen[bytes]") -> None:
        """Wait until a stream has grown."""
        while self.tail(name) == tail < EVENTS:  # else it went ahead while this process waited
            assert job.poll() is None, (self.folder / "log").read_text()[-3000:]
            time.sleep(0.01)


def after_producing(rows: str, code: str) -> str:
    """Return code whose session first fills the topic."""
    target = 'format("kafka").option("kafka.bootstrap.servers", "localhost:9092")'
    write = f'{rows}.write.{target}.option("topic", "clicks"){PATIENT}.save()'
    start, rest = code.split("\ntopic = ", 1)
    return f"{start}\n{write}\ntopic = {rest}"


def to_the_end(code: str) -> str:
    ended = code.replace("start()", TO_THE_END)
    assert ended != code
    return ended


def test_every_event_is_there_once_and_in_order_after_kills(
    broker: str, tmp_path: Path, worker_python: str
) -> None:
    job = Job(broker, "clicks", tmp_path, worker_python)
    values = f"'concat(\"v\", id) value', 'cast(id % {PARTITIONS} as int) partition'"
    code = KEEP.replace("100_000", str(A_BATCH))
    rows = f"spark.range({EVENTS}).selectExpr('cast(id as string) key', {values})"
    draw = random.Random(11)
    for kill in range(KILLS):
        with job.running(code if kill else after_producing(rows, code)) as process:
            seen = job.tail("clicks")
            for _ in range(draw.randint(1, max(EVENTS // A_BATCH // KILLS - 1, 1))):
                job.await_more("clicks", seen, process)
                seen = job.tail("clicks")
            time.sleep(draw.choice((0.0, 0.02, 0.05, 0.2)))  # before, while or after Spark notes it
    assert job.tail("clicks") > 0
    job.finish(to_the_end(code))

    stream = segstore.open(tmp_path / "clicks")
    stream.verify().check()
    events = stream.read().read_all().to_pylist()
    assert sorted(int(event["key"]) for event in events) == list(range(EVENTS))
    assert all(event["value"] == b"v" + event["key"] for event in events)
    for partition in range(PARTITIONS):
        offsets = [event["offset"] for event in events if event["partition"] == partition]
        assert offsets == list(range(len(offsets)))


@contextmanager
def running_registry(schemas: dict[int, Any]) -> Iterator[str]:
    """Answer as a schema registry does to who asks for a schema by its id."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"schema": json.dumps(schemas[int(self.path.split("/")[-1])])})
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_payloads_of_a_registry_are_read_and_the_others_are_kept(
    broker: str, tmp_path: Path, worker_python: str
) -> None:
    fields = [{"name": "user", "type": "string"}, {"name": "n", "type": "long"}]
    schema = {"type": "record", "name": "Visit", "fields": fields}
    payloads = []
    for number in range(100):
        body = BytesIO()
        fastavro.schemaless_writer(body, schema, {"user": f"u{number}", "n": number})
        payloads.append(struct.pack(">bI", 0, 7) + body.getvalue())
    damaged = [b"", b"{}", payloads[0][:6], struct.pack(">bI", 0, 8) + payloads[0][5:]]
    values = ", ".join(f"('{payload.hex()}')" for payload in payloads + damaged)
    job = Job(broker, "payloads", tmp_path, worker_python)
    rows = f'spark.sql("select unhex(v) value from values {values} as t(v)")'
    start = KEEP.split("\nsink = ")[0].replace(":4.2.0", f":4.2.0,{AVRO}", 1)
    with running_registry({7: schema}) as registry:
        code = f"{start}\n{SPLIT}".replace("http://localhost:8081", registry)
        job.finish(to_the_end(after_producing(rows, code)))

    good = segstore.open(tmp_path / "visits").read().read_all().to_pylist()
    assert sorted((row["n"], row["user"]) for row in good) == [(n, f"u{n}") for n in range(100)]
    bad = segstore.open(tmp_path / "visits-unread").read().read_all()["value"].to_pylist()
    assert sorted(bad) == sorted(damaged)


def test_events_of_a_stream_are_sent_with_their_offsets(
    broker: str, tmp_path: Path, worker_python: str
) -> None:
    job = Job(broker, "sent", tmp_path, worker_python)
    schema = pa.schema([("key", pa.binary()), ("value", pa.binary())])
    stream = segstore.create(tmp_path / "clicks", schema)
    stream.append([{"key": b"k%d" % n, "value": b"v%d" % n} for n in range(100)])
    start = KEEP.split("\ntopic = ")[0]
    again = (
        'spark.read.format("kafka")'
        '.option("kafka.bootstrap.servers", "localhost:9092").option("subscribe", "clicks-again")'
        '.option("includeHeaders", True).load().selectExpr("key", "value", "headers[0].key name", '
        '"cast(cast(headers[0].value as string) as bigint) at")'
        '.write.format("segstore").mode("append").save("/tmp/sent")'
    )
    send = SEND.replace('.option("topic"', f'{PATIENT}.option("topic"')
    job.finish(to_the_end(f"{start}\n{send}") + again)
    sent = segstore.open(tmp_path / "sent").read().read_all().to_pylist()
    assert sorted(sent, key=lambda row: row["at"]) == [
        {"key": b"k%d" % n, "value": b"v%d" % n, "name": "at", "at": n} for n in range(100)
    ]
