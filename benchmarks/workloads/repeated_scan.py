"""The same events scanned twice from S3, where every request waits: what the read cache saves."""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import segstore_ds as segstore
from benchmarks.datasets import EVENTS, events
from benchmarks.faults import FaultStorage
from benchmarks.object_servers import MINIO, running
from benchmarks.places import S3Meter
from benchmarks.report import Ratio, Report, machine
from benchmarks.workload import Settings, Workload
from segstore_ds.read.cached import PROCESS_CACHE
from segstore_ds.storage import open_storage
from segstore_ds.stream import Stream, create_on

MEANING = (
    "scan 64 MiB from S3 twice, 30 ms a request: in 64 segments, in one, and in one of Parquet"
)
DELAY_S = 0.03
# Segments, their format, and the ratio wanted.
CASES = {
    "64 segments": (64, "arrow", 10.0),
    "1 segment": (1, "arrow", None),
    "1 Parquet segment": (1, "parquet", None),
}
FLATTERS = (
    "the server is on this machine and takes a core of it: a real network is slower still",
    "the second scan decodes again, so what is left is decoding; frames are held as stored",
    "read by pyarrow's reader in one process, up to four frames at a time",
)


def run(settings: Settings) -> Report:
    """Fill a stream per case, and scan each cold, again, and without the cache."""
    rows: list[dict[str, Any]] = []
    ratios: list[Ratio] = []
    with settings.scratch() as scratch, running(MINIO, scratch) as server:
        bucket = server.new_bucket()
        meter = S3Meter(open_storage(bucket, server.options), DELAY_S)
        for case, (segments, form, goal) in CASES.items():
            folder = f"{bucket}/{case.replace(' ', '-')}"
            storage = FaultStorage(open_storage(folder, server.options))  # lists its calls
            stream = create_on(storage, EVENTS, upkeep=None)
            _fill(stream, settings.rows, segments, form)
            found = _measure(stream, storage, meter, settings)
            rows += [{"case": case, "scan": name, **row} for name, row in found.items()]
            first, second, without = (found[name]["seconds"] for name in found)
            ratios += [
                Ratio(f"{case}: first / second", first / second, goal),
                Ratio(f"{case}: first / without the cache", first / without),
            ]
    return Report(
        workload="repeated_scan",
        meaning=MEANING,
        setup=machine(settings.folder)
        | {
            "server": f"{MINIO.name} {MINIO.version}, {DELAY_S * 1e3:.0f} ms before every request",
            "rounds": settings.rounds_text,
        },
        rows=rows,
        ratios=ratios,
        flatters=FLATTERS,
    )


def _fill(stream: Stream, count: int, segments: int, form: str) -> None:
    layout = segstore.Layout(inline_bytes=0, segment_format=form)
    each = max(count // segments, 1)
    for number in range(segments):
        stream.append(events(number * each, each), layout=layout)


def _measure(
    stream: Stream, storage: FaultStorage, meter: S3Meter, settings: Settings
) -> dict[str, dict[str, Any]]:
    scans: dict[str, Callable[[], int]] = {
        "first": partial(_scan, stream),
        "second": partial(_scan, stream),
        "without the cache": partial(_scan, stream, read_cache_bytes=0),
    }
    seconds: dict[str, list[float]] = {name: [] for name in scans}
    requests: dict[str, tuple[int, int]] = {}
    for turn in range(0 if settings.tiny else -1, settings.rounds):
        PROCESS_CACHE.reset()
        for name, scan in scans.items():
            storage.calls.clear()
            before, start = meter.requests, time.perf_counter()
            assert scan() == stream.tail
            took = time.perf_counter() - start
            data = sum("segments/" in call for call in storage.calls)
            requests[name] = (data, meter.requests - before - data)
            if turn >= 0:
                seconds[name].append(took)
    assert requests["second"][0] == 0
    counters = segstore.read_cache_counters()
    stored = sum(entry.bytes for entry in stream.root.entries)
    found = {
        name: {
            "seconds": round(statistics.median(times), 3),
            "spread": f"{min(times):.3f}-{max(times):.3f}",
            "data requests": requests[name][0],
            "other requests": requests[name][1],
        }
        for name, times in seconds.items()
    }
    found["first"] |= {"MiB stored": round(stored / 2**20, 1)}
    found["second"] |= {
        "MiB held": round(counters.held_bytes / 2**20, 1),
        "MiB decoded": round(stream.read().read_all().nbytes / 2**20, 1),
    }
    return found


def _scan(stream: Stream, **options: int) -> int:
    return sum(batch.num_rows for batch in stream.read(**options))  # type: ignore[arg-type]


WORKLOADS = {"repeated_scan": Workload(MEANING, run, 5_000_000, 20_000)}
