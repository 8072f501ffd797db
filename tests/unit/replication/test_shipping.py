"""Buffers on their way to followers: what a channel takes, and what the commit still has to do."""

import uuid
import zlib
from dataclasses import replace

import pytest
from follower_kit import Pair, content, found
from stream_kit import SCHEMA, STAGED, numbers

from segstore_ds.cache.buffer import Record
from segstore_ds.cache.channel import FlushedBuffer
from segstore_ds.cache.views import ByteArraySegment
from segstore_ds.errors import CorruptionError, FencedError, StorageError
from segstore_ds.replication.shipping import FollowerChannel
from segstore_ds.storage import open_storage
from segstore_ds.stream.connector.writes import discard_staged
from segstore_ds.write import segment_writer
from segstore_ds.write.layout import Layout

BUFFERS = Layout(inline_bytes=0, frame_rows=100, compression="none")
PATH = "segments/00000000000000000001-aaaaaaaaaaaa/0-0-0.arrow"


pytestmark = pytest.mark.usefixtures("tight")


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch):
    """Let a segment take several buffers."""
    monkeypatch.setattr(segment_writer, "BUFFER_BYTES", 4096)


@pytest.fixture
def pair() -> Pair:
    one = Pair()
    one.stream.followers.add(one.follower)
    return one


@pytest.fixture
def storage():
    return open_storage(f"memory://{uuid.uuid4().hex}")


def buffer(sequence: int, start: int, data: bytes, *, damaged: int | None = None) -> FlushedBuffer:
    """Return a buffer whose records are single bytes; one may have another checksum."""
    records = tuple(
        Record(start + place, 1, zlib.crc32(bytes([byte])) ^ (place == damaged))
        for place, byte in enumerate(data)
    )
    return FlushedBuffer(sequence, start, records, ByteArraySegment(data))


class TestChannel:
    """It commits the object byte for byte, or nothing."""

    def test_takes_what_follows(self, storage):
        channel = FollowerChannel(storage, PATH)
        channel.receive(buffer(0, 0, b"abc"))
        channel.receive(buffer(1, 3, b"de"))
        channel.commit(5)
        channel.abort()
        assert storage.get(PATH) == b"abcde"

    @pytest.mark.parametrize(
        "wrong",
        [
            buffer(2, 3, b"de"),  # one is missing
            buffer(1, 4, b"de"),  # a gap
            buffer(1, 2, b"de"),  # an overlap
            buffer(0, 0, b"abc"),  # the same again
            buffer(1, 3, b"de", damaged=0),
            buffer(1, 3, b"de", damaged=1),
            replace(buffer(1, 3, b"de"), payload=ByteArraySegment(b"def")),
            replace(buffer(1, 3, b"de"), records=()),
            replace(buffer(1, 3, b"de"), records=(Record(3, 1, 0), Record(3, -1, 0))),
            replace(buffer(1, 4, b"de"), start=3),  # records of another place
        ],
    )
    def test_refuses_what_does_not_follow_and_takes_nothing_of_it(self, storage, wrong):
        channel = FollowerChannel(storage, PATH)
        channel.receive(buffer(0, 0, b"abc"))
        with pytest.raises(CorruptionError):
            channel.receive(wrong)
        channel.receive(buffer(1, 3, b"de"))
        channel.commit(5)
        assert storage.get(PATH) == b"abcde"

    @pytest.mark.parametrize("size", [2, 4])
    def test_finishes_only_what_is_whole(self, storage, size):
        channel = FollowerChannel(storage, PATH)
        with pytest.raises(CorruptionError):
            channel.commit(0)
        channel.receive(buffer(0, 0, b"abc"))
        with pytest.raises(CorruptionError):
            channel.commit(size)
        channel.abort()
        assert list(storage.list("")) == []


def reads(pair: Pair) -> list[str]:
    """Return the reads of the primary's segments from now on, as they come."""
    calls: list[str] = []

    def watch(url: str, verb: str, path: str) -> None:
        if url == pair.primary and path.startswith("segments/") and verb in ("get", "get_range"):
            calls.append(f"{verb} {path}")

    pair.world.watch = watch
    return calls


@pytest.mark.parametrize("layout", [Layout(), STAGED, BUFFERS])
def test_a_commit_finds_its_segments_in_the_follower(pair, layout):
    calls = reads(pair)
    for start in range(0, 5000, 1000):
        pair.stream.append(numbers(start, start + 1000), layout=layout)
    assert calls == []
    assert content(pair.follower) == content(pair.primary)
    assert found(pair.reopen(pair.follower)) == list(range(5000))


def test_an_appender_ships_while_it_fills(pair):
    calls, written = reads(pair), []
    with pair.stream.appender(layout=BUFFERS) as appender:
        for start in range(0, 3000, 100):
            appender.append(numbers(start, start + 100))
        written = [
            info.path for info in open_storage(pair.follower).list("segments") if info.size > 0
        ]
        appender.flush()
    assert calls == []
    assert written, "objects that were full are in the follower before the commit"
    assert content(pair.follower) == content(pair.primary)


def test_a_job_of_many_tasks_ships_from_each(pair):
    calls = reads(pair)
    job = pair.stream.plan_write(SCHEMA, layout=BUFFERS)
    tasks = []
    for number in range(3):
        task = job.open_task(number, "a")
        for batch in numbers(1000 * number, 1000 * number + 1000).to_batches():
            task.append(batch)
        tasks.append(task.finish())
    assert all(segment.mirrors == (pair.follower,) for task in tasks for segment in task.segments)
    pair.stream.commit(job, tasks)
    assert calls == []
    assert content(pair.follower) == content(pair.primary)


@pytest.mark.parametrize("mode", ["merge", "stitch"])
def test_a_compaction_ships_what_it_writes(pair, mode):
    for start in range(0, 90, 30):
        pair.stream.append(numbers(start, start + 30), layout=STAGED)
    written = {path for path in content(pair.primary) if path.startswith("segments/")}
    calls = reads(pair)
    pair.stream.compact(mode=mode, layout=STAGED)
    read = {call.split()[1] for call in calls}
    assert read <= written, "inputs are read; outputs are shipped while they are written"
    assert content(pair.follower) == content(pair.primary)


def test_what_a_task_gave_up_is_gone_from_the_follower(pair):
    before = content(pair.follower)
    job = pair.stream.plan_write(SCHEMA, layout=replace(BUFFERS, segment_rows=500))
    task = job.open_task(0, "a")
    for batch in numbers(0, 1300).to_batches():
        task.append(batch)
    task.abort()
    assert content(pair.follower) == before
    task = job.open_task(0, "b")
    for batch in numbers(0, 1300).to_batches():
        task.append(batch)
    discard_staged(pair.stream._log.storage, [task.finish()])
    assert content(pair.follower) == before


def test_a_follower_that_is_away_fails_no_staging(pair):
    """It is the commit that says so, and nothing is committed."""
    pair.world.lost.add(pair.follower)
    job = pair.reopen(pair.primary).plan_write(SCHEMA, layout=BUFFERS)
    assert job.storage.mirrors is None
    task = job.open_task(0, "a")
    for batch in numbers(0, 1000).to_batches():
        task.append(batch)
    staged = task.finish()
    with pytest.raises(StorageError, match="nothing was committed"):
        pair.reopen(pair.primary)._commits.commit(job, [staged], keep_staged=True)
    pair.world.lost.clear()
    pair.reopen(pair.primary).commit(job, [staged])
    assert content(pair.follower) == content(pair.primary)


def test_what_a_follower_acknowledged_is_read_back(pair):
    """Of the right size and with another end, it is sent again before the commit is."""
    job = pair.stream.plan_write(SCHEMA, layout=BUFFERS)
    task = job.open_task(0, "a")
    for batch in numbers(0, 1000).to_batches():
        task.append(batch)
    staged = task.finish()
    folder = open_storage(pair.follower)
    for segment in staged.segments:
        assert segment.mirrors == (pair.follower,)
        data = bytearray(folder.get(f"segments/{segment.path}"))
        data[-20] ^= 1
        folder.put(f"segments/{segment.path}", bytes(data))
    pair.stream.commit(job, [staged])
    assert content(pair.follower) == content(pair.primary)


def test_promotion_during_an_append_loses_no_event():
    """Before any of its calls: either the promoted stream has the events, or they are refused."""
    stop_at, ended = 0, set()
    while len(ended) < 2 or "late" not in ended:
        stop_at += 1
        pair = Pair()
        pair.stream.followers.add(pair.follower)
        pair.stream.append(numbers(0, 10), layout=BUFFERS)
        calls = [0]

        def watch(*_, pair=pair, calls=calls, stop_at=stop_at):
            calls[0] += 1
            if calls[0] == stop_at:
                pair.world.watch = lambda *_: None
                pair.reopen(pair.follower).followers.promote()

        pair.world.watch = watch
        acknowledged = False
        try:
            pair.stream.append(numbers(10, 200), layout=BUFFERS)
            acknowledged = True
        except FencedError:
            pass
        if calls[0] < stop_at:
            ended.add("late")
            continue
        ended.add(acknowledged)
        taken = pair.reopen(pair.follower)
        assert found(taken) == list(range(200 if acknowledged else 10)), stop_at
        assert taken.verify().ok
        with pytest.raises(FencedError):
            pair.stream.append(numbers(200, 201))
    assert stop_at > 10
    assert False in ended
