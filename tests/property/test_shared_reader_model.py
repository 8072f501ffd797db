"""Members that share a reader do what their model says, in whatever order things happen to them.

An event is done when the member that got it asked for the next batch without an error; the record
says the same at every moment, so nothing is done twice, and nothing unread is passed. With dead
letters an event ends there once instead, if it was rejected or given out as often as that takes.
"""

from collections import Counter
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from member_programs import keep_few_records, offsets
from stream_kit import make_stream, numbers, wait
from virtual_time import TimedStorage

from segstore_ds.errors import LeaseLostError, ReaderConflictError
from segstore_ds.retention import leases
from segstore_ds.retention.key_share import bucket_of
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import open as open_on

pytestmark = pytest.mark.slow

LEASE_S = 30
NAMES = st.sampled_from(["a", "b", "c"])


class SharedReaderMachine(RuleBasedStateMachine):
    """Runs members of one reader on virtual time."""

    def __init__(self) -> None:
        super().__init__()
        self.stream, self.storage = make_stream(1)
        self.members: dict[str, object] = {}
        self.hands: dict[str, list[int]] = {}
        self.heard: dict[str, float] = {}
        self.done: set[int] = set()
        self.tail = 10
        self.how = {"lease": LEASE_S, "columns": ["n"]}

    def settled(self):
        """Return the events that are done, or dead."""
        return self.done

    @property
    def now_s(self):
        return self.storage.time.now_us / 1e6

    def _poll(self, name):
        held = self.hands.pop(name, [])
        silent_s = self.now_s - self.heard[name]
        try:
            batch = self.members[name]._take()
        except LeaseLostError:
            assert silent_s > LEASE_S * 2 / 3
            self.heard[name] = float("-inf")  # until it has joined again, it may be refused
            return
        self.heard[name] = self.now_s
        assert not self.done & set(held)
        self.done |= set(held)
        if batch is not None:
            self._take_in(name, batch["n"].to_pylist())
            assert self.hands[name] == sorted(self.hands[name])
            assert not self.done & set(self.hands[name])

    def _take_in(self, name, found):
        self.hands[name] = found

    def events(self, start, end):
        return numbers(start, end)

    @rule(more=st.integers(1, 9))
    def append(self, more):
        self.stream.append(self.events(self.tail, self.tail + more))
        self.tail += more

    @rule(name=NAMES)
    def join(self, name):
        """A process starts; one of that name may have died, or may still live."""
        before = self.members.get(name)
        self.members[name] = self.stream.follow("x", member=name, **self.how)
        self.hands.pop(name, None)
        self.heard[name] = self.now_s
        if before is not None:
            with pytest.raises((ReaderConflictError, LeaseLostError)):
                before.renew()

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def poll(self, data):
        self._poll(data.draw(st.sampled_from(sorted(self.members))))

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def renew(self, data):
        name = data.draw(st.sampled_from(sorted(self.members)))
        silent_s = self.now_s - self.heard[name]
        try:
            self.members[name].renew()
        except LeaseLostError:
            assert silent_s > LEASE_S * 2 / 3
            self.members[name].close()
            self.hands.pop(name, None)
            self.heard[name] = float("-inf")
        else:
            self.heard[name] = self.now_s

    @precondition(lambda self: self.members)
    @rule(data=st.data(), dies=st.booleans())
    def leave(self, data, dies):
        """A member leaves or dies: what it has in its hands is not done."""
        name = data.draw(st.sampled_from(sorted(self.members)))
        follow = self.members.pop(name)
        self.hands.pop(name, None)
        if not dies:
            follow.close()

    @rule(seconds=st.sampled_from([0.6, 1, LEASE_S // 2, LEASE_S + 1]))
    def sleep(self, seconds):
        wait(self.storage, seconds)

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def go_on_alone(self, data):
        """All others sleep for longer than their leases, and than records are kept; then wake."""
        awake = data.draw(st.sampled_from(sorted(self.members)))
        for name in (*sorted(self.members), *[awake] * 6, *sorted(self.members)):
            wait(self.storage, LEASE_S // 2 if name == awake else 1)
            self._poll(name)

    @invariant()
    def record_says_what_is_done(self):
        for seen in self.stream.readers:
            assert offsets(seen.record) == self.settled()

    def teardown(self):
        """One member is left, and gets all that was not done."""
        self.hands.clear()
        self.stream.seal()
        last = self.stream.follow("x", member="last", **self.how)
        for batch in last:
            self._take_in("last", batch["n"].to_pylist())
            assert not self.done & set(self.hands["last"])
            self.done |= set(self.hands["last"])
        assert self.settled() == set(range(self.tail))


class SmallRanges(SharedReaderMachine):
    """The same, where ranges are bounded, and records are deleted as early as they may be."""

    def __init__(self) -> None:
        self._patched = pytest.MonkeyPatch()
        self._patched.setattr(leases, "RANGE_ROWS", 3)
        keep_few_records(self._patched)
        super().__init__()

    def teardown(self):
        try:
            super().teardown()
        finally:
            self._patched.undo()


class CountedDeliveries(SharedReaderMachine):
    """The same with dead letters: members also give batches back, and reject them."""

    MOST = 3
    numbers = count()

    def __init__(self) -> None:
        super().__init__()
        place = open_storage(f"memory://letters-{next(self.numbers)}")
        self.letters = TimedStorage(place, self.storage.time)
        self.how |= {"max_rows": 4, "dead_letters": self.letters, "max_deliveries": self.MOST}
        self.given: Counter[int] = Counter()
        self.rejected: set[int] = set()
        self.partly: dict[int, set[int]] = {}  # the rest of a batch by the event that was rejected

    def settled(self):
        if not self.given:
            return self.done
        dead = open_on(self.letters).read().read_all()["_offset"].to_pylist()
        assert len(dead) == len(set(dead))
        assert not self.done & set(dead)
        assert all(n in self.rejected or self.given[n] >= self.MOST for n in dead)
        for first in self.partly.keys() & dead:
            self.done |= self.partly.pop(first)
        return self.done | set(dead)

    def _take_in(self, name, found):
        self.given.update(found)
        assert max(self.given[n] for n in found) <= self.MOST or self.rejected & set(found)
        super()._take_in(name, found)

    @precondition(lambda self: self.hands)
    @rule(data=st.data(), how=st.sampled_from(["back", "later", "reject", "some"]))
    def turn_down(self, data, how):
        name = data.draw(st.sampled_from(sorted(self.hands)))
        held, follow = self.hands.pop(name), self.members[name]
        silent_s = self.now_s - self.heard[name]
        try:
            if how == "some":
                follow.reject("why", rows=[0])
            elif how == "reject":
                follow.reject("why")
            else:
                follow.give_back(delay=0 if how == "back" else LEASE_S)
        except LeaseLostError:
            assert silent_s > LEASE_S * 2 / 3
            self.heard[name] = float("-inf")
            return
        self.heard[name] = self.now_s
        if how in ("some", "reject"):
            self.rejected |= set(held)
        if how == "some":
            self.partly[held[0]] = set(held[1:])


class ByKey(SharedReaderMachine):
    """The same with keys: an event is given out when all before it of its key are done."""

    def __init__(self) -> None:
        super().__init__()
        self.how |= {"key": ["s"], "max_rows": 6}

    def events(self, start, end):
        keys = [f"k{n % 6}" for n in range(start, end)]
        return numbers(start, end).set_column(1, "s", [keys])

    def key_of(self, n):
        return n if n < 10 else f"k{n % 6}"

    def _take_in(self, name, found):
        done = self.settled() | set(found)
        for n in found:
            before = {each for each in range(n) if self.key_of(each) == self.key_of(n)}
            assert before <= done
        ours = {self.key_of(n) for n in found}
        theirs = [n for other, held in self.hands.items() for n in held if other != name]
        assert self._slept() or not ours & {self.key_of(n) for n in theirs}
        super()._take_in(name, found)

    def _slept(self):
        return any(self.now_s - heard > LEASE_S * 2 / 3 for heard in self.heard.values())

    @invariant()
    def record_says_what_is_done(self):
        for seen in self.stream.readers:
            share = seen.record.by_key
            batch = self.events(0, self.tail).combine_chunks().to_batches()[0]
            first = numbers(0, 10).to_batches()[0]
            buckets = [
                *bucket_of(first, ["s"], len(share.positions)),
                *bucket_of(batch, ["s"], len(share.positions))[10:],
            ]
            done = {n for n, bucket in enumerate(buckets) if n < share.positions[bucket]}
            assert done == self.settled()
            assert seen.record.offset == min(share.positions)


class ByKeyCounted(CountedDeliveries, ByKey):
    """Both: what is rejected or given back holds up the events of its keys, and no others."""


SETTINGS = settings(max_examples=settings.default.max_examples // 2, stateful_step_count=40)
TestSharedReader = SharedReaderMachine.TestCase
TestSharedReader.settings = SETTINGS
TestSmallRanges = SmallRanges.TestCase
TestSmallRanges.settings = SETTINGS
TestByKey = ByKey.TestCase
TestByKey.settings = SETTINGS
TestByKeyCounted = ByKeyCounted.TestCase
TestByKeyCounted.settings = SETTINGS
TestCountedDeliveries = CountedDeliveries.TestCase
TestCountedDeliveries.settings = SETTINGS
