"""Members that share by key give back batches, reject them, or die: only their keys wait."""

from dataclasses import replace
from itertools import chain

import pyarrow as pa
import pytest
from member_kit import LEASE_S, drain, poll
from stream_kit import wait
from test_dead_letters import Pool

from segstore_ds.errors import CorruptionError
from segstore_ds.format.reader_record import Delivery, decode_record, encode_record
from segstore_ds.retention import leases
from segstore_ds.retention.key_share import bucket_of

KEYS = 10


def events(start, end, keys=KEYS):
    """Return events whose key `s` goes round."""
    rows = range(start, end)
    return pa.table({"n": list(rows), "s": [f"k{n % keys}" for n in rows]})


def make(count=40, **how):
    """Return a pool over commits of ten events, one of each key."""
    pool = Pool(0, key=["s"], **how)
    for start in range(0, count, 10):
        pool.stream.append(events(start, start + 10))
    return pool


def share(*follows):
    for _ in range(LEASE_S):
        drain(*follows)


def test_a_rejected_event_is_a_letter_before_later_ones_of_its_key_are_given_out():
    pool = make(max_rows=5)
    follow, got = pool.join("a"), []
    while (batch := poll(follow)) is not None:
        if batch[0] == 10:
            follow.reject("ten", rows=[0])
            assert pool.dead() == []
        elif batch[0] == 20:
            assert pool.numbers() == [10]
        got += batch
    assert sorted(got) == list(range(40))
    (told,) = pool.dead("_offset", "_deliveries", "_reason", "_member", "_reader")
    assert [*told.values()] == [10, 1, "ten", "a", "billing"]
    assert pool.record.offset == 40


def test_what_is_given_back_holds_up_its_keys_alone():
    pool = make(max_rows=5)
    follow = pool.join("a")
    assert poll(follow) == [0, 1, 2, 3, 4]
    follow.give_back(delay="1m")
    others = [n for n in range(40) if n % 10 >= 5]
    (got,) = drain(follow)
    assert got == others
    assert pool.record.offset == 0
    wait(pool.storage, 60)
    (got,) = drain(follow)
    assert got == [n for n in range(40) if n % 10 < 5]
    assert pool.record.offset == 40
    assert pool.dead() == []


@pytest.mark.parametrize("letters", [True, False])
def test_what_is_given_back_at_once_takes_turns_with_the_rest(letters):
    """Without dead letters it comes again for ever, and holds up its keys alone."""
    pool = make(max_rows=5, **({} if letters else {"dead_letters": None}))
    follow, got = pool.join("a"), []
    for _ in range(14):
        got.append(poll(follow))
        if got[-1] and got[-1][0] == 0:
            follow.give_back()
    found = [*chain.from_iterable(batch or [] for batch in got)]
    assert max(found) == 39
    assert found.count(5) == 1
    assert (found.count(0) == 3) is letters
    assert (10 in found) is letters
    if letters:
        assert pool.numbers() == [0, 1, 2, 3, 4]


def test_a_letter_of_a_member_that_died_is_written_by_another():
    """Also where its keys have come to two others meanwhile; and once, though both write it."""
    pool = make(10)
    dead = pool.join("dead")
    poll(dead)
    dead.reject("why")
    first, second = pool.join("a"), pool.join("b")
    wait(pool.storage, LEASE_S + 1)
    assert drain(first, second, step_s=11) == [[], []]
    assert pool.numbers() == list(range(10))
    assert {row["_member"] for row in pool.dead("_member")} == {"dead"}
    assert pool.record.offset == 10
    pool.stream.append(events(10, 20))
    share(first, second)
    assert pool.record.offset == 20
    assert "dead" not in pool.record.members


def test_a_letter_of_a_process_without_dead_letters_is_written_by_another():
    """The process that follows on under the name reads on beside it."""
    pool = make(20, max_rows=5)
    follow = pool.join("a")
    assert poll(follow) == [0, 1, 2, 3, 4]
    follow.reject("why")
    plain = pool.join("a", dead_letters=None)
    other = pool.join("b")
    assert poll(plain) == [5, 6, 7, 8, 9]
    found = drain(plain, other)
    assert pool.dead() == []
    for _ in range(LEASE_S):
        found += drain(plain, other, step_s=4)
    assert sorted(chain.from_iterable(found)) == [*range(10, 20)]
    assert pool.numbers() == [0, 1, 2, 3, 4]
    assert pool.record.offset == 20


def test_without_room_in_the_record_it_comes_again_uncounted(monkeypatch):
    monkeypatch.setattr(leases, "_NAMED_BYTES", 100)
    pool = make(20, max_rows=5)
    follow = pool.join("a")
    assert poll(follow) == [0, 1, 2, 3, 4]
    follow.give_back(delay=60)
    assert pool.record.deliveries == []
    (got,) = drain(follow)
    assert sorted(got) == list(range(20))
    assert pool.record.offset == 20


@pytest.mark.parametrize("buckets", [[], [64]])
def test_deliveries_of_no_bucket_are_damage(buckets):
    pool = make(10)
    poll(pool.join("a"))
    wrong = replace(pool.record, deliveries=[Delivery(0, 5, 1, "a", buckets=buckets)])
    with pytest.raises(CorruptionError, match="buckets of a delivery"):
        decode_record(encode_record(wrong), "test")
    assert decode_record(encode_record(pool.record), "test") == pool.record


def keys_of(pool, member):
    """Return the keys of a member, as remainders of `n`."""
    buckets = bucket_of(events(0, KEYS).to_batches()[0], ["s"], 64)
    return [n for n, bucket in enumerate(buckets) if pool.record.by_key.holders[bucket] == member]


def test_a_letter_has_no_event_that_was_done_before():
    """A member takes over keys that are further on than its own."""
    pool = make(10)
    first, second = pool.join("a"), pool.join("b")
    share(first, second)
    pool.stream.append(events(10, 30))
    theirs = keys_of(pool, "b")
    assert {n % 10 for n in poll(second)} == {*theirs}
    second.close()
    pool.stream.append(events(30, 40))
    wait(pool.storage, 2)
    again = pool.join("b", max_rows=10)
    mine = poll(again)
    done = [n for n in range(10, 30) if n % 10 in theirs]
    assert mine == done or mine is None
    again.publish()
    again.close()
    got = []
    for _ in range(20):
        wait(pool.storage, 2)
        if (batch := poll(first)) is not None:
            got += batch
            first.reject("all")
    assert sorted(pool.numbers()) == sorted(got)
    assert pool.record.offset == 40


def test_truncated_events_leave_the_deliveries():
    pool = make(40, max_rows=10)
    follow = pool.join("a")
    poll(follow)
    follow.give_back(delay=600)
    follow.close()
    pool.stream.truncate(15)
    again = pool.join("b", start="head")
    assert sorted(drain(again)[0]) == list(range(15, 40))
    assert pool.record.deliveries == []
