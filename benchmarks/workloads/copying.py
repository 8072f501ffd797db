"""Copies of segment objects beside plain copies of their files, and clones of long streams."""

import os
import shutil
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from object_servers import MINIO, running

import segstore_ds as segstore
from benchmarks.datasets import EVENTS, events
from benchmarks.report import Ratio, Report, machine
from benchmarks.workload import Settings, Workload, folder_bytes
from benchmarks.workloads.table_status import fill
from segstore_ds.storage import open_storage

COPY_MEANING = "copy a stream of 50 segments on one disk, beside copying the same files"
CLONE_MEANING = "clone streams of 10^3 to 10^6 segments: seconds, requests, bytes (rows: the most)"
COPY_FLATTERS = (
    "against us: each copy is read back and every CRC-32 checked, the files' copies check nothing",
    "for us: segstore copies four segments at a time, `cp` one file; `cp synced x4` four as well",
    "all copy within the kernel; reflinks are used by segstore only, on filesystems that have them",
    "`cp synced` syncs each file, as a copy of segstore does; `cp` leaves it to the system",
)
CLONE_FLATTERS = (
    "segments exist as entries only, which is all that a clone looks at",
    "the page cache is warm and the disk is local; both commits are synced",
    "the origin was opened before, which is three more requests",
)
S3_MEANING = "copy a stream of 50 segments to S3 over HTTP, beside a plain upload of its files"
S3_FLATTERS = (
    "against us: every CRC-32 is checked on the way, or by reading back what S3 has copied",
    "the server runs on the same machine, without any delay: both share its cores with it",
    "uploads one object after another, as s3fs's put_file; within S3 four copies at a time",
)
SEGMENTS = 50


def run_copy_segments(settings: Settings) -> Report:
    """Copy one stream in interleaved rounds."""
    each = max(settings.rows // SEGMENTS, 1)
    with settings.scratch() as scratch:
        stream = segstore.create(scratch / "stream", EVENTS)
        for n in range(SEGMENTS):
            stream.append(events(n * each, each), layout=segstore.Layout(inline_bytes=0))
        size = folder_bytes(scratch / "stream" / "segments")
        candidates: dict[str, Callable[[Path], object]] = {
            "segstore": lambda to: stream.copy_to(to, copy_id="bench"),
            "cp synced": lambda to: _copy(scratch / "stream", to, synced=True),
            "cp synced x4": lambda to: _copy(scratch / "stream", to, synced=True, threads=4),
            "cp": lambda to: _copy(scratch / "stream", to, synced=False),
        }
        seconds: dict[str, list[float]] = {name: [] for name in candidates}
        for turn in range(0 if settings.tiny else -1, settings.rounds):
            for name, candidate in candidates.items():
                os.sync()
                start = time.perf_counter()
                candidate(scratch / "copied")
                took = time.perf_counter() - start
                if turn >= 0:
                    seconds[name].append(took)
                if name == "segstore":
                    assert segstore.open(scratch / "copied").tail == stream.tail
                shutil.rmtree(scratch / "copied")
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return Report(
        workload="copy_segments",
        meaning=COPY_MEANING,
        setup=machine(settings.folder) | {"rounds": settings.rounds_text, "bytes": size},
        rows=[
            {"candidate": name, "seconds": round(took, 3), "MB/s": round(size / took / 1e6, 1)}
            for name, took in medians.items()
        ],
        ratios=[
            Ratio("speed / cp synced", medians["cp synced"] / medians["segstore"], 0.9),
            Ratio("speed / cp synced x4", medians["cp synced x4"] / medians["segstore"]),
            Ratio("speed / cp", medians["cp"] / medians["segstore"]),
        ],
        flatters=COPY_FLATTERS,
        raw=seconds,
    )


def run_copy_to_s3(settings: Settings) -> Report:
    """Copy one stream to S3, and within it, beside plain uploads of the same files."""
    from s3fs.core import S3FileSystem

    each = max(settings.rows // SEGMENTS, 1)
    with settings.scratch() as scratch, running(MINIO, scratch) as server:
        options, bucket = server.options, server.new_bucket()
        stream = segstore.create(scratch / "stream", EVENTS)
        for n in range(SEGMENTS):
            stream.append(events(n * each, each), layout=segstore.Layout(inline_bytes=0))
        size = folder_bytes(scratch / "stream" / "segments")
        fs = S3FileSystem(**options, use_listings_cache=False)
        there = f"{bucket}/origin"
        stream.copy_to(there, copy_id="bench", storage_options=options)
        remote = segstore.open(there, storage_options=options)

        def upload(to: str) -> None:
            for path in _files(scratch / "stream"):
                fs.put_file(str(path), f"{to}/{path.relative_to(scratch)}")

        candidates: dict[str, Callable[[str], object]] = {
            "segstore": lambda to: stream.copy_to(to, copy_id="bench", storage_options=options),
            "plain upload": upload,
            "segstore within S3": lambda to: remote.copy_to(
                to, copy_id="bench", storage_options=options
            ),
        }
        seconds: dict[str, list[float]] = {name: [] for name in candidates}
        for turn in range(0 if settings.tiny else -1, settings.rounds):
            for name, candidate in candidates.items():
                start = time.perf_counter()
                candidate(f"{bucket}/copied")
                if turn >= 0:
                    seconds[name].append(time.perf_counter() - start)
                fs.rm(f"{bucket}/copied", recursive=True)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return Report(
        workload="copy_segments_s3",
        meaning=S3_MEANING,
        setup=machine(settings.folder)
        | {
            "rounds": settings.rounds_text,
            "bytes": size,
            "server": f"{MINIO.name} {MINIO.version}",
        },
        rows=[
            {"candidate": name, "seconds": round(took, 3), "MB/s": round(size / took / 1e6, 1)}
            for name, took in medians.items()
        ],
        ratios=[
            Ratio("speed / plain upload", medians["plain upload"] / medians["segstore"]),
            Ratio("within S3 / plain", medians["plain upload"] / medians["segstore within S3"]),
        ],
        flatters=S3_FLATTERS,
        raw=seconds,
    )


def run_clone(settings: Settings) -> Report:
    """Clone every size several times."""
    sizes = [size for size in (10**3, 10**4, 10**5, 10**6) if size <= settings.rows]
    with settings.scratch() as scratch:
        rows = [_clone(scratch / str(size), size, settings.rounds) for size in sizes]
    first, last = rows[0], rows[-1]
    return Report(
        workload="clone",
        meaning=CLONE_MEANING,
        setup=machine(settings.folder) | {"rounds": f"{settings.rounds}, medians"},
        rows=rows,
        ratios=[
            Ratio("ms, largest / smallest", last["ms"] / first["ms"], 2, most=True),
            Ratio("requests at the origin, largest", last["requests at the origin"], 8, most=True),
            Ratio("bytes written, largest, KiB", last["bytes written"] / 1024, 128, most=True),
        ],
        flatters=CLONE_FLATTERS,
    )


def _clone(folder: Path, size: int, rounds: int) -> dict[str, Any]:
    segstore.create(folder / "origin", EVENTS)
    fill(open_storage(folder / "origin"), size)
    stream = segstore.open(folder / "origin")
    stats, seconds = stream.storage.stats, []
    before, version = folder_bytes(folder), stream.version
    for n in range(rounds):
        stats.reset()
        start = time.perf_counter()
        done = stream.copy_to(folder / f"clone-{n}", copy_id=f"c{n}", mode="clone")
        seconds.append(time.perf_counter() - start)
        assert 0.9 * size < done.segments <= size
    clone = segstore.open(folder / "clone-0")
    commits = stream.refresh().version - version + (clone.version + 1) * rounds
    return {
        "segments": size,
        "ms": round(statistics.median(seconds) * 1e3, 2),
        "commits": commits / rounds,
        "requests at the origin": stats.total,
        "bytes written": round((folder_bytes(folder) - before) / rounds),
    }


def _copy(folder: Path, target: Path, *, synced: bool, threads: int = 1) -> None:
    def copy(path: Path) -> None:
        to = target / path.relative_to(folder)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, to)
        if synced:
            with to.open("rb") as file:
                os.fsync(file.fileno())

    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(copy, _files(folder)):
            pass


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "segments").rglob("*") if path.is_file())


WORKLOADS = {
    "copy_segments": Workload(COPY_MEANING, run_copy_segments, 10_000_000, 5_000),
    "copy_segments_s3": Workload(S3_MEANING, run_copy_to_s3, 10_000_000, 5_000),
    "clone": Workload(CLONE_MEANING, run_clone, 1_000_000, 1_000),
}
