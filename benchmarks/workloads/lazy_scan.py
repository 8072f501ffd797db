"""Lazy queries of Polars: over a stream, beside Polars' own scan of Parquet files of the events."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import fsspec
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from object_servers import MINIO, running

import segstore_ds as segstore
from benchmarks.datasets import EVENTS, events
from benchmarks.places import Place
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
S3_MEANING = "the queries of lazy_scan on a real S3 server, and one that finds 1,000 of the events"
S3_CASES = {"Parquet": (0.0, False, 0.9), "Arrow": (1.0, False, None)}
FLATTERS = (
    "warm page cache, local disk; elsewhere Polars reads no segment of a stream itself",
    "Polars reads Parquet segments without their checksums",
    "the scan is made anew for each query: it looks for the newest version, and the files' schema",
)
S3_FLATTERS = (
    "against us: Polars is handed the list of files, the stream has to be asked for it",
    "against us: segstore checks every byte that it reads, Polars none",
    "the server shares the cores of this machine, on the loopback address",
)
Scan = Callable[[], pl.LazyFrame]
Cases = Mapping[str, tuple[float, bool, float | None]]
QUERIES = {
    "two columns": lambda events: pl.col("value") > 110.0,  # noqa: ARG005 - of any size
    "1,000 events": lambda events: pl.col("id").is_between(events // 2, events // 2 + 999),
}


def run(settings: Settings) -> Report:
    """Time the query on local disk."""
    with settings.scratch() as scratch:
        place = Place("local disk", str(scratch))
        return _report("lazy_scan", MEANING, settings, place, CASES, ["two columns"], FLATTERS)


def run_s3(settings: Settings) -> Report:
    """Time the queries on a real S3 server."""
    with settings.scratch() as scratch, running(MINIO, scratch) as server:
        place = Place(f"{MINIO.name} {MINIO.version}", server.new_bucket(), server.options)
        queries = [*QUERIES]
        return _report("lazy_scan_s3", S3_MEANING, settings, place, S3_CASES, queries, S3_FLATTERS)


def _report(  # noqa: PLR0917 - one call for each place
    name: str,
    meaning: str,
    settings: Settings,
    place: Place,
    cases: Cases,
    queries: Sequence[str],
    flatters: tuple[str, ...],
) -> Report:
    """Fill a stream per case, and time the same queries on both, in turn."""
    rows: list[dict[str, Any]] = []
    ratios: list[Ratio] = []
    raw: dict[str, Any] = {}
    for number, (case, (share, cut, goal)) in enumerate(cases.items()):
        url = f"{place.url}/{number}"
        stream = _fill(url, place, settings.rows, share)
        if cut:
            stream.truncate(settings.rows // SEGMENTS // 2)
        files = _files(stream, url, place)
        scans: dict[str, Scan] = {
            "stream.scan": stream.scan,
            "pl.scan_parquet": partial(
                pl.scan_parquet, files, storage_options=_polars_options(place)
            ),
        }
        for query in queries:
            seconds = _measure(scans, QUERIES[query](settings.rows), settings)
            raw[f"{case}, {query}"] = seconds
            medians = {name: statistics.median(times) for name, times in seconds.items()}
            rows += [
                {
                    "case": case,
                    "query": query,
                    "scan": name,
                    "seconds": round(medians[name], 3),
                    "spread": f"{min(times):.3f}-{max(times):.3f}",
                }
                for name, times in seconds.items()
            ]
            speed = medians["pl.scan_parquet"] / medians["stream.scan"]
            ratios.append(Ratio(f"{case}, {query}: speed, of pl.scan_parquet's", speed, goal))
    return Report(
        workload=name,
        meaning=meaning,
        setup=machine(settings.folder)
        | {
            "polars": pl.__version__,
            "place": place.name,
            "rounds": settings.rounds_text,
            "events": settings.rows,
        },
        rows=rows,
        ratios=ratios,
        flatters=flatters,
        raw=raw,
    )


def _polars_options(place: Place) -> dict[str, str] | None:
    if not place.is_s3:
        return None
    return {
        "aws_endpoint_url": place.options["endpoint_url"],
        "aws_access_key_id": place.options["key"],
        "aws_secret_access_key": place.options["secret"],
        "aws_region": "us-east-1",
        "aws_allow_http": "true",
    }


def _fill(url: str, place: Place, count: int, share: float) -> segstore.Stream:
    stream = segstore.create(
        f"{url}/s", EVENTS, upkeep=None, storage_options=dict(place.options) or None
    )
    each, arrow = count // SEGMENTS, int(count * share)
    plain = segstore.Layout(inline_bytes=0, segment_format="arrow")
    form = plain if share == 1 else segstore.Layout(inline_bytes=0, segment_format="parquet")
    for number in range(SEGMENTS):
        stream.append(events(number * each, each), layout=form)
    if share < 1 and arrow:
        stream.append(events(SEGMENTS * each, arrow), layout=plain)
    return stream


def _files(stream: segstore.Stream, url: str, place: Place) -> list[str]:
    """Return the stream's Parquet files if they hold its events exactly, or files of those."""
    files = stream.scan().files(partial=True)
    if sum(file.row_end - file.row_start for file in files) == sum(f.rows for f in files) > 0:
        return [file.url.removeprefix("file://") for file in files]
    made = []
    each = -(-(stream.tail - stream.head) // SEGMENTS)
    for start in range(stream.head, stream.tail, each):
        path = f"{url}/{start}.parquet"
        table = pa.Table.from_batches(stream.read(start, min(start + each, stream.tail)))
        with fsspec.open(path, "wb", **place.options) as file:
            pq.write_table(table, file, compression="zstd", row_group_size=1 << 18)
        made.append(path)
    return made


def _measure(
    scans: dict[str, Scan], predicate: pl.Expr, settings: Settings
) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in scans}
    found: dict[str, int] = {}
    for turn in range(0 if settings.tiny else -1, settings.rounds):
        for name, scan in scans.items():
            start = time.perf_counter()
            query = scan().filter(predicate).select("id", "name")
            found[name] = query.collect().height
            if turn >= 0:
                seconds[name].append(time.perf_counter() - start)
    assert len({*found.values()}) == 1, found
    return seconds


WORKLOADS = {
    "lazy_scan": Workload(MEANING, run, 8_000_000, 20_000),
    "lazy_scan_s3": Workload(S3_MEANING, run_s3, 8_000_000, 20_000),
}
