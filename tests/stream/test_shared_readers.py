"""Several members share one named reader: who gets which events, who is fenced, what it costs."""

import asyncio
import threading
from collections import Counter
from itertools import chain

import pytest
from member_kit import LEASE_S, drain, poll, record
from stream_kit import Meddling, make_stream, numbers, objects, wait

from segstore_ds.errors import (
    InvalidInputError,
    LeaseLostError,
    ReaderConflictError,
    TruncatedError,
    UnsupportedVersionError,
)
from segstore_ds.format.reader_record import (
    Lease,
    ReaderRecord,
    Span,
    decode_record,
    encode_record,
)
from segstore_ds.read import reader_records
from segstore_ds.stream.opening import open as open_on


def join(stream, member, **how):
    return stream.follow("billing", member=member, lease=LEASE_S, columns=["n"], **how)


def next_commit(stream):
    return f"create log/{stream.refresh().version + 1:020}"


def requests(storage):
    return Counter(storage.stats.requests)


def test_members_divide_what_is_there():
    """Each event goes to one member, in order within a range; the position passes all."""
    stream, _ = make_stream(10)
    first, second, third = (join(stream, name) for name in ("w1", "w2", "w3"))
    found = drain(first, second, third)
    assert sorted(chain.from_iterable(found)) == list(range(100))
    assert all(found)
    assert stream.position("reader:billing").offset == 100
    assert record(stream).done == []


@pytest.mark.parametrize("commits", [1, 40])
def test_one_member_pays_what_a_plain_reader_pays(commits):
    """The same requests for a batch, and for a poll that finds nothing."""
    costs = []
    for how in ({}, {"member": "w1"}):
        stream, storage = make_stream(1)
        follow = stream.follow("billing", **how)
        assert len(poll(follow)) == 10
        assert poll(follow) is None
        cost = Counter()
        for n in range(commits):
            stream.append(numbers(n, n + 1))
            appended = requests(storage)
            assert poll(follow) == [n]
            assert poll(follow) is None
            cost += requests(storage) - appended
        costs.append(cost)
    assert costs[0] == costs[1]


def test_an_idle_member_renews_three_times_a_lease():
    stream, storage = make_stream(1)
    only = join(stream, "w1")
    drain(only)
    before = record(stream).number
    for _ in range(10 * LEASE_S):
        wait(storage, 0.1)
        assert poll(only) is None
    assert record(stream).number - before in (2, 3)


def test_another_gets_the_events_of_a_member_that_died():
    """Not before its lease is over; from the first event that it had not done."""
    stream, storage = make_stream(4)
    dead, other = join(stream, "w1"), join(stream, "w2")
    assert poll(dead) == list(range(10))
    assert poll(dead) == list(range(10, 18))  # its share of what is left, beside `w2`
    heard_us = storage.time.now_us
    assert drain(other) == [list(range(18, 40))]
    while (batch := poll(other)) is None:
        wait(storage, 1)
    assert LEASE_S <= (storage.time.now_us - heard_us) / 1e6 <= LEASE_S + 4
    assert batch == list(range(10, 18))
    poll(other)
    assert stream.position("reader:billing").offset == 40


def test_a_member_that_slept_is_fenced_when_it_commits():
    """Its events went to another; it goes on with others."""
    stream, storage = make_stream(4)
    slept, other = join(stream, "w1"), join(stream, "w2")
    assert poll(slept) == list(range(10))
    poll(other)
    wait(storage, LEASE_S + 1)
    assert poll(other) == list(range(10))
    with pytest.raises(LeaseLostError, match=r"\[0, 10\).*now=\['w2'\].*undo what was done"):
        next(slept)
    stream.append(numbers(40, 60))
    found = drain(slept, other)
    assert sorted(chain.from_iterable(found)) == list(range(10, 60))
    assert found[0]
    assert stream.position("reader:billing").offset == 60


def test_of_two_members_that_slept_the_second_is_fenced_too():
    """The first creates a record anew that was deleted: that is not the base of the second."""
    stream, storage = make_stream(20)
    awake, first, second = (join(stream, name) for name in ("w1", "w2", "w3"))
    for follow in (awake, awake, first, second):
        wait(storage, 2)
        assert poll(follow)
    for _ in range(2 * LEASE_S):  # until the records that they have seen are deleted
        wait(storage, 1)
        awake.renew()
        poll(awake)
    done = record(stream)
    assert f"readers/billing/{second.reader._seen.number:020}" not in objects(storage)
    for slept in (first, second):
        with pytest.raises(LeaseLostError):
            poll(slept)
    assert record(stream) == done


def test_a_member_that_leaves_gives_its_range_back_at_once():
    stream, _ = make_stream(4)
    with join(stream, "w1") as leaving:
        assert poll(leaving) == list(range(10))
        other = join(stream, "w2")
        assert poll(other) is None  # the first has leased all
    assert sorted(record(stream).members) == ["w2"]
    assert drain(other) == [list(range(40))]


def test_a_loop_that_ends_leaves():
    stream, _ = make_stream(1)
    follow = join(stream, "w1", timeout=0)
    assert [batch["n"].to_pylist() for batch in follow] == [list(range(10))]
    assert (record(stream).members, record(stream).offset) == ({}, 10)
    stream.append(numbers(10, 12))
    assert next(follow)["n"].to_pylist() == [10, 11]
    stream.seal()

    async def rest():
        return [batch async for batch in stream.afollow("billing", member="w2")]

    follow.close()
    assert [batch["n"].to_pylist() for batch in asyncio.run(rest())] == [[10, 11]]
    assert (record(stream).members, record(stream).offset) == ({}, 12)


@pytest.mark.background_upkeep
def test_a_loop_that_is_broken_off_leaves():
    """By `break` or an error, if nothing else refers to what `follow` returned."""
    stream = open_on(make_stream(2)[1].inner)  # on the real clock
    for batch in join(stream, "w1"):
        assert batch.num_rows == 10
        break
    wait_until_left()
    assert record(stream).members == {}

    def failing():
        for _ in join(stream, "w2"):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    wait_until_left()
    assert (record(stream).members, record(stream).offset) == ({}, 0)
    with join(stream, "w3") as again:
        assert poll(again) == list(range(10))


def wait_until_left():
    """Wait for the threads in which members leave that nothing refers to."""
    for thread in threading.enumerate():
        if thread.name == "segstore-leave":
            thread.join()


def test_batches_are_as_small_as_asked_for():
    """Each is done by itself, so no more than one is repeated."""
    stream, storage = make_stream(2)
    dead = join(stream, "w1", max_rows=4)
    assert [poll(dead) for _ in range(3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    wait(storage, LEASE_S + 1)
    assert drain(join(stream, "w2", max_rows=7)) == [list(range(8, 20))]
    filtered = stream.follow(start="head", filters=[["n", ">=", 15]], max_rows=2)
    assert [poll(filtered) for _ in range(3)] == [[15, 16], [17, 18], [19]]
    with pytest.raises(InvalidInputError, match="max_rows"):
        join(stream, "w3", max_rows=0)


def test_joining_while_others_finish_and_retention_runs_loses_nothing():
    """Between the joiner's record and its commit the head passes what was to be done before."""
    stream, storage = make_stream(1)
    first = join(stream, "w1", timeout=0)
    assert poll(first) == list(range(10))

    def finish():
        assert poll(first) is None
        stream.append(numbers(10, 11))
        assert stream.refresh().retain(max_bytes=0).head == 10

    slow = Meddling(storage, next_commit(stream), finish)
    second = join(open_on(slow, clock=stream._log.clock), "w2")
    assert sorted(record(stream).members) == ["w1", "w2"]
    first.close()
    assert drain(second) == [[10]]


def test_members_go_on_at_the_head_where_events_are_gone():
    """Who was refused is no member, and the remedy in the error works, for all of them."""
    stream, _ = make_stream(4)
    first = join(stream, "w1")
    assert poll(first) == list(range(10))
    assert poll(first) == list(range(10, 20))
    stream.truncate(25)
    with pytest.raises(TruncatedError, match=r"lost='\[10, 25\)'.*start='head'"):
        join(stream, "w2")
    assert sorted(record(stream).members) == ["w1"]
    second = join(stream, "w2", start="head")
    assert record(stream).offset == 25
    assert sorted(chain.from_iterable(drain(first, second))) == list(range(25, 40))
    with pytest.raises(ReaderConflictError, match=r"members=\['w1', 'w2'\]"):
        stream.follow("billing", start="head")


def test_a_joiner_whose_announcement_fails_is_no_member():
    stream, storage = make_stream(1)

    def truncate():
        stream.truncate(5)

    slow = Meddling(storage, next_commit(stream), truncate)
    with pytest.raises(TruncatedError):
        join(open_on(slow, clock=stream._log.clock), "w1", start=0)
    assert record(stream).members == {}


def test_a_busy_group_ends_no_loop(monkeypatch):
    """Where each race is lost, it goes on when one is not."""
    stream, storage = make_stream(2)
    monkeypatch.setattr(reader_records, "_ATTEMPTS", 2)
    other, lost = join(stream, "w1"), []

    def come_first():
        other.renew()
        lost.append(1)
        slow.met = len(lost) % 5 == 0

    slow = Meddling(storage, "create readers/", come_first)
    busy = join(open_on(slow, clock=stream._log.clock), "w2")
    assert len(lost) == 5
    slow.met = False
    busy.renew()
    assert len(lost) == 10


def test_members_of_a_sealed_stream_wait_for_each_other():
    """One that died may have left events that nobody else would read."""
    stream, storage = make_stream(2)
    dead, other = join(stream, "w1"), join(stream, "w2")
    assert poll(dead) == list(range(10))
    assert poll(dead) == list(range(10, 13))
    stream.seal()
    began_us = storage.time.now_us
    found = [batch["n"].to_pylist() for batch in other]
    assert [*chain.from_iterable(found)] == [*range(13, 20), *range(10, 13)]
    assert LEASE_S <= (storage.time.now_us - began_us) / 1e6 < LEASE_S + 3


def test_a_member_started_again_takes_its_own_range_over():
    """The process before it is refused from then on, as is a second one of that name."""
    stream, _ = make_stream(3)
    before, other = join(stream, "w1"), join(stream, "w2")
    assert poll(before) == list(range(10))
    again = join(stream, "w1")
    assert poll(again) == list(range(8))  # its share
    for _ in range(2):
        with pytest.raises(ReaderConflictError, match="another process follows under"):
            poll(before)
    assert sorted(chain.from_iterable(drain(again, other))) == list(range(8, 30))


def test_a_plain_follower_is_refused_while_members_live():
    stream, storage = make_stream(2)
    member = join(stream, "w1")
    assert poll(member) == list(range(10))
    with pytest.raises(ReaderConflictError, match=r"members=\['w1'\]"):
        stream.follow("billing")
    wait(storage, LEASE_S + 1)
    plain = stream.follow("billing", columns=["n"])  # by the store's time it is dead
    assert poll(plain) == list(range(10))
    with pytest.raises(LeaseLostError):
        poll(member)
    assert poll(plain) == list(range(10, 20))
    assert record(stream).members == {}


def test_members_that_join_a_plain_reader_go_on_where_it_was():
    stream, _ = make_stream(3)
    plain = stream.follow("billing")
    poll(plain), poll(plain)
    member = join(stream, "w1", start=0)  # a reader that is there moves for nobody
    assert poll(member) == list(range(10, 20))
    with pytest.raises(ReaderConflictError, match="members share this reader"):
        poll(plain)
    assert drain(member) == [list(range(20, 30))]


def test_takeover_ends_sharing():
    stream, storage = make_stream(3)
    member, other = join(stream, "w1"), join(stream, "w2")
    assert poll(member) == list(range(10))
    wait(storage, LEASE_S / 2)
    taken = stream.readers.register("billing", takeover=True)
    assert (taken.offset, record(stream).members) == (0, {})
    with pytest.raises(LeaseLostError):
        poll(member)
    with pytest.raises(LeaseLostError):
        poll(other)
    taken.publish(30)
    assert stream.readers.release("billing")
    for follow in (member, other):
        with pytest.raises(ReaderConflictError, match="released"):
            poll(follow)


def test_retention_waits_for_the_lowest_event_that_is_not_done():
    stream, _ = make_stream(4)
    slow, fast = join(stream, "w1"), join(stream, "w2")
    assert poll(slow) == list(range(10))
    slow.renew()
    assert drain(fast) == [list(range(10, 40))]
    assert record(stream).done == [Span(10, 40)]
    assert stream.retain(max_bytes=0).head == 0
    poll(slow)
    assert stream.retain(max_bytes=0).head == 40


def test_filtered_events_are_passed_and_names_are_checked():
    stream, _ = make_stream(3)
    member = stream.follow("odd", member="w1", filters=[["n", "==", 12]])
    assert poll(member) == [12]
    assert poll(member) is None
    assert stream.position("reader:odd").offset == 30
    with pytest.raises(InvalidInputError, match="reader's name"):
        stream.follow(member="w1")
    with pytest.raises(InvalidInputError, match="not a name of a member"):
        stream.follow("odd", member="a/b")
    for lease in (0, "soon", None):
        with pytest.raises(InvalidInputError, match="lease"):
            stream.follow("odd", member="w1", lease=lease)
    with pytest.raises(ReaderConflictError, match="another owner"):
        stream.follow("odd", member="w2", owner="b")


def test_a_handle_whose_records_were_deleted_does_not_believe_that_it_wrote_the_newest():
    """Its number is free again; the one who took over would be set aside by nobody."""
    stream, storage = make_stream(1)
    stale = stream.readers.register("etl", owner="a")
    other = open_on(storage, clock=stream._log.clock).readers.register(
        "etl", owner="b", takeover=True
    )
    for _ in range(40):
        wait(storage, 1)
        other.publish(5)
    assert f"readers/etl/{1:020}" not in objects(storage)
    with pytest.raises(ReaderConflictError, match="another owner"):
        stale.publish(7)
    assert other.offset == 5


def test_an_idle_member_that_slept_goes_on_without_an_error():
    """It had nothing that another could have got twice."""
    stream, storage = make_stream(1)
    idle, other = join(stream, "w1"), join(stream, "w2")
    drain(idle, other)
    wait(storage, LEASE_S + 1)
    poll(other)
    wait(storage, LEASE_S / 2)
    poll(other)
    wait(storage, LEASE_S / 2 + 1)
    poll(other)
    assert sorted(record(stream).members) == ["w2"]
    assert poll(idle) is None
    wait(storage, LEASE_S / 2)
    poll(other)  # renews, and so hears that it is not alone any more
    stream.append(numbers(10, 30))
    found = drain(idle, other)
    assert sorted(chain.from_iterable(found)) == list(range(10, 30))
    assert all(found)


@pytest.mark.parametrize("kind", ["publish", "plain"])
def test_publishing_while_another_goes_on_and_retention_runs_loses_nothing(kind):
    """The same for two handles of one owner, when one registers or may have lapsed."""
    stream, storage = make_stream(2)
    other = stream.readers.register("billing")

    def finish():
        other.publish(20)
        assert stream.refresh().retain(max_bytes=0).head == 20

    slow = Meddling(storage, next_commit(stream), finish)
    handle = open_on(slow, clock=stream._log.clock)
    if kind == "plain":
        assert poll(handle.follow("billing", timeout=0)) is None
    else:
        slow.met = True
        reader = handle.readers.register("billing", lapse_s=100)
        slow.met = False
        slow._call = next_commit(stream)
        wait(storage, 90)
        reader.publish(10)
        assert stream.position("reader:billing").offset == 20


def test_lost_events_are_an_error_for_the_member_that_should_get_them():
    stream, _ = make_stream(2)
    member = join(stream, "w1")
    stream.truncate(15)
    with pytest.raises(TruncatedError, match="follow again with start='head'"):
        poll(member)
    assert poll(join(stream, "w1", start="head")) == list(range(15, 20))


def test_versions_that_know_no_members_refuse_a_shared_record():
    """They would move the position over events that others have leased."""
    lease = Lease(5, 9, "t", 30, 4)
    shared = ReaderRecord("s", 0, 5, "", 60, members={"w1": lease}, done=[Span(12, 15)])
    body = encode_record(shared)
    assert decode_record(body, "x") == shared
    assert b'"format":2' in body
    assert b'"format":1' in encode_record(ReaderRecord("s", 0, 5, "", 60))
    with pytest.raises(UnsupportedVersionError):
        decode_record(body.replace(b'"format":2', b'"format":3'), "x")
