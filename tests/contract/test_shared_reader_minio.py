"""Several processes share a reader on a real S3 server."""

import time
from collections import Counter
from contextlib import ExitStack

import pytest
from fixtures_servers import FETCHES
from member_kit import in_order, keyed, work, work_and_reject
from process_kit import messages, running
from stream_kit import SCHEMA, numbers

from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on

pytestmark = FETCHES
PROCESSES = 5  # each makes a client of its own, which takes half a second of CPU


def test_processes_share_a_reader(minio) -> None:
    """Each event goes to one of them; what two that are killed had last goes to others, too."""
    url = f"{minio.new_bucket()}/s"
    stream = create_on(open_storage(url, minio.options), SCHEMA, upkeep=None)
    tail = 0
    with ExitStack() as stack:
        members = [
            stack.enter_context(running(work, url, f"w{n}", "40s", minio.options))
            for n in range(PROCESSES)
        ]
        end = time.monotonic() + 120
        while sum(len(seen.record.members) for seen in stream.readers) < PROCESSES:
            assert time.monotonic() < end, "a member does not join"
            time.sleep(0.1)
        for n in range(60):
            stream.append(numbers(tail, tail + 50))
            tail += 50
            if n in (20, 40):
                members[n // 20][0].kill()
            time.sleep(0.05)
        stream.seal()
        got = [[*messages(pipe)] for _, pipe in members]
    texts = [batch for each in got for batch in each if isinstance(batch, str)]
    assert texts == []
    counts = Counter(n for each in got for batch in each for n in batch)
    assert sorted(counts) == list(range(tail))
    last = Counter(n for each in got[1:3] for batch in each[-1:] for n in batch)  # of the killed
    assert counts - Counter(range(tail)) <= last
    assert sum(map(bool, got)) >= 3  # how evenly they share is no promise
    assert stream.position("reader:billing").offset == tail
    left = {name for seen in stream.readers for name in seen.record.members}
    assert left <= {"w1", "w2"}  # killed with nothing in hand: nobody waited for their leases


@pytest.mark.parametrize("key", [None, pytest.param(["s"], marks=pytest.mark.sweep)])
def test_processes_write_dead_letters_once(minio, key) -> None:
    """What they reject and what two die of is there once; all else is done, though two are killed.

    A batch that a member has rejected a row of comes back if the member dies before it says so.
    """
    url = f"{minio.new_bucket()}/s"
    stream = create_on(open_storage(url, minio.options), SCHEMA, upkeep=None)
    for n in range(6):
        stream.append(keyed(50 * n, 50 * n + 50))
    stream.seal()
    got, life = Counter[int](), 0
    while life == 0 or _offset(stream) < 300:
        assert life < 12, "they do not get on"
        with ExitStack() as stack:
            members = [
                stack.enter_context(
                    running(work_and_reject, url, f"w{life}.{n}", "4s", minio.options, key)
                )
                for n in range(PROCESSES)
            ]
            if life == 0:
                time.sleep(2)
                members[0][0].kill()
                members[1][0].kill()
            for _, pipe in members:
                batches = [*messages(pipe)]
                got.update(n for batch in batches for n in batch)
                assert key is None or in_order(batches)
        life += 1
    dead = open_on(f"{url}-dead", storage_options=minio.options).read().read_all().to_pylist()
    counts = Counter(row["n"] for row in dead)
    assert set(counts.values()) == {1}
    assert counts.keys() >= {n for n in range(300) if n % 10 == 0 or n % 100 == 55}
    assert counts.keys() | got.keys() == set(range(300))
    reasons = {row["_reason"] for row in dead if row["n"] % 100 == 55}
    assert reasons == {"given out 2 times, and never done"}


def _offset(stream) -> int:
    """Return up to where the reader has done everything."""
    return stream.position("reader:billing").offset
