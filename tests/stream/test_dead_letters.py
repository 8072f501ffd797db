"""Members give back batches, reject them, or die of them: what goes to the dead letters, once."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from itertools import chain, count

import pytest
from faults import Fault, FaultStorage
from member_kit import LEASE_S, drain, poll, record
from stream_kit import make_stream, numbers, wait
from virtual_time import TimedStorage

from segstore_ds.errors import ClosedError, InvalidInputError, LeaseLostError, SegstoreError
from segstore_ds.format.reader_record import (
    Delivery,
    Lease,
    ReaderRecord,
    decode_record,
    encode_record,
)
from segstore_ds.retention.leases import Progress, advanced, free_range, returned
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on

_NUMBERS = count()


class Pool:
    """A stream, its dead letters, and members that share its reader."""

    def __init__(self, commits=2, **how) -> None:
        self.stream, self.storage = make_stream(commits)
        other = open_storage(f"memory://letters-{next(_NUMBERS)}")
        self.letters = TimedStorage(other, self.storage.time)
        self.how = {"lease": LEASE_S, "max_deliveries": 3, "dead_letters": self.letters, **how}

    def join(self, member, **how):
        return self.stream.follow("billing", member=member, **{**self.how, **how})

    def dead(self, *columns):
        found = open_on(self.letters, clock=self.storage.time.clock).read().read_all()
        return found.select(columns or ["n"]).to_pylist()

    def numbers(self):
        return sorted(row["n"] for row in self.dead())

    @property
    def record(self):
        return record(self.stream)


def rest(*follows, step_s=2):
    """Poll until there is nothing; return what all got."""
    return [*chain.from_iterable(drain(*follows, step_s=step_s))]


def test_what_members_die_of_goes_to_the_dead_letters():
    """A batch is given to three that die; the fourth passes it, and the others go on meanwhile."""
    pool = Pool(max_rows=5)
    got = []
    for name in ("a", "b", "c"):
        follow = pool.join(name)
        got.append(poll(follow))
        wait(pool.storage, LEASE_S + 1)
    assert got[0] == [0, 1, 2, 3, 4]
    last = pool.join("d")
    left = rest(last, step_s=11)
    died_thrice = [numbers for numbers in got if got.count(numbers) == 3]
    assert died_thrice
    assert sorted(left + pool.numbers()) == list(range(20))
    assert pool.numbers() == [0, 1, 2, 3, 4]
    assert pool.record.offset == 20
    assert pool.record.deliveries == []


def test_a_letter_says_what_happened():
    pool = Pool(max_rows=5)
    follow = pool.join("a")
    assert poll(follow) == [0, 1, 2, 3, 4]
    follow.reject("no such account", rows=[1, 3])
    assert rest(follow) == list(range(5, 20))
    columns = ("_offset", "n", "s", "_deliveries", "_reason", "_member", "_reader", "_stream")
    told = (1, "no such account", "a", "billing", pool.stream.url)
    assert [tuple(row.values()) for row in pool.dead(*columns)] == [
        (offset, offset, f"s{offset}", *told) for offset in (1, 3)
    ]
    assert pool.record.offset == 20


def test_a_rejected_batch_is_done():
    pool = Pool(max_rows=5)
    follow = pool.join("a")
    assert poll(follow) == [0, 1, 2, 3, 4]
    assert poll(follow) == [5, 6, 7, 8, 9]
    follow.reject("x" * 500)
    assert rest(follow) == list(range(10, 20))
    assert pool.numbers() == [5, 6, 7, 8, 9]
    assert {row["_reason"] for row in pool.dead("_reason")} == {"x" * 200}


def test_given_back_comes_again_after_its_delay():
    pool = Pool(max_rows=5)
    follow = pool.join("a")
    assert poll(follow) == [0, 1, 2, 3, 4]
    follow.give_back(delay="1m")
    began_s = pool.storage.time.now_us / 1e6
    assert poll(follow) == [5, 6, 7, 8, 9]
    got = []
    while not got or got[-1] != [0, 1, 2, 3, 4]:
        wait(pool.storage, 1)
        got.append(poll(follow))
    assert 60 <= pool.storage.time.now_us / 1e6 - began_s <= 75
    assert [n for batch in got if batch for n in batch] == [*range(10, 20), *range(5)]
    assert rest(follow) == []
    assert pool.record.offset == 20
    assert pool.dead() == []


def test_given_back_without_delay_counts():
    """The third time is the last; events behind it are given out meanwhile."""
    pool = Pool(max_rows=10)
    follow, got = pool.join("a"), []
    while (batch := poll(follow)) is not None:
        got.append(batch[0])
        if batch[0] == 0:
            follow.give_back()
    assert got.count(0) == 3
    assert got.count(10) == 1
    assert pool.numbers() == list(range(10))
    assert {row["_deliveries"] for row in pool.dead("_deliveries")} == {3}


def test_without_dead_letters_a_batch_is_given_back_for_ever():
    pool = Pool(dead_letters=None, max_rows=10)
    follow, got = pool.join("a"), []
    while got.count(0) < 8:
        got.append(poll(follow)[0])
        if got[-1] == 0:
            follow.give_back()
    assert got.count(10) == 1
    assert poll(follow)[0] == 0
    with pytest.raises(InvalidInputError, match="no stream of dead letters"):
        follow.reject("why")


def test_new_columns_reach_the_dead_letters():
    pool = Pool(1)
    follow = pool.join("a")
    poll(follow)
    pool.stream.append(numbers(10, 12).append_column("extra", [[7, 8]]), merge_schema=True)
    assert poll(follow) == [10, 11]
    follow.reject("why")
    rest(follow)
    assert pool.dead("n", "extra") == [{"n": 10, "extra": 7}, {"n": 11, "extra": 8}]


def test_renewing_without_a_batch_passes_no_event():
    """A member with nothing in its hands is given another range by that, and reads it."""
    pool = Pool(max_rows=1)
    first = pool.join("a")
    assert poll(first) == [0]
    second = pool.join("b")
    assert poll(first) == [1]  # of a range that ends there now
    wait(pool.storage, 2)
    second._member.take(20)
    second._switch()
    assert second.offset == 2
    first.close()
    second.renew()
    assert pool.record.members["b"].start == 1
    assert sorted(rest(second)) == list(range(1, 20))


@pytest.mark.parametrize("call", ["give_back", "reject"])
def test_there_must_be_a_batch(call):
    pool = Pool()
    follow = pool.join("a")
    args = ("why",) if call == "reject" else ()
    with pytest.raises(InvalidInputError, match="no batch"):
        getattr(follow, call)(*args)
    poll(follow)
    getattr(follow, call)(*args)
    with pytest.raises(InvalidInputError, match="no batch"):
        getattr(follow, call)(*args)


def test_what_cannot_be_asked():
    pool = Pool()
    with pytest.raises(InvalidInputError, match="only members of a reader"):
        pool.stream.follow("billing", dead_letters=pool.letters)
    with pytest.raises(InvalidInputError, match="its own dead letters"):
        pool.join("a", dead_letters=pool.storage)
    with pytest.raises(InvalidInputError, match="max_deliveries"):
        pool.join("a", max_deliveries=0)
    follow = pool.join("a", max_rows=5)
    poll(follow)
    for rows in ([], [5], [-1], range(2000)):
        with pytest.raises(InvalidInputError):
            follow.reject("why", rows=rows)
    with pytest.raises(InvalidInputError, match="reason is not a text"):
        follow.reject(7)
    with pytest.raises(InvalidInputError):
        follow.give_back(delay=-1)
    named = create_on(
        open_storage("memory://named"), numbers(0, 1).rename_columns(["n", "_reason"]).schema
    )
    with pytest.raises(InvalidInputError, match="names that its dead letters need"):
        named.follow("billing", member="a", dead_letters=pool.letters)


def test_a_full_record_names_no_more():
    """What is given back without room in the record is free at once: nothing is lost."""
    record = ReaderRecord("s", 0, 0, "", 60, members={"a": Lease(0, 10_000, "t", 30, 0)})
    for start in range(0, 1_200, 4):
        back = Delivery(start, start + 1, 1, "a", letter=start, reason="x" * 200)
        record = returned(record, "a", back, 1)
        barred = frozenset(each.start for each in record.deliveries)
        record = advanced(record, "a", Progress(start + 4, start + 4, 10_000, barred), 2)
    named = [each.start for each in record.deliveries]
    assert 100 < len(named) < 300
    assert named == list(range(0, 4 * len(named), 4))
    record = replace(record, members={})
    assert free_range(record, 10_000, frozenset(named)).start == 4 * len(named)
    assert decode_record(encode_record(record), "test") == record


def test_reset_and_release_forget_deliveries():
    pool = Pool(max_rows=5)
    follow = pool.join("a")
    poll(follow)
    follow.give_back(delay=60)
    follow.close()
    assert pool.record.deliveries
    pool.stream.readers.reset("billing", 0)
    assert pool.record.deliveries == []


def test_a_plain_reader_reads_what_members_left_in_letters():
    """A letter that is not written yet is forgotten; its events are not done, so none is lost."""
    pool = Pool(max_rows=5)
    follow = pool.join("a", dead_letters=None)
    poll(follow)
    follow._member.give_back(5, reason="why")
    rest(follow)
    follow.close()
    assert pool.record.deliveries[0].letter is not None
    pool.stream.readers.register("billing")
    assert (pool.record.offset, pool.record.done, pool.record.deliveries) == (0, [], [])
    assert sorted(rest(pool.join("b"))) == list(range(20))


def test_coroutines_give_back_and_reject():
    pool = Pool(max_rows=5)
    pool.stream.seal()

    async def run():
        got = []
        async with pool.stream.afollow("billing", member="a", **pool.how) as batches:
            with pytest.raises(InvalidInputError):
                await batches.reject("early")
            async for batch in batches:
                first = batch["n"][0].as_py()
                got.append(first)
                if first == 5:
                    await batches.reject("five")
                if first == 10 and got.count(10) == 1:
                    await batches.give_back()
        return got

    assert sorted(asyncio.run(run())) == [0, 5, 10, 10, 15]
    assert pool.numbers() == [5, 6, 7, 8, 9]


def test_dead_letters_that_fail_stop_the_member():
    """The error comes to the loop, and nothing is passed; when they work again, it goes on."""
    pool = Pool(max_rows=5)
    follow = pool.join("a")
    poll(follow)
    follow.reject("why")
    write = follow._letters._commits.write

    def fail(*_given):
        raise ClosedError("closed")

    follow._letters._commits.write = fail
    with pytest.raises(SegstoreError):
        rest(follow)
    assert pool.record.offset == 0
    follow._letters._commits.write = write
    rest(follow)
    assert pool.numbers() == [0, 1, 2, 3, 4]
    assert pool.record.offset == 20


def test_no_lost_answer_costs_an_event():
    """What a member took in a record that it never heard of is not done."""
    records, number = [1000], 0
    while number < len(records[:6]):
        pool = Pool(max_rows=5, commits=1, max_deliveries=1)
        storage = FaultStorage(pool.storage)
        stream = open_on(storage, clock=pool.storage.time.clock)
        dead = pool.join("a")
        assert poll(dead) == [0, 1, 2, 3, 4]
        wait(pool.storage, LEASE_S + 1)
        follow, done = stream.follow("billing", member="b", **pool.how), []
        wait(pool.storage, LEASE_S + 1)
        before = len(storage.calls)
        storage.fault = Fault(before + records[number], when="after", calls=12)
        for _ in range(6):
            with suppress(SegstoreError):
                done += poll(follow) or []
            wait(pool.storage, 11)
        if not number:  # nothing failed
            calls = storage.calls[before:]
            records += [at for at, call in enumerate(calls, 1) if call.startswith("create readers")]
        assert sorted(done + pool.numbers()) == list(range(10)), records[number]
        assert pool.record.offset == 10
        number += 1
    assert number == 6


def test_giving_back_again_after_a_lost_answer_changes_nothing():
    """Another member may have done it meanwhile, and the range may be somebody else's."""
    at = 0
    for lost in (False, True):
        pool = Pool(max_rows=5)
        storage = FaultStorage(pool.storage)
        stream = open_on(storage, clock=pool.storage.time.clock)
        first, second = stream.follow("billing", member="a", **pool.how), pool.join("b")
        assert poll(first) == [0, 1, 2, 3, 4]
        before = len(storage.calls)
        if not lost:
            first.give_back()
            calls = storage.calls[before:]
            at = next(n for n, call in enumerate(calls, 1) if call.startswith("create readers"))
            continue
        storage.fault = Fault(before + at, when="after", calls=12)
        with pytest.raises(SegstoreError):
            first.give_back()
        storage.fault = None
        wait(pool.storage, 1)
        done = rest(second)
        known = pool.record
        with pytest.raises(LeaseLostError):
            first.give_back()
        assert replace(pool.record, number=known.number, id=known.id) == known
        done += rest(first, second)
        assert sorted(done) == list(range(20))


def test_given_back_goes_to_another_member():
    pool = Pool(max_rows=5)
    first, second = pool.join("a"), pool.join("b")
    batch = poll(first)
    first.give_back(delay=5)
    wait(pool.storage, 11)
    assert poll(second) is not None  # takes a look, and begins to wait
    found = rest(second)
    assert set(batch) <= set(found)


def test_letters_wait_for_a_member_that_writes_them():
    """One without dead letters passes over them, also under the name of the one that rejected."""
    pool = Pool(max_rows=5)
    follow = pool.join("a")
    poll(follow)
    follow._member.give_back(5, reason="why")
    plain = pool.join("b", dead_letters=None)
    follow.close()
    assert 0 not in rest(plain, step_s=11)
    assert pool.record.offset == 0
    again = pool.join("a")
    rest(plain, again, step_s=11)
    assert pool.numbers() == [0, 1, 2, 3, 4]
    assert pool.record.offset == 20


def test_an_error_between_letter_and_position_writes_it_once():
    """The member dies when the letter is written; another goes on, and both write it."""
    pool = Pool(max_rows=5)
    follow = pool.join("a")
    poll(follow)
    follow.reject("why")
    write = follow._letters.write

    def die(*given):
        write(*given)
        raise KeyboardInterrupt

    follow._letters.write = die
    with pytest.raises(KeyboardInterrupt):
        rest(follow)
    assert pool.numbers() == [0, 1, 2, 3, 4]
    wait(pool.storage, LEASE_S + 1)
    other = pool.join("b")
    rest(other, step_s=11)
    follow._letters.write = write
    assert rest(follow) == []
    assert pool.numbers() == [0, 1, 2, 3, 4]
    assert pool.record.offset == 20


def test_a_late_letter_changes_nothing():
    """A member sleeps before it writes a letter; others write that one, and a later one."""
    pool = Pool(max_rows=5)
    follow = pool.join("a")
    poll(follow)
    follow.reject("first")
    write = follow._letters.write
    slept = []

    def sleep(*letter):
        if not slept:
            slept.append(letter)
            wait(pool.storage, LEASE_S + 1)
            other = pool.join("b")
            for _ in range(20):
                if (batch := poll(other)) and batch[0] == 10:
                    other.reject("second")
                wait(pool.storage, 11)
            assert pool.numbers() == [*range(5), *range(10, 15)]
        write(*letter)

    follow._letters.write = sleep
    assert rest(follow) == list(range(5, 10))
    assert pool.numbers() == [*range(5), *range(10, 15)]


@pytest.mark.parametrize("before", [1, 10])
def test_a_promoted_stream_has_letters_of_its_own(before):
    """Its readers are registered again, and their records have the numbers of before."""
    pool = Pool(0, max_rows=1)
    copy = TimedStorage(open_storage(f"memory://copy-{next(_NUMBERS)}"), pool.storage.time)
    pool.stream.followers.add(copy)
    pool.stream.append(numbers(0, before))
    follow = pool.join("a")
    while poll(follow):
        follow.reject("first")
    promoted = open_on(copy, clock=pool.storage.time.clock)
    promoted.followers.promote()
    promoted.append(numbers(before, 20))
    again = promoted.follow("billing", member="a", start=before, **pool.how)
    while poll(again):
        again.reject("second")
    assert pool.numbers() == [*range(20)]
    assert record(promoted).offset == 20


def test_two_members_write_letters_in_order():
    pool = Pool(4, max_rows=5)
    follows = [pool.join(name) for name in "abc"]
    rejected = []
    for _ in range(40):
        for follow in follows:
            if (batch := poll(follow)) is not None and batch[0] % 2 == 0:
                rejected.extend(batch)
                follow.reject("even")
        wait(pool.storage, 2)
    assert sorted(rejected) == pool.numbers()
    assert pool.record.offset == 40


def test_filtered_events_are_no_letters():
    pool = Pool(max_rows=5, filters=[["n", ">", 3]], columns=["n"])
    follow = pool.join("a")
    assert poll(follow) == [4, 5, 6, 7, 8]
    follow.reject("why", rows=[0])
    rest(follow)
    assert pool.dead("n", "s", "_offset") == [{"n": 4, "s": "s4", "_offset": 4}]
    assert pool.record.offset == 20


@pytest.mark.parametrize("how", [{"filters": [["s", "!=", "none"]]}, {"key": ["s"]}])
def test_a_rejected_event_whose_value_is_redacted_is_a_letter_or_comes_again(how):
    """Neither the filter nor the key finds it by its new value; by key it is given out again."""
    pool = Pool(1, max_rows=1, **how)
    follow = pool.join("a")
    poll(follow)
    follow.reject("why")
    other = open_on(pool.storage, clock=pool.storage.time.clock)
    other.redact([["n", "==", 0]], columns=["s"], redact_id="r")
    assert sorted([*rest(follow), *pool.numbers()]) == list(range(10))


def test_what_others_have_got_is_not_rejected():
    """Who slept has no batch to reject any more, also when it asks twice."""
    pool = Pool(max_rows=5)
    first, second = pool.join("a"), pool.join("b")
    assert poll(first) == [0, 1, 2, 3, 4]
    found = rest(second)
    wait(pool.storage, LEASE_S + 1)
    assert sorted(found + rest(second)) == list(range(20))
    with pytest.raises(LeaseLostError):
        first.reject("too late")
    with pytest.raises(InvalidInputError, match="no batch to give back"):
        first.reject("too late")
    assert rest(first) == []
    assert pool.record.deliveries == []
