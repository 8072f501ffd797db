"""What the merges that follow commits cost their writer: CPU and time of each append."""

import statistics
import time
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import segstore_ds as segstore
from benchmarks.datasets import real_parquet
from benchmarks.report import Ratio, Report, machine
from benchmarks.workload import Settings, Workload

MEANING = "appends of 50,000 flights with compact='auto': CPU with and without a merge afterwards"
FORMATS = ("auto", "arrow")
FLIGHTS = 336_776
FLATTERS = (
    "one process appends, and nothing else changes the stream",
    "against us: flights are wide, nineteen columns, five of them texts",
    "CPU is that of the process with all of its threads; seconds include the syncs",
)


def run(settings: Settings) -> Report:
    """Append the same flights in each format, and tell appends with a merge from those without."""
    each = 2_000 if settings.tiny else 50_000
    with settings.scratch() as scratch:
        real_parquet(scratch / "flights", "flights", FLIGHTS)
        flights = pq.read_table(scratch / "flights")
        pieces = [flights.slice(at, each) for at in range(0, FLIGHTS - each, each)]
        found = {}
        for form in FORMATS:
            stream = segstore.create(scratch / form, flights.schema, upkeep=None)
            found[form] = _append(stream, form, pieces, settings.rows)
            stream.verify().check()
    rows = [_row(form, measured) for form, measured in found.items()]
    return Report(
        workload="auto_merges",
        meaning=MEANING,
        setup=machine(settings.folder) | {"appends": f"{settings.rows} of {each:,} flights"},
        rows=rows,
        ratios=[
            Ratio(f"ms of CPU, {what}: auto / arrow", rows[0][what] / rows[1][what])
            for what in ("append", "merge median", "of all, an append")
        ],
        flatters=FLATTERS,
    )


def _append(
    stream: segstore.Stream, form: str, pieces: list[pa.Table], count: int
) -> list[tuple[int, float, float]]:
    """Return for each append its commits (two where it merged), ms of CPU, and ms."""
    layout, found = segstore.Layout(segment_format=form), []
    for n in range(count):
        version, start, cpu = stream.version, time.perf_counter(), time.process_time()
        stream.append(pieces[n % len(pieces)], layout=layout, compact="auto")
        took = time.process_time() - cpu, time.perf_counter() - start
        found.append((stream.version - version, took[0] * 1e3, took[1] * 1e3))
    return found


def _row(form: str, measured: list[tuple[int, float, float]]) -> dict[str, Any]:
    plain = [cpu for commits, cpu, _ in measured if commits == 1]
    usual = statistics.median(plain)
    merges = [cpu - usual for commits, cpu, _ in measured if commits > 1]
    return {
        "CPU ms": form,
        "append": round(usual, 1),
        "merges": len(merges),
        "merge median": round(statistics.median(merges), 1),
        "merge most": round(max(merges), 1),
        "of all, an append": round(statistics.fmean(cpu for _, cpu, _ in measured), 1),
        "slowest append ms": round(max(took for *_, took in measured), 1),
    }


WORKLOADS = {"auto_merges": Workload(MEANING, run, 200, 30)}
