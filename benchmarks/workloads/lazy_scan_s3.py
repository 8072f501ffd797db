"""Lazy queries over a stream on S3, by Polars and by Arrow, beside their own scans of its files."""

import datetime as dt
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.compute as pc
from object_servers import MINIO, running
from pyarrow import dataset, fs
from relay import Relay, relay

import segstore_ds as segstore
from benchmarks.datasets import EVENTS, START_US
from benchmarks.report import Found
from benchmarks.workload import Candidate, Settings, race, workload
from benchmarks.workloads.lazy_scan import fill, noted

DELAY_S = 0.02
# Columns, an expression of Polars and the same of Arrow.
Query = tuple[list[str], pl.Expr | None, pc.Expression | None]


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
        fill(made, settings.rows)
        with relay(server.endpoint) as between:
            options = server.behind(between.endpoint).options
            stream = segstore.open(url, storage_options=options)
            for query, asked in _queries(settings.rows).items():
                lengths: set[int] = set()
                candidates = _candidates(stream, options, asked, lengths)
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


def _candidates(
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
    return {name: noted(query, lengths) for name, query in found.items()}


def _counted(between: Relay, candidate: Candidate, scratch: Path) -> dict[str, Any]:
    between.take_counts()
    candidate(scratch)
    requests, answered = between.take_counts()
    return {"requests": requests, "MiB": round(answered / 2**20, 1)}
