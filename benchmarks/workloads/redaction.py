"""Redaction of events in some of a thousand segments, beside delta-rs's delete and vacuum."""

import os
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import segstore_ds as segstore
from benchmarks.datasets import EVENTS, events
from benchmarks.report import Ratio, Report, machine
from benchmarks.workload import Settings, Workload, folder_bytes

MEANING = (
    "set a column to null in 1,000 events of 1, 10 and 100 of 1,000 segments of 1/1,000 of the "
    "rows, beside deltalake's delete of them followed by vacuum"
)
SEGMENTS, REDACTED = 1_000, 1_000
TOUCHED = (1, 10, 100)
FLATTERS = (
    "the same events and filters; zstd level 2 for both; Delta's files are Parquet, ours too",
    "delta-rs writes no deletion vectors, so delete rewrites files; Spark's would need a REORG",
    "bounds of `id` leave just the touched segments and files, for both",
    "against us: redact syncs to disk, keeps each row's place, and plans once more at its end",
    "for us: Delta's vacuum deletes at once, segstore's forgetting comes after its grace, untimed",
)
Found = tuple[float, int]


def run(settings: Settings) -> Report:
    """Make both once, and change fresh copies of them in interleaved rounds."""
    count, touched = (20, (1, 5)) if settings.tiny else (SEGMENTS, TOUCHED)
    each = max(settings.rows // count, 2)
    raw: dict[str, list[float]] = {}
    written: dict[str, int] = {}
    with settings.scratch() as scratch:
        _fill(scratch / "segstore", scratch / "delta", count, each)
        for turn in range(0 if settings.tiny else -1, settings.rounds):
            for segments in touched:
                ids = _ids(count, each, segments)
                for name, candidate in CANDIDATES.items():
                    work = scratch / "work"
                    shutil.copytree(scratch / name, work)
                    os.sync()
                    seconds, size = candidate(work, ids)
                    shutil.rmtree(work)
                    if turn >= 0:
                        raw.setdefault(f"{segments} {name}", []).append(seconds)
                        written[f"{segments} {name}"] = size
    medians = {name: statistics.median(values) for name, values in raw.items()}
    rows: list[dict[str, Any]] = [
        {
            "segments touched": name.partition(" ")[0],
            "candidate": name.partition(" ")[2],
            "seconds": round(medians[name], 3),
            "spread": f"{min(values):.3f}-{max(values):.3f}",
            "bytes written": written[name],
        }
        for name, values in raw.items()
    ]
    few, many = touched[0], touched[-1]
    ratios = [
        Ratio(
            f"{segments} touched: speed / delta-rs",
            medians[f"{segments} delta"] / medians[f"{segments} segstore"],
        )
        for segments in touched
    ]
    ratios += [
        Ratio(
            f"{many} touched / {few}: seconds",
            medians[f"{many} segstore"] / medians[f"{few} segstore"],
        ),
        Ratio(
            f"{many} touched / {few}: bytes written",
            written[f"{many} segstore"] / written[f"{few} segstore"],
        ),
    ]
    return Report(
        workload="redact",
        meaning=MEANING,
        setup=machine(settings.folder) | {"rounds": settings.rounds_text, "rows": count * each},
        rows=rows,
        ratios=ratios,
        flatters=FLATTERS,
        raw=raw,
    )


def _ids(count: int, each: int, touched: int) -> list[int]:
    """Return the ids of the events to redact, spread evenly over so many segments."""
    share = min(max(REDACTED // touched, 1), each)
    places = [count * place // touched for place in range(touched)]
    return [place * each + each * n // share for place in places for n in range(share)]


def _fill(stream_folder: Path, delta_folder: Path, count: int, each: int) -> None:
    from deltalake import WriterProperties, write_deltalake

    stream = segstore.create(stream_folder, EVENTS, upkeep=None)
    layout = segstore.Layout(inline_bytes=0, segment_format="parquet")
    properties = WriterProperties(compression="ZSTD", compression_level=2)
    for n in range(count):
        batch = events(n * each, each)
        stream.append(batch, layout=layout)
        write_deltalake(delta_folder, batch, mode="append", writer_properties=properties)


def _redact(folder: Path, ids: list[int]) -> Found:
    start = time.perf_counter()
    stream = segstore.open(folder)
    done = stream.redact([["id", "in", ids]], columns=["name"])
    took = time.perf_counter() - start
    assert done.rows == len(ids)
    return took, stream.storage.stats.bytes_written


def _delete(folder: Path, ids: list[int]) -> Found:
    from deltalake import DeltaTable

    before = folder_bytes(folder)
    start = time.perf_counter()
    table = DeltaTable(folder)
    done = table.delete(f"id IN ({', '.join(map(str, ids))})")
    took = time.perf_counter() - start
    written = folder_bytes(folder) - before
    start = time.perf_counter()
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert done["num_deleted_rows"] == len(ids)
    return took + time.perf_counter() - start, written


CANDIDATES: dict[str, Callable[[Path, list[int]], Found]] = {
    "segstore": _redact,
    "delta": _delete,
}
WORKLOADS = {"redact": Workload(MEANING, run, 10_000_000, 20_000)}
