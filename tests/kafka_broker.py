"""A real Kafka broker in KRaft mode: fetched once, then it runs on free loopback ports.

Spark resolves them, as it does those of its own Kafka source. Like the object store servers, a
broker ends with the process that started it, or after three hours.
"""

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark
from object_servers import (
    MOST_START_S,
    Program,
    ServerUnavailableError,
    fetch,
    guarded,
)

# Of Spark's source and sink for Kafka, on the newest Spark for which there is one.
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
_RESOLVE = """
import os, sys
from pyspark.sql import SparkSession

conf = {"spark.ui.enabled": "false", "spark.jars.packages": sys.argv[1]}
conf["spark.jars.ivy"] = os.path.abspath("ivy")
SparkSession.builder.master("local[1]").config(map=conf).getOrCreate().stop()
"""
_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{control}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{control}
controller.listener.names=CONTROLLER
log.dirs={folder}/data
log.segment.bytes=268435456
num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""
_CLUSTER = "AAAAAAAAAAAAAAAAAAAAAQ"


@dataclass(frozen=True)
class _Broker(Program):
    @property
    def command(self) -> list[str]:
        return [sys.executable, "-c", _RESOLVE, f"{self.source}:{self.version}"]

    @property
    def tools(self) -> tuple[str, ...]:
        return ("java",)

    @property
    def executable(self) -> Path:
        return self.folder / "ivy" / "jars"


KAFKA = _Broker(
    "kafka", "4.1.1", scheme="kafka", source="org.apache.kafka:kafka_2.13", arguments=()
)


def fetch_broker() -> Path:
    """Return the folder of a broker's jars, after fetching them where they are not in the cache.

    Raises:
        ServerUnavailableError: There is no Java, or the jars can't be fetched.
    """
    try:
        return fetch(KAFKA)
    except RuntimeError as error:
        if "unresolved dependency" not in str(error):
            raise
        raise ServerUnavailableError(str(error)) from error


@contextmanager
def running_broker(folder: Path) -> Iterator[str]:
    """Run a broker whose data and log lie in a folder; yield its address, host and port."""
    jars = fetch_broker()
    (scala,) = Path(pyspark.__file__).parent.glob("jars/scala-library-*.jar")
    java = [str(shutil.which("java")), "-Xmx512m", "-cp", f"{jars}/*:{scala}"]
    port, control = _free_ports()
    properties = folder / "server.properties"
    properties.write_text(_PROPERTIES.format(port=port, control=control, folder=folder))
    formatting = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(properties)]
    subprocess.run([*java, *formatting], check=True, capture_output=True)
    with guarded([*java, "kafka.Kafka", str(properties)], folder) as guard:
        _await(port, guard, folder / "log")
        yield f"127.0.0.1:{port}"


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as two:
        for each in (one, two):
            each.bind(("127.0.0.1", 0))
        return one.getsockname()[1], two.getsockname()[1]


def _await(port: int, guard: "subprocess.Popen[bytes]", log: Path) -> None:
    until = time.monotonic() + MOST_START_S
    while guard.poll() is None and time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), 5).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"the broker does not start: {log.read_text(errors='replace')[-2000:]}")
