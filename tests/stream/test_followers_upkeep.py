"""What is done to a stream with followers: afterwards they are the same folder."""

from dataclasses import replace
from functools import partial

import pytest
from faults import Crash
from follower_kit import Pair, Root, content, found
from stream_kit import STAGED, fresh_url, numbers
from wrapped_storage import WrappedStorage

from segstore_ds.errors import (
    CorruptionError,
    FencedError,
    InvalidInputError,
    StorageError,
    UnderReplicatedError,
    WriterConflictError,
)
from segstore_ds.format.operation import Operation
from segstore_ds.log.commit import Change
from segstore_ds.status.references import read_references
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.rescue import repair as repair_on
from segstore_ds.write import append
from segstore_ds.write.layout import Layout

pytestmark = pytest.mark.usefixtures("tight")
HISTORY_ROWS = "segstore_ds.status.table.HISTORY.rows"


def test_a_compaction_that_a_follower_lacks_keeps_what_it_wrote(pair):
    """It is in the primary's log: to delete what it wrote would lose the events."""
    for n in range(4):
        pair.stream.append(numbers(10 * n, 10 * n + 10), layout=STAGED)
    pair.stream.followers.add(pair.follower)
    version = pair.stream.version
    pair.world.lose_with(pair.follower, after=f"log/{version + 1:020d}")
    with pytest.raises(UnderReplicatedError):
        pair.stream.compact()
    assert found(pair.reopen(pair.primary)) == list(range(40))
    assert pair.reopen(pair.primary).verify().ok
    pair.world.lost.clear()
    pair.reopen(pair.primary).append(numbers(40, 41))
    assert found(pair.reopen(pair.follower)) == list(range(41))
    assert content(pair.follower) == content(pair.primary)


def _grow(pair, commits: int, hours: float) -> None:
    for n in range(commits):
        pair.time.advance(hours * 3600)
        pair.stream.append(numbers(n, n + 1), layout=STAGED)


def _operations(pair) -> list[str]:
    return pair.stream.history().read_all()["operation"].to_pylist()


def _refusing(follower: str, url: str, verb: str, path: str) -> None:
    if (url, verb) == (follower, "delete"):
        raise StorageError("no deletions", url=url, path=path)


def test_follower_that_refuses_deletions_fails_no_round(pair, caplog):
    """It keeps what the primary has lost, until a later round can delete it there, too."""
    pair.stream.followers.add(pair.follower)
    _grow(pair, 12, 1)
    pair.stream.truncate(6)
    pair.world.watch = partial(_refusing, pair.follower)
    _grow(pair, 40, 8)
    rounds = _operations(pair).count("upkeep")
    assert rounds > 5
    assert "still holds objects that were deleted here" in caplog.text
    assert "still holds forgotten versions" in caplog.text
    assert "upkeep failed" not in caplog.text
    assert content(pair.primary).items() < content(pair.follower).items()
    pair.world.watch = lambda *_: None
    _grow(pair, 6, 8)
    assert _operations(pair).count("upkeep") > rounds
    assert content(pair.follower) == content(pair.primary)
    assert pair.reopen(pair.follower).verify().check().leftovers == []


def _no_room(follower: str, url: str, verb: str, path: str) -> None:
    made = verb in ("open_staged", "open_scattered", "copy_from")
    if made and url == follower and path.startswith("segments/"):
        raise StorageError("no room", url=url)


def test_segments_are_in_the_follower_before_the_commit_is_put(pair):
    """A follower that has no room for what a root would name keeps it out of the log."""
    pair.stream.followers.add(pair.follower)
    before = content(pair.primary)
    pair.world.watch = partial(_no_room, pair.follower)
    with pytest.raises(StorageError, match="nothing was committed"):
        pair.stream.append(numbers(0, 10), layout=STAGED)
    assert content(pair.primary) == content(pair.follower) == before


def spoil(url: str, path: str, how: str) -> None:
    """Lose an object of a folder, or the end of it."""
    storage = open_storage(url)
    data = storage.get(path)
    storage.delete(path)
    if how == "cut":
        storage.put(path, data[:-7])


HOWS = ["lost", pytest.param("cut", marks=pytest.mark.slow)]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("folder", ["segments/", "status/", "log/"])
def test_repair_brings_back_whatever_a_follower_holds(pair, how, folder, monkeypatch):
    """Every object by itself, and all of a kind at once; nothing is lost and no commit is made."""
    monkeypatch.setattr(HISTORY_ROWS, 4)
    pair.stream.followers.add(pair.follower)
    for n in range(14):
        pair.stream.append(numbers(n, n + 1), layout=STAGED)
    pair.stream.tags.set("here")
    listed = [info.path for info in open_storage(pair.primary).list(folder)]
    paths = [path for path in listed if not path.endswith("_latest")]
    whole = content(pair.follower)
    generation = pair.stream._log.root.generation
    needed = set(read_references(pair.stream._context.status, pair.stream._log.root).live)
    needed |= {name for name in whole if name.startswith("log/")}
    # The first two commits know of no follower.
    groups = [*([path] for path in paths[-2:]), paths[2:] if folder == "log/" else paths]
    assert paths
    for group in groups:
        for path in group:
            spoil(pair.primary, path, how)
        report = repair_on(Root(open_storage(pair.primary), pair.world, pair.time))
        there = content(pair.primary)
        assert {name: there.get(name) for name in needed} == {name: whole[name] for name in needed}
        assert (report.ok, [*report.lost], report.generation) == (True, [], generation)
        assert found(pair.reopen(pair.primary)) == list(range(14))
        assert pair.reopen(pair.primary).verify().ok
        for name in group:  # what no version as of now refers to need not come back
            open_storage(pair.primary).put(name, whole[name])


@pytest.mark.parametrize("how", HOWS)
def test_repair_builds_again_what_both_folders_lost(pair, how, monkeypatch):
    """Each from its own log; no commit is made, so both stay the same stream."""
    monkeypatch.setattr(HISTORY_ROWS, 4)
    pair.stream.followers.add(pair.follower)
    for n in range(14):
        pair.stream.append(numbers(n, n + 1), layout=STAGED)
    root = pair.stream._log.root
    paths = [root.parts[0].path, root.history_parts[0].path]
    for url in (pair.primary, pair.follower):
        for path in paths:
            spoil(url, path, how)
    for url in (pair.primary, pair.follower):
        report = repair_on(Root(open_storage(url), pair.world, pair.time), clock=pair.time.clock)
        assert (report.ok, report.version) == (True, root.version)
        assert found(pair.reopen(url)) == list(range(14))
        assert pair.reopen(url).verify().ok
    pair.reopen(pair.primary).append(numbers(14, 15))
    assert found(pair.reopen(pair.follower)) == list(range(15))


@pytest.mark.parametrize("how", HOWS)
def test_repair_with_loss_detaches_followers(pair, how):
    """Only what no follower holds is lost: here the newest commit, which was not acknowledged."""
    pair.stream.followers.add(pair.follower)
    pair.stream.append(numbers(0, 10))
    version = pair.stream.version + 1
    pair.world.lose_before(pair.follower, f"create log/{version:020d}")
    with pytest.raises(UnderReplicatedError):
        pair.stream.append(numbers(10, 20))
    pair.world.lost.clear()
    open_storage(pair.primary).put("log/_latest", f"{version:020d}".encode())
    spoil(pair.primary, f"log/{version:020d}", how)
    storage = Root(open_storage(pair.primary), pair.world, pair.time)
    with pytest.raises(CorruptionError, match="allow_loss"):
        repair_on(storage, clock=pair.time.clock)
    report = repair_on(storage, allow_loss=True, clock=pair.time.clock)
    assert ([*report.lost], report.generation) == ([version], 1)
    assert any(pair.follower in line for line in report.repaired)
    again = pair.reopen(pair.primary)
    assert again.followers == ()
    again.append(numbers(20, 30))
    if how == "cut":  # the damaged file stands between what the folder holds and what follows
        with pytest.raises(StorageError, match="nothing was committed"):
            again.followers.add(pair.follower)
    for info in list(open_storage(pair.follower).list("")):
        open_storage(pair.follower).delete(info.path)
    again.followers.add(pair.follower)
    again.append(numbers(30, 40))
    assert found(pair.reopen(pair.follower)) == [*range(10), *range(20, 40)]
    assert pair.reopen(pair.follower).verify().ok


def test_superseded_primary_is_not_repaired_with_loss(pair):
    """As another generation, and without followers, it would take commits again."""
    pair.stream.followers.add(pair.follower)
    pair.stream.append(numbers(0, 10))
    pair.reopen(pair.follower).followers.promote()
    with pytest.raises(FencedError):
        pair.stream.append(numbers(10, 20))
    spoil(pair.primary, f"log/{pair.stream.version:020d}", "cut")
    storage = Root(open_storage(pair.primary), pair.world, pair.time)
    for promoted in (False, True):
        with pytest.raises(FencedError, match="promoted"):
            repair_on(storage, allow_loss=True, allow_promoted=promoted, clock=pair.time.clock)
    with pytest.raises(CorruptionError):
        repair_on(storage, clock=pair.time.clock)


@pytest.mark.parametrize("silent", ["lost", "emptied", "damaged"])
def test_unreachable_follower_stops_repair_with_loss(pair, silent):
    """Were it promoted, two histories would go on under one id and generation."""
    pair.stream.followers.add(pair.follower)
    other = pair.another()
    pair.stream.followers.add(other)
    pair.stream.append(numbers(0, 10))
    newest = f"log/{pair.stream.version:020d}"
    for url in (pair.primary, other):
        open_storage(url).put("log/_latest", newest.encode()[4:])
        spoil(url, newest, "cut")
    if silent == "lost":
        pair.world.lost.add(pair.follower)
    elif silent == "damaged":
        spoil(pair.follower, newest, "cut")
    else:
        for info in list(open_storage(pair.follower).list("")):
            open_storage(pair.follower).delete(info.path)
    open_storage(other).delete(newest)  # this one answers: it holds the version before
    before = content(pair.primary)
    storage = Root(open_storage(pair.primary), pair.world, pair.time)
    with pytest.raises(StorageError, match="may have been promoted") as caught:
        repair_on(storage, allow_loss=True, clock=pair.time.clock)
    assert caught.value.fields["followers"] == [pair.follower]
    assert content(pair.primary) == before
    report = repair_on(storage, allow_loss=True, allow_promoted=True, clock=pair.time.clock)
    assert report.generation == 1


def test_materialized_clone_can_have_followers(pair):
    pair.stream.append(numbers(0, 10), layout=STAGED)
    folder, other = (open_storage(fresh_url()).url for _ in range(2))
    pair.stream.copy_to(folder, copy_id="one", mode="clone")
    clone = pair.reopen(folder)
    with pytest.raises(InvalidInputError, match="materialize"):
        clone.followers.add(other)
    assert content(other) == {}
    clone.materialize()
    clone.followers.add(other)
    assert content(other) == content(folder)


def test_a_list_reaches_a_follower_with_parts_that_only_it_names(pair, monkeypatch):
    """A commit that fills more parts than a root may list writes them and their list at once."""
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.final", 1)
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.parts", 2)
    monkeypatch.setattr("segstore_ds.status.table.HISTORY.rows", 1)
    monkeypatch.setattr("segstore_ds.status.table.HISTORY.parts", 2)
    pair.stream.followers.add(pair.follower)
    for n in range(6):
        layout = Layout(inline_bytes=0, segment_rows=10)
        pair.stream.append(numbers(80 * n, 80 * n + 80), layout=layout)
        assert content(pair.follower) == content(pair.primary)
    root = pair.stream._log.root
    assert root.lists
    assert root.history_lists
    assert found(pair.reopen(pair.follower)) == list(range(480))


def test_merged_history_is_not_hidden_in_a_list(pair, monkeypatch):
    """A commit after a lost race leaves more parts than a root may have: a merge moves none."""
    monkeypatch.setattr("segstore_ds.status.table.HISTORY.rows", 1)
    monkeypatch.setattr("segstore_ds.status.table.HISTORY.fan_in", 100)
    pair.stream.followers.add(pair.follower)
    for n in range(8):
        pair.stream.append(numbers(n, n + 1))
    monkeypatch.setattr("segstore_ds.status.table.HISTORY.parts", 2)
    log = pair.stream._context.log

    def build(root, slot):
        oldest = tuple(part.path for part in root.history_parts[:3])
        merged = log.history.merge(root, oldest, slot)
        return Change(replace(merged, operation=Operation.MERGE))

    log.commit(build)
    assert content(pair.follower) == content(pair.primary)
    pair.stream.append(numbers(8, 9))
    assert pair.stream._log.root.history_lists
    assert content(pair.follower) == content(pair.primary)


@pytest.mark.parametrize("harm", ["nothing", "cut", "damaged at its end"])
def test_interrupted_add_follower_resumes(pair, harm):
    """What had arrived whole is not sent again; what had not, is."""
    for n in range(8):
        pair.stream.append(numbers(10 * n, 10 * n + 10), layout=STAGED)
    pair.world.lose_before(pair.follower, "create log/")
    with pytest.raises(StorageError):
        pair.stream.followers.add(pair.follower)
    pair.world.lost.clear()
    folder = open_storage(pair.follower)
    paths = sorted(info.path for info in folder.list("segments"))
    assert len(paths) == 8
    data = bytearray(folder.get(paths[3]))
    if harm != "nothing":
        data[-30] ^= 1
        folder.put(paths[3], bytes(data[:-1] if harm == "cut" else data))
    sent: list[str] = []

    def note(url: str, verb: str, path: str) -> None:
        if url == pair.follower and verb in ("copy_from", "open_scattered", "create"):
            sent.append(path)

    pair.world.watch = note
    pair.stream.followers.add(pair.follower)
    assert {path for path in sent if path.startswith("segments/")} == (
        set() if harm == "nothing" else {paths[3]}
    )
    assert [path for path in sent if path.startswith("status/")] == []
    assert content(pair.follower) == content(pair.primary)


def test_follower_has_what_retires_a_cut_part(pair):
    """Promoted within the grace, it knows which segments were dropped, and vacuum goes on there."""
    pair.stream.followers.add(pair.follower)
    _grow(pair, 12, 1)
    assert pair.stream._log.root.parts[0].count >= 4
    pair.stream.truncate(6)
    follower = pair.reopen(pair.follower)
    refs = read_references(follower._context.status, follower._log.root)
    assert len([path for path in refs.retired if path.startswith("segments/")]) >= 4
    follower.followers.promote()
    report = follower.maintain(grace="7d", dry_run=True)
    assert [entry for entry in report.deleted if entry.path.startswith("segments/")] == []
    assert content(pair.follower).keys() >= refs.live | refs.retired.keys()


def _shipped(pair: Pair, commits: int, root: str) -> list[str]:
    """Return what was asked of a root while commits were made."""
    asked: list[str] = []

    def note(url: str, verb: str, name: str) -> None:
        if url == root:
            asked.append(f"{verb} {name}")

    pair.world.watch = note
    for n in range(commits):
        pair.stream.append(numbers(n, n + 1))
    pair.world.watch = lambda *_: None
    return asked


def test_a_shipped_commit_lists_no_status(pair, monkeypatch):
    """However many status objects there are: a root says which of them are new."""
    monkeypatch.undo()  # the limits of every day: ten commits in a row put no part
    monkeypatch.setattr(append, "FRAME_MOST_BYTES", 0)
    pair.stream.followers.add(pair.follower)
    assert _shipped(pair, 1, pair.primary) != []
    calls = _shipped(pair, 10, pair.primary)
    assert [call for call in calls if call.startswith("list")] == []
    calls = _shipped(pair, 10, pair.follower)
    kinds = [call.partition("/")[0] for call in calls if not call.endswith("_latest")]
    pieces = ["write segments"] * 3  # of one buffer: header, frame and index
    sent = ["open_staged segments", *pieces, "commit segments"]
    looked = ["get log", "info log", "get_range segments"]
    each = [*sent, *looked, "create log", "info log"]
    assert sorted(kinds) == sorted(each * 10)
    assert content(pair.follower) == content(pair.primary)


class Interrupted(WrappedStorage):
    """A writer that stops before its n-th call while others go on; it makes that call and dies."""

    def __init__(self, inner: Storage, calls: list[str], stops_at: int, happens) -> None:
        super().__init__(inner)
        self.calls, self.stops_at, self.happens = calls, stops_at, happens

    def around(self, verb, path, work):
        self.calls.append(f"{verb} {path}")
        if len(self.calls) > self.stops_at:
            raise Crash("after the crash")
        if len(self.calls) < self.stops_at:
            return work()
        self.happens()
        work()
        raise Crash("here")

    def sibling(self, url: str) -> Storage:
        return Interrupted(self.inner.sibling(url), self.calls, self.stops_at, self.happens)


def test_crashed_shipping_removes_nothing_of_other_writers():
    """Two writers find the same objects missing; the slower one dies after any of its calls."""
    stops_at = 0
    while True:
        stops_at += 1
        pair = Pair()
        pair.stream.append(numbers(0, 10), layout=STAGED)
        pair.stream.followers.add(pair.follower)
        pair.world.lose_before(pair.follower, "create log/")
        with pytest.raises(UnderReplicatedError) as caught:
            pair.stream.append(numbers(10, 20), layout=STAGED)
        pair.world.lost.clear()
        entry = pair.reopen(pair.primary)._log.root.entries[-1]
        open_storage(pair.follower).delete(f"segments/{entry.path}")
        other = pair.reopen(pair.primary)
        calls: list[str] = []
        inner = Root(open_storage(pair.primary), pair.world, pair.time)
        storage = Interrupted(
            inner, calls, stops_at, lambda other=other: other.append(numbers(20, 30), layout=STAGED)
        )
        try:
            slow = open_on(storage, clock=pair.time.clock)
            slow.outcome(caught.value.fields["transaction"])
        except Crash:
            pass
        else:
            break
        pair.world.lost.add(pair.primary)
        taken = pair.reopen(pair.follower)
        taken.followers.promote()
        assert found(taken) == list(range(30)), calls
        assert taken.verify().ok
    assert any(call.startswith("open_scattered segments/") for call in calls)


@pytest.mark.parametrize("layout", [None, STAGED])
def test_acknowledged_batch_is_not_doubled_by_a_promotion(pair, layout):
    """Its writer repeats it at the promoted follower, for its answer was lost with the primary."""
    pair.stream.followers.add(pair.follower)
    for batch in range(3):
        events = numbers(10 * batch, 10 * batch + 10)
        pair.stream.append(events, writer_id="w", batch_id=batch, layout=layout)
    pair.world.lost.add(pair.primary)
    promoted = pair.reopen(pair.follower)
    promoted.followers.promote()
    for stream in (promoted, pair.reopen(pair.follower)):
        for batch in range(3):
            events = numbers(10 * batch, 10 * batch + 10)
            before = stream.version
            if batch == 2:
                commit = stream.append(events, writer_id="w", batch_id=batch, layout=layout)
                assert (commit.start, commit.end, commit.repeated) == (20, 30, True)
            else:
                with pytest.raises(WriterConflictError):
                    stream.append(events, writer_id="w", batch_id=batch, layout=layout)
            assert stream.refresh().version == before
    promoted.append(numbers(30, 40), writer_id="w", batch_id=3, layout=layout)
    assert found(pair.reopen(pair.follower)) == list(range(40))
