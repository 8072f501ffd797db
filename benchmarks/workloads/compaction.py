"""Compaction of many small and of fewer large segments, beside Delta's and plain copies."""

import json
import multiprocessing
import os
import resource
import shutil
import statistics
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq

import segstore_ds as segstore
from benchmarks.datasets import EVENTS, events
from benchmarks.report import Ratio, Report, machine
from benchmarks.workload import Settings, Workload, folder_bytes
from segstore_ds.storage import open_storage
from segstore_ds.stream import create_on

MEANING = (
    "merge 200 segments of 1/200 of the rows, and 2,000 of 1/20,000 of them, into segments of 128 "
    "MiB at most, beside deltalake's optimize.compact"
)
TARGET_BYTES = 128 << 20
CASES = {"large": (200, 1), "small": (2_000, 10)}
FLATTERS = (
    "the same events, 128 MiB as target and zstd level 2 for both; Delta's files are Parquet",
    "ours are Arrow, whose large frames are copied: that is what makes the large case quick",
    "both run in one process on the same machine; Delta's with all of its threads",
    "against us: Delta's files were added in one commit, and their statistics are row counts alone",
    "against us: outputs and commit are synced to disk, Delta's and cp's are not",
    "stitch checks every frame's CRC-32 on the way, cp checks nothing",
)
Prepare = Callable[[Path], None]


def run(settings: Settings) -> Report:
    """Make the inputs once, and compact fresh copies of them in interleaved rounds."""
    rows: list[dict[str, Any]] = []
    ratios: list[Ratio] = []
    raw: dict[str, list[float]] = {}
    for case, (segments, share) in CASES.items():
        count = 20 if settings.tiny else segments
        each = max(settings.rows // share // count, 1)
        with settings.scratch() as scratch:
            found = _run_case(settings, scratch, case, count, each)
        rows += found[0]
        ratios += found[1]
        raw |= found[2]
    return Report(
        workload="compaction",
        meaning=MEANING,
        setup=machine(settings.folder) | {"rounds": settings.rounds_text},
        rows=rows,
        ratios=ratios,
        flatters=FLATTERS,
        raw=raw,
    )


def _run_case(
    settings: Settings, scratch: Path, case: str, count: int, each: int
) -> tuple[list[dict[str, Any]], list[Ratio], dict[str, list[float]]]:
    _fill(scratch / "stream", scratch / "delta", count, each)
    candidates: dict[str, tuple[str, Callable[[Path], object]]] = {
        "merge": ("stream", _merge),
        "merge into Parquet": ("stream", lambda folder: _merge(folder, into="parquet")),
        "delta": ("delta", _optimize),
        "stitch": ("stream", _stitch),
        "cp": ("stream", _copy),
        "cp synced": ("stream", lambda folder: _copy(folder, synced=True)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    scans: dict[str, list[float]] = {"before": [], "after": []}
    sizes: dict[str, int] = {}
    work = scratch / "work"
    for turn in range(0 if settings.tiny else -1, settings.rounds):
        for name, (base, candidate) in candidates.items():
            _link(scratch / base, work)
            os.sync()
            start = time.perf_counter()
            candidate(work)
            took = time.perf_counter() - start
            if turn >= 0:
                seconds[name].append(took)
            if name == "merge":
                sizes["after"] = _live_bytes(work)
                scans["before"].append(_scan(scratch / "stream", count * each))
                scans["after"].append(_scan(work, count * each))
            shutil.rmtree(work)
    sizes["before"] = _live_bytes(scratch / "stream")
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    table = [
        {
            "case": f"{case}: {count} x {each:,}",
            "candidate": name,
            "seconds": round(medians[name], 3),
            "spread": f"{min(values):.3f}-{max(values):.3f}",
            "MB/s in": round(_input_bytes(scratch, name) / medians[name] / 1e6, 1),
        }
        for name, values in seconds.items()
    ]
    _link(scratch / "stream", work)
    peak = _peak_bytes(work)
    table[0] |= {
        "bytes before": sizes["before"],
        "bytes after": sizes["after"],
        "peak MB": round(peak / 1e6),
    }
    before, after = (statistics.median(scans[name]) for name in ("before", "after"))
    ratios = [
        Ratio(f"{case}: merge, speed / Delta's optimize", medians["delta"] / medians["merge"], 2),
        Ratio(
            f"{case}: merge into Parquet, speed / Delta's optimize",
            medians["delta"] / medians["merge into Parquet"],
        ),
        Ratio(f"{case}: stitch, speed / cp synced", medians["cp synced"] / medians["stitch"], 0.8),
        Ratio(f"{case}: stitch, speed / cp", medians["cp"] / medians["stitch"]),
        Ratio(f"{case}: scan, rows per second after / before", before / after),
        Ratio(f"{case}: bytes after / before", sizes["after"] / sizes["before"]),
    ]
    return table, ratios, {f"{case} {name}": values for name, values in seconds.items()}


def _fill(stream_folder: Path, delta_folder: Path, count: int, each: int) -> None:
    near = open_storage(f"memory://{uuid.uuid4().hex}")  # thousands of synced appends take minutes
    stream = create_on(near, EVENTS, upkeep=None)
    layout = segstore.Layout(inline_bytes=0, segment_format="arrow")
    delta_folder.mkdir()
    sizes: list[int] = []
    for n in range(count):
        batch = events(n * each, each)
        stream.append(batch, layout=layout)
        path = delta_folder / f"{n}.parquet"
        with pq.ParquetWriter(path, EVENTS, compression="zstd", compression_level=2) as writer:
            writer.write_batch(batch)
        sizes.append(path.stat().st_size)
    _commit_delta(delta_folder, sizes, each)
    for info in list(near.list("")):
        path = stream_folder / info.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(near.get(info.path))
        near.delete(info.path)


def _commit_delta(folder: Path, sizes: list[int], each: int) -> None:
    """Make a table of files at once: as many appends take minutes, each longer than the last."""
    from deltalake import DeltaTable, Schema
    from deltalake.transaction import AddAction

    table = DeltaTable.create(folder, Schema.from_arrow(EVENTS))
    stats = json.dumps({"numRecords": each})
    files = [
        AddAction(f"{n}.parquet", size, {}, 0, data_change=True, stats=stats)
        for n, size in enumerate(sizes)
    ]
    table.create_write_transaction(files, "append", table.schema())


def _link(folder: Path, to: Path) -> None:
    """Give a fresh copy of a folder; no candidate changes a file, each only adds and renames."""
    shutil.copytree(folder, to, copy_function=os.link)


def _merge(folder: Path, into: str = "arrow") -> None:
    layout = segstore.Layout(segment_format=into)
    done = segstore.open(folder).compact(target_bytes=TARGET_BYTES, layout=layout)
    assert done.segments_after < done.segments_before


def _stitch(folder: Path) -> None:
    segstore.open(folder).compact(mode="stitch", target_bytes=TARGET_BYTES)


def _optimize(folder: Path) -> None:
    from deltalake import DeltaTable, WriterProperties

    DeltaTable(folder).optimize.compact(
        target_size=TARGET_BYTES,
        writer_properties=WriterProperties(compression="ZSTD", compression_level=2),
    )


def _copy(folder: Path, *, synced: bool = False) -> None:
    target = folder / "copied"
    for path in sorted((folder / "segments").rglob("*.arrow")):
        to = target / path.relative_to(folder)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, to)
        if synced:
            with to.open("rb") as file:
                os.fsync(file.fileno())


def _scan(folder: Path, rows: int) -> float:
    start = time.perf_counter()
    found = sum(batch.num_rows for batch in segstore.open(folder).read(read_cache_bytes=0))
    took = time.perf_counter() - start
    assert found == rows
    return took


def _live_bytes(folder: Path) -> int:
    stream = segstore.open(folder)
    reading = stream.plan_read()
    return sum(part.entry.bytes for task in stream.plan_tasks(reading) for part in task.slices)


def _input_bytes(scratch: Path, name: str) -> int:
    if name == "delta":
        return folder_bytes(scratch / "delta")
    return folder_bytes(scratch / "stream" / "segments")


def _peak_bytes(folder: Path) -> int:
    """Return what a merge adds to the memory of a process of its own, at its peak."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_measure, args=(folder, queue))
    process.start()
    peak: int = queue.get()
    process.join()
    return peak


def _measure(folder: Path, queue: Any) -> None:
    before = psutil.Process().memory_info().rss
    _merge(folder)
    queue.put(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before)


WORKLOADS = {"compaction": Workload(MEANING, run, 20_000_000, 20_000)}
