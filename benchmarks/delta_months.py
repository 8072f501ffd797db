"""The same small commits in delta-rs, with its own clean-up: requests and bytes on an S3 server.

A run of an hour or less is real; `project` says what a month of them is by its rates, as formulas
that a report can show.
"""

import datetime as dt
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from object_servers import MINIO, Server, running

from benchmarks.datasets import EVENTS, events
from benchmarks.request_counter import counting

BATCH_ROWS = 10
DAY_COMMITS = 86_400
CHECKPOINT_EVERY = 100  # delta.checkpointInterval of delta-rs
LOG_KEPT_DAYS, DROPPED_KEPT_DAYS = 30, 7  # logRetentionDuration, deletedFileRetentionDuration


@dataclass(frozen=True, slots=True)
class DeltaRun:
    """What some commits and one clean-up took.

    Attributes:
        commits: How many.
        appends: Requests of all appends by kind, their checkpoints included.
        optimize: Requests of one compaction of all of their files.
        cleanup: Requests of removing expired log files and of a vacuum.
        file_bytes: Bytes of one data file.
        commit_bytes: Bytes of one file of the log.
        checkpoint_bytes: Bytes of a checkpoint for each file that is listed in it.
        tombstone_bytes: The same for each file that was dropped within a week.
        compacted_bytes: Bytes of the compacted events.
    """

    commits: int
    appends: Counter[str]
    optimize: Counter[str]
    cleanup: Counter[str]
    file_bytes: float
    commit_bytes: float
    checkpoint_bytes: float
    tombstone_bytes: float
    compacted_bytes: int


@dataclass(frozen=True, slots=True)
class Projected:
    """What a month of commits is by a run's rates."""

    requests: dict[str, float]
    objects: int
    bytes: int
    mean_bytes: float


def run_delta(folder: Path, commits: int) -> DeltaRun:
    """Commit ten events at a time, compact once, clean up."""
    from deltalake import DeltaTable, WriterProperties, write_deltalake

    with running(MINIO, folder) as server, counting(server.endpoint) as (endpoint, counter):
        options = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": server.key,
            "AWS_SECRET_ACCESS_KEY": server.secret,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
            "aws_conditional_put": "etag",
        }
        url = f"{server.new_bucket()}/delta"
        table = DeltaTable.create(url, EVENTS, storage_options=options)
        properties = WriterProperties(compression="ZSTD", compression_level=2)
        counter.take()
        all_events = events(0, commits * BATCH_ROWS)
        for n in range(commits):
            batch = all_events.slice(n * BATCH_ROWS, BATCH_ROWS)
            write_deltalake(table, batch, mode="append", writer_properties=properties)
        appends = counter.take()
        sizes = _sizes(server, url)
        table.create_checkpoint()
        full = _newest_checkpoint(_sizes(server, url))
        counter.take()
        table.optimize.compact(writer_properties=properties)
        optimize = counter.take()
        table.create_checkpoint()
        after = _sizes(server, url)
        counter.take()
        table.cleanup_metadata()
        table.vacuum(0, dry_run=False, enforce_retention_duration=False)
        cleanup = counter.take()
        compacted = sum(
            size
            for name, size in after.items()
            if name.endswith(".parquet") and "_delta_log" not in name and name not in sizes
        )
    files = [s for name, s in sizes.items() if "_delta_log" not in name]
    logged = [s for name, s in sizes.items() if name.endswith(".json")]
    return DeltaRun(
        commits=commits,
        appends=appends,
        optimize=optimize,
        cleanup=cleanup,
        file_bytes=sum(files) / len(files),
        commit_bytes=sum(logged) / len(logged),
        checkpoint_bytes=full / commits,
        tombstone_bytes=_newest_checkpoint(after) / commits,
        compacted_bytes=compacted,
    )


def project(run: DeltaRun, days: int, *, log_kept_days: int) -> Projected:
    """Return what so many days at one commit a second take, compacted and cleaned up each night.

    A checkpoint lists the files since the last night, half a day of them on average, and those that
    were dropped within a week. Listings of the log count as one page, however long it is.
    """
    commits = days * DAY_COMMITS
    requests = {kind: n / run.commits * commits for kind, n in run.appends.items()}
    nightly = Counter[str]()
    # One request per file that is read, and per file that is deleted; the rest is for the night.
    for kind, n in (run.optimize + run.cleanup).items():
        nightly[kind] = round(n / run.commits * DAY_COMMITS) if n >= run.commits else n
    requests = {
        kind: round(requests.get(kind, 0) + nightly[kind] * days) for kind in requests | nightly
    }
    totals = [_stored(run, day, log_kept_days) for day in range(1, days + 1)]
    objects, stored = totals[-1]
    return Projected(requests, objects, stored, sum(total[1] for total in totals) / days)


def _stored(run: DeltaRun, day: int, log_kept_days: int) -> tuple[int, int]:
    """Return objects and bytes at the end of a day, before its compaction."""
    logged = min(day, log_kept_days)
    dropped = min(day - 1, DROPPED_KEPT_DAYS) * DAY_COMMITS
    per_day = DAY_COMMITS // CHECKPOINT_EVERY
    checkpoints = sum(
        DAY_COMMITS / 2 * run.checkpoint_bytes
        + min(at - 1, DROPPED_KEPT_DAYS) * DAY_COMMITS * run.tombstone_bytes
        for at in range(day - logged + 1, day + 1)
    )
    compacted = run.compacted_bytes / run.commits * DAY_COMMITS * (day - 1)
    stored = (
        logged * DAY_COMMITS * run.commit_bytes
        + checkpoints * per_day
        + (DAY_COMMITS + dropped) * run.file_bytes
        + compacted
    )
    objects = logged * (DAY_COMMITS + per_day) + DAY_COMMITS + dropped + day
    return objects, round(stored)


def _sizes(server: Server, url: str) -> dict[str, int]:
    from s3fs.core import S3FileSystem

    found = S3FileSystem(**server.options, use_listings_cache=False).find(url, detail=True)
    return {name: info["size"] for name, info in found.items()}


def _newest_checkpoint(sizes: dict[str, int]) -> int:
    return sizes[max(name for name in sizes if name.endswith(".checkpoint.parquet"))]


def kept_text(days: int) -> str:
    """Return how long a log is kept, for a report."""
    return str(dt.timedelta(days=days)).partition(",")[0]
