"""Few events that wait for more: in a loop over batches, and for a streaming query."""

from dataclasses import replace

import pyarrow as pa
from stream_kit import HOUR, make_stream, numbers, wait

import segstore_ds as segstore
from segstore_ds.read.micro_batch import Waiting
from segstore_ds.stream.opening import open as open_on


def test_delay_counts_from_the_commit_for_a_reader_that_starts_later():
    """What was waited before a restart counts, whoever waited."""
    stream, storage = make_stream(1)
    wait(storage, HOUR)
    assert Waiting(stream._context, 25, HOUR + 60).holds(stream._log.root, 0, 10)
    assert not Waiting(stream._context, 25, HOUR).holds(stream._log.root, 0, 10)


def test_events_wait_no_longer_if_the_clock_is_set_back():
    stream, storage = make_stream(1)
    clock = replace(stream._log.clock, wall_us=lambda: 0)
    late = open_on(storage, clock=clock)
    waiting = Waiting(late._context, 25, HOUR)
    assert waiting.holds(late._log.root, 0, 10)
    wait(storage, HOUR)
    assert not waiting.holds(late._log.root, 0, 10)


def test_nothing_waits_where_nothing_can_come_or_events_are_lost():
    stream, _ = make_stream(2)
    waiting = Waiting(stream._context, 25, 9 * HOUR)
    assert waiting.holds(stream._log.root, 0, 20)
    stream.truncate(10)
    assert not waiting.holds(stream._log.root, 0, 20)  # the reader is told
    stream.seal()
    assert not waiting.holds(stream._log.root, 10, 20)


def test_loop_takes_few_events_together_and_the_rest_at_the_seal():
    stream, storage = make_stream(1)
    works = [lambda: stream.append(numbers(10, 20)), lambda: None]
    works += [lambda: stream.append(numbers(20, 30)), lambda: stream.append(numbers(30, 34))]
    works += [stream.seal]
    clock = stream._log.clock
    followed = open_on(storage, clock=replace(clock, sleep=lambda _: works.pop(0)()))
    seen = [
        batch.column("n").to_pylist()
        for batch in followed.follow(start="head", min_rows=25, max_delay="1h")
    ]
    assert [n for each in seen for n in each] == list(range(34))
    assert works == []


def test_loop_waits_no_longer_than_the_delay():
    stream, storage = make_stream(1)
    began_us = storage.time.now_us
    follow = stream.follow(start="head", min_rows=25, max_delay="1m")
    assert next(follow).num_rows == 10
    assert 60 <= (storage.time.now_us - began_us) / 1e6 < 61
    follow = stream.follow(start="head", min_rows=25, timeout=60)
    assert [batch.num_rows for batch in follow] == [10]  # at its end it leaves nothing behind


def test_recreated_stream_is_an_error_for_a_loop_that_waits(tmp_path):
    stream = segstore.create(tmp_path / "s", pa.schema([("n", pa.int64())]))
    follow = stream.follow(start="head", min_rows=25)
    stream.append({"n": 1})
    assert not follow._look()
    assert follow._waiting._first == 0
