"""A topic of Kafka into a stream, beside the same into Delta Lake and Spark's Parquet sink."""

import json
import os
import statistics
import subprocess
from collections import defaultdict

from kafka_broker import CONNECTOR, KAFKA, running_broker

from benchmarks.kafka_works import BATCHES
from benchmarks.report import Ratio, Report, machine
from benchmarks.spark_peers import DELTA_JAR, INSTALLATIONS
from benchmarks.workload import Settings, Workload
from benchmarks.workloads.spark_rivals import python_with

MEANING = "a topic of Kafka through Spark into a stream, beside Delta Lake and the Parquet sink"
FLATTERS = (
    "against us: segstore syncs every segment, commit and folder to disk; the others sync nothing",
    "the broker runs on the same two cores; local disk, warm page cache",
)


def run(settings: Settings) -> Report:
    """Run one session whose queries read the topic in turn, each from its start."""
    rounds = 1 if settings.tiny else settings.rounds
    seconds, cpu = defaultdict(list), defaultdict(list)
    setup = machine(settings.folder) | {
        "rounds": settings.rounds_text,
        "events": f"{settings.rows} of about 75 bytes in 4 partitions, {BATCHES} batches",
        "kafka": f"{KAFKA.version}, {CONNECTOR}, {DELTA_JAR}",
    }
    python = python_with(settings.folder, INSTALLATIONS["delta"].pyspark)
    with settings.scratch() as scratch:
        (scratch / "broker").mkdir()
        with running_broker(scratch / "broker") as broker:
            command = [str(python), "-m", "benchmarks.kafka_works", "--broker", broker]
            command += ["--folder", str(scratch / "tables"), "--rows", str(settings.rows)]
            done = subprocess.run(
                [*command, "--rounds", str(rounds)],
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, "PYSPARK_PYTHON": str(python)},
            )
    if done.returncode:
        raise RuntimeError(f"the session failed:\n{done.stderr[-5000:]}")
    for text in done.stdout.splitlines():
        line = json.loads(text) if text.startswith("{") else {}
        setup |= {"session": line["setup"]} if "setup" in line else {}
        if "peer" in line:
            seconds[line["peer"]].append(line["found"]["seconds"])
            cpu[line["peer"]].append(line["found"]["cpu"])
    ours = seconds["segstore"]
    return Report(
        workload="kafka",
        meaning=MEANING,
        setup=setup,
        rows=[
            {
                "sink": peer,
                "seconds": round(statistics.median(taken), 2),
                "spread": f"{min(taken):.2f}-{max(taken):.2f}",
                "CPU s": round(statistics.median(cpu[peer]), 2),
                "events/s": round(settings.rows / statistics.median(taken)),
            }
            for peer, taken in seconds.items()
        ],
        ratios=[
            Ratio(
                f"rate: segstore / {peer}, both tuned",
                statistics.median(b / a for a, b in zip(ours, taken, strict=True)),
            )
            for peer, taken in seconds.items()
            if peer != "segstore"
        ],
        flatters=FLATTERS,
        raw={"seconds": dict(seconds), "cpu": dict(cpu)},
    )


WORKLOADS = {"kafka": Workload(MEANING, run, 2_000_000, 20_000)}
