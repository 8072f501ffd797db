"""Lazy queries of Polars: over a stream, beside Polars' own scan of Parquet files of the events."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

import segstore_ds as segstore
from benchmarks.datasets import EVENTS, events
from benchmarks.report import Found
from benchmarks.workload import Candidate, Settings, race, workload

SEGMENTS = 8
# The share of its events that are in Arrow segments, whether the head is cut off, the goal.
CASES = {
    "Parquet": (0.0, False, 0.9),
    "Arrow": (1.0, False, None),
    "Parquet, a head within a segment, 2 % in Arrow": (0.02, True, None),
}


@workload(
    "warm page cache, local disk; elsewhere Polars reads no segment of a stream itself",
    "Polars reads Parquet segments without their checksums",
    "the scan is made anew for each query: it looks for the newest version, and the files' schema",
    rows=8_000_000,
    tiny_rows=20_000,
)
def lazy_scan(settings: Settings) -> Found:
    """Filter on a value, two columns of events in 8 segments; as a lazy frame of the stream.

    Beside pl.scan_parquet on the same Parquet files, or on files of the same events.
    """
    rows, ratios, raw = [], [], {}
    with settings.scratch() as scratch:
        for number, (case, (share, cut, goal)) in enumerate(CASES.items()):
            folder = scratch / str(number)
            stream = _fill(folder, settings.rows, share)
            if cut:
                stream.truncate(settings.rows // SEGMENTS // 2)
            lengths: set[int] = set()
            scans: dict[str, Callable[[], pl.LazyFrame]] = {
                "stream.scan": lambda stream=stream: stream.scan().to_polars(),
                "pl.scan_parquet": partial(pl.scan_parquet, _files(stream, folder)),
            }
            candidates = {name: _candidate(scan, lengths) for name, scan in scans.items()}
            found = race(candidates, settings, scratch)
            assert len(lengths) == 1, lengths
            rows += [{"case": case, **row} for row in found.rows()]
            ratios.append(found.faster("stream.scan", "pl.scan_parquet", goal, note=f", {case}"))
            raw[case] = found.raw
    return Found(rows, ratios, {"polars": pl.__version__}, raw)


def _candidate(scan: Callable[[], pl.LazyFrame], lengths: set[int]) -> Candidate:
    def candidate(_: Path) -> None:
        query = scan().filter(pl.col("value") > 110.0).select("id", "name")
        lengths.add(query.collect().height)

    return candidate


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
    files = stream.scan().files(partial=True)
    if sum(file.row_end - file.row_start for file in files) == sum(f.rows for f in files) > 0:
        return [file.url.removeprefix("file://") for file in files]
    made = []
    each = -(-(stream.tail - stream.head) // SEGMENTS)
    for start in range(stream.head, stream.tail, each):
        path = str(folder / f"{start}.parquet")
        table = pa.Table.from_batches(stream.read(start, min(start + each, stream.tail)))
        pq.write_table(table, path, compression="zstd", row_group_size=1 << 18)
        made.append(path)
    return made
