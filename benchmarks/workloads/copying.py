"""Copies of streams: on one disk, between two stores, by events; beside plain copies."""

import asyncio
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
from object_servers import MINIO, running

import segstore_ds as segstore
from benchmarks.datasets import EVENTS, events, events_parquet
from benchmarks.report import Found, Ratio
from benchmarks.session import describe, spark_session
from benchmarks.workload import (
    Candidate,
    Race,
    Settings,
    Timing,
    folder_bytes,
    race,
    timed,
    workload,
)
from segstore_ds.storage import open_storage

SEGMENTS = 50
OURS, ZSTD, ONE_PROCESS = "segstore", "parquet zstd", "one process"
DELAY_S, BYTES_PER_S = 0.03, 50e6
PART = 8 << 20
SEGMENT = 256 << 20
THREADS = 10  # as many as `aws s3 cp` has
COLUMNS = 8
FRAME_ROWS = 16_384  # a frame of 1 MiB
SAMPLE_S = 0.01


@workload(
    "against us: each copy is read back and every CRC-32 checked, the files' copies check nothing",
    "for us: segstore copies four segments at a time, `cp` one file",
    "all copy within the kernel; reflinks are used by segstore only, on filesystems that have them",
    "`cp synced` syncs each file, as a copy of segstore does; `cp` leaves it to the system",
    rows=10_000_000,
    tiny_rows=5_000,
)
def copy_segments(settings: Settings) -> Found:
    """Copy a stream of 50 segments on one disk, beside copying the same files."""
    each = max(settings.rows // SEGMENTS, 1)
    with settings.scratch() as scratch:
        stream, origin = segstore.create(scratch / "stream", EVENTS), scratch / "stream"
        for n in range(SEGMENTS):
            stream.append(events(n * each, each), layout=segstore.Layout(inline_bytes=0))

        def copy(to: Path) -> int:
            stream.copy_to(to, copy_id="bench")
            assert segstore.open(to).tail == stream.tail
            return folder_bytes(to)

        candidates: dict[str, Candidate] = {
            OURS: copy,
            "cp synced": partial(copy_files, origin),
            "cp": partial(copy_files, origin, synced=False),
        }
        found = race(candidates, settings, scratch)
    ratios = [found.faster(OURS, "cp synced", 0.9), found.faster(OURS, "cp")]
    return Found(found.rows(settings.rows), ratios, raw=found.raw)


def copy_files(folder: Path, target: Path, *, synced: bool = True) -> None:
    """Copy the files of a stream's segments."""
    for path in sorted(path for path in (folder / "segments").rglob("*") if path.is_file()):
        to = target / path.relative_to(folder)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, to)
        if synced:
            with to.open("rb") as file:
                os.fsync(file.fileno())


@workload(
    "the five columns are narrow, and all events are in Parquet segments of one epoch already",
    "against us: `parquet zstd`, with Spark's vectorised reader, keeps no order and syncs no file",
    "against us: a copy binds its range first, which is two more plans of a Python source",
    "`one process` uses threads to decode and to write, Spark two cores for everything",
    rows=10_000_000,
    tiny_rows=5_000,
)
def copy_events(settings: Settings) -> Found:
    """Copy events from stream to stream, beside Spark reading and writing Parquet."""
    data = events_parquet(settings.datasets, settings.rows)
    with settings.scratch() as scratch, spark_session() as spark:
        stream, parquet = scratch / "stream", scratch / "parquet"
        rows = spark.read.parquet(str(data))
        segstore.spark.write(rows, str(stream), segmentFormat="parquet")
        rows.write.option("compression", "zstd").parquet(str(parquet))

        def through_spark(folder: Path) -> int:
            segstore.spark.copy(spark, str(stream), str(folder), "bench", mode="events")
            return checked(folder)

        def in_process(folder: Path, mode: str) -> int:
            segstore.open(stream).copy_to(folder, mode=mode, copy_id="bench")
            return checked(folder)

        def checked(folder: Path) -> int:
            assert segstore.open(folder).tail == settings.rows
            return folder_bytes(folder)

        def plain(folder: Path) -> int:
            copied = spark.read.parquet(str(parquet))
            copied.write.option("compression", "zstd").parquet(str(folder))
            return folder_bytes(folder)

        candidates: dict[str, Candidate] = {
            "segstore.spark.copy": through_spark,
            ZSTD: plain,
            ONE_PROCESS: partial(in_process, mode="events"),
            "by segments": partial(in_process, mode="segments"),
        }
        found = race(candidates, settings, scratch)
        setup = describe(spark)
    ratios = [found.faster(ours, ZSTD) for ours in ("segstore.spark.copy", ONE_PROCESS)]
    ratios.append(found.faster("by segments", ONE_PROCESS))
    return Found(found.rows(settings.rows), ratios, setup, found.raw)


@workload(
    "against us: every CRC-32 is checked on the way; the transfers check nothing",
    "each request waits 30 ms, and as long as its bytes take at 50 MB/s, before it is sent",
    "both stores are one server on the same machine: it shares the cores with all candidates",
    "the transfers know all names and sizes; segstore reads the log, and footers before the rest",
    rows=2048,
    tiny_rows=20,
)
def copy_between_stores(settings: Settings) -> Found:
    """Copy segments of 256 MiB between two S3 stores, far away, beside s3fs alone (rows: MiB)."""
    size = settings.rows << 20
    with settings.scratch() as scratch, running(MINIO, scratch) as server:
        wide = {**server.options, "config_kwargs": {"max_pool_connections": 2 * THREADS}}
        # Different options are different stores: the server must not copy by itself.
        ours, theirs = wide, {**wide, "default_block_size": PART}
        place, target = f"{server.new_bucket()}/origin", server.new_bucket()
        stream = _fill_store(place, size, ours)
        source, destination = (open_storage(place, known).fs for known in (ours, theirs))  # type: ignore[attr-defined]
        names = {info.path: info.size for info in stream._log.storage.list("segments")}
        for fs in (source, destination):
            fs.s3.meta.events.register("before-send.s3", _slow_down)
        origin = place.removeprefix("s3://")

        def transfer(to: str, threads: int) -> None:
            _transfer(source, destination, names, (origin, to.removeprefix("s3://")), threads)

        parallel, serial = f"s3fs, {THREADS} threads", "s3fs, one range at a time"
        candidates: dict[str, Callable[[str], object]] = {
            OURS: lambda to: stream.copy_to(to, copy_id="bench", storage_options=theirs),
            parallel: lambda to: transfer(to, THREADS),
            serial: lambda to: transfer(to, 1),
        }
        found = Race({name: Timing(cpu_seconds=[0.0]) for name in candidates})
        peaks: dict[str, list[int]] = {name: [] for name in candidates}
        for turn in range(settings.rounds):
            for name, candidate in candidates.items():
                to = f"{target}/{turn}"
                with _peak(peaks[name]):
                    found[name].seconds.append(timed(partial(candidate, to)))
                destination.rm(to.removeprefix("s3://"), recursive=True)
    rows = []
    for name, timing in found.items():
        rate, peak = round(size / timing.median / 1e6, 1), round(max(peaks[name]) / 2**20)
        rows.append({**timing.row(name), "MB/s": rate, "peak over start MiB": peak})
    over = max(max(peaks[OURS]) / 2**20, 0.1)
    ratios = [found.faster(OURS, serial, 3), found.faster(OURS, parallel, 1)]
    ratios.append(Ratio("peak memory over the start, MiB", over, 128, most=True))
    return Found(rows, ratios, {"server": f"{MINIO.name} {MINIO.version}"}, found.raw)


def _fill_store(url: str, size: int, options: Mapping[str, Any]) -> segstore.Stream:
    schema = pa.schema([(f"n{number}", pa.int64()) for number in range(COLUMNS)])
    stream = segstore.create(url, schema, storage_options=dict(options))
    rng = np.random.default_rng(7)
    layout = segstore.Layout(
        inline_bytes=0, compression="none", frame_rows=FRAME_ROWS, segment_bytes=SEGMENT
    )
    while size > 0:
        rows = max(min(size, SEGMENT) // (8 * COLUMNS) - FRAME_ROWS, 1)
        columns = [rng.integers(0, 1 << 62, rows) for _ in schema]
        stream.append(pa.table(columns, schema=schema), layout=layout)
        size -= SEGMENT
    return stream


async def _slow_down(request: Any, **_: Any) -> None:
    """Wait as long as the bytes of an upload's part or of a range take."""
    size = int(request.headers.get("Content-Length") or 0)
    asked = request.headers.get("Range")
    if asked:
        text = asked.decode() if isinstance(asked, bytes) else asked
        start, end = text.removeprefix("bytes=").split("-")
        size = int(end) - int(start) + 1
    await asyncio.sleep(DELAY_S + size / BYTES_PER_S)


def _transfer(
    source: Any,
    target: Any,
    names: Mapping[str, int],
    folders: tuple[str, str],
    threads: int,
) -> None:
    """Copy objects as `aws s3 cp` does: parts of all objects by some threads."""
    origin, there = folders
    with ThreadPoolExecutor(threads) as pool:
        for name, size in names.items():
            bucket, _, key = f"{there}/{name}".partition("/")
            at = {"Bucket": bucket, "Key": key}
            at |= {"UploadId": target.call_s3("create_multipart_upload", **at)["UploadId"]}

            def move(start: int, name: str = name, size: int = size, at: Any = at) -> Any:
                data = source.cat_file(f"{origin}/{name}", start=start, end=min(start + PART, size))
                number = start // PART + 1
                tag = target.call_s3("upload_part", **at, PartNumber=number, Body=data)["ETag"]
                return {"PartNumber": number, "ETag": tag}

            parts = [*pool.map(move, range(0, size, PART))]
            target.call_s3("complete_multipart_upload", **at, MultipartUpload={"Parts": parts})


@contextmanager
def _peak(into: list[int]) -> Iterator[None]:
    """Note by how much this process grew at most."""
    process, over = psutil.Process(), threading.Event()
    start = peak = process.memory_info().rss

    def look() -> None:
        nonlocal peak
        while not over.wait(SAMPLE_S):
            peak = max(peak, process.memory_info().rss)

    sampler = threading.Thread(target=look)
    sampler.start()
    try:
        yield
    finally:
        over.set()
        sampler.join()
        into.append(peak - start)
