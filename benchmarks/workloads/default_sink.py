"""A streaming sink with all defaults: what its small batches take, and how late its table is."""

from pathlib import Path
from typing import Any

import segstore_ds as segstore
from benchmarks.datasets import EVENTS, events
from benchmarks.report import Found, Ratio
from benchmarks.session import QUICK_POLLS, describe, spark_session
from benchmarks.workload import Settings, workload

BATCH = 1_000
SAMPLE_S = 10


@workload(
    "batches come as fast as they are taken; a table of a slower stream may be ten minutes late",
    "the bytes are those that readers read: not the log, nor what upkeep still keeps",
    rows=300,
    tiny_rows=3,
)
def default_sink(settings: Settings) -> Found:
    """Batches of 1,000 events by Spark, compacted and published by themselves (rows: batches)."""
    with settings.scratch() as scratch, spark_session(QUICK_POLLS) as spark:
        source = segstore.create(scratch / "source", EVENTS)
        source.append(events(0, settings.rows * BATCH))
        once = _measure("one append", source.url)["bytes/event"]
        url = segstore.create(scratch / "sink", EVENTS).url
        segstore.open(url).publish("delta", auto=True)
        rows = spark.readStream.format("segstore").option("maxRowsPerTrigger", BATCH)
        writer = rows.load(source.url).writeStream.format("segstore").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(Path(scratch, "at"))).start(url)
        found = []
        while not query.awaitTermination(SAMPLE_S):
            found.append(_measure("while it runs", url))
        found.append(_measure("at the end", url))
        segstore.open(url).compact()
        found.append(_measure("after compact()", url))
        most = max(row["table's lag"] for row in found)
        ratios = [
            Ratio(
                "bytes: sink at the end / one append",
                found[-2]["bytes/event"] / once,
                1.6,
                most=True,
            ),
            Ratio(
                "bytes: after compact() / one append",
                found[-1]["bytes/event"] / once,
                1.1,
                most=True,
            ),
        ]
        setup = describe(spark) | {"one append, bytes/event": once, "largest lag": most}
    return Found(found, ratios, setup, {})


def _measure(case: str, url: str) -> dict[str, Any]:
    """Return the size of a stream's events, the share of them in Parquet, and its table's lag."""
    stream = segstore.open(url)
    info, segments = stream.info(), stream.segments().read_all().to_pylist()
    parquet = sum(row["rows"] for row in segments if row["format"] == "parquet")
    table = stream.published.get("delta")
    return {
        "case": case,
        "events": info["events"],
        "segments": info["segments"],
        "bytes/event": round(info["bytes"] / max(info["events"], 1), 2),
        "in Parquet": round(parquet / max(info["events"], 1), 2),
        "table's lag": table.lag if table else 0,
    }
