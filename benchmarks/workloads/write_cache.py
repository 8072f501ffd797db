"""The write cache beside writing the same bytes without it: local disk, S3, and its overlap."""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from object_servers import MINIO, running
from wrapped_storage import WrappedStorage, WrappedWriter

from benchmarks.datasets import events
from benchmarks.places import S3Meter
from benchmarks.report import Ratio, Report, machine
from benchmarks.workload import Settings, Workload, folder_bytes, race
from segstore_ds.cache.counters import CacheCounters
from segstore_ds.format.arrow.frame import Frame, encode_frame
from segstore_ds.format.arrow.segment import ArrowEncoder
from segstore_ds.storage import Storage, open_storage
from segstore_ds.storage.base import StagedWriter
from segstore_ds.write.layout import Layout
from segstore_ds.write.segment_writer import BUFFER_BYTES, SegmentWriter, open_pool

LOCAL = "the same frames through the write cache, as one plain file, and one by one (rows: MiB)"
S3 = "frames to S3, 30 ms a request: through the write cache and one put each (rows: MiB)"
OVERLAP = "encode and write: together beside either alone, and its memory (rows: MiB raw)"
DELAY_S = 0.03
SMALL, LARGE = 64 << 10, 800 << 10


def run_local(settings: Settings) -> Report:
    """Race frames of two sizes on local disk, durable at the end of each candidate."""
    rows, ratios = [], []
    with settings.scratch() as scratch:
        for size in (SMALL, LARGE):
            frames = _frames(settings.rows, size)
            total = sum(frame.data.size for frame in frames)
            timings = race(
                {
                    "write cache": lambda folder, frames=frames: _cached(folder, frames),
                    "plain file": lambda folder, frames=frames: _plain(folder, frames),
                    "put per frame": lambda folder, frames=frames: _one_by_one(folder, frames),
                },
                settings,
                scratch,
            )
            for name, timing in timings.items():
                rows.append(
                    {
                        "frames of KiB": size >> 10,
                        "candidate": name,
                        "MiB/s": round(total / timing.median / (1 << 20)),
                        "seconds": round(timing.median, 3),
                        "spread": f"{min(timing.seconds):.3f}-{max(timing.seconds):.3f}",
                        "cpu s": round(sorted(timing.cpu_seconds)[len(timing.cpu_seconds) // 2], 2),
                    }
                )
            # Round by round, as the disk is not equally fast in all of them.
            pairs = zip(timings["plain file"].seconds, timings["write cache"].seconds, strict=True)
            shares = sorted(plain / cached for plain, cached in pairs)
            name = f"write cache / plain file, frames of {size >> 10} KiB"
            ratios.append(Ratio(name, shares[len(shares) // 2], 0.9))
    return Report(
        workload="cache_local",
        meaning=LOCAL,
        setup=machine(settings.folder) | {"rounds": settings.rounds_text, **_cache_setup()},
        rows=rows,
        ratios=ratios,
        flatters=(
            "frames are encoded before: encoding is a cost of its own (see cache_overlap)",
            "cache and plain file are synced at their end; single puts are not, in their favour",
            "the cache also writes a footer and keeps a checksum per frame, which the file has not",
        ),
    )


def run_s3(settings: Settings) -> Report:
    """Upload to a real server, 30 ms away, and count the requests that reach it."""
    rows, ratios = [], []
    with settings.scratch() as scratch, running(MINIO, scratch) as server:
        bucket = server.new_bucket()
        meter = S3Meter(open_storage(bucket, server.options), DELAY_S)
        # Fewer of the small ones: one put each takes a second for 2 MiB.
        for size, mebibytes in ((SMALL, max(settings.rows // 8, 1)), (LARGE, settings.rows)):
            frames = _frames(mebibytes, size)
            total = sum(frame.data.size for frame in frames)
            medians = []
            for name, upload in (("write cache", _upload_cached), ("put per frame", _upload_each)):
                seconds, requests = [], 0
                for turn in range(settings.rounds):
                    folder = f"{bucket}/{size}-{name[:3]}{turn}"
                    storage = open_storage(folder, server.options)
                    storage.put("first", b"now the connection and the bucket's region are known")
                    before = meter.requests
                    start = time.perf_counter()
                    upload(storage, frames)
                    seconds.append(time.perf_counter() - start)
                    requests = meter.requests - before
                medians.append(sorted(seconds)[len(seconds) // 2])
                rows.append(
                    {
                        "frames of KiB": size >> 10,
                        "candidate": name,
                        "MiB": total >> 20,
                        "seconds": round(medians[-1], 2),
                        "spread": f"{min(seconds):.2f}-{max(seconds):.2f}",
                        "MiB/s": round(total / medians[-1] / (1 << 20), 1),
                        "requests": requests,
                        "bytes/request": total // requests,
                    }
                )
            name = f"write cache / put per frame, frames of {size >> 10} KiB"
            ratios.append(Ratio(name, medians[1] / medians[0], 3))
    return Report(
        workload="cache_s3",
        meaning=S3,
        setup=machine(settings.folder)
        | {
            "server": f"{MINIO.name} {MINIO.version}, {DELAY_S * 1e3:.0f} ms before every request",
            **_cache_setup(),
        },
        rows=rows,
        ratios=ratios,
        flatters=(
            "puts go one after the other, as a task that writes frame by frame sends them",
            "against us: the server shares this machine, its cores and its disk",
        ),
    )


def run_overlap(settings: Settings) -> Report:
    """Encode only, write only, and both, on a channel that is as slow as encoding is."""
    batches = [events(start * 65_536, 65_536) for start in range(max(settings.rows // 4, 2))]
    with settings.scratch() as scratch:
        start = time.perf_counter()
        frames = [_encode(batch) for batch in batches]
        encode_s = time.perf_counter() - start
        rate = sum(frame.data.size for frame in frames) / encode_s
        layout = Layout()
        writing = _staged(scratch / "io", frames, layout, rate)
        frames.clear()
        both = _staged(scratch / "both", map(_encode, batches), layout, rate)
    slower = max(encode_s, writing["seconds"])
    bound = layout.cache_buffers * BUFFER_BYTES + both["frame"]
    return Report(
        workload="cache_overlap",
        meaning=OVERLAP,
        setup=machine(settings.folder)
        | {
            "channel": f"local disk, slowed down to {rate / (1 << 20):.0f} MiB/s by waiting",
            "cache": f"{layout.cache_buffers} buffers of {BUFFER_BYTES >> 20} MiB",
        },
        rows=[
            {"candidate": "encode alone", "seconds": round(encode_s, 2)},
            {"candidate": "write alone", "seconds": round(writing["seconds"], 2)},
            {"candidate": "both", "seconds": round(both["seconds"], 2), "peak MiB": both["peak"]},
        ],
        ratios=[
            Ratio("both / the slower of the two", both["seconds"] / slower, 1.2, most=True),
            Ratio("peak memory / (buffers and one frame)", both["bytes"] / bound, 1, most=True),
        ],
        flatters=(
            "the channel waits instead of working, as the network does; a disk takes CPU as well",
            "memory is what Arrow has allocated for frames, looked at after every one of them",
            "filling the first buffer and draining the last overlap with nothing: short runs lose",
        ),
    )


def _cache_setup() -> dict[str, str]:
    return {"cache": f"{Layout().cache_buffers} buffers of {BUFFER_BYTES >> 20} MiB"}


def _frames(mebibytes: int, size: int) -> list[Frame]:
    # One column of so many 8-byte numbers, uncompressed: the frame is as large as its data.
    rows = (size - 1024) // 8
    column = pa.array(range(rows), pa.int64())
    frame = encode_frame(
        pa.record_batch([column], names=["n"]),
        compression="none",
        compression_level=None,
        stats_columns=["n"],
    )
    # Bytes of their own for each, so that no candidate writes from a cache of the processor.
    copies = max((mebibytes << 20) // frame.data.size, 2)
    return [
        Frame(
            data=pa.py_buffer(bytes(memoryview(frame.data))),
            rows=frame.rows,
            raw_bytes=frame.raw_bytes,
            crc=frame.crc,
            fingerprint=frame.fingerprint,
            stats=frame.stats,
        )
        for _ in range(copies)
    ]


def _encode(batch: pa.RecordBatch) -> Frame:
    return encode_frame(
        batch, compression="zstd", compression_level=1, stats_columns=batch.schema.names
    )


def _stage(
    storage: Storage, frames: Iterable[Frame], layout: Layout, seen: Callable[[Frame], None]
) -> CacheCounters:
    counters = CacheCounters()
    pool = open_pool(storage, buffers=layout.cache_buffers)
    writer = SegmentWriter(storage, "token/0.arrow", pool, counters, ArrowEncoder())
    try:
        for frame in frames:
            writer.add(frame)
            seen(frame)
        writer.finish()
    except BaseException:
        writer.abort()
        raise
    return counters


def _ignore(_: Frame) -> None:
    pass


def _cached(folder: Path, frames: Sequence[Frame]) -> int:
    _stage(open_storage(folder), frames, Layout(), _ignore)
    return folder_bytes(folder)


def _plain(folder: Path, frames: Sequence[Frame]) -> int:
    folder.mkdir()
    with (folder / "0").open("wb") as file:
        for frame in frames:
            file.write(frame.data)
        file.flush()
        os.fsync(file.fileno())
    return folder_bytes(folder)


def _one_by_one(folder: Path, frames: Sequence[Frame]) -> int:
    storage = open_storage(folder)
    for number, frame in enumerate(frames):
        storage.put(f"segments/{number}", frame.data)
    return folder_bytes(folder)


def _upload_cached(storage: Storage, frames: Sequence[Frame]) -> None:
    _stage(storage, frames, Layout(), _ignore)


def _upload_each(storage: Storage, frames: Sequence[Frame]) -> None:
    for number, frame in enumerate(frames):
        storage.put(f"segments/{number}", frame.data.to_pybytes())


def _staged(folder: Path, frames: Iterable[Frame], layout: Layout, rate: float) -> dict[str, Any]:
    storage = _SlowStorage(open_storage(folder), rate)
    before = pa.total_allocated_bytes()
    peak, largest = 0, 0

    def look(frame: Frame) -> None:
        nonlocal peak, largest
        peak = max(peak, pa.total_allocated_bytes() - before)
        largest = max(largest, frame.data.size)

    start = time.perf_counter()
    _stage(storage, frames, layout, look)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "bytes": peak, "peak": round(peak / 2**20, 1), "frame": largest}


class _SlowStorage(WrappedStorage):
    """A storage whose staged objects take bytes at a given rate."""

    def __init__(self, inner: Storage, bytes_per_s: float) -> None:
        super().__init__(inner)
        self._rate = bytes_per_s

    def open_staged(self, path: str, *, replace: bool = False) -> StagedWriter:
        inner = self.inner.open_staged(path, replace=replace)
        return _SlowWriter(self, path, inner, self._rate)


class _SlowWriter(WrappedWriter):
    def __init__(self, storage: Any, path: str, inner: StagedWriter, rate: float) -> None:
        super().__init__(storage, path, inner)
        self._rate = rate

    def write_all(self, pieces: Sequence[Any]) -> None:
        start = time.perf_counter()
        self._inner.write_all(pieces)
        due = sum(memoryview(piece).nbytes for piece in pieces) / self._rate
        time.sleep(max(due - (time.perf_counter() - start), 0))


WORKLOADS = {
    "cache_local": Workload(LOCAL, run_local, 512, 2),
    "cache_s3": Workload(S3, run_s3, 64, 7),
    "cache_overlap": Workload(OVERLAP, run_overlap, 1024, 8),
}
