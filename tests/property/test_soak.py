"""Thousands of micro-batches on one stream: neither a batch nor the stream's folder grows."""

import statistics

import pytest
from stream_kit import SCHEMA, make_stream, numbers, objects, values, wait
from virtual_time import TimedStorage

from segstore_ds.status.writers import WriterKey
from segstore_ds.stream.stream import Stream
from segstore_ds.write.job import plan_job
from segstore_ds.write.layout import Layout
from segstore_ds.write.request import WriteRequest

pytestmark = pytest.mark.slow

ROWS = 3
EVERY_S = 60.0
UPKEEP_EVERY = 60  # batches, an hour
KEPT_S = 2 * 3600


def run_batch(stream: Stream, batch: int) -> None:
    """Do what the streaming sink does with one small batch: one task, inline, compacted after."""
    job = plan_job(
        stream._context,
        WriteRequest(
            schema=SCHEMA,
            writer=WriterKey("query", batch, owner="query"),
            client="soak",
            layout=Layout(),
            compact=True,
        ),
    )
    task = job.open_task(0, f"attempt{batch}")
    table = numbers(batch * ROWS, (batch + 1) * ROWS)
    for each in table.to_batches():
        task.append(each)
    commit = stream.commit(job, [task.finish()])
    assert (commit.start, commit.rows) == (batch * ROWS, ROWS)


def maintain(stream: Stream) -> None:
    """Do what a nightly job does, more often."""
    stream.maintain(keep=KEPT_S, grace=KEPT_S, short_grace=True)


def soak(batches: int) -> tuple[Stream, TimedStorage, list[int], list[int], list[int]]:
    """Run batches with upkeep beside them; the requests and bytes of each, and files over time."""
    stream, storage = make_stream(0)
    requests, written, files = [], [], []
    for batch in range(batches):
        wait(storage, EVERY_S)
        before = storage.stats.total, storage.stats.bytes_written
        run_batch(stream, batch)
        requests.append(storage.stats.total - before[0])
        written.append(storage.stats.bytes_written - before[1])
        if batch % UPKEEP_EVERY == UPKEEP_EVERY - 1:
            maintain(stream)
            files.append(len(objects(storage)))
    return stream, storage, requests, written, files


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "batches", [600, pytest.param(10_000, marks=pytest.mark.sweep)], ids=["short", "long"]
)
def test_batches_and_files_stay_bounded(batches):
    stream, storage, requests, written, files = soak(batches)
    third = batches // 3
    assert statistics.mean(requests[-third:]) <= 1.1 * statistics.mean(requests[:third])
    assert max(requests) <= 25
    # Each event is rewritten a logarithmic number of times.
    assert statistics.mean(written[-third:]) <= 1.5 * statistics.mean(written[:third])
    # Three hours of versions and of what compaction replaced: two kept, and one until it is run.
    assert max(files[2:]) <= 1.25 * min(files[2:])
    # A commit per batch, and one in three for what is compacted or cleaned up.
    assert len(objects(storage, "log")) <= 3 * 60 * 1.4
    segments = len(stream._log.root.entries) + sum(part.count for part in stream._log.root.parts)
    assert segments <= 40
    assert values(stream) == list(range(batches * ROWS))
    assert stream.verify().check().leftovers == []
    assert stream._log.root.log_start > 0
