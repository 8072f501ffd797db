"""An attempt that lost its race deletes the status objects that only it would have named."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from faults import Crash
from stream_kit import Meddling, TimedStorage, make_stream, numbers, objects, values, wait
from wrapped_storage import WrappedStorage

from segstore_ds.errors import CommitUnknownError, StorageError
from segstore_ds.format import names
from segstore_ds.format.root import PartRef, Root, SegmentEntry
from segstore_ds.log.commit import plan_discard
from segstore_ds.status.table import HISTORY
from segstore_ds.storage import Storage
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream

DIGEST = "0" * 32
HOUR = 3600.0


def _appends(stream: Stream, start: int) -> Callable[[], object]:
    return lambda: stream.append(numbers(start, start + 1))


def _meddled(storage: TimedStorage, happens: Callable[[], object]) -> Stream:
    """Return a handle that another commit beats to its first slot."""
    return open_on(Meddling(storage, "create log/", happens), clock=storage.time.clock)


@pytest.mark.usefixtures("tight")
@pytest.mark.parametrize("commits", [3, 4, 7, 8])
def test_a_lost_append_leaves_no_part(commits: int) -> None:
    """Neither the part that it spilled, nor the merged one of its upkeep."""
    stream, storage = make_stream(commits)
    late = _meddled(storage, _appends(stream, 10 * commits))
    late.append(numbers(10 * commits + 1, 10 * commits + 2))
    assert late._log.storage.met
    assert values(late) == list(range(10 * commits + 2))
    assert stream.refresh().verify().check().leftovers == []


@pytest.mark.usefixtures("tight")
def test_a_lost_compaction_leaves_no_status_objects() -> None:
    """The parts that it rewrote, and what it moved out of the root."""
    stream, storage = make_stream(9)
    late = _meddled(storage, _appends(stream, 90))
    assert late.compact().commits == 1
    assert values(late) == list(range(91))
    assert stream.refresh().verify().check().leftovers == []


@pytest.mark.usefixtures("no_inline")
@pytest.mark.usefixtures("tight")
def test_a_lost_merge_leaves_nothing() -> None:
    """Two writers that merge the same parts put the same object: it stays the winner's."""
    stream, storage = make_stream(0)
    other = open_on(storage, clock=storage.time.clock)
    for n in range(26):
        late = _meddled(storage, _appends(other.refresh(), 2 * n))
        late.append(numbers(2 * n + 1, 2 * n + 2))
    assert stream.refresh().verify().check().leftovers == []
    assert values(stream) == list(range(52))


@pytest.mark.usefixtures("no_inline")
@pytest.mark.usefixtures("tight")
def test_a_loss_that_is_read_late_deletes_nothing() -> None:
    """Behind a sleep the slot may hold a leftover, and the part may be that of the log's own."""
    stream, storage = make_stream(3)

    def sleep() -> None:
        wait(storage, HOUR)
        stream.append(numbers(30, 31))

    late = _meddled(storage, sleep)
    late.append(numbers(31, 32))
    assert len(stream.refresh().verify().check().leftovers) == 2  # a part and its twin


class _Silent(WrappedStorage):
    """Commit files are put and read without an answer."""

    def __init__(self, inner: Storage, *, crashes: bool) -> None:
        super().__init__(inner)
        self.silent, self.crashes = False, crashes

    def around(self, verb: str, path: str, work: Callable[[], object]) -> object:
        if path.startswith("log/0") and verb in ("create", "get") and self.silent:
            work()
            raise Crash if self.crashes else StorageError("no answer")
        return work()


@pytest.mark.usefixtures("no_inline")
@pytest.mark.usefixtures("tight")
@pytest.mark.parametrize("crashes", [True, False])
def test_an_unknown_outcome_deletes_nothing(crashes: bool) -> None:
    """The commit may be in the log and name the objects."""
    stream, storage = make_stream(3)
    silent = _Silent(storage, crashes=crashes)
    writer = open_on(silent, clock=storage.time.clock)
    assert objects(storage, "status/") == set()
    silent.silent = True
    with pytest.raises((Crash, CommitUnknownError)):
        writer.append(numbers(30, 31))
    assert len(objects(storage, "status/")) == 1
    assert values(open_on(storage, clock=storage.time.clock)) == list(range(31))
    stream.refresh().verify().check()


def _part(version: int, digit: str) -> PartRef:
    return PartRef(f"status/{version:020d}-segments-{digit * 32}", 0, 1, 1, 1)


def _list(version: int) -> PartRef:
    return PartRef(f"status/{version:020d}-list-{DIGEST}", 0, 1, 1, 1)


def _roots() -> tuple[Root, Root, Root]:
    stream, _ = make_stream(1)
    base = replace(stream._log.root, version=7, transaction="base", parts=(_part(3, "a"),))
    after = replace(base, version=8, parent="base")
    return base, after, after


def test_only_what_was_put_on_the_base_goes() -> None:
    """An older part of the base stays, and so does what the winner names."""
    base, lost, winner = _roots()
    lost = replace(lost, parts=(*base.parts, _part(7, "b"), _part(7, "c")))
    winner = replace(winner, parts=(*base.parts, _part(7, "c")))
    assert plan_discard(base, lost, winner) == sorted(names.both_names(_part(7, "b").path))
    assert plan_discard(base, lost, replace(winner, parent="another")) == []


def test_an_object_of_inline_segments_goes_unless_a_new_part_may_list_it() -> None:
    """Two writers that move the same inline segments put the same object."""
    base, lost, winner = _roots()
    path = names.build_outlined_path(7, DIGEST)
    lost = replace(lost, entries=(SegmentEntry(0, path, 1, 1, 1, 0),))
    assert plan_discard(base, lost, winner) == [names.segment_object(path)]
    assert plan_discard(base, lost, replace(winner, entries=lost.entries)) == []
    assert plan_discard(base, lost, replace(winner, parts=(*base.parts, _part(7, "c")))) == []


@pytest.mark.parametrize("table", ["", "history_", "retired_", "writers_"])
def test_parts_that_lists_may_name_stay(table: str) -> None:
    """A part came out of a list of the base, or went into one of the winner's, of any table."""
    base, lost, winner = _roots()
    lost = replace(lost, **{f"{table}parts": (_part(7, "b"),)})
    assert plan_discard(base, lost, winner) == sorted(names.both_names(_part(7, "b").path))
    lists = f"{table}lists"
    assert plan_discard(replace(base, **{lists: (_list(6),)}), lost, winner) == []
    assert plan_discard(base, lost, replace(winner, **{lists: (_list(7),)})) == []


def test_what_the_winner_put_alike_stays() -> None:
    """Both move the very same rows of the history to one part, under one name."""
    stream, storage = make_stream(HISTORY.rows - 1)
    assert len(stream._log.root.history_parts) == 0
    late = _meddled(storage, _appends(stream, 10 * HISTORY.rows))
    late.append(numbers(10 * HISTORY.rows + 1, 10 * HISTORY.rows + 2))
    newest = stream.refresh()
    assert len(newest._log.root.history_parts) == 1
    assert newest.history().read_all().num_rows == newest.version + 1
    assert newest.verify().check().leftovers == []
