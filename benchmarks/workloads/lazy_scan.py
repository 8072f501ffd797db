"""Lazy queries over a stream, on disk and on S3, beside the engines' own scans of its files."""

import datetime as dt
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from object_servers import MINIO, running
from pyarrow import dataset, fs

import segstore_ds as segstore
from benchmarks.datasets import EVENTS, START_US, events
from benchmarks.relay import Relay, relay
from benchmarks.report import Found
from benchmarks.workload import Candidate, Settings, race, workload
from segstore_ds.stream import polars_scan

SEGMENTS = 8
DELAY_S = 0.02
# Columns, an expression of Polars and the same of Arrow.
Query = tuple[list[str], pl.Expr | None, pc.Expression | None]
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
                "stream.scan, all checked": partial(_checked, stream),
                "pl.scan_parquet": partial(pl.scan_parquet, _files(stream, folder)),
            }
            candidates = {
                name: _noted(partial(_ask, scan), lengths) for name, scan in scans.items()
            }
            found = race(candidates, settings, scratch)
            assert len(lengths) == 1, lengths
            rows += [{"case": case, **row} for row in found.rows()]
            ratios.append(found.faster("stream.scan", "pl.scan_parquet", goal, note=f", {case}"))
            ratios.append(
                found.faster("stream.scan, all checked", "pl.scan_parquet", note=f", {case}")
            )
            raw[case] = found.raw
    return Found(rows, ratios, {"polars": pl.__version__}, raw)


def _checked(stream: segstore.Stream) -> pl.LazyFrame:
    """Return a lazy frame of which Polars reads no file by itself, as where the disk is far."""
    with mock.patch.object(polars_scan, "_native_runs", return_value=[]):
        return stream.scan().to_polars()


def _noted(query: Callable[[], int], lengths: set[int]) -> Candidate:
    """Return a candidate that notes how many events its query found."""

    def candidate(_: Path) -> None:
        lengths.add(query())

    return candidate


def _append_segments(stream: segstore.Stream, count: int, form: str = "parquet") -> None:
    """Append events in so many segments of a format."""
    layout, each = segstore.Layout(inline_bytes=0, segment_format=form), count // SEGMENTS
    for number in range(SEGMENTS):
        stream.append(events(number * each, each), layout=layout)


def _ask(scan: Callable[[], pl.LazyFrame]) -> int:
    return scan().filter(pl.col("value") > 110.0).select("id", "name").collect().height


def _fill(folder: Path, count: int, share: float) -> segstore.Stream:
    stream = segstore.create(folder / "s", EVENTS, upkeep=None)
    _append_segments(stream, count, "arrow" if share == 1 else "parquet")
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


@workload(
    "the server is on the same machine, and shares its cores with all candidates",
    "a relay holds each request for 20 ms where it is far; bytes take no time of their own",
    "against us: rivals check no byte and are given the names; ours looks for the newest version",
    rows=4_000_000,
    tiny_rows=20_000,
)
def lazy_scan_s3(settings: Settings) -> Found:
    """Lazy queries of events in 8 Parquet segments on S3, beside the same on the bare files.

    Two columns by a value, two by a hundredth of the time, and all; of Polars and of Arrow.
    """
    rows, ratios, raw = [], [], {}
    with settings.scratch() as scratch, running(MINIO, scratch) as server:
        url = f"{server.new_bucket()}/s"
        made = segstore.create(url, EVENTS, upkeep=None, storage_options=dict(server.options))
        _append_segments(made, settings.rows)
        with relay(server.endpoint) as between:
            options = server.behind(between.endpoint).options
            stream = segstore.open(url, storage_options=options)
            for query, asked in _queries(settings.rows).items():
                lengths: set[int] = set()
                candidates = _candidates_on_s3(stream, options, asked, lengths)
                for place, between.delay_s.value in {"near": 0.0, "far": DELAY_S}.items():
                    found = race(candidates, settings, scratch)
                    assert len(lengths) == 1, lengths
                    for name, row in zip(candidates, found.rows(), strict=True):
                        counts = _counted(between, candidates[name], scratch)
                        rows.append({"store": place, "query": query, **row, **counts})
                    for door, rival in (("polars", "pl.scan_parquet"), ("arrow", "dataset")):
                        note = f", {query}, {place}"
                        ratios.append(found.faster(f"stream: {door}", rival, 0.9, note=note))
                    raw[f"{query}, {place}"] = found.raw
    return Found(rows, ratios, {"polars": pl.__version__, "server": MINIO.version}, raw)


def _queries(count: int) -> dict[str, Query]:
    first = dt.datetime.fromtimestamp(START_US / 1e6 + count / 2000, dt.UTC)
    last = first + dt.timedelta(milliseconds=count // 100)
    at, value = pc.field("at"), pc.field("value")
    within = pl.col("at").is_between(first, last)
    return {
        "by value": (["id", "name"], pl.col("value") > 110.0, value > 110.0),
        "by time": (["id", "value"], within, (at >= first) & (at <= last)),
        "all": (EVENTS.names, None, None),
    }


def _candidates_on_s3(
    stream: segstore.Stream, options: Mapping[str, Any], asked: Query, lengths: set[int]
) -> dict[str, Candidate]:
    """Return the query on the stream and on the bare files, by Polars and by Arrow."""
    columns, predicate, expression = asked
    files = [file.url for file in stream.scan().files()]
    theirs = {
        "aws_endpoint_url": options["endpoint_url"],
        "aws_access_key_id": options["key"],
        "aws_secret_access_key": options["secret"],
        "aws_region": "us-east-1",
        "aws_allow_http": "true",
    }
    store = fs.S3FileSystem(
        access_key=options["key"],
        secret_key=options["secret"],
        endpoint_override=options["endpoint_url"].removeprefix("http://"),
        scheme="http",
        region="us-east-1",
    )
    paths = [file.removeprefix("s3://") for file in files]

    def in_polars(frame: pl.LazyFrame) -> int:
        kept = frame if predicate is None else frame.filter(predicate)
        return kept.select(columns).collect().height

    def in_arrow(data: dataset.Dataset) -> int:
        return int(data.to_table(columns, filter=expression).num_rows)

    found: dict[str, Callable[[], int]] = {
        "stream: polars": lambda: in_polars(stream.scan(read_cache_bytes=0).to_polars()),
        "pl.scan_parquet": lambda: in_polars(pl.scan_parquet(files, storage_options=theirs)),
        "stream: arrow": lambda: in_arrow(stream.scan(read_cache_bytes=0).to_dataset()),
        "dataset": lambda: in_arrow(dataset.dataset(paths, filesystem=store)),
        "stream: polars, read cache": lambda: in_polars(stream.scan().to_polars()),
    }
    return {name: _noted(query, lengths) for name, query in found.items()}


def _counted(between: Relay, candidate: Candidate, scratch: Path) -> dict[str, Any]:
    between.take_counts()
    candidate(scratch)
    counts = between.take_counts()
    return {"requests": counts.total, "MiB": round(counts.answered / 2**20, 1)}
