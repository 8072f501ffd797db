"""Processes that append and are killed with SIGKILL at random moments, many times over."""

import os
import random
import re
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from crash_children import (
    BATCH_ROWS,
    SCHEMA,
    append_keyed,
    append_plain,
    append_shared,
    die_at_system_call,
    leave_in_part,
    numbered,
)
from process_kit import messages, running

from segstore_ds.stream.opening import create, drop
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream

pytestmark = pytest.mark.slow

LONGEST_PAUSE_S = 0.012  # about as long as an append takes


@pytest.mark.parametrize(
    "lives",
    [
        pytest.param(18, id="short"),
        pytest.param(300, id="long", marks=pytest.mark.sweep),
    ],
)
def test_acknowledged_events_survive_kills(folder: Path, lives: int) -> None:
    """Each acknowledged event is there once and in order, however often its writer was killed."""
    url = str(folder / "stream")
    stream = create(url, SCHEMA)
    chance = random.Random(20)
    acknowledged = {0: -1, 1: -1}
    programs = (append_keyed, append_plain)
    for _ in range(lives):
        with ExitStack() as stack:
            running_now = [
                # The keyed writer may repeat a committed batch; the plain one asks the stream.
                stack.enter_context(running(programs[writer], url, writer, last + 1))
                for writer, last in acknowledged.items()
            ]
            for writer, (child, pipe) in enumerate(running_now):
                for _ in range(chance.randint(1, 4)):
                    assert pipe.poll(300), "the child hangs"
                    acknowledged[writer] = pipe.recv()
                time.sleep(chance.random() * LONGEST_PAUSE_S)  # any moment of an append
                child.kill()
                for batch in messages(pipe):
                    acknowledged[writer] = batch
    _check(open_on(stream._log.storage), acknowledged)
    assert min(acknowledged.values()) >= lives


def test_death_at_every_system_call(folder: Path) -> None:
    """A process that dies at any system call of an append leaves the old state or the new one."""
    for number in range(1, 200):
        url = str(folder / f"stream-{number}")
        stream = create(url, SCHEMA)
        stream.append(numbered(0, 0), writer_id="writer-0", batch_id=0)
        with running(die_at_system_call, url, number) as (child, pipe):
            child.join(300)
            acknowledged = list(messages(pipe))
        seen = open_on(stream._log.storage)
        tails = [2 * BATCH_ROWS] if acknowledged else [BATCH_ROWS, 2 * BATCH_ROWS]
        assert seen.tail in tails, number
        seen.verify().check()
        commit = seen.append(numbered(0, 1), writer_id="writer-0", batch_id=1)
        assert commit.end == 2 * BATCH_ROWS
        _check(open_on(stream._log.storage), {0: 1})
        if acknowledged:
            assert child.exitcode == 0
            assert number > 10
            assert {"write", "writev", "link"} <= acknowledged[0]
            return
        assert child.exitcode == -signal.SIGKILL
    pytest.fail("the append never succeeds")


def _check(stream: Stream, acknowledged: dict[int, int]) -> None:
    rows = stream.read(offset_column="offset").read_all().to_pylist()
    assert [row["offset"] for row in rows] == list(range(len(rows)))
    for writer, last in acknowledged.items():
        numbers = [row["n"] for row in rows if row["writer"] == writer]
        assert numbers == list(range(len(numbers)))
        # One batch more may have landed without its acknowledgement.
        assert (last + 1) * BATCH_ROWS <= len(numbers) <= (last + 2) * BATCH_ROWS
    stream.verify().check()


def test_vacuum_and_drop_delete_killed_calls_temporaries(folder: Path) -> None:
    """No commit can name a temporary, and after the grace no process uses it."""
    url, other = str(folder / "stream"), str(folder / "follower")
    stream = create(url, SCHEMA)
    stream.append(numbered(0, BATCH_ROWS))
    stream.followers.add(other)
    token = f"segments/{0:020d}-0123456789ab"
    left = []
    for root in (url, other):
        for path in (f"{token}/0-0-0.arrow", f"log/{99:020d}", "status/x"):
            with running(leave_in_part, root, path) as (child, pipe):
                assert pipe.poll(300), "the child hangs"
                assert pipe.recv() == "written"
                child.kill()
                child.join()
        left += [path for path in Path(root).rglob(".tmp-*") if path.is_file()]
    assert len(left) == 6
    kept = left.pop()  # as young as that of a call under way
    for path in left:
        os.utime(path, (time.time() - 90_000,) * 2)
    dry = stream.maintain(grace=86_400, dry_run=True)
    temporary = {str(path.relative_to(url)) for path in left if path.is_relative_to(url)}
    assert {entry.path for entry in dry.deleted} == temporary
    assert all(entry.bytes == 1 << 20 for entry in dry.deleted)
    assert all(path.exists() for path in left)
    assert stream.maintain(grace=86_400).deleted == dry.deleted
    assert not any(path.exists() for path in left)
    assert not (folder / "stream" / token).exists()
    assert kept.exists()
    stream.followers.remove(other)
    young = folder / "stream" / "log" / ".tmp-1-0123456789abcdef"
    young.write_bytes(b"x")
    drop(url, confirm=stream.url)
    left = [path for path in (folder / "stream").rglob("*") if path.is_file()]
    assert all(re.fullmatch(r"\d{20}|_latest", path.name) for path in left)


@pytest.mark.parametrize("life", range(6))
def test_events_that_were_waited_for_survive_a_kill(folder: Path, life: int) -> None:
    """Each thread's acknowledged events are at the offsets that they were told, in its order."""
    url = str(folder / "stream")
    stream = create(url, SCHEMA)
    with running(append_shared, url, 8) as (child, pipe):
        acknowledged = [pipe.recv() for _ in range(10 + 17 * life)]
        os.kill(child.pid, signal.SIGKILL)
        acknowledged += messages(pipe)
    rows = stream.refresh().read().read_all().to_pylist()
    for offset, writer, n in acknowledged:
        assert (rows[offset]["writer"], rows[offset]["n"]) == (writer, n)
    for writer in range(8):
        numbers = [row["n"] for row in rows if row["writer"] == writer]
        assert numbers == list(range(len(numbers)))
    stream.verify().check()
