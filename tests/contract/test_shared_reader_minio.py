"""Eight processes share a reader on a real S3 server."""

import time
from collections import Counter
from contextlib import ExitStack

from fixtures_servers import FETCHES
from member_kit import work
from process_kit import messages, running
from stream_kit import SCHEMA, numbers

from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on

pytestmark = FETCHES


def test_eight_processes_share_a_reader(minio) -> None:
    """Each event goes to one of them; what two had that were killed goes to others."""
    url = f"{minio.new_bucket()}/s"
    stream = create_on(open_storage(url, minio.options), SCHEMA, upkeep=None)
    tail = 0
    with ExitStack() as stack:
        members = [
            stack.enter_context(running(work, url, f"w{n}", "20s", minio.options)) for n in range(8)
        ]
        end = time.monotonic() + 120
        while sum(len(seen.record.members) for seen in stream.readers) < 8:
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
    assert counts.total() - tail <= 2 * 50  # what the two had in their hands
    assert sum(map(bool, got)) >= 4  # how evenly they share is no promise
    assert stream.position("reader:billing").offset == tail
    left = {name for seen in stream.readers for name in seen.record.members}
    assert left <= {"w1", "w2"}  # killed with nothing in hand: nobody waited for their leases
