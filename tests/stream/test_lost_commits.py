"""Newest commits that are gone: whoever has seen them gets an error, and nothing is given away."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from stream_kit import (
    HOUR,
    SCHEMA,
    TimedStorage,
    make_stream,
    numbers,
    objects,
    staged_job,
    values,
    wait,
)
from wrapped_storage import WrappedStorage

import segstore_ds as segstore
from segstore_ds.errors import (
    CorruptionError,
    FencedError,
    MissingObjectError,
    NotFoundError,
    PositionError,
    WriterConflictError,
)
from segstore_ds.format.names import HINT_PATH, Hint, build_hint
from segstore_ds.format.root import Writer
from segstore_ds.repair.verify import Report
from segstore_ds.retention.deletion import run_maintain
from segstore_ds.status.writers import WriterKey, check_writer
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.rescue import repair as repair_on
from segstore_ds.stream.rescue import verify as verify_on
from segstore_ds.stream.stream import Stream

GONE = "commits that were in the log are gone"
LOST = "was taken at a commit that is gone"


def log_file(version: int) -> str:
    return f"log/{version:020d}"


def lose(storage: TimedStorage, *versions: int, hint: bool = True) -> None:
    """Delete commit files, and the hint unless that is to stay."""
    for version in versions:
        storage.delete(log_file(version))
    if not hint:
        storage.delete(HINT_PATH)


def another(storage: TimedStorage) -> Stream:
    """Return a handle of a process that has seen nothing yet."""
    return open_on(storage, clock=storage.time.clock)


def witnesses(storage: TimedStorage) -> list[str]:
    """Return what verify says of commits that are gone."""
    return _gone(verify_on(storage, clock=storage.time.clock))


def _gone(report: Report) -> list[str]:
    return [problem.what for problem in report.problems if GONE in problem.what]


# --- handles --------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [(5,), (1, 2, 3, 4, 5)])
@pytest.mark.parametrize("hint", [True, False])
def test_a_handle_never_goes_back(lost: tuple[int, ...], hint: bool) -> None:
    """It says so again and again, and appends nothing at offsets that were given away."""
    stream, storage = make_stream(5)
    lose(storage, *lost, hint=hint)
    for call in (stream.refresh, stream.refresh, lambda: stream.append(numbers(0, 1))):
        with pytest.raises(MissingObjectError, match=f"{GONE}.*seen=5.*repair") as caught:
            call()
        assert not caught.value.retryable
    assert (stream.version, stream.tail) == (5, 50)
    assert len(objects(storage, "log/")) == 6 - len(lost) + hint


@pytest.mark.parametrize("commits", [1, 20])
def test_a_handle_notices_commits_in_the_place_of_others(commits: int) -> None:
    """A process that knew nothing has taken the numbers again."""
    stream, storage = make_stream(5)
    lose(storage, 5, hint=False)
    other = another(storage)
    for n in range(commits):
        other.append(numbers(n, n + 1))
    with pytest.raises(MissingObjectError, match=f"{GONE}.*seen=5"):
        stream.refresh()
    wait(storage, HOUR)
    with pytest.raises(MissingObjectError, match=f"{GONE}.*seen=5"):
        stream.append(numbers(0, 1))
    assert len(values(other.refresh())) == 40 + commits


def test_new_handle_detects_a_lost_commit_by_the_hint() -> None:
    """The hint is written only after an acknowledgement, so it proves the commit."""
    _, storage = make_stream(5)
    lose(storage, 5)
    with pytest.raises(MissingObjectError, match=f"{GONE}.*seen=5.*newest=4.*_latest") as refused:
        another(storage)
    assert "put back on purpose, delete log/_latest and open again" in str(refused.value)
    (told,) = witnesses(storage)  # the open that fails and the witness tell the same
    assert f"delete {HINT_PATH}" in told
    lose(storage, hint=False)
    assert another(storage).version == 4


@pytest.mark.parametrize("place", [0, 9, 18])
def test_a_damaged_hint_proves_nothing(place: int) -> None:
    """One flipped bit is no reason to keep a sound stream shut."""
    stream, storage = make_stream(5)
    hint = bytearray(
        build_hint(Hint(5, 0, stream._log.root.stream_id, stream._log.root.transaction))
    )
    hint[place] ^= 1
    storage.put(HINT_PATH, bytes(hint))
    assert another(storage).version == 5


def test_a_late_hint_of_another_stream_proves_nothing() -> None:
    """A writer slept between its acknowledgement and its hint, and the stream was dropped."""
    stream, storage = make_stream(5)
    segstore.drop(stream.url, confirm=stream.url)
    made = create_on(storage, SCHEMA, clock=storage.time.clock)
    storage.put(
        HINT_PATH, build_hint(Hint(5, 0, stream._log.root.stream_id, stream._log.root.transaction))
    )
    assert another(storage)._log.root.stream_id == made._log.root.stream_id
    assert witnesses(storage) == []
    with pytest.raises(NotFoundError, match="another one was created"):
        stream.refresh()


# --- positions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("commits", [0, 1, 12])
def test_position_of_a_lost_commit_is_refused(commits: int) -> None:
    """Beyond the tail, and after new appends: the events before it are others than were read."""
    stream, storage = make_stream(5)
    position = stream.position()
    lose(storage, 5, hint=False)
    other = another(storage)
    for _ in range(commits):
        other.append(numbers(0, 10))
    for given in (position, position.to_json()):
        with pytest.raises(PositionError, match=f"{LOST}.*offset=50.*seen=5.*repair"):
            values(other, given)
    assert len(values(other, 40)) == 10 * commits


@pytest.mark.parametrize("commits", [0, 3])
def test_named_reader_detects_lost_commits(commits: int) -> None:
    """The reader does not continue beyond the tail or after events that it never saw."""
    stream, storage = make_stream(3)
    reader = stream.readers.register("billing", owner="nightly")
    stream.append(numbers(30, 40))
    reader.publish(40)
    assert len(witnesses(storage)) == 0
    lose(storage, stream.version, hint=False)
    other = another(storage)
    for _ in range(commits):
        other.append(numbers(0, 10))
    assert "reader 'billing'" in witnesses(storage)[0]
    with pytest.raises(PositionError, match=f"{LOST}.*offset=40"):
        other.readers.register("billing", owner="nightly")
    with pytest.raises(PositionError, match=f"{LOST}.*offset=40"):
        values(other, "reader:billing")
    assert other.readers.register("billing", owner="nightly", start=other.head).offset == 0


# --- followers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("hint", [True, False])
def test_a_follower_that_holds_more_stops_commits(tmp_path: Path, hint: bool) -> None:
    """Nothing is committed over what it alone has; a repair brings that back."""
    stream = segstore.create(tmp_path / "a", SCHEMA)
    stream.followers.add(str(tmp_path / "b"))
    for n in range(3):
        stream.append(numbers(n, n + 1))
    lost = stream.version
    (tmp_path / "a" / log_file(lost)).unlink()
    (tmp_path / "a" / HINT_PATH).unlink()
    if hint:
        (tmp_path / "a" / HINT_PATH).write_bytes(
            build_hint(Hint(lost, 0, stream._log.root.stream_id, stream._log.root.transaction))
        )
        with pytest.raises(MissingObjectError, match=GONE):
            segstore.open(stream.url)
    else:
        with pytest.raises(MissingObjectError, match=f"{GONE}.*seen={lost}.*follower"):
            segstore.open(stream.url).append(numbers(9, 10))
    assert not (tmp_path / "a" / log_file(lost)).exists()
    assert any("follower" in what for what in _gone(verify_on(open_storage(stream.url))))
    report = segstore.repair(stream.url)
    assert (report.ok, [*report.lost], report.version) == (True, [], lost)
    again = segstore.open(stream.url)
    again.append(numbers(3, 4))
    assert values(again) == [0, 1, 2, 3]
    assert again.verify().check().ok


# --- verify and repair ----------------------------------------------------------------------------


def _by_hint(_stream: Stream, storage: TimedStorage) -> str:
    lose(storage, 6, 5)
    return "_latest"


def _by_names(stream: Stream, storage: TimedStorage) -> str:
    staged_job(stream, 0, 5)  # planned on the version that is lost
    lose(storage, 6, 5, hint=False)
    return f"segments/{stream.version:020d}-"


@pytest.mark.usefixtures("no_inline")
@pytest.mark.parametrize("lost", [_by_hint, _by_names])
def test_an_accepted_loss_makes_verify_sound(
    lost: Callable[[Stream, TimedStorage], str],
) -> None:
    """What proved the loss proves nothing any more, and every older position says so."""
    stream, storage = make_stream(6)
    position = stream.position(10)
    witness = lost(stream, storage)
    assert witness in witnesses(storage)[0]
    with pytest.raises(CorruptionError, match=r"are gone.*first=5.*last=6.*version=4"):
        repair_on(storage, clock=storage.time.clock)
    report = repair_on(storage, allow_loss=True, clock=storage.time.clock)
    assert (report.ok, [*report.lost], report.generation) == (True, [5, 6], 1)
    assert verify_on(storage, clock=storage.time.clock).ok
    assert values(stream.refresh()) == list(range(40))
    with pytest.raises(PositionError, match="generation"):
        values(stream, position)
    stream.append(numbers(40, 50))
    assert verify_on(storage, clock=storage.time.clock).ok
    assert repair_on(storage, clock=storage.time.clock).lost == range(0)


# --- sinks ----------------------------------------------------------------------------------------


def test_a_sink_whose_last_batches_are_gone_is_refused() -> None:
    """Its checkpoint counts on; the way out is said."""
    known = Writer("q", 5, 1, 10, 10)
    key = WriterKey("q", 7, "q", dense=True)
    with pytest.raises(WriterConflictError, match=r"are gone.*batch_id=7, last_batch_id=5.*repair"):
        check_writer(known, key, None)
    with pytest.raises(WriterConflictError, match=r"none of the batches.*batch_id=7.*put it back"):
        check_writer(None, key, None)
    assert not check_writer(None, WriterKey("q", 0, "q", dense=True), None)
    assert not check_writer(None, WriterKey("q", 7, "q", takeover=True, dense=True), None)
    assert not check_writer(known, WriterKey("q", 6, "q", dense=True), None)
    assert not check_writer(known, WriterKey("q", 7, "q"), None)
    assert not check_writer(known, WriterKey("q", 7, "q", takeover=True, dense=True), None)


def test_a_purged_base_is_no_lost_commit() -> None:
    """A handle asleep during a purge continues at the newest version."""
    stream, storage = make_stream(2)
    other = another(storage)
    for n in range(20):
        wait(storage, HOUR)
        other.append(numbers(n, n + 1))
    run_maintain(other._context, keep_s=0)
    assert not any(log_file(2) in path for path in objects(storage, "log/"))
    assert stream.refresh().version == other.version


class _Stale(WrappedStorage):
    """Listings lack the newest commit."""

    def names_from(self, folder: str, start: str) -> Sequence[str]:
        found = super().names_from(folder, "")
        newest = max((name for name in found if name.startswith("0")), default="")
        return [name for name in found if start <= name != newest]


def test_a_stale_listing_is_no_lost_commit() -> None:
    """A commit that was seen is read by its name before it counts as lost."""
    stream, storage = make_stream(5)
    stale = open_on(_Stale(storage), clock=storage.time.clock)
    assert stale.version == 5
    stream.append(numbers(50, 51))
    assert stale.refresh().version == 6
    wait(storage, HOUR)  # so that the handle opens again by listing
    assert stale.refresh().version == 6
    stale.append(numbers(51, 52))
    wait(storage, HOUR)
    assert stale.refresh().version == 7


@pytest.mark.parametrize("text", [True, False])
def test_position_beyond_the_tail_names_the_lost_commits(text: bool) -> None:
    """It is no place to wait for events at."""
    stream, storage = make_stream(5)
    position = stream.position()
    lose(storage, 5, hint=False)
    with pytest.raises(PositionError, match=f"{LOST}.*offset=50.*seen=5.*newest=4.*repair"):
        values(another(storage), position.to_json() if text else position)


@pytest.mark.parametrize("commits", [1, 2, 12])
def test_position_of_a_lost_commit_fails_after_new_appends(commits: int) -> None:
    """Its offset is there, but the events before it are others than those that were read."""
    stream, storage = make_stream(5)
    position = stream.position()
    lose(storage, 5, hint=False)
    other = another(storage)
    for _ in range(commits):
        other.append(numbers(0, 10))
    with pytest.raises(PositionError, match=f"{LOST}.*offset=50.*seen=5"):
        values(other, position)
    assert len(values(other, 40)) == 10 * commits


def test_a_promoted_follower_is_no_witness(tmp_path: Path) -> None:
    """It went its own way, which is another error than a loss."""
    stream = segstore.create(tmp_path / "a", SCHEMA)
    stream.followers.add(str(tmp_path / "b"))
    stream.append(numbers(0, 1))
    promoted = segstore.open(tmp_path / "b")
    promoted.followers.promote()
    promoted.append(numbers(1, 2))
    with pytest.raises(FencedError):
        stream.append(numbers(1, 2))
    assert not any(GONE in problem.what for problem in stream.verify().problems)
