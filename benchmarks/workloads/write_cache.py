"""The write cache beside writing the same bytes without it, and how encoding overlaps with it."""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from wrapped_storage import WrappedStorage, WrappedWriter

from benchmarks.datasets import events
from benchmarks.report import Found, Ratio
from benchmarks.workload import Candidate, Settings, folder_bytes, race, rounded, timed, workload
from segstore_ds.cache.counters import CacheCounters
from segstore_ds.format.arrow.frame import Frame, encode_frame
from segstore_ds.format.arrow.segment import ArrowEncoder
from segstore_ds.storage import Storage, open_storage
from segstore_ds.storage.base import StagedWriter
from segstore_ds.write.segment_writer import BUFFER_BYTES, BUFFERS, SegmentWriter, open_pool

SMALL, LARGE = 64 << 10, 800 << 10
CACHED, PLAIN = "write cache", "plain file"
CACHE = {"cache": f"{BUFFERS} buffers of {BUFFER_BYTES >> 20} MiB"}


@workload(
    "frames are encoded before: encoding is a cost of its own (see cache_overlap)",
    "cache and plain file are synced at their end",
    "the cache also writes a footer and keeps a checksum per frame, which the file has not",
    rows=512,
    tiny_rows=2,
)
def cache_local(settings: Settings) -> Found:
    """The same frames through the write cache and as one plain file (rows: MiB)."""
    rows, ratios, raw = [], [], {}
    with settings.scratch() as scratch:
        for size in (SMALL, LARGE):
            frames = _frames(settings.rows, size)
            total = sum(frame.data.size for frame in frames)
            candidates: dict[str, Candidate] = {
                CACHED: partial(_cached, frames),
                PLAIN: partial(_plain, frames),
            }
            found = race(candidates, settings, scratch)
            for name, timing in found.items():
                rate = round(total / timing.median / (1 << 20))
                rows.append({"frames of KiB": size >> 10, **timing.row(name), "MiB/s": rate})
            # Round by round, as the disk is not equally fast in all of them.
            pairs = zip(found[PLAIN].seconds, found[CACHED].seconds, strict=True)
            shares = sorted(plain / cached for plain, cached in pairs)
            name = f"speed: {CACHED} / {PLAIN}, frames of {size >> 10} KiB"
            ratios.append(Ratio(name, shares[len(shares) // 2], 0.9))
            raw[f"{size >> 10} KiB"] = found.raw
    return Found(rows, ratios, CACHE, raw)


def _frames(mebibytes: int, size: int) -> list[Frame]:
    # One column of so many 8-byte numbers, uncompressed: the frame is as large as its data.
    column = pa.array(range((size - 1024) // 8), pa.int64())
    frame = encode_frame(
        pa.record_batch([column], names=["n"]),
        compression="none",
        compression_level=None,
        stats_columns=["n"],
    )
    # Bytes of their own for each, so that no candidate writes from a cache of the processor.
    copies = max((mebibytes << 20) // frame.data.size, 2)
    return [replace(frame, data=pa.py_buffer(bytes(memoryview(frame.data)))) for _ in range(copies)]


def _cached(frames: Sequence[Frame], folder: Path) -> int:
    _stage(open_storage(folder), frames)
    return folder_bytes(folder)


def _plain(frames: Sequence[Frame], folder: Path) -> int:
    folder.mkdir()
    with (folder / "0").open("wb") as file:
        for frame in frames:
            file.write(frame.data)
        file.flush()
        os.fsync(file.fileno())
    return folder_bytes(folder)


def _stage(
    storage: Storage, frames: Iterable[Frame], seen: Callable[[Frame], None] = lambda _: None
) -> None:
    pool = open_pool(storage)
    writer = SegmentWriter(storage, "token/0.arrow", pool, CacheCounters(), ArrowEncoder())
    try:
        for frame in frames:
            writer.add(frame)
            seen(frame)
        writer.finish()
    except BaseException:
        writer.abort()
        raise


@workload(
    "the channel waits instead of working, as the network does; a disk takes CPU as well",
    "memory is what Arrow has allocated for frames, looked at after every one of them",
    "filling the first buffer and draining the last overlap with nothing: short runs lose",
    rows=1024,
    tiny_rows=8,
)
def cache_overlap(settings: Settings) -> Found:
    """Encode and write: together beside either alone, and its memory (rows: MiB raw).

    The channel is a local disk, slowed down to the rate of encoding by waiting.
    """
    batches = [events(start * 65_536, 65_536) for start in range(max(settings.rows // 4, 2))]
    encode = partial(
        encode_frame,
        compression="zstd",
        compression_level=1,
        stats_columns=batches[0].schema.names,
    )
    with settings.scratch() as scratch:
        frames: list[Frame] = []
        encode_s = timed(lambda: frames.extend(map(encode, batches)))
        rate = sum(frame.data.size for frame in frames) / encode_s
        write_s, _, _ = _staged(scratch / "io", frames, rate)
        frames.clear()
        both_s, peak, largest = _staged(scratch / "both", map(encode, batches), rate)
    bound = BUFFERS * BUFFER_BYTES + largest
    found = {"encode alone": encode_s, "write alone": write_s, "both": both_s}
    return Found(
        [{"candidate": name, "seconds": rounded(seconds)} for name, seconds in found.items()],
        [
            Ratio("both / the slower of the two", both_s / max(encode_s, write_s), 1.2, most=True),
            Ratio("peak memory / (buffers and one frame)", peak / bound, 1, most=True),
        ],
        {**CACHE, "channel": f"{rate / (1 << 20):.0f} MiB/s", "peak MiB": round(peak / 2**20, 1)},
    )


def _staged(folder: Path, frames: Iterable[Frame], rate: float) -> tuple[float, int, int]:
    """Return the seconds, the most bytes that Arrow held, and those of the largest frame."""
    storage = _SlowStorage(open_storage(folder), rate)
    before = pa.total_allocated_bytes()
    peak, largest = 0, 0

    def look(frame: Frame) -> None:
        nonlocal peak, largest
        peak = max(peak, pa.total_allocated_bytes() - before)
        largest = max(largest, frame.data.size)

    seconds = timed(partial(_stage, storage, frames, look))
    return seconds, peak, largest


class _SlowStorage(WrappedStorage):
    """A storage whose staged objects take bytes at a given rate."""

    def __init__(self, inner: Storage, bytes_per_s: float) -> None:
        super().__init__(inner)
        self.rate = bytes_per_s

    def open_staged(self, path: str, *, replace: bool = False) -> StagedWriter:
        return _SlowWriter(self, path, self.inner.open_staged(path, replace=replace))


class _SlowWriter(WrappedWriter):
    _storage: _SlowStorage

    def write_all(self, pieces: Sequence[Any]) -> None:
        took = timed(partial(self._inner.write_all, pieces))
        due = sum(memoryview(piece).nbytes for piece in pieces) / self._storage.rate
        time.sleep(max(due - took, 0))
