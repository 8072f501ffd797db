"""Events that break a rule go to the dead letters, once, with the batch that they came in."""

import uuid
from dataclasses import replace

import pyarrow as pa
import pytest
from faults import Crash, Fault
from latest_kit import Faulty, Timed, _Part
from stream_kit import SCHEMA, STAGED, Meddling, numbers
from virtual_time import VirtualTime

from segstore_ds.errors import (
    CommitUnknownError,
    ConflictError,
    InvalidInputError,
    SegstoreError,
    StorageError,
    WriterConflictError,
)
from segstore_ds.status.writers import WriterKey
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.write.layout import Layout

RULES = {"not_null": ["s"], "checks": {"positive": "n >= 0"}}
WHY = ["positive: n >= 0, row 2", "NOT NULL, row 3"]


def mixed(start):
    """Return events of which two are refused: the third and the fourth."""
    found = numbers(start, start + 5).to_pylist()
    found[2]["n"] = -start - 2
    found[3]["s"] = None
    return pa.Table.from_pylist(found, SCHEMA)


class Pair:
    """A stream on a virtual clock, and its dead letters."""

    def __init__(self) -> None:
        self.time = VirtualTime(1)
        self.storage = Timed(open_storage(f"memory://{uuid.uuid4().hex}"), self.time)
        self.url = f"memory://letters-{uuid.uuid4().hex}"
        stream = create_on(self.storage, SCHEMA, upkeep=None, clock=self.time.clock)
        stream.settings.update(rules={**RULES, "dead_letters": self.url})

    def open(self, storage=None):
        return open_on(storage or self.storage, clock=self.time.clock)

    def held(self):
        return self.open().read().read_all()["n"].to_pylist()

    @property
    def letters(self):
        return open_on(self.storage.sibling(self.url), clock=self.time.clock)

    def dead(self, column="n"):
        return self.letters.read().read_all()[column].to_pylist()


def send(stream, batch=1, start=0, **how):
    return stream.append(mixed(start), writer_id="w", batch_id=batch, **how)


@pytest.mark.parametrize("layout", [Layout(), STAGED], ids=["inline", "staged"])
def test_refused_events_are_dead_letters_and_the_others_are_committed(layout):
    pair = Pair()
    stream = pair.open()
    commit = send(stream, layout=layout)
    assert (commit.start, commit.end) == (0, 3)
    assert pair.held() == [0, 1, 4]
    (first, second) = pair.letters.read().read_all().to_pylist()
    told = {"_offset": None, "_deliveries": None, "_member": "w", "_reader": None}
    told["_stream"] = pair.storage.url
    assert first == {"n": -2, "s": "s2", "_reason": WHY[0], **told}
    assert second == {"n": 3, "s": None, "_reason": WHY[1], **told}
    again = send(pair.open(), layout=layout)
    assert again.repeated
    assert (again.start, again.end) == (0, 3)
    send(stream, batch=2, start=10, layout=layout)
    assert (pair.held(), pair.dead()) == ([0, 1, 4, 10, 11, 14], [-2, 3, -12, 13])
    pair.letters.verify().check()


def test_write_without_a_batch_id_is_refused_as_a_whole():
    pair = Pair()
    stream = pair.open()
    with pytest.raises(
        InvalidInputError, match=r"row=2, .*with writer_id and batch_id it would go"
    ):
        stream.append(mixed(0))
    with (
        stream.appender() as appender,
        pytest.raises(InvalidInputError, match=r"row=2, .*writer_id"),
    ):
        appender.append(mixed(0))
    assert (pair.held(), pair.dead()) == ([], [])


def test_more_than_a_message_holds_is_refused_as_a_whole(monkeypatch):
    monkeypatch.setattr("segstore_ds.write.task_writer.REFUSED_BYTES", 100)
    pair = Pair()
    bad = pa.table({"n": [-1] * 20, "s": ["a"] * 20}, SCHEMA)
    with pytest.raises(InvalidInputError, match=r"row=0, .*at most 100 bytes from a task"):
        pair.open().append(bad, writer_id="w", batch_id=1)
    assert (pair.held(), pair.dead()) == ([], [])


def test_refused_events_of_several_tasks_are_sent_in_their_order():
    pair = Pair()
    stream = pair.open()
    plan = stream.plan_write(SCHEMA)
    key = replace(plan.request, writer=stream_key())
    job = replace(plan, request=key)
    tasks = [job.open_task(n, "a").stage(mixed(10 * n).to_batches()) for n in range(3)]
    stream.commit(job, [tasks[1], tasks[2], tasks[0]])
    assert pair.held() == [0, 1, 4, 10, 11, 14, 20, 21, 24]
    assert pair.dead() == [-2, 3, -12, 13, -22, 23]


def stream_key():
    return WriterKey("w", 1)


FAULTS = [
    Fault(1, "crash", "after"),
    pytest.param(Fault(1, "crash", "before"), marks=pytest.mark.slow),
    pytest.param(Fault(1, "fail", "after"), marks=pytest.mark.slow),
    pytest.param(Fault(1, "fail", "before", calls=10**9), marks=pytest.mark.slow),
    pytest.param(Fault(1, "fail", "after", calls=10**9), marks=pytest.mark.slow),
]


@pytest.mark.parametrize(
    "fault", FAULTS, ids=lambda fault: f"{fault.kind}-{fault.when}-{fault.calls}"
)
def test_a_fault_at_any_call_loses_nothing_and_sends_nothing_twice(fault):
    """Neither the writer that repeats its batch, nor the one that goes on with the next."""
    for number in range(1, 200):
        pair = Pair()
        faulty = Faulty(pair.storage, replace(fault, at=number))
        ended = None
        try:
            send(pair.open(faulty))
        except (Crash, SegstoreError) as error:
            ended = error
        if isinstance(ended, CommitUnknownError):  # only where the batch itself may be committed
            assert ended.fields["url"] == pair.storage.url
        if ended is None or pair.held():  # an acknowledged or visible batch has all its letters
            assert (pair.held(), pair.dead()) == ([0, 1, 4], [-2, 3]), faulty.calls[-3:]
        assert pair.dead() in ([], [-2, 3])
        send(pair.open())
        send(pair.open(), batch=2, start=10)
        assert pair.held() == [0, 1, 4, 10, 11, 14], faulty.calls[-3:]
        assert pair.dead() == [-2, 3, -12, 13], faulty.calls[-3:]
        if not faulty.struck:
            assert number > 8
            return
    pytest.fail("the append never succeeds")


class Late(Meddling):
    """A storage where something happens before a call to it, or to a place beside it."""

    def sibling(self, url):
        return _Part(self, self.inner.sibling(url))


class LateAt(Faulty):
    """A storage where something happens before its n-th call."""

    def __init__(self, inner, number, happens) -> None:
        super().__init__(inner)
        self.number, self.happens = number, happens

    def around(self, verb, path, work):
        if len(self.calls) + 1 == self.number:
            self.happens()
        return super().around(verb, path, work)


@pytest.mark.parametrize("then", [[1], [1, 3]])
def test_late_process_sends_nothing_that_another_has_sent(then):
    """Whenever the other one overtakes it: before it looks, or before it sends or commits."""
    for number in range(1, 200):
        pair = Pair()

        def overtake(pair=pair):
            for batch in then:
                send(pair.open(), batch, start=10 * (batch - 1))

        late = LateAt(pair.storage, number, overtake)
        try:
            done = send(pair.open(late))
        except WriterConflictError:
            done = None
        met = len(late.calls) >= number
        assert done is not None or len(then) > 1
        batches = then if met else [1]
        wanted = [n for b in batches for n in (-10 * (b - 1) - 2, 10 * (b - 1) + 3)]
        assert pair.dead() == wanted, late.calls[number - 1 : number]
        if not met:
            assert number > 8
            return
    pytest.fail("the append never succeeds")


def test_batch_that_the_stream_would_refuse_sends_no_letters():
    pair = Pair()
    stream = pair.open()
    job = stream.plan_write(SCHEMA, writer=stream_key(), expected_tail=0)
    task = job.open_task(0, "a").stage(mixed(0).to_batches())
    pair.open().append(numbers(0, 1))
    with pytest.raises(ConflictError, match="tail has moved"):
        stream.commit(job, [task])
    job = stream.plan_write(SCHEMA, writer=stream_key())
    task = job.open_task(0, "a").stage(mixed(0).to_batches())
    pair.open().settings.update(rules=RULES)
    with pytest.raises(ConflictError, match="rules of the stream have changed"):
        stream.commit(job, [task])
    assert pair.dead() == []


def test_query_with_the_checkpoint_of_another_sends_no_letters():
    pair = Pair()
    stream = pair.open()

    def commit(owner):
        job = stream.plan_write(SCHEMA, writer=WriterKey(owner, 0, owner, claim="checkpoint:c"))
        stream.commit(job, [job.open_task(0, "a").stage(mixed(0).to_batches())])

    commit("first")
    with pytest.raises(WriterConflictError, match="checkpoint belongs to another"):
        commit("second")
    assert pair.dead() == [-2, 3]


def test_rules_that_change_between_two_tries_lose_no_event():
    """What both refuse is sent twice: nobody knows which rules the first try went by."""
    pair = Pair()
    faulty = Faulty(pair.storage)
    send_once = Late(faulty, "create log/", lambda: (_ for _ in ()).throw(Crash("before the put")))
    with pytest.raises(Crash):
        send(pair.open(send_once))
    assert (pair.held(), pair.dead()) == ([], [-2, 3])
    stricter = {"checks": {"few": "n >= 0 and n < 4"}, "dead_letters": pair.url}
    pair.open().settings.update(rules=stricter)
    send(pair.open())
    assert (pair.held(), pair.dead()) == ([0, 1, 3], [-2, 3, -2, 4])


def die_between(pair, **how):
    """Die when the letters of a batch are sent, and the batch is not committed."""
    send_once = Late(
        pair.storage, "create log/", lambda: (_ for _ in ()).throw(Crash("before the put"))
    )
    with pytest.raises(Crash):
        send(pair.open(send_once), **how)
    assert pair.held() == []


@pytest.mark.parametrize("on_repeat", ["error", "skip"])
def test_a_batch_that_is_repeated_with_other_events_loses_none_of_them(on_repeat):
    """As those of a query whose reruns differ; nothing of the first try was committed."""
    pair = Pair()
    die_between(pair, on_repeat=on_repeat)
    assert send(pair.open(), start=20, on_repeat=on_repeat).rows == 3
    assert (pair.held(), pair.dead()) == ([20, 21, 24], [-2, 3, -22, 23])


def test_events_with_the_same_bounds_are_not_the_same():
    pair = Pair()
    first, second = (pa.table({"n": [-9, n, -1], "s": ["a"] * 3}, SCHEMA) for n in (-5, -4))
    pair.open().append(first, writer_id="w", batch_id=1)
    send(pair.open(), batch=2)
    pair.open().append(second, writer_id="w", batch_id=1, takeover=True)
    assert pair.dead() == [-9, -5, -1, -2, 3, -9, -4, -1]


@pytest.mark.parametrize("events", [[0], [0, 10]], ids=["same", "others"])
def test_a_writer_that_is_set_back_sends_what_is_refused_again(events):
    """Its batch is committed again, so its letters are sent again."""
    pair = Pair()
    for batch, start in enumerate(events):
        send(pair.open(), batch, start)
    pair.open().append(numbers(90, 91), writer_id="w", batch_id=9)
    send(pair.open(), 0, takeover=True)
    sent = [n for start in events for n in (-start - 2, start + 3)]
    assert pair.dead() == [*sent, -2, 3]
    assert pair.held()[-3:] == [0, 1, 4]


def test_the_same_events_in_other_tasks_are_sent_once():
    """The source was compacted between the two tries, or a shuffle brings them in another order."""
    pair = Pair()
    die_between(pair)
    job = pair.open().plan_write(SCHEMA, writer=stream_key())
    rows = mixed(0)
    parts = [rows.slice(3).to_batches(), rows.slice(0, 3).to_batches()]
    pair.open().commit(job, [job.open_task(n, "b").stage(part) for n, part in enumerate(parts)])
    assert (sorted(pair.held()), pair.dead()) == ([0, 1, 4], [-2, 3])


def test_a_reader_of_the_same_name_has_letters_of_its_own():
    pair = Pair()
    send(pair.open())
    follow = pair.open().follow("w", member="m", dead_letters=pair.url, max_rows=1, start="head")
    while follow._take():
        follow.reject("why")
    send(pair.open(), batch=2, start=10)
    assert pair.dead() == [-2, 3, 0, 1, 4, -12, 13]


def test_where_no_letters_can_be_is_refused():
    pair = Pair()
    stream = pair.open()
    with pytest.raises(InvalidInputError, match="can't hold its own dead letters"):
        stream.settings.update(rules={**RULES, "dead_letters": pair.storage.url})
    stream.append(pa.table({"n": [1], "s": ["a"], "_reason": ["x"]}), merge_schema=True)
    with pytest.raises(InvalidInputError, match=r"columns=\['_reason'\]"):
        stream.settings.update(rules={**RULES, "dead_letters": pair.url})
    with pytest.raises(InvalidInputError, match=r"columns=\['_reason'\]"):
        send(stream, merge_schema=True)
    assert pair.held() == [1]


def test_batch_of_which_all_is_refused_is_committed_empty():
    pair = Pair()
    stream = pair.open()
    bad = pa.table({"n": [-1, -2], "s": ["a", "b"]}, SCHEMA)
    assert stream.append(bad, writer_id="w", batch_id=1).rows == 0
    assert stream.append(bad, writer_id="w", batch_id=1).repeated
    assert (pair.held(), pair.dead()) == ([], [-1, -2])


def test_letters_that_may_be_committed_are_an_error_that_is_safe_to_repeat():
    pair = Pair()

    class Silent(Faulty):
        sent = False

        def around(self, verb, path, work):
            if path.startswith("latest:log/"):
                if verb == "create":
                    work()
                    self.sent = True
                if self.sent:
                    raise StorageError("no answer")
            return super().around(verb, path, work)

    with pytest.raises(StorageError, match="not known whether dead letters"):
        send(pair.open(Silent(pair.storage)))
    assert pair.held() == []
    send(pair.open())
    assert (pair.held(), pair.dead()) == ([0, 1, 4], [-2, 3])
