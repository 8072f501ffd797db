"""Events of 100 bytes, one call each or ten in a batch, through a long-lived appender."""

import statistics
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

import segstore_ds as segstore
from benchmarks.report import Found, Ratio
from benchmarks.workload import Settings, cpu_timed, timed, workload

SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("text", pa.string())])
GOAL = 200_000
RULES: dict[str, dict[str, Any]] = {
    "no rules": {},
    "two NOT NULL": {"not_null": ["id", "text"]},
    "these and two checks": {
        "not_null": ["id", "text"],
        "checks": {"a": "id >= 0", "b": "at < 9e9"},
    },
}


@workload(
    "the events are made beforehand; one thread, one flush at the end, on local disk",
    "against us: CPython calls and checks every event by itself; a table of them goes 50x faster",
    rows=100_000,
    tiny_rows=500,
)
def appender_events(settings: Settings) -> Found:
    """Append events of 100 bytes, one call each, through appender(): events/s, bytes per write.

    Then ten a call, as batches, and how much of that it takes to copy them; and the CPU of an
    append of all as a table by rules for what comes in, beside one without.
    """
    texts = [f"{n:084d}" for n in range(1000)]
    given = [{"id": n, "at": n * 7, "text": texts[n % 1000]} for n in range(settings.rows)]
    rows = []
    with settings.scratch() as scratch:
        for turn in range(settings.rounds):
            stream = segstore.create(scratch / f"{turn}", SCHEMA)
            with stream.appender() as appender:
                taken = timed(lambda to=appender: [to.append(event) for event in given])
                seconds = taken + timed(appender.flush)
                counters = appender.counters
            assert stream.refresh().tail == settings.rows
            rows.append(
                {
                    "round": turn + 1,
                    "events/s": round(settings.rows / seconds),
                    "us/event": round(seconds / settings.rows * 1e6, 2),
                    "of that in append": round(taken / settings.rows * 1e6, 2),
                    "writes": counters.channel_writes,
                    "bytes/write": round(counters.bytes_per_write),
                }
            )
        rows.append(_batches(scratch, settings.rows))
        ratios = _rules(scratch, settings)
    rate = statistics.median(float(row["events/s"]) for row in rows[:-1])
    return Found(rows, [Ratio(f"events/s / {GOAL:,}", rate / GOAL, 1), *ratios])


def _batches(scratch: Path, rows: int) -> dict[str, Any]:
    """Append in batches of ten, whose memory the caller could fill again after each call.

    A copy takes 2.3 us of the 18 us of such a call and its flush. One of whole buffers takes 1.5,
    but has other rows of a slice; an IPC stream takes 1.1 and 1.4 to read, a look at the buffers 4.
    """
    table = pa.table([range(rows), range(rows), ["x" * 84] * rows], schema=SCHEMA)
    batches = [pa.concat_batches([batch]) for batch in table.to_batches(max_chunksize=10)]
    with segstore.create(scratch / "batches", SCHEMA).appender() as appender:
        seconds = timed(lambda: [appender.append(batch) for batch in batches])
        seconds += timed(appender.flush)
    copies = timed(lambda: all(pa.concat_batches([batch]).num_rows for batch in batches))
    return {
        "round": "batches of 10",
        "events/s": round(rows / seconds),
        "us/event": round(seconds / rows * 1e6, 2),
        "of that in copies": round(copies / rows * 1e6, 2),
    }


def _rules(scratch: Path, settings: Settings) -> list[Ratio]:
    """Compare the CPU of appends of a table by rules, the medians of interleaved ones."""
    rows = settings.rows
    table = pa.table([range(rows), range(rows), ["x" * 84] * rows], schema=SCHEMA)
    streams = {name: segstore.create(scratch / name, SCHEMA, upkeep=None) for name in RULES}
    for name, rules in RULES.items():
        streams[name].settings.update(rules=rules or None)
    spent: dict[str, list[float]] = {name: [] for name in RULES}
    for _ in range(5 * settings.rounds):
        for name, stream in streams.items():
            spent[name].append(cpu_timed(partial(stream.append, table)))
    medians = {name: statistics.median(times) for name, times in spent.items()}
    plain = medians.pop("no rules")
    return [Ratio(f"CPU of an append by {name}", cpu / plain) for name, cpu in medians.items()]
