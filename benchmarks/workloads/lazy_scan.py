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
            candidates = {name: noted(partial(_ask, scan), lengths) for name, scan in scans.items()}
            found = race(candidates, settings, scratch)
            assert len(lengths) == 1, lengths
            rows += [{"case": case, **row} for row in found.rows()]
            ratios.append(found.faster("stream.scan", "pl.scan_parquet", goal, note=f", {case}"))
            raw[case] = found.raw
    return Found(rows, ratios, {"polars": pl.__version__}, raw)


def noted(query: Callable[[], int], lengths: set[int]) -> Candidate:
    """Return a candidate that notes how many events its query found."""

    def candidate(_: Path) -> None:
        lengths.add(query())

    return candidate


def fill(stream: segstore.Stream, count: int, form: str = "parquet") -> None:
    """Append events in so many segments of a format."""
    layout, each = segstore.Layout(inline_bytes=0, segment_format=form), count // SEGMENTS
    for number in range(SEGMENTS):
        stream.append(events(number * each, each), layout=layout)


def _ask(scan: Callable[[], pl.LazyFrame]) -> int:
    return scan().filter(pl.col("value") > 110.0).select("id", "name").collect().height


def _fill(folder: Path, count: int, share: float) -> segstore.Stream:
    stream = segstore.create(folder / "s", EVENTS, upkeep=None)
    fill(stream, count, "arrow" if share == 1 else "parquet")
    if 0 < share < 1:
        plain = segstore.Layout(inline_bytes=0, segment_format="arrow")
        stream.append(events(stream.tail, int(count * share)), layout=plain)
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
