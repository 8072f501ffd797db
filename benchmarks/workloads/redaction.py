"""Redaction of events in some of a thousand segments, beside Delta's ways to delete for good."""

import json
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import segstore_ds as segstore
from benchmarks.datasets import EVENTS, events
from benchmarks.report import Ratio, Report, machine
from benchmarks.spark_peers import INSTALLATIONS
from benchmarks.workload import Settings, Workload, folder_bytes
from benchmarks.workloads.spark_rivals import python_with

MEANING = (
    "set a column to null in 1,000 events of 1, 10 and 100 of 1,000 segments of 1/1,000 of the "
    "rows, beside deletes of them for good: deltalake's, as it is and synced to disk, and that of "
    "Delta's Spark with deletion vectors, REORG PURGE and VACUUM"
)
SEGMENTS, REDACTED = 1_000, 1_000
TOUCHED = (1, 10, 100)
FLATTERS = (
    "the same events and filters; zstd level 2 for all; Delta's files are Parquet, ours too",
    "bounds of `id` leave just the touched segments and files, for all",
    "delta-rs writes no deletion vectors, so its delete rewrites files; it syncs nothing",
    "`delta-rs synced` syncs each new file and its folder afterwards, which segstore always does",
    "delta-spark's session is warm, and runs beside the others; its files are synced by nobody",
    "against us: redact keeps each row's place, and looks once more at its end for what matches",
    "for us: Delta's vacuum deletes at once, segstore's forgetting comes after its grace, untimed",
)
Found = tuple[float, int]
Candidate = Callable[[Path, list[int]], Found]


def run(settings: Settings) -> Report:
    """Make both once, and change fresh copies of them in interleaved rounds."""
    count, touched = (20, (1, 5)) if settings.tiny else (SEGMENTS, TOUCHED)
    each = max(settings.rows // count, 2)
    raw: dict[str, list[float]] = {}
    written: dict[str, int] = {}
    with settings.scratch() as scratch, ExitStack() as stack:
        _fill(scratch / "segstore", scratch / "delta", count, each)
        candidates = {**CANDIDATES}
        if not settings.tiny:
            candidates["delta-spark"] = stack.enter_context(_delta_spark(settings, scratch))
        for turn in range(0 if settings.tiny else -1, settings.rounds):
            for segments in touched:
                ids = _ids(count, each, segments)
                for name, candidate in candidates.items():
                    work = scratch / "work"
                    shutil.copytree(scratch / ("segstore" if name == "segstore" else "delta"), work)
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
    return Report(
        workload="redact",
        meaning=MEANING,
        setup=machine(settings.folder) | {"rounds": settings.rounds_text, "rows": count * each},
        rows=rows,
        ratios=[*_ratios(medians, written, touched, [*candidates])],
        flatters=FLATTERS,
        raw=raw,
    )


def _ratios(
    medians: dict[str, float],
    written: dict[str, int],
    touched: tuple[int, ...],
    candidates: list[str],
) -> Iterator[Ratio]:
    for segments in touched:
        own = medians[f"{segments} segstore"]
        for name in candidates[1:]:
            ratio = medians[f"{segments} {name}"] / own
            yield Ratio(f"{segments} touched: speed / {name}", ratio)
    few, many = touched[0], touched[-1]
    for what, found in (("seconds", medians), ("bytes written", written)):
        ratio = found[f"{many} segstore"] / found[f"{few} segstore"]
        yield Ratio(f"{many} touched / {few}: {what}", ratio)


def _ids(count: int, each: int, touched: int) -> list[int]:
    """Return the ids of the events to redact, spread evenly over so many segments."""
    share = min(max(REDACTED // touched, 1), each)
    places = [count * place // touched for place in range(touched)]
    return [place * each + each * n // share for place in places for n in range(share)]


def _fill(stream_folder: Path, delta_folder: Path, count: int, each: int) -> None:
    """Make a stream and a table of the same files, each in one commit."""
    from deltalake import convert_to_deltalake

    stream = segstore.create(stream_folder, EVENTS, upkeep=None)
    layout = segstore.Layout(
        inline_bytes=0, segment_format="parquet", segment_rows=each, frame_rows=each
    )
    batches = (events(n * each, each) for n in range(count))
    stream.append(pa.RecordBatchReader.from_batches(EVENTS, batches), layout=layout)
    assert len(stream.scan().files()) == count
    delta_folder.mkdir()
    for n in range(count):
        table = pa.Table.from_batches([events(n * each, each)])
        path = delta_folder / f"part-{n:05}.parquet"
        pq.write_table(table, path, compression="zstd", compression_level=2)
    convert_to_deltalake(str(delta_folder))


def _redact(folder: Path, ids: list[int]) -> Found:
    start = time.perf_counter()
    stream = segstore.open(folder)
    done = stream.redact([["id", "in", ids]], columns=["name"])
    took = time.perf_counter() - start
    assert done.rows == len(ids)
    return took, stream.storage.stats.bytes_written


def _condition(ids: list[int]) -> str:
    return f"id IN ({', '.join(map(str, ids))})"


def _delete(folder: Path, ids: list[int]) -> Found:
    return _delete_and(folder, ids, lambda _: None)


def _delete_synced(folder: Path, ids: list[int]) -> Found:
    old = {*folder.rglob("*")}
    return _delete_and(folder, ids, lambda path: _sync({*path.rglob("*")} - old))


def _delete_and(folder: Path, ids: list[int], then: Callable[[Path], None]) -> Found:
    from deltalake import DeltaTable

    before = folder_bytes(folder)
    start = time.perf_counter()
    table = DeltaTable(folder)
    done = table.delete(_condition(ids))
    then(folder)
    took = time.perf_counter() - start
    written = folder_bytes(folder) - before
    start = time.perf_counter()
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert done["num_deleted_rows"] == len(ids)
    return took + time.perf_counter() - start, written


def _sync(files: set[Path]) -> None:
    """Sync files, and the folders that they lie in."""
    for path in [*sorted(files), *sorted({path.parent for path in files})]:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


@contextmanager
def _delta_spark(settings: Settings, scratch: Path) -> Iterator[Candidate]:
    """Give a candidate that deletes through a session of Delta's Spark."""
    python = python_with(settings.folder, INSTALLATIONS["delta"].pyspark)
    command = [str(python), "-m", "benchmarks.delta_erasure", str(scratch)]
    environment = {**os.environ, "PYSPARK_PYTHON": str(python)}
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, env=environment) as session:
        if session.stdin is None or session.stdout is None:
            raise RuntimeError("a session without pipes")
        asked, answers = session.stdin, session.stdout

        def erase(folder: Path, ids: list[int]) -> Found:
            line = {"table": str(folder), "condition": _condition(ids)}
            asked.write(f"{json.dumps(line)}\n")
            asked.flush()
            found = _answer(answers)
            return found["delete"] + found["purge"] + found["vacuum"], int(found["bytes"])

        _answer(answers)
        yield erase
        asked.close()


def _answer(lines: Any) -> dict[str, Any]:
    for line in lines:
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    raise RuntimeError("Delta's Spark has ended: see what it wrote to standard error")


CANDIDATES: dict[str, Candidate] = {
    "segstore": _redact,
    "delta-rs": _delete,
    "delta-rs synced": _delete_synced,
}
WORKLOADS = {"redact": Workload(MEANING, run, 10_000_000, 20_000)}
