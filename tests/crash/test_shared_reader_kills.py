"""Members of a reader as processes that are killed and frozen: no event is lost."""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

import pytest
from member_kit import in_order, keyed, work, work_and_reject, work_when_told
from process_kit import messages, running
from stream_kit import SCHEMA, numbers

from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("key", [None, ["s"]])
def test_no_event_is_lost_however_often_members_are_killed(
    folder: Path, key: list[str] | None
) -> None:
    """Events come twice only where a member was killed with their batch in its hands."""
    url, chance = str(folder / "stream"), random.Random(7)
    stream = create_on(open_storage(url), SCHEMA, upkeep=None)
    got, tail, kills = Counter[int](), 0, 12
    for life in range(kills):
        with ExitStack() as stack:
            # The second one keeps its name, and so goes on with its own range.
            members = [
                stack.enter_context(running(work, url, name, "1s", None, key))
                for name in (f"w{life}", "w")
            ]
            for _ in range(chance.randint(3, 9)):
                stream.append(numbers(tail, tail + 4))
                tail += 4
            for child, pipe in members:
                pipe.poll(0.3)  # the other may have got all
                time.sleep(chance.random() * 0.02)  # any moment of reading and committing
                child.kill()
                for batch in messages(pipe):
                    assert not isinstance(batch, str), batch
                    got.update(batch)
    stream.seal()
    with running(work, url, "last", "1s", None, key) as (_, pipe):
        for batch in messages(pipe):
            got.update(batch)
    assert sorted(got) == list(range(tail))
    assert got.total() - tail <= 2 * kills * 4
    assert stream.position("reader:billing").offset == tail


@pytest.mark.parametrize(("key", "tail"), [(None, 400), (["s"], 200)])
def test_dead_letters_are_written_once_however_often_members_are_killed(
    folder: Path, key: list[str] | None, tail: int
) -> None:
    """A member dies at any moment of rejecting, writing and committing; the next goes on."""
    url, chance = str(folder / "stream"), random.Random(11)
    stream = create_on(open_storage(url), SCHEMA, upkeep=None)
    for start in range(0, tail, 20):
        stream.append(keyed(start, start + 20))
    stream.seal()
    got, lives = Counter[int](), 0
    while lives == 0 or stream.position("reader:billing").offset < tail:
        assert lives < 60, "they do not get on"
        with ExitStack() as stack:
            members = [
                stack.enter_context(running(work_and_reject, url, name, "1s", None, key))
                for name in (f"w{lives}", "w")
            ]
            if lives < 12:
                for child, pipe in members:
                    pipe.poll(2)
                    time.sleep(chance.random() * 0.05)
                    child.kill()
            for _, pipe in members:
                batches = [*messages(pipe)]
                got.update(n for batch in batches for n in batch)
                assert key is None or in_order(batches)
        lives += 1
    dead = Counter(open_on(f"{url}-dead").read().read_all()["n"].to_pylist())
    assert set(dead.values()) == {1}
    assert dead.keys() >= {n for n in range(tail) if n % 10 == 0 or n % 100 == 55}
    assert dead.keys() | got.keys() == set(range(tail))


def test_a_frozen_member_is_fenced_and_its_events_go_to_another(folder: Path) -> None:
    url = str(folder / "stream")
    stream = create_on(open_storage(url), SCHEMA, upkeep=None)
    for n in range(8):
        stream.append(numbers(10 * n, 10 * n + 10))
    with ExitStack() as stack:
        child, pipe = stack.enter_context(running(work_when_told, url, "frozen", "2s"))
        assert pipe.poll(60), "the first member hangs"
        assert pipe.recv() == list(range(10))
        os.kill(child.pid, signal.SIGSTOP)
        # Not before: the one that comes first may lease all that is there.
        _, theirs = stack.enter_context(running(work, url, "other", "2s"))
        got: list[int] = []
        began = time.monotonic()
        while len(got) < 80:
            assert theirs.poll(60), "the other member hangs"
            got += theirs.recv()
        assert time.monotonic() - began > 1
        assert got == list(range(80))
        os.kill(child.pid, signal.SIGCONT)
        pipe.send("next")
        assert pipe.poll(60), "the frozen member hangs"
        error = pipe.recv()
        assert "SEG_LEASE_LOST" in error
        assert "events='[0, 10)'" in error
        stream.append(numbers(80, 90))
        assert stream.seal() == 90
        pipe.send("next")
        rest = [batch for connection in (theirs, pipe) for batch in _all(connection)]
        assert sorted(chain.from_iterable(rest)) == list(range(80, 90))
    assert stream.position("reader:billing").offset == 90


def _all(pipe) -> Iterator[list[int]]:
    for batch in messages(pipe):
        yield batch
        try:
            pipe.send("next")
        except OSError:
            return
