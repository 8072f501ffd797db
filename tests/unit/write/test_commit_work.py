"""What a commit has to do besides itself stays small, for every commit."""

from random import Random

from stream_kit import make_stream

from segstore_ds.compact.run import run_due_merge
from segstore_ds.format.batch_fingerprint import BatchFacts
from segstore_ds.format.names import build_token
from segstore_ds.format.root import SegmentEntry
from segstore_ds.stream.stream import Stream
from segstore_ds.write.append import AppendPlan
from segstore_ds.write.job import WriteJob
from segstore_ds.write.layout import Layout
from segstore_ds.write.request import WriteRequest

COMMITS = 1500


def _commit(stream: Stream, number: int, chance: Random) -> None:
    """Commit one segment that exists as an entry only, and do the maintenance after it."""
    log = stream._log
    token = build_token(log.root.version, f"{chance.getrandbits(48):012x}")
    entry = SegmentEntry(0, f"{token}/0-0-0.arrow", 10, 99, 40, number)
    request = WriteRequest(stream.schema, Layout(), "")
    job = WriteJob(stream._log.storage, token, log.clock.new_id(), request, request.schema)
    stream._commits.appender.commit(AppendPlan(job, (entry,), BatchFacts(10, {})))
    run_due_merge(stream._context)


def test_commits_do_bounded_work():
    """At most 1 in 25 puts more than its root; none more than two parts, twins and roots.

    A merge reads nothing that this process wrote, and writes what it merges once.
    """
    stream, storage = make_stream(0)
    chance, stats = Random(7), storage.stats
    creates, written = [], []
    for number in range(COMMITS):
        before = stats.requests.get("create", 0), stats.bytes_written, stats.bytes_read
        _commit(stream, number, chance)
        creates.append(stats.requests["create"] - before[0])
        written.append(stats.bytes_written - before[1])
        assert stats.bytes_read == before[2]
    assert sum(count > 1 for count in creates) <= COMMITS / 25
    assert max(creates) <= 6  # a part of entries or of history with a root, and a merged one
    assert sorted(written)[COMMITS // 2] < 8_000
    assert max(written) < 40_000
