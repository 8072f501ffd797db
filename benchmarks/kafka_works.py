"""What `kafka` measures in one session: `python -m benchmarks.kafka_works --broker ...`.

One topic is read from its start by a query per sink and round, sinks in turn; each prints a line.
"""

import argparse
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

from kafka_broker import CONNECTOR

from benchmarks.spark_peers import INSTALLATIONS, say, start_session
from benchmarks.workload import cpu_seconds

BATCHES = 10


def main() -> None:
    """Fill a topic, and bring it into a table of each format in every round."""
    arguments = _parse()
    known = INSTALLATIONS["delta"]
    jars = f"{known.conf['spark.jars.packages']},{CONNECTOR}"
    installation = replace(known, conf={**known.conf, "spark.jars.packages": jars})
    spark = start_session(installation, arguments.folder, "tuned")
    say(setup={"spark": spark.version, "syncs": {p.name: p.syncs for p in installation.peers}})
    value = "to_json(named_struct('user', concat('user', id % 1000), 'page', hex(id), 'n', id))"
    events = spark.range(arguments.rows).selectExpr("cast(id as string) key", f"{value} value")
    broker = {"kafka.bootstrap.servers": arguments.broker}
    events.write.format("kafka").options(**broker, topic="events").save()
    topic = spark.readStream.format("kafka").options(**broker, subscribe="events")
    topic = topic.option("startingOffsets", "earliest")
    df = topic.option("maxOffsetsPerTrigger", arguments.rows // BATCHES).load()
    df = df.select("key", "value", "partition", "offset", "timestamp")
    peers = [make(arguments.folder) for make in installation.peers]
    for number in range(-1, arguments.rounds):
        for peer in peers:
            peer.prepare(spark, "tuned")
            table = f"{peer.name}_{number + 1}"
            os.sync()  # What the one before has left unwritten must not burden this one.
            start, cpu = time.perf_counter(), cpu_seconds()
            peer.stream(df, table).trigger(availableNow=True).start().awaitTermination()
            found = {"seconds": time.perf_counter() - start, "cpu": cpu_seconds() - cpu}
            rows = peer.load(spark, table).count()
            if rows != arguments.rows:
                raise RuntimeError(f"{peer.name} holds {rows} events instead of {arguments.rows}")
            if number >= 0:
                say(peer=peer.name, found=found)
            for path in arguments.folder.glob(f"{table}*"):
                shutil.rmtree(path)
    spark.stop()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", required=True, help="host and port")
    parser.add_argument("--folder", type=Path, required=True, help="for tables")
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
