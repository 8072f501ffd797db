"""One row of many columns: what a column costs an append and a read, as there are more of them."""

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

import segstore_ds as segstore
from benchmarks.report import Ratio, Report, machine
from benchmarks.workload import Settings, Workload

MEANING = "append one row and read it, with a quarter, half and all of so many columns (rows)"
SAMPLES = 5
FLATTERS = (
    "one row: the cost is that of the columns alone, and none of it is of values",
    "half of the columns are int64 and half are short texts; nested ones cost more",
)


def run(settings: Settings) -> Report:
    """Measure streams of three widths."""
    widths = [settings.rows // 4, settings.rows // 2, settings.rows]
    samples = 2 if settings.tiny else SAMPLES
    with settings.scratch() as scratch:
        rows = [_measure(scratch / str(width), width, samples) for width in widths]
    narrow, wide = rows[0], rows[-1]
    return Report(
        workload="wide_tables",
        meaning=MEANING,
        setup=machine(settings.folder) | {"samples": f"medians of {samples}"},
        rows=rows,
        ratios=[
            Ratio(f"{call} of 4 times the columns / 4", wide[call] / narrow[call] / 4)
            for call in ("append ms", "read ms")
        ],
        flatters=FLATTERS,
    )


def _measure(folder: Path, width: int, samples: int) -> dict[str, Any]:
    values = {
        f"c{place}": pa.array([place]) if place % 2 else pa.array([f"text {place}"])
        for place in range(width)
    }
    table = pa.table(values)
    stream = segstore.create(folder, table.schema)
    appends = [_timed_ms(partial(stream.append, table)) for _ in range(samples)]
    whole, narrow = stream.read, partial(stream.read, columns=["c1"])
    reads = [_timed_ms(lambda: whole(start=stream.tail - 1).read_all()) for _ in range(samples)]
    ones = [_timed_ms(lambda: narrow(start=stream.tail - 1).read_all()) for _ in range(samples)]
    return {
        "columns": width,
        "append ms": round(statistics.median(appends), 1),
        "read ms": round(statistics.median(reads), 1),
        "read of one column ms": round(statistics.median(ones), 1),
    }


def _timed_ms(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


WORKLOADS = {"wide_tables": Workload(MEANING, run, 10_000, 200)}
