"""Segments of Arrow and of Parquet beside Spark's Parquet: bytes, append, reading in Python."""

import shutil
from pathlib import Path

import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession

import segstore_ds as segstore
from benchmarks.datasets import events_parquet, real_parquet
from benchmarks.report import Ratio, Report, machine
from benchmarks.session import describe, set_batch_sizing, spark_session
from benchmarks.workload import Candidate, Settings, Timing, Workload, folder_bytes, race

MEANING = "20 million events, a million flights, a year of weather: append by Spark, read in Python"
FORMATS = ("arrow", "parquet")
FLATTERS = (
    "flights are a year, three times over: nineteen narrow columns that dictionaries suit",
    "weather is so small that its times are mostly Spark's own",
    "against us: every segment is synced to disk before the commit, Parquet's files are not",
    "against us: row groups hold 65,536 rows, each column with checksums and statistics of its own",
    "against us: pyarrow.dataset checks no checksums",
)


def run(settings: Settings) -> Report:
    """Run both parts over both data sets."""
    conf = segstore.recommended_conf()
    counts = {"events": settings.rows}
    with settings.scratch() as scratch, spark_session(conf) as spark:
        set_batch_sizing(spark, tuned=True)
        folders = {"events": events_parquet(settings.datasets, settings.rows)}
        for name in ("flights", "weather"):
            folders[name] = scratch / name
            counts[name] = real_parquet(folders[name], name, max(settings.rows // 20, 1000))
        frames = {name: spark.read.parquet(str(folder)) for name, folder in folders.items()}
        setup = machine(settings.folder) | describe(spark, conf)
        setup |= {"data": str(counts), "rounds": settings.rounds_text}
        kept = scratch / "kept"
        writes = race(_writes(frames, counts, kept), settings, scratch)
        reads = race(_reads(list(frames), counts, kept, spark), settings, scratch)
    timings = {**writes, **reads}
    return Report(
        workload="segment_formats",
        meaning=MEANING,
        setup=setup,
        rows=[timing.row(name, counts[name.split()[0]]) for name, timing in timings.items()],
        ratios=[ratio for data in counts for ratio in _ratios(timings, data)],
        flatters=FLATTERS,
        raw={name: timing.seconds for name, timing in timings.items()},
    )


def _writes(
    frames: dict[str, DataFrame], counts: dict[str, int], kept: Path
) -> dict[str, Candidate]:
    def append(data: str, form: str) -> int:
        folder = _fresh(kept / data / form)
        writer = frames[data].write.format("segstore").option("segmentFormat", form)
        writer.mode("append").save(str(folder))
        assert segstore.open(folder).tail == counts[data]
        return folder_bytes(folder)

    def parquet(data: str) -> int:
        folder = _fresh(kept / data / "spark")
        frames[data].write.option("compression", "zstd").parquet(str(folder))
        return folder_bytes(folder)

    found: dict[str, Candidate] = {}
    for data in frames:
        for form in FORMATS:
            found[f"{data} append {form}"] = lambda _, d=data, f=form: append(d, f)
        found[f"{data} append Spark's Parquet zstd"] = lambda _, d=data: parquet(d)
    return found


def _fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    return folder


def _reads(
    names: list[str], counts: dict[str, int], kept: Path, spark: SparkSession
) -> dict[str, Candidate]:
    del spark  # still running, and idle

    def ours(data: str, form: str) -> None:
        reader = segstore.open(kept / data / form).read(read_cache_bytes=0)
        assert sum(batch.num_rows for batch in reader) == counts[data]

    def theirs(data: str) -> None:
        files = segstore.open(kept / data / "parquet").scan().files(partial=True)
        paths = [file.url[7:] for file in files]
        batches = ds.dataset(paths).to_batches() if paths else ()
        # A tiny run leaves nothing that is compacted.
        assert sum(batch.num_rows for batch in batches) in (counts[data], 0)

    found: dict[str, Candidate] = {}
    for data in names:
        for form in FORMATS:
            found[f"{data} read {form}"] = lambda _, d=data, f=form: ours(d, f)
        found[f"{data} read pyarrow.dataset"] = lambda _, d=data: theirs(d)
    return found


def _ratios(timings: dict[str, Timing], data: str) -> list[Ratio]:
    rival = timings[f"{data} append Spark's Parquet zstd"]
    dataset = timings[f"{data} read pyarrow.dataset"]
    ratios = []
    for form, goal in (("arrow", 1.4), ("parquet", 1.2)):
        ours = timings[f"{data} append {form}"]
        ratios.append(
            Ratio(
                f"{data}: throughput of append, {form} / Spark's Parquet zstd",
                rival.median / ours.median,
                goal,
            )
        )
        size = (ours.bytes or 0) / (rival.bytes or 1)
        most = 1.02 if form == "parquet" else None
        ratios.append(Ratio(f"{data}: bytes, {form} / Spark's Parquet zstd", size, most, most=True))
        ratios.append(
            Ratio(
                f"{data}: throughput of stream.read, {form} / pyarrow.dataset",
                dataset.median / timings[f"{data} read {form}"].median,
                0.9 if form == "parquet" else None,
            )
        )
    return ratios


WORKLOADS = {"segment_formats": Workload(MEANING, run, 20_000_000, 20_000)}
