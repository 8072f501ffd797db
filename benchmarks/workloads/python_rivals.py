"""Streams and tables without Spark: segstore beside what pip brings of its rivals, in one process.

`pip install pypaimon && pip install '.[rivals]'` brings them, into an environment of its own. In
this order: Paimon asks for an older pyarrow than ours, and works with ours.
"""

import statistics
import time
from typing import Any

import pyarrow as pa

from benchmarks.datasets import events
from benchmarks.report import Ratio, Report, machine
from benchmarks.rival_stores import Store, installed, versions
from benchmarks.workload import Settings, Workload, folder_bytes, quantile

MEANING = (
    "without Spark: one append of all events (rows), reading all and one column of five of them, "
    "300 appends of 10 events and reading those; beside delta-rs, pyiceberg, Lance and Paimon"
)
APPENDS, EVENTS_EACH, COLUMN = 300, 10, "value"
FLATTERS = (
    "whole libraries in one process, each with all its threads and its own defaults but for zstd",
    "Iceberg's catalog is a local SQLite file; a catalog service adds a round trip to each commit",
    "against us: every append of ours is synced to disk",
    "against us: every byte read is checked against a checksum",
    "one writer, local disk, warm page cache; a table of small appends has 300 commits at most",
)
Seconds = dict[str, list[float]]


def run(settings: Settings) -> Report:
    """Time the libraries in interleaved rounds, each on a folder of its own."""
    stores = installed()
    bulk = pa.Table.from_batches([events(0, settings.rows)])
    seconds: dict[str, Seconds] = {name: {} for name in stores}
    sizes: dict[str, dict[str, Any]] = {}
    for turn in range(0 if settings.tiny else -1, settings.rounds):
        for name, store in stores.items():
            with settings.scratch() as scratch:
                found: Seconds = {}
                sizes[name] = _bulk(store(scratch / "bulk"), bulk, found)
                sizes[name] |= _small(
                    store(scratch / "small"), 5 if settings.tiny else APPENDS, found
                )
            for what, times in found.items() if turn >= 0 else ():
                seconds[name].setdefault(what, []).extend(times)
    rows = [_row(name, seconds[name], sizes[name]) for name in stores]
    return Report(
        workload="python_rivals",
        meaning=MEANING,
        setup=machine(settings.folder)
        | {"libraries": versions(), "rounds": settings.rounds_text, "events": settings.rows},
        rows=rows,
        ratios=_ratios(rows),
        flatters=FLATTERS,
        raw=seconds,
    )


def _bulk(store: Store, data: pa.Table, found: Seconds) -> dict[str, Any]:
    store.create()
    found["bulk s"] = [_timed(lambda: store.append(data))]
    _read(store, data.num_rows, None, found.setdefault("scan s", []))
    _read(store, data.num_rows, COLUMN, found.setdefault("one column s", []))
    return {"bytes/row": round(folder_bytes(store.folder) / data.num_rows, 2)}


def _small(store: Store, count: int, found: Seconds) -> dict[str, Any]:
    store.create()
    batches = [pa.Table.from_batches([events(n * EVENTS_EACH, EVENTS_EACH)]) for n in range(count)]
    found["append s"] = [_timed(lambda data=data: store.append(data)) for data in batches]
    _read(store, count * EVENTS_EACH, None, found.setdefault("small scan s", []))
    files = sum(path.is_file() for path in store.folder.rglob("*"))
    return {"files": files, "small KiB": round(folder_bytes(store.folder) / 1024)}


def _read(store: Store, rows: int, column: str | None, times: list[float]) -> None:
    counts: list[int] = []
    times.append(_timed(lambda: counts.append(store.read(column))))
    assert counts == [rows], "a store that loses events is not timed"


def _timed(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _row(name: str, seconds: Seconds, sizes: dict[str, Any]) -> dict[str, Any]:
    def median(what: str) -> float:
        return statistics.median(seconds[what])

    return {
        "store": name,
        "bulk append s": round(median("bulk s"), 2),
        "bytes/row": sizes["bytes/row"],
        "scan s": round(median("scan s"), 3),
        "one column s": round(median("one column s"), 3),
        "append median ms": round(median("append s") * 1e3, 2),
        "append p99 ms": round(quantile(seconds["append s"], 0.99) * 1e3, 1),
        "files": sizes["files"],
        "small KiB": sizes["small KiB"],
        "small scan ms": round(median("small scan s") * 1e3, 1),
    }


def _ratios(rows: list[dict[str, Any]]) -> list[Ratio]:
    ours, *others = rows
    return [
        Ratio(f"{what}, times faster: segstore / {other['store']}", other[key] / ours[key])
        for key, what in (
            ("bulk append s", "bulk append"),
            ("scan s", "scan"),
            ("one column s", "one column"),
            ("append median ms", "small append"),
            ("small scan ms", "scan of small appends"),
        )
        for other in others
    ]


WORKLOADS = {"python_rivals": Workload(MEANING, run, 4_000_000, 20_000)}
