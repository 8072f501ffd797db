"""The log of a stream: requests it costs, versions and times, outcomes, refusals, purge."""

import uuid
from dataclasses import replace
from functools import partial

import pytest
from stream_kit import Meddling
from virtual_time import TimedStorage, VirtualTime

from segstore_ds.errors import (
    ConflictError,
    CorruptionError,
    FormatError,
    InternalError,
    InvalidInputError,
    NotFoundError,
)
from segstore_ds.format.envelope import encode_envelope
from segstore_ds.format.names import Hint
from segstore_ds.format.root import Epoch, Root, encode_root
from segstore_ds.log.commit import Change
from segstore_ds.log.context import StreamContext
from segstore_ds.log.lookup import Outcome, OutcomeState, find_outcome, plan_log_start
from segstore_ds.log.metadata_log import MARK_BYTES
from segstore_ds.log.newest import LOG_GRACE_S
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.retention.deletion import run_maintain
from segstore_ds.status.history import begin_history
from segstore_ds.status.table import Slot
from segstore_ds.storage import open_storage

COMMITTED, NOT_COMMITTED, UNKNOWN = (
    OutcomeState.COMMITTED,
    OutcomeState.NOT_COMMITTED,
    OutcomeState.UNKNOWN,
)


def next_root(root: Root, _slot: Slot) -> Change[None]:
    return Change(replace(root, operation="append"))


def commit(log: StreamLog, transaction: str | None = None) -> Root:
    return log.commit(next_root, transaction=transaction or log.clock.new_id()).root


@pytest.fixture
def time() -> VirtualTime:
    return VirtualTime()


@pytest.fixture
def log(time: VirtualTime) -> StreamLog:
    """A log of version 0."""
    storage = TimedStorage(open_storage(f"memory://{uuid.uuid4().hex}"), time)
    log = StreamLog(storage, clock=time.clock)
    first = Root("stream", 0, "t0", "", time.now_us, "create", (Epoch(0, 0, "x", None),))
    first = begin_history(first)
    assert log.create(first)
    return log


def another(log: StreamLog) -> StreamLog:
    """A handle of another process, which has seen nothing yet."""
    return StreamLog(log.storage, clock=log.clock)


def requests(log: StreamLog) -> dict[str, int]:
    found = log.storage.stats.requests
    log.storage.stats.reset()
    return found


@pytest.mark.parametrize("commits", [0, 3, 300])
def test_an_open_takes_three_requests_however_long_the_log(log, time, commits):
    for _ in range(commits):
        commit(log)
        time.advance(1.5)  # so that each writes the hint
    requests(log)
    assert another(log).open().version == commits
    assert requests(log) == {"get": 2, "list": 1}


def test_a_look_for_news_takes_two_requests_and_a_commit_one(log, time):
    commit(log)
    time.advance(30)
    requests(log)
    log.refresh()
    assert requests(log) == {"get": 2}
    commit(log)
    assert requests(log) == {"create": 1, "put": 1}
    commit(log)
    assert requests(log) == {"create": 1}
    assert log.recent().version == 3
    assert requests(log) == {}


def test_a_loser_does_not_rebase_on_another_history(log):
    """The slot holds a commit that was made on another root: the log that was seen is gone."""
    forged = replace(log.root, version=1, parent="not t0", transaction="other")
    forged = replace(forged, history=(*forged.history, forged.history[-1]))
    log.storage.create(log.files.path(1), encode_envelope(encode_root(forged)))
    with pytest.raises(FormatError):
        commit(log)
    assert log._base is None or log._base.root.transaction == "t0"


def test_a_winner_that_was_read_late_is_found_again_by_listing(log, time):
    """After a minute the slot alone proves nothing, so the loser looks for the newest root."""
    other = another(log)
    other.open()
    commit(other)
    base = log._base
    assert base is not None
    data = log.files.read(1)
    assert data is not None
    time.advance(61)
    assert not log._rebase_on(base, data, 1)
    assert log.root.version == 0
    time.advance(-61)
    assert log._rebase_on(base, data, 1)
    assert log._base == replace(base, root=other.root, mark=data[:MARK_BYTES])


def test_no_log_is_no_stream():
    log = StreamLog(open_storage(f"memory://{uuid.uuid4().hex}"))
    for find in (log.open, log.reopen, log.refresh, lambda: log.root):
        with pytest.raises(NotFoundError, match="no stream here"):
            find()


@pytest.mark.parametrize("hint", [None, 0, 3, 7, 12, 10**17])
def test_newest_is_found_with_any_hint_or_none(log, time, hint):
    for _ in range(7):
        commit(log)
    log.storage.delete("log/_latest")
    if hint is not None:
        log.files.write_hint(Hint(hint))
    for _ in range(2):
        assert another(log).open().version == 7
        time.advance(86400)


def test_an_unreadable_head_is_never_passed_over(log):
    for _ in range(3):
        commit(log)
    path = log.files.path(3)
    whole = log.storage.get(path)
    for data in (whole[:-1], whole + b"x", b"v9\n", encode_envelope(b"{}")):
        log.storage.put(path, data)
        for find in (another(log).open, another(log).reopen):
            with pytest.raises(FormatError):
                find()


def test_a_file_that_holds_another_version_is_corruption(log):
    commit(log)
    log.storage.put(log.files.path(2), log.storage.get(log.files.path(1)))
    with pytest.raises(CorruptionError, match="a different version"):
        another(log).open()


def test_a_change_that_is_none_writes_nothing(log):
    requests(log)
    done = log.commit(lambda _root, _slot: Change(None, "known"), transaction="t")
    assert (done.written, done.root.version, done.attempts) == (False, 0, 0)
    assert done.result == "known"
    assert requests(log) == {"get": 1}  # whether the stream was dropped


def test_the_change_is_planned_again_on_what_came_first(log):
    other = another(log)
    other.open()
    commit(other, "first")
    seen = []

    def build(root: Root, slot: Slot) -> Change[int]:
        seen.append((root.version, slot.version, slot.attempt))
        return Change(replace(root, operation="append", client="mine"), slot.attempt)

    done = log.commit(build, transaction="mine")
    assert seen == [(0, 1, 0), (1, 2, 1)]
    assert (done.root.version, done.root.parent, done.attempts) == (2, "first", 2)
    assert done.result == 1


def test_writer_that_never_wins_gets_a_conflict(log):
    other = another(log)
    other.open()

    def build(root: Root, _slot: Slot) -> Change[None]:
        commit(other)
        return Change(replace(root, operation="append"))

    with pytest.raises(ConflictError, match="attempts=4") as lost:
        log.commit(build, transaction="mine", attempts=4)
    newest = other.root
    assert lost.value.fields.items() >= {"version": 4, "operation": newest.operation}.items()
    assert find_outcome(log, "mine").state is UNKNOWN
    assert "mine" not in {log.read_version(n).transaction for n in range(log.refresh().version + 1)}


def test_a_change_that_breaks_the_stream_is_not_written(log):
    with pytest.raises(InternalError, match="would make an invalid root"):
        log.commit(lambda root, _: Change(replace(root, tail=5)), transaction="t")
    assert log.reopen().version == 0


@pytest.mark.parametrize("jumps_s", [[40 * 365 * 86_400], [-86_400], [200, 200]])
def test_commit_is_refused_after_the_clock_jumped(log, time, jumps_s):
    """A jump shows against the boot clock, so an earlier comparison says nothing any more."""
    off_s = [0]
    clock = replace(time.clock, wall_us=lambda: time.now_us + off_s[0] * 10**6)
    jumping = StreamLog(log.storage, clock=clock)
    time.advance(3600)
    commit(jumping)  # idle for an hour: the clocks were just compared
    stamped = jumping.root.time_us
    for jump_s in jumps_s[:-1]:
        off_s[0] += jump_s
        commit(jumping)
    off_s[0] += jumps_s[-1]
    for _ in range(2):
        with pytest.raises(InvalidInputError, match="clock differs from the store's"):
            commit(jumping)
    off_s[0] = 0
    assert commit(jumping).time_us <= stamped + 300 * 10**6


def test_an_outcome(log):
    for name in "abc":
        commit(log, name)
    ask = partial(find_outcome, another(log))
    assert ask("b") == ask("b", 2) == Outcome(COMMITTED, 2)
    assert ask("x", 2) == Outcome(NOT_COMMITTED)
    assert ask("x") == ask("x", 4) == Outcome(UNKNOWN)


def test_history_answers_for_a_purged_outcome(log, time):
    for name in "abcd":
        commit(log, name)
    time.advance(2 * LOG_GRACE_S)
    commit(log, "e")
    run_maintain(StreamContext.of(log), keep_s=0)
    assert log.root.log_start > 1
    assert find_outcome(log, "a", 1) == find_outcome(log, "a") == Outcome(COMMITTED, 1)
    assert find_outcome(log, "x", 1).state is NOT_COMMITTED
    assert find_outcome(log, "e", 5).state is COMMITTED


def test_purge_keeps_what_was_superseded_within_the_grace(log, time):
    for _ in range(10):
        time.advance(600)
        commit(log)
    # Versions 0 to 10, ten minutes apart: 4 was the newest an hour ago, and one more stays.
    assert plan_log_start(StreamContext.of(log), log.root, 0) == 3
    assert plan_log_start(StreamContext.of(log), log.root, 60 * 95) == 0
    assert run_maintain(StreamContext.of(log), keep_s=0).log_start == 3
    assert log.files.numbers() == list(range(3, 12))
    assert (log.root.version, log.root.log_start, log.root.operation) == (11, 3, "upkeep")
    assert another(log).open() == another(log).reopen() == log.root


def test_late_creator_with_the_same_id_gets_an_error(time):
    """Two runners of one clone: what the sleeper puts is a leftover, and no stream of its own."""
    storage = TimedStorage(open_storage(f"memory://{uuid.uuid4().hex}"), time)
    first = Root("clone", 0, "a0", "", time.now_us, "copy", (Epoch(0, 0, "x", None),))
    first = begin_history(first)

    def sleep() -> None:
        other = StreamLog(storage, clock=time.clock)
        assert other.create(replace(first, transaction="b0"))
        for _ in range(3):
            commit(other)
            time.advance(2 * LOG_GRACE_S)
        commit(other)
        run_maintain(StreamContext.of(other), keep_s=0)
        assert other.root.log_start > 0

    sleeper = StreamLog(Meddling(storage, "create log/", sleep), clock=time.clock)
    assert not sleeper.create(first)
    assert sleeper.root.version > 0


def test_a_loser_on_a_fast_disk_backs_off_and_follows_the_log(log, monkeypatch):
    waits = []
    monkeypatch.setattr(type(log.clock), "backoff", lambda _, attempt, **__: waits.append(attempt))
    other = another(log)
    other.open()
    for _ in range(4):
        commit(other)
    assert commit(log).version == 5
    assert waits == [0]


def test_to_follow_one_commit_reads_its_file_once(log):
    """Then the next name is looked for, and whether the commit is still there after that."""
    other = another(log)
    other.open()
    commit(log)
    requests(log)
    assert other.follow().version == 1
    assert requests(log) == {"get": 2, "info": 1}
