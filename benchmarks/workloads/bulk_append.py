"""Bulk appends through Spark, beside Parquet and a sink that only drains."""

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession

import segstore_ds as segstore
from benchmarks.datasets import events_parquet, real_parquet
from benchmarks.empty_source import EmptySource
from benchmarks.report import Found, Ratio
from benchmarks.session import describe, set_batch_sizing, spark_session
from benchmarks.workload import Candidate, Race, Settings, folder_bytes, race, workload

TUNED, LARGE, ARROW = "segstore tuned", "segstore tuned, 65,536 rows a batch", "segstore, Arrow"
INSTALLED, ZSTD, SNAPPY = "segstore as installed", "parquet zstd", "parquet snappy"
DRAIN, DRAIN_INSTALLED = "drain tuned", "drain as installed"
FORMATS = {"arrow": 1.4, "parquet": 1.2}  # and how many times as fast as Parquet each shall be
SYNCED = "against us: every segment is synced to disk before the commit, Parquet's files are not"


@workload(
    "the five columns are narrow and of types that Arrow and Spark lay out alike; wide, nested "
    "rows cost more to hand to Python",
    "one write of many rows: the fixed cost of a Python task (20 to 50 ms) does not show",
    "bytes: the data are ours; each column gets the encoding that suits its first rows",
    SYNCED,
    "against us: frames carry checksums and statistics of all columns; drain keeps nothing",
    rows=20_000_000,
    tiny_rows=20_000,
)
def bulk_append(settings: Settings) -> Found:
    """Append events (long, int, double, string, timestamp) read from Parquet, through Spark."""
    source = events_parquet(settings.datasets, settings.rows)
    with settings.scratch() as scratch, spark_session() as spark:
        spark.dataSource.register(EmptySource)
        df = spark.read.parquet(str(source))
        setup = describe(spark) | {
            "data": f"{folder_bytes(source):,} bytes, {df.rdd.getNumPartitions()} partitions"
        }
        found = race(_candidates(spark, df, settings.rows), settings, scratch)
    return Found(found.rows(settings.rows), _ratios(found), setup, found.raw)


def _candidates(spark: SparkSession, df: DataFrame, rows: int) -> dict[str, Candidate]:
    def append(folder: Path, *, tuned: bool = True, form: str = "auto", batch: int = 10_000) -> int:
        set_batch_sizing(spark, tuned=tuned, rows=batch)
        return _append(df, folder, form, rows)

    def drained(_: Path, *, tuned: bool) -> None:
        set_batch_sizing(spark, tuned=tuned)
        df.write.format("empty").mode("append").save()

    return {
        TUNED: append,
        LARGE: partial(append, batch=65_536),
        ARROW: partial(append, form="arrow"),
        ZSTD: lambda folder: _parquet(df, folder),
        DRAIN: partial(drained, tuned=True),
        SNAPPY: lambda folder: _parquet(df, folder, "snappy"),
        INSTALLED: partial(append, tuned=False),
        DRAIN_INSTALLED: partial(drained, tuned=False),
    }


def _append(df: DataFrame, folder: Path, form: str, rows: int) -> int:
    writer = df.write.format("segstore").option("segmentFormat", form)
    writer.mode("append").save(str(folder))
    assert segstore.open(folder).tail == rows
    return folder_bytes(folder)


def _parquet(df: DataFrame, folder: Path, compression: str = "zstd") -> int:
    df.write.option("compression", compression).parquet(str(folder))
    return folder_bytes(folder)


def _ratios(found: Race) -> list[Ratio]:
    return [
        found.faster(TUNED, ZSTD, 1.2),
        found.faster(ARROW, ZSTD, 1.4, note=" (aim 1.5)"),
        found.faster(TUNED, DRAIN, 0.72),
        found.faster(LARGE, ZSTD, 1.45),
        found.faster(TUNED, SNAPPY),
        found.faster(INSTALLED, ZSTD),
        found.faster(INSTALLED, DRAIN_INSTALLED),
        *(
            Ratio(f"per CPU second: {TUNED} / {rival}", found[rival].cpu / found[TUNED].cpu)
            for rival in (ZSTD, DRAIN)
        ),
        Ratio("bytes: segstore / parquet zstd", _share(found, TUNED, ZSTD)),
    ]


def _share(found: Race, ours: str, rival: str) -> float:
    return (found[ours].bytes or 0) / (found[rival].bytes or 1)


@workload(
    "flights are a year, three times over: nineteen narrow columns that dictionaries suit",
    "weather is so small that its times are mostly Spark's own",
    SYNCED,
    "against us: a row group holds 262,144 rows, its columns have checksums and statistics",
    "against us: pyarrow.dataset checks no checksums",
    rows=20_000_000,
    tiny_rows=20_000,
)
def segment_formats(settings: Settings) -> Found:
    """Append events, a million flights and a year of weather by Spark, and read them in Python.

    Each as Arrow and as Parquet segments, beside Spark's Parquet and `pyarrow.dataset`.
    """
    rows: list[dict[str, Any]] = []
    ratios: list[Ratio] = []
    raw: dict[str, list[float]] = {}
    with settings.scratch() as scratch, spark_session() as spark:
        set_batch_sizing(spark, tuned=True)
        sources = {"events": events_parquet(settings.datasets, settings.rows)}
        for data in ("events", "flights", "weather"):
            count = settings.rows
            if data != "events":
                sources[data] = scratch / data
                count = real_parquet(sources[data], data, max(settings.rows // 20, 1000))
            df = spark.read.parquet(str(sources[data]))
            found = _race_formats(settings, scratch, data, df, count)
            rows += [{"data": data, **row} for row in found.rows(count)]
            raw |= {f"{data} {name}": seconds for name, seconds in found.raw.items()}
            for form, goal in FORMATS.items():
                own = goal == FORMATS["parquet"]
                ratios += [
                    found.faster(form, ZSTD, goal, note=f", {data}"),
                    Ratio(
                        f"bytes: {form} / {ZSTD}, {data}",
                        _share(found, form, ZSTD),
                        1.02 if own else None,
                        most=True,
                    ),
                    found.faster(
                        f"read {form}",
                        "read pyarrow.dataset",
                        0.9 if own else None,
                        note=f", {data}",
                    ),
                ]
        return Found(rows, ratios, describe(spark), raw)


def _race_formats(settings: Settings, scratch: Path, data: str, df: DataFrame, count: int) -> Race:
    writes: dict[str, Candidate] = {
        form: partial(lambda folder, form: _append(df, folder, form, count), form=form)
        for form in FORMATS
    }
    found = race({**writes, ZSTD: lambda folder: _parquet(df, folder)}, settings, scratch)
    kept = {form: scratch / f"{data}-{form}" for form in FORMATS}
    for form, folder in kept.items():
        _append(df, folder, form, count)

    def ours(_: Path, form: str) -> None:
        reader = segstore.open(kept[form]).read(read_cache_bytes=0)
        assert sum(batch.num_rows for batch in reader) == count

    def theirs(_: Path) -> None:
        files = segstore.open(kept["parquet"]).scan().files(partial=True)
        batches = ds.dataset([file.url[7:] for file in files]).to_batches() if files else ()
        # A tiny run leaves nothing that is compacted.
        assert sum(batch.num_rows for batch in batches) in (count, 0)

    reads: dict[str, Candidate] = {f"read {form}": partial(ours, form=form) for form in FORMATS}
    return Race(found | race({**reads, "read pyarrow.dataset": theirs}, settings, scratch))
