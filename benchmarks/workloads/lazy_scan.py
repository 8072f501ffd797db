"""Lazy queries of Polars: over a stream, beside Polars' own scan of Parquet files of the events."""

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

import segstore_ds as segstore
from benchmarks.datasets import EVENTS, events
from benchmarks.report import Ratio, Report, machine
from benchmarks.workload import Settings, Workload

MEANING = (
    "events (rows) in 8 segments: a filter on value, two columns; as a lazy frame of the stream, "
    "beside pl.scan_parquet on the same Parquet files, or on files of the same events"
)
SEGMENTS = 8
# Whether the files are the stream's, the share of its events that are in Arrow segments, the goal.
CASES = {
    "Parquet": (0.0, False, 0.9),
    "Parquet, a head within a segment, 2 % in Arrow": (0.02, True, None),
    "Arrow": (1.0, False, None),
}
FLATTERS = (
    "warm page cache, local disk; elsewhere Polars reads no segment of a stream itself",
    "Polars reads Parquet segments without their checksums",
    "the scan is made anew for each query: it looks for the newest version, and the files' schema",
)
Scan = Callable[[], pl.LazyFrame]


def run(settings: Settings) -> Report:
    """Fill a stream per case, and time the same query on both, in turn."""
    rows: list[dict[str, Any]] = []
    ratios: list[Ratio] = []
    raw: dict[str, Any] = {}
    with settings.scratch() as scratch:
        for number, (case, (share, cut, goal)) in enumerate(CASES.items()):
            folder = scratch / str(number)
            folder.mkdir()
            stream = _fill(folder, settings.rows, share)
            if cut:
                stream.truncate(settings.rows // SEGMENTS // 2)
            files = _files(stream, folder)
            scans: dict[str, Scan] = {
                "stream.scan": stream.scan,
                "pl.scan_parquet": partial(pl.scan_parquet, files),
            }
            seconds = _measure(scans, settings)
            raw[case] = seconds
            medians = {name: statistics.median(times) for name, times in seconds.items()}
            rows += [
                {
                    "case": case,
                    "scan": name,
                    "seconds": round(medians[name], 3),
                    "spread": f"{min(times):.3f}-{max(times):.3f}",
                }
                for name, times in seconds.items()
            ]
            speed = medians["pl.scan_parquet"] / medians["stream.scan"]
            ratios.append(Ratio(f"{case}: speed, of pl.scan_parquet's", speed, goal))
    return Report(
        workload="lazy_scan",
        meaning=MEANING,
        setup=machine(settings.folder)
        | {"polars": pl.__version__, "rounds": settings.rounds_text, "events": settings.rows},
        rows=rows,
        ratios=ratios,
        flatters=FLATTERS,
        raw=raw,
    )


def _fill(folder: Path, count: int, share: float) -> segstore.Stream:
    stream = segstore.create(folder / "s", EVENTS, upkeep=None)
    each, arrow = count // SEGMENTS, int(count * share)
    plain = segstore.Layout(inline_bytes=0, segment_format="arrow")
    form = plain if share == 1 else segstore.Layout(inline_bytes=0, segment_format="parquet")
    for number in range(SEGMENTS):
        stream.append(events(number * each, each), layout=form)
    if share < 1 and arrow:
        stream.append(events(SEGMENTS * each, arrow), layout=plain)
    return stream


def _files(stream: segstore.Stream, folder: Path) -> list[str]:
    """Return the stream's Parquet files if they hold its events exactly, or files of those."""
    files = stream.parquet_files(partial=True)
    if sum(file.row_end - file.row_start for file in files) == sum(f.rows for f in files) > 0:
        return [file.url.removeprefix("file://") for file in files]
    made = []
    each = -(-(stream.tail - stream.head) // SEGMENTS)
    for start in range(stream.head, stream.tail, each):
        path = folder / f"{start}.parquet"
        table = pa.Table.from_batches(stream.read(start, min(start + each, stream.tail)))
        pq.write_table(table, path, compression="zstd", row_group_size=1 << 18)
        made.append(str(path))
    return made


def _measure(scans: dict[str, Scan], settings: Settings) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in scans}
    found: dict[str, int] = {}
    for turn in range(0 if settings.tiny else -1, settings.rounds):
        for name, scan in scans.items():
            start = time.perf_counter()
            query = scan().filter(pl.col("value") > 110.0).select("id", "name")
            found[name] = query.collect().height
            if turn >= 0:
                seconds[name].append(time.perf_counter() - start)
    assert len({*found.values()}) == 1, found
    return seconds


WORKLOADS = {"lazy_scan": Workload(MEANING, run, 8_000_000, 20_000)}
