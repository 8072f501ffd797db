"""Members that share a reader do what their model says, in whatever order things happen to them.

An event is done when the member that got it asked for the next batch without an error; the record
says the same at every moment, so nothing is done twice, and nothing unread is passed.
"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from member_programs import keep_few_records, offsets
from stream_kit import make_stream, numbers, wait

from segstore_ds.errors import LeaseLostError, ReaderConflictError
from segstore_ds.retention import leases

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
            self.hands[name] = batch["n"].to_pylist()
            assert self.hands[name] == sorted(self.hands[name])
            assert not self.done & set(self.hands[name])

    @rule(count=st.integers(1, 9))
    def append(self, count):
        self.stream.append(numbers(self.tail, self.tail + count))
        self.tail += count

    @rule(name=NAMES)
    def join(self, name):
        """A process starts; one of that name may have died, or may still live."""
        before = self.members.get(name)
        self.members[name] = self.stream.follow("x", member=name, lease=LEASE_S, columns=["n"])
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

    @rule(seconds=st.sampled_from([1, LEASE_S // 2, LEASE_S + 1]))
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
            assert offsets(seen.record) == self.done

    def teardown(self):
        """One member is left, and gets all that was not done."""
        self.stream.seal()
        last = self.stream.follow("x", member="last", lease=LEASE_S, columns=["n"])
        for batch in last:
            numbers_of = set(batch["n"].to_pylist())
            assert not self.done & numbers_of
            self.done |= numbers_of
        assert self.done == set(range(self.tail))


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


SETTINGS = settings(settings.default, stateful_step_count=40)
TestSharedReader = SharedReaderMachine.TestCase
TestSharedReader.settings = SETTINGS
TestSmallRanges = SmallRanges.TestCase
TestSmallRanges.settings = SETTINGS
