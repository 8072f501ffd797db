"""The values of a key change while members share by it: every event is finished by one of them."""

from contextlib import suppress

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st
from member_kit import LEASE_S, keyed, record
from stream_kit import fresh_url, make_stream, wait
from virtual_time import TimedStorage

from segstore_ds.errors import LeaseLostError
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import open as open_on

MEMBERS = st.integers(0, 2)
STEPS = st.tuples(st.just("step"), MEMBERS)
CALLS = st.one_of(
    STEPS,
    STEPS,
    st.tuples(st.sampled_from(["give back", "reject", "give back, redact", "redact"]), MEMBERS),
    st.tuples(st.sampled_from(["rename", "replace", "append", "round"]), st.just(0)),
    st.tuples(st.just("wait"), st.sampled_from([1, LEASE_S + 1])),
)


class Desk:
    """A stream, three members that share it by key, and what they have finished."""

    def __init__(self, *, letters: bool) -> None:
        self.stream, self.storage = make_stream(0)
        self.tail, self.key, self.redacted = 0, "s", 0
        self.how = {"lease": LEASE_S, "max_rows": 3, "columns": ["n"]}
        if letters:
            beside = TimedStorage(open_storage(fresh_url()), self.storage.time)
            self.how |= {"dead_letters": beside, "max_deliveries": 1000}
        self.letters = letters
        self.finished: set[int] = set()
        self.append()
        self.join()
        for _ in range(3):
            self.round()  # until each has some of the keys

    def join(self) -> None:
        names = ("a", "b", "c")
        key = [self.key]
        self.follows = [
            self.stream.refresh().follow("billing", member=name, key=key, start="head", **self.how)
            for name in names
        ]
        self.held: list[list[int]] = [[] for _ in names]

    def leave(self) -> None:
        for follow in self.follows:
            follow.close()

    def append(self) -> None:
        """Append thirty events, where the key's column has a name of its own by now."""
        events = keyed(self.tail, self.tail + 30)
        self.stream.refresh().append(events.rename_columns(["n", self.key]), merge_schema=True)
        self.tail += 30

    def step(self, at: int) -> bool:
        """Ask for a member's next batch: the one before is finished."""
        try:
            batch = self.follows[at]._take()
        except LeaseLostError:
            self.held[at] = []
            return True
        self.finished |= {*self.held[at]}
        self.held[at] = [] if batch is None else batch["n"].to_pylist()
        return bool(self.held[at])

    def turn_down(self, at: int, *, reject: bool) -> None:
        """Give a batch back, or reject it where that is possible: it isn't finished."""
        if self.held[at]:
            self.held[at] = []
            with suppress(LeaseLostError):
                if reject and self.letters:
                    self.follows[at].reject("why")
                else:
                    self.follows[at].give_back(delay=1)

    def dead(self) -> set[int]:
        """Return the numbers in the dead letters."""
        if not self.letters:
            return set()
        letters = open_on(self.how["dead_letters"], clock=self.storage.time.clock)
        return {*letters.read().read_all()["n"].to_pylist()}

    def round(self) -> bool:
        """Ask for the next batch of each member."""
        wait(self.storage, 2)
        return any([self.step(at) for at in range(3)])  # noqa: C419 - each has its turn

    def redact(self, number: int) -> None:
        """Make the key of an event null: its events belong to the bucket of nulls from now on."""
        self.redacted += 1
        where = [[self.key, "==", f"k{number % 7}"]]
        self.stream.refresh().redact(where, columns=[self.key], redact_id=f"r{self.redacted}")

    def change_columns(self, **change: object) -> None:
        self.leave()
        self.stream.refresh().change_schema(**change)

    def rename(self) -> None:
        before, self.key = self.key, "t" if self.key == "s" else "s"
        self.change_columns(rename={before: self.key})
        self.join()

    def replace(self) -> None:
        """Drop the key's column, and add another one of that name."""
        self.change_columns(drop=[self.key])
        self.append()
        self.join()


@given(st.lists(CALLS, min_size=4, max_size=25), st.booleans())
@example(calls=[("give back, redact", 0)], letters=False)
@example(calls=[("give back", 0), *[("step", 2)] * 4, ("replace", 0)], letters=False)
@example(calls=[("give back", 0), *[("step", 2)] * 4, ("rename", 0)], letters=False)
@example(calls=[("redact", 0), ("step", 0), ("give back", 1)], letters=False)
@example(calls=[("redact", 0), ("step", 0), ("step", 1), ("reject", 2)], letters=True)
def test_no_event_is_lost(calls: list[tuple[str, int]], letters: bool) -> None:
    desk = Desk(letters=letters)
    for call, number in calls:
        match call:
            case "step" | "redact":
                getattr(desk, call)(number)
            case "give back" | "reject":
                desk.turn_down(number, reject=call == "reject")
            case "give back, redact":
                held = desk.held[number]
                desk.turn_down(number, reject=False)
                desk.redact(held[0] if held else number)
            case "wait":
                wait(desk.storage, number)
            case _:
                getattr(desk, call)()
    for _ in range(200):
        if not desk.round() and record(desk.stream).offset == desk.tail:
            break
    assert record(desk.stream).offset == desk.tail
    assert desk.finished | desk.dead() == {*range(desk.tail)}
    assert desk.stream.refresh().read().read_all()["n"] == pa.chunked_array([range(desk.tail)])
