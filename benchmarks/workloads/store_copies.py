"""Copies between two stores beside a parallel transfer of the same objects, and their memory."""

import asyncio
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
from object_servers import MINIO, running

import segstore_ds as segstore
from benchmarks.report import Ratio, Report, machine
from benchmarks.workload import Settings, Workload
from segstore_ds.storage import open_storage

MEANING = "copy segments of 256 MiB between two S3 stores, far away, beside s3fs alone (rows: MiB)"
FLATTERS = (
    "against us: every CRC-32 is checked on the way; the transfers check nothing",
    "each request waits 30 ms, and as long as its bytes take at 50 MB/s, before it is sent",
    "both stores are one server on the same machine: it shares the cores with all candidates",
    "the transfers know all names and sizes; segstore reads the log, and footers before the rest",
)
DELAY_S, BYTES_PER_S = 0.03, 50e6
PART = 8 << 20
SEGMENT = 256 << 20
THREADS = 10  # as many as `aws s3 cp` has
COLUMNS = 8
FRAME_ROWS = 16_384  # a frame of 1 MiB
SAMPLE_S = 0.01


def run_copy_between_stores(settings: Settings) -> Report:
    """Copy in interleaved rounds; only requests of the candidates are slowed down."""
    size = settings.rows << 20
    with settings.scratch() as scratch, running(MINIO, scratch) as server:
        wide = {**server.options, "config_kwargs": {"max_pool_connections": 2 * THREADS}}
        # Different options are different stores: the server must not copy by itself.
        ours, theirs = wide, {**wide, "default_block_size": PART}
        place, target = f"{server.new_bucket()}/origin", server.new_bucket()
        stream = _fill(place, size, ours)
        source, destination = (open_storage(place, known).fs for known in (ours, theirs))  # type: ignore[attr-defined]
        names = {info.path: info.size for info in stream.storage.list("segments")}
        for fs in (source, destination):
            fs.s3.meta.events.register("before-send.s3", _slow_down)
        origin = place.removeprefix("s3://")

        def transfer(to: str, threads: int) -> None:
            _transfer(source, destination, names, (origin, to.removeprefix("s3://")), threads)

        candidates: dict[str, Callable[[str], object]] = {
            "segstore": lambda to: stream.copy_to(to, copy_id="bench", storage_options=theirs),
            f"s3fs, {THREADS} threads": lambda to: transfer(to, THREADS),
            "s3fs, one range at a time": lambda to: transfer(to, 1),
        }
        seconds: dict[str, list[float]] = {name: [] for name in candidates}
        peaks: dict[str, list[int]] = {name: [] for name in candidates}
        for turn in range(settings.rounds):
            for name, candidate in candidates.items():
                with _peak(peaks[name]):
                    start = time.perf_counter()
                    candidate(f"{target}/{turn}")
                    seconds[name].append(time.perf_counter() - start)
                destination.rm(f"{target.removeprefix('s3://')}/{turn}", recursive=True)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    mine, parallel, serial = medians.values()
    over = max(peaks["segstore"]) / 2**20
    return Report(
        workload="copy_between_stores",
        meaning=MEANING,
        setup=machine(settings.folder)
        | {"rounds": settings.rounds, "bytes": size, "server": f"{MINIO.name} {MINIO.version}"},
        rows=[
            {
                "candidate": name,
                "seconds": round(took, 2),
                "MB/s": round(size / took / 1e6, 1),
                "peak over start MiB": round(max(peaks[name]) / 2**20),
            }
            for name, took in medians.items()
        ],
        ratios=[
            Ratio("speed / s3fs, one range at a time", serial / mine, 3),
            Ratio("speed / s3fs in parallel", parallel / mine, 1),
            Ratio("peak memory over the start, MiB", max(over, 0.1), 128, most=True),
        ],
        flatters=FLATTERS,
        raw=seconds,
    )


def _fill(url: str, size: int, options: Mapping[str, Any]) -> segstore.Stream:
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


WORKLOADS = {
    "copy_between_stores": Workload(MEANING, run_copy_between_stores, 2048, 20),
}
