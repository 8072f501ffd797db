"""Compaction of many small and of fewer large segments, beside Delta's and plain copies."""

import json
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import segstore_ds as segstore
from benchmarks.datasets import EVENTS, events
from benchmarks.report import Found, Ratio
from benchmarks.workload import Candidate, Settings, folder_bytes, race, workload
from benchmarks.workloads.copying import copy_files
from segstore_ds.storage import open_storage
from segstore_ds.stream.connector.reads import open_snapshot
from segstore_ds.stream.opening import create as create_on

TARGET_BYTES = 128 << 20
CASES = {"large": (200, 1), "small": (2_000, 10)}
MERGE, INTO_PARQUET, DELTA = "merge", "merge into Parquet", "delta"


@workload(
    "the same events, 128 MiB as target and zstd level 2 for both; Delta's files are Parquet",
    "ours are Arrow, whose large frames are copied: that is what makes the large case quick",
    "both run in one process on the same machine; Delta's with all of its threads",
    "against us: Delta's files were added in one commit, and their statistics are row counts alone",
    "against us: outputs and commit are synced to disk, Delta's and cp's are not",
    "stitch checks every frame's CRC-32 on the way, cp checks nothing",
    rows=20_000_000,
    tiny_rows=20_000,
)
def compaction(settings: Settings) -> Found:
    """Merge 200 segments of 1/200 of the rows, and 2,000 of 1/20,000 of them.

    Into segments of 128 MiB at most, beside deltalake's optimize.compact.
    """
    rows: list[Any] = []
    ratios: list[Ratio] = []
    raw: dict[str, Any] = {}
    for case, (segments, share) in CASES.items():
        count = 20 if settings.tiny else segments
        each = max(settings.rows // share // count, 1)
        with settings.scratch() as scratch:
            found = _compact(settings, scratch, case, count, each)
        rows += found.rows
        ratios += found.ratios
        raw[case] = found.raw
    return Found(rows, ratios, raw=raw)


def _compact(settings: Settings, scratch: Path, case: str, count: int, each: int) -> Found:
    stream = scratch / "stream"
    _fill(stream, scratch / DELTA, count, each)
    candidates: dict[str, Candidate] = {
        MERGE: _merge,
        INTO_PARQUET: lambda folder: _merge(folder, into="parquet"),
        DELTA: _optimize,
        "stitch": _stitch,
        "cp": lambda folder: copy_files(folder, folder / "copied", synced=False),
        "cp synced": lambda folder: copy_files(folder, folder / "copied"),
    }

    def prepare(name: str, folder: Path) -> None:
        # No candidate changes a file, each only adds and renames.
        base = scratch / DELTA if name == DELTA else stream
        shutil.copytree(base, folder, copy_function=os.link)

    found = race(candidates, settings, scratch, prepare)
    merged = scratch / "merged"
    prepare(MERGE, merged)
    _merge(merged)
    scans = race(
        {
            "scan before": lambda _: _scan(stream, count * each),
            "scan after": lambda _: _scan(merged, count * each),
        },
        settings,
        scratch,
    )
    before, after = _live_bytes(stream), _live_bytes(merged)
    table: list[dict[str, Any]] = []
    for name, timing in {**found, **scans}.items():
        size = folder_bytes(scratch / DELTA if name == DELTA else stream / "segments")
        rate = round(size / timing.median / 1e6, 1)
        table.append({"case": f"{case}: {count} x {each:,}", **timing.row(name), "MB/s in": rate})
    table[0] |= {"bytes before": before, "bytes after": after}
    ratios = [
        found.faster(MERGE, DELTA, 2, note=f", {case}"),
        found.faster(INTO_PARQUET, DELTA, note=f", {case}"),
        found.faster("stitch", "cp synced", 0.8, note=f", {case}"),
        found.faster("stitch", "cp", note=f", {case}"),
        scans.faster("scan after", "scan before", note=f", {case}"),
        Ratio(f"{case}: bytes after / before", after / before),
    ]
    return Found(table, ratios, raw={**found.raw, **scans.raw})


def _fill(stream_folder: Path, delta_folder: Path, count: int, each: int) -> None:
    from deltalake import DeltaTable, Schema
    from deltalake.transaction import AddAction

    near = open_storage(f"memory://{uuid.uuid4().hex}")  # thousands of synced appends take minutes
    stream = create_on(near, EVENTS, upkeep=None)
    layout = segstore.Layout(inline_bytes=0, segment_format="arrow")
    delta_folder.mkdir()
    stats, files = json.dumps({"numRecords": each}), []
    for n in range(count):
        batch = events(n * each, each)
        stream.append(batch, layout=layout)
        path = delta_folder / f"{n}.parquet"
        with pq.ParquetWriter(path, EVENTS, compression="zstd", compression_level=2) as writer:
            writer.write_batch(batch)
        size = path.stat().st_size
        files.append(AddAction(path.name, size, {}, 0, data_change=True, stats=stats))
    # All at once: as many appends take minutes, each longer than the last.
    table = DeltaTable.create(delta_folder, Schema.from_arrow(EVENTS))
    table.create_write_transaction(files, "append", table.schema())
    for info in list(near.list("")):
        path = stream_folder / info.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(near.get(info.path))
        near.delete(info.path)


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


def _scan(folder: Path, rows: int) -> None:
    batches = segstore.open(folder).read(read_cache_bytes=0)
    assert sum(batch.num_rows for batch in batches) == rows


def _live_bytes(folder: Path) -> int:
    snapshot = open_snapshot(open_storage(folder))
    tasks = snapshot.tasks(snapshot.plan())
    return sum(part.entry.bytes for task in tasks for part in task.slices)
