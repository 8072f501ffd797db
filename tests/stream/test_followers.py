"""Followers: what they hold, who may commit, what an acknowledgement means, and taking over."""

import shutil
from dataclasses import replace

import pyarrow as pa
import pytest
from follower_kit import content, found
from stream_kit import SCHEMA, STAGED, Meddling, fresh_url, numbers

import segstore_ds as segstore
from segstore_ds.errors import (
    AlreadyExistsError,
    ConflictError,
    FencedError,
    FormatError,
    InvalidInputError,
    MissingObjectError,
    PositionError,
    StorageError,
    UnderReplicatedError,
)
from segstore_ds.log.lookup import OutcomeState
from segstore_ds.read import scan
from segstore_ds.read.segments import open_segment
from segstore_ds.retention.drop import run_drop
from segstore_ds.status.writers import WriterKey
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.rescue import repair as repair_on
from segstore_ds.write.layout import Layout
from segstore_ds.write.micro_batch import plan_batch
from segstore_ds.write.request import WriteRequest

pytestmark = pytest.mark.usefixtures("tight")


def test_a_follower_is_the_same_folder_byte_for_byte(pair):
    for n in range(7):
        pair.stream.append(numbers(n, n + 1))
    pair.stream.followers.add(pair.follower)
    for n in range(7, 20):
        pair.stream.append(numbers(n, n + 1))
    pair.stream.tags.set("here")
    assert pair.stream.followers == (pair.follower,)
    assert content(pair.follower) == content(pair.primary)
    assert found(pair.reopen(pair.follower)) == list(range(20))
    assert pair.reopen(pair.follower).verify().ok


def test_handle_opened_before_the_follower_ships_too(pair):
    other = pair.reopen(pair.primary)
    other.append(numbers(0, 1))
    pair.stream.followers.add(pair.follower)
    other.append(numbers(1, 2))  # planned on a base that knew of no follower
    assert content(pair.follower) == content(pair.primary)


def test_a_follower_takes_no_commits(pair):
    pair.stream.followers.add(pair.follower)
    with pytest.raises(FencedError, match="is a follower"):
        pair.reopen(pair.follower).append(numbers(0, 1))
    assert content(pair.follower) == content(pair.primary)


def test_next_commit_ships_what_a_follower_lacks(pair):
    pair.stream.followers.add(pair.follower)
    pair.stream.append(numbers(0, 1))
    pair.world.lose_with(pair.follower, after=f"log/{pair.stream.version + 1:020d}")
    with pytest.raises(UnderReplicatedError, match="do not write it again"):
        pair.stream.append(numbers(1, 2), writer_id="w", batch_id=1)
    assert found(pair.stream) == [0, 1]
    # From here on it is known that a follower is away: nothing more is committed.
    with pytest.raises(StorageError, match="nothing was committed"):
        pair.stream.append(numbers(2, 3))
    assert found(pair.reopen(pair.primary)) == [0, 1]
    with pytest.raises(UnderReplicatedError):  # a repeated batch is acknowledged, too
        pair.reopen(pair.primary).append(numbers(1, 2), writer_id="w", batch_id=1)
    pair.world.lost.clear()
    pair.reopen(pair.primary).append(numbers(1, 2), writer_id="w", batch_id=1)
    pair.stream.append(numbers(3, 4))
    assert found(pair.reopen(pair.follower)) == [0, 1, 3]
    live = [path for path in content(pair.follower) if path in content(pair.primary)]
    assert {path for path in live if path.startswith("log/")} == {
        path for path in content(pair.primary) if path.startswith("log/")
    }


def test_unplanned_batch_is_done_once_followers_have_it(pair):
    """A batch that comes again with other columns can't be planned: it is looked up."""
    pair.stream.followers.add(pair.follower)
    key = WriterKey("query", 1, owner="query")
    request = WriteRequest(SCHEMA, Layout(), client="c")

    def write(request, rows):
        plan = plan_batch(pair.stream._context, request)
        asked = replace(request, writer=key)
        task = plan.stage(asked, pair.stream._log.storage, (0, "0"), rows.to_batches())
        job = plan.job_of(pair.stream._context, key, [task])
        if job is not None:
            pair.stream.commit(job, [task])
        return plan

    pair.world.lose_with(pair.follower, after=f"log/{pair.stream.version + 1:020d}")
    with pytest.raises(UnderReplicatedError):
        write(request, numbers(0, 3))
    wider = numbers(0, 3).append_column("more", pa.nulls(3, pa.string()))
    with pytest.raises(UnderReplicatedError):
        write(replace(request, schema=wider.schema), wider)
    pair.world.lost.clear()
    assert write(replace(request, schema=wider.schema), wider).job is None
    assert content(pair.follower) == content(pair.primary)


def test_hint_names_only_what_the_followers_have(pair):
    pair.stream.followers.add(pair.follower)
    pair.time.clock.sleep(2)  # hints are written at most once a second
    pair.stream.append(numbers(0, 1))
    before = pair.stream.version
    assert pair.stream._log.files.read_hint().number == before
    pair.time.clock.sleep(2)
    pair.world.lose_with(pair.follower, after=f"log/{before + 1:020d}")
    with pytest.raises(UnderReplicatedError):
        pair.stream.append(numbers(1, 2))
    assert pair.stream._log.files.read_hint().number == before


def test_outcome_acknowledges_only_what_the_follower_has(pair):
    pair.stream.followers.add(pair.follower)
    pair.world.lose_with(pair.follower, after=f"log/{pair.stream.version + 1:020d}")
    with pytest.raises(UnderReplicatedError) as caught:
        pair.stream.append(numbers(0, 1))
    transaction = caught.value.fields["transaction"]
    with pytest.raises(UnderReplicatedError):
        pair.reopen(pair.primary).outcome(transaction)
    pair.world.lost.clear()
    assert pair.reopen(pair.primary).outcome(transaction).state is OutcomeState.COMMITTED
    assert content(pair.follower) == content(pair.primary)


def test_a_lost_follower_can_be_left_behind(pair):
    pair.stream.followers.add(pair.follower)
    pair.world.lost.add(pair.follower)
    with pytest.raises(StorageError, match="may have been promoted") as caught:
        pair.stream.followers.remove(pair.follower)
    assert "allow_promoted=True" in str(caught.value)
    pair.stream.followers.remove(pair.follower, allow_promoted=True)
    pair.stream.append(numbers(0, 1))
    assert pair.stream.followers == ()


def test_promote_fences_the_old_primary(pair):
    pair.stream.followers.add(pair.follower)
    pair.stream.append(numbers(0, 3))
    position = pair.stream.position("tail")
    taken = pair.reopen(pair.follower)
    assert taken.followers.promote() == 1
    assert taken.followers.promote() == 1, "safe to repeat"
    with pytest.raises(FencedError, match="promoted"):
        pair.stream.append(numbers(3, 4))  # a handle that knows nothing of it
    with pytest.raises(FencedError, match="promoted"):
        pair.reopen(pair.primary).append(numbers(3, 4))
    taken.append(numbers(10, 12))
    assert found(taken) == [0, 1, 2, 10, 11]
    assert taken.verify().ok
    with pytest.raises(PositionError):
        taken.read(position)
    with pytest.raises(AlreadyExistsError):
        taken.followers.add(pair.primary)  # it went its own way


def test_open_handle_commits_as_soon_as_its_folder_is_promoted(pair):
    """Within the minute for which it would rely on the root that it saw."""
    pair.stream.followers.add(pair.follower)
    handles = [pair.reopen(pair.follower) for _ in range(5)]
    pair.reopen(pair.follower).followers.promote()
    handles[0].append(numbers(0, 1), layout=STAGED)
    handles[1].tags.set("here", 0)
    handles[2].settings.update(upkeep=None)
    handles[3].seal()
    # There is nothing to change: the folder is not asked as a follower of its own.
    assert handles[4].followers.remove(pair.primary) is None
    with pytest.raises(FencedError):
        pair.stream.append(numbers(2, 3))


def test_clone_of_a_superseded_primary_is_materialized_and_dropped(pair):
    """It reads the old folder, and tells the promoted one."""
    pair.stream.append(numbers(0, 10), layout=STAGED)
    pair.stream.followers.add(pair.follower)
    clones = [open_storage(fresh_url()).url for _ in range(2)]
    for url in clones:
        pair.stream.copy_to(url, copy_id=url[-6:], mode="clone")
    taken = pair.reopen(pair.follower)
    taken.followers.promote()
    first, second = map(pair.reopen, clones)
    run_drop(first._log.storage, confirm=clones[0], clock=pair.time.clock, client="test")
    assert all(path.startswith("log/") for path in content(clones[0]))
    second.materialize()
    assert found(second) == list(range(10))
    assert not taken.refresh().pins


def test_second_follower_is_not_promoted_beside_the_first(pair):
    """Both would acknowledge commits of the same generation; one that is cut off can't be asked."""
    second = pair.another()
    for url in (pair.follower, second):
        pair.stream.followers.add(url)
    pair.stream.append(numbers(0, 3))
    pair.reopen(pair.follower).followers.promote()
    with pytest.raises(FencedError, match="another follower was promoted") as caught:
        pair.reopen(second).followers.promote()
    assert caught.value.fields["promoted"] == pair.follower
    assert pair.reopen(second)._log.root.generation == 0
    pair.world.lost.add(pair.follower)
    assert pair.reopen(second).followers.promote() == 1


def test_follower_is_promoted_once_the_promoted_one_was_dropped(pair):
    """Then nobody writes to that one any more."""
    second = pair.another()
    for url in (pair.follower, second):
        pair.stream.followers.add(url)
    taken = pair.reopen(pair.follower)
    taken.followers.promote()
    run_drop(taken._log.storage, confirm=pair.follower, clock=pair.time.clock, client="test")
    assert pair.reopen(second).followers.promote() == 1


def test_follower_whose_addition_was_cut_off_is_added_again(pair):
    """Its log does not say yet that it follows, and no other commit brings that there."""
    pair.stream.append(numbers(0, 1))
    pair.stream.followers.add(pair.follower)
    storage = pair.reopen(pair.follower)._log.storage
    storage.delete(f"log/{pair.stream.version:020d}")
    other = pair.reopen(pair.primary)
    with pytest.raises(StorageError, match="can't be brought up to date") as caught:
        other.append(numbers(1, 2))
    assert "followers.add(url) again" in caught.value.__cause__.remedy
    other.followers.add(pair.follower)
    other.append(numbers(1, 2))
    assert content(pair.follower) == content(pair.primary)


def test_a_folder_that_follows_is_dropped_once_it_is_promoted(pair):
    pair.stream.append(numbers(0, 1))
    pair.stream.followers.add(pair.follower)
    copy = pair.reopen(pair.follower)
    storage = pair.stream._log.storage
    with pytest.raises(ConflictError, match="followers"):
        run_drop(storage, confirm=pair.primary, clock=pair.time.clock, client="test")
    with pytest.raises(ConflictError, match=r"call followers.promote\(\) on it"):
        run_drop(copy._log.storage, confirm=pair.follower, clock=pair.time.clock, client="test")
    pair.stream.followers.remove(pair.follower)
    copy.followers.promote()
    run_drop(copy._log.storage, confirm=pair.follower, clock=pair.time.clock, client="test")
    assert all(path.startswith("log/") for path in content(pair.follower))
    assert found(pair.reopen(pair.primary)) == [0]


@pytest.mark.parametrize("raw_bytes", [1, 1 << 24])
@pytest.mark.parametrize("harm", ["missing", "cut", "frame", "footer"])
def test_damaged_segment_is_read_from_a_follower(pair, harm, raw_bytes, caplog, monkeypatch):
    """Whether the damage is met by a thread, ahead of its turn, or in its turn."""
    monkeypatch.setattr(scan, "_SMALL_RAW_BYTES", raw_bytes)
    pair.stream.followers.add(pair.follower)
    pair.stream.append(numbers(0, 1000), layout=Layout(inline_bytes=0, frame_rows=100))
    pair.stream.append(numbers(1000, 1001))  # a lone small segment is read without threads
    storage = open_storage(pair.primary)
    [segment] = storage.list("segments")
    frame = open_segment(storage, pair.stream._log.root.entries[0]).frames[5]  # of ten
    data = bytearray(storage.get(segment.path))
    storage.delete(segment.path)
    if harm != "missing":
        data[frame.start + 50 if harm == "frame" else -50] ^= 1
        storage.put(segment.path, bytes(data[:-1] if harm == "cut" else data))
    assert found(pair.reopen(pair.primary)) == list(range(1001)), "each event once, in order"
    assert f"was read from {pair.follower}" in caplog.text
    assert not pair.stream.verify().ok, "reading mends nothing"
    pair.world.lost.add(pair.follower)
    with pytest.raises(FormatError):
        found(pair.reopen(pair.primary))
    pair.world.lost.clear()
    report = repair_on(pair.stream._log.storage, clock=pair.time.clock)
    assert f"{segment.path} from {pair.follower}" in report.repaired
    assert pair.stream.verify().ok
    assert content(pair.follower) == content(pair.primary)


@pytest.mark.parametrize("left", ["nothing", "an empty folder"])
def test_a_follower_that_vanished_stops_every_commit(tmp_path, left):
    """What a handle remembers of it says nothing about what is there."""
    primary, follower = tmp_path / "primary", tmp_path / "follower"
    first = create_on(open_storage(primary), SCHEMA)
    first.append(numbers(0, 10))
    first.followers.add(str(follower))
    first.append(numbers(10, 20))
    shutil.rmtree(follower)
    if left != "nothing":
        follower.mkdir()
    for stream in (first, open_on(open_storage(primary))):
        for _ in range(2):
            with pytest.raises(StorageError, match="nothing was committed"):
                stream.append(numbers(20, 30))
        with pytest.raises(UnderReplicatedError):  # nor is what was committed before confirmed
            stream.outcome(stream._log.root.transaction)
    assert not (follower / "log").exists()
    shutil.rmtree(follower, ignore_errors=True)  # what was staged, before it was asked
    first.followers.remove(str(follower))
    first.append(numbers(20, 30))
    first.followers.add(str(follower))
    first.append(numbers(30, 40))
    assert content(str(follower)) == content(str(primary))


def test_commit_with_an_emptied_follower_is_unacknowledged(pair):
    """Its log takes any name then: what was put there is no answer."""
    pair.stream.followers.add(pair.follower)
    pair.stream.append(numbers(0, 10))
    name = f"log/{pair.stream.version + 1:020d}"

    def empty(url, verb, path):
        if (url, verb, path) == (pair.primary, "create", name):
            folder = open_storage(pair.follower)
            for info in list(folder.list("")):
                folder.delete(info.path)

    pair.world.watch = empty
    with pytest.raises(UnderReplicatedError):
        pair.stream.append(numbers(10, 20))
    assert [path for path in content(pair.follower) if path.startswith("log/")] == [name]
    for stream in (pair.stream, pair.reopen(pair.primary)):
        with pytest.raises(StorageError, match="nothing was committed") as caught:
            stream.append(numbers(20, 30))
        assert "is missing in a follower" in str(caught.value.__cause__)
    pair.stream.followers.remove(pair.follower)
    assert found(pair.reopen(pair.primary)) == list(range(20))


def test_writers_that_alternate_list_no_log(pair):
    """The list grows with the stream's age, and they would commit the slower the older it is."""
    pair.stream.followers.add(pair.follower)
    writers = (pair.stream, pair.reopen(pair.primary), pair.reopen(pair.primary))
    for writer in writers:
        writer.append(numbers(0, 1))
    with pair.world.noted() as calls:
        for writer in (*writers, *reversed(writers)):
            writer.append(numbers(1, 2))
    assert ("list", "log") not in {call[1:] for call in calls}
    assert content(pair.follower) == content(pair.primary)


def outdated(pair):
    """Return a writer whose memory of the follower another one has outdated."""
    pair.stream.followers.add(pair.follower)
    writer = pair.reopen(pair.primary)
    writer.append(numbers(0, 1))
    for n in range(1, 4):
        pair.stream.append(numbers(n, n + 1))
    return writer


def test_follower_that_is_one_behind_is_brought_up_without_a_list(pair):
    """As one is whose commit another writer is still shipping."""
    writer = outdated(pair)
    open_storage(pair.follower).delete(f"log/{pair.stream.version:020d}")
    with pair.world.noted() as calls:
        writer.append(numbers(4, 5))
    assert ("list", "log") not in {call[1:] for call in calls}
    assert content(pair.follower) == content(pair.primary)


def test_writer_with_an_outdated_memory_replaces_no_lost_commit(pair):
    """The follower has the newest commit, which was acknowledged and which the primary lost."""
    writer = outdated(pair)
    lost = pair.stream.version
    for name in (f"{lost:020d}", "_latest"):
        open_storage(pair.primary).delete(f"log/{name}")
    before = content(pair.primary)
    with pytest.raises(MissingObjectError, match="are gone"):
        writer.append(numbers(9, 10))
    assert content(pair.primary) == before


def test_writer_with_an_outdated_memory_refuses_another_stream(pair):
    writer = outdated(pair)
    other = segstore.create(pair.another(), SCHEMA)
    while other.version < writer.refresh().version:
        other.append(numbers(0, 1))
    follower = open_storage(pair.follower)
    for path, data in content(other.url).items():
        if path.startswith("log/"):
            follower.put(path, data)
    version = writer.version
    with pytest.raises(StorageError, match="nothing was committed") as refused:
        writer.append(numbers(9, 10))
    assert "does not hold this stream" in str(refused.value.__cause__)
    assert writer.refresh().version == version


def test_commit_file_that_a_follower_stored_wrongly_is_mended_by_the_next_commit(pair, caplog):
    """It acknowledged the file; were it promoted, the last commits would be gone."""
    pair.stream.followers.add(pair.follower)
    version = pair.stream.append(numbers(0, 1)).version
    follower, path = open_storage(pair.follower), f"log/{version:020d}"
    stored = follower.get(path)
    damaged = bytearray(stored)
    damaged[-1] ^= 1
    follower.put(path, bytes(damaged))
    assert pair.stream.append(numbers(1, 2)).version == version + 1
    assert follower.get(path) == stored
    assert "copied from the primary" in caplog.text


def test_a_stream_does_not_follow_itself_under_another_name(tmp_path):
    """It would be one copy only, and promote would fence no writer."""
    stream = segstore.create(tmp_path / "stream", SCHEMA)
    stream.append(numbers(0, 3))
    (tmp_path / "link").symlink_to(tmp_path / "stream")
    before = stream.version
    for other in ("stream", "link", "link/inner", "stream/inner", "."):
        with pytest.raises(InvalidInputError, match="the stream's own folder"):
            stream.followers.add(str(tmp_path / other))
    assert stream.refresh().version == before
    (tmp_path / "far").mkdir()
    (tmp_path / "near").symlink_to(tmp_path / "far")
    stream.followers.add(str(tmp_path / "near"))
    stream.followers.add(str(tmp_path / "near"))
    for other in ("far", "far/inner"):
        with pytest.raises(InvalidInputError, match=r"stream's own folder|inside another stream"):
            stream.followers.add(str(tmp_path / other))
    assert len(stream.followers) == 1


def test_a_second_name_that_no_link_shows_is_found_by_a_look(pair):
    """A mount, an access point: the store itself is asked before anything is committed."""
    pair.world.aliases[pair.follower] = pair.primary
    with pytest.raises(InvalidInputError, match="is the stream's own folder"):
        pair.stream.followers.add(pair.follower)
    pair.world.aliases[pair.follower] = f"{pair.primary}/{pair.follower.removeprefix('memory://')}"
    with pytest.raises(InvalidInputError, match=r"(is|be) inside"):
        pair.stream.followers.add(pair.follower)
    assert pair.stream.refresh().version == 0
    assert pair.stream.followers == ()


def test_slow_append_passes_a_follower_that_was_removed_and_added_again(pair):
    """Its base is outdated, and the follower holds a later commit that does not name it."""

    def others():
        pair.stream.followers.add(pair.follower)
        pair.stream.followers.remove(pair.follower)
        pair.stream.followers.add(pair.follower)
        pair.time.advance(0.1)  # on a slow store who lost goes on from the winner alone

    inner = pair.reopen(pair.primary)._log.storage
    slow = open_on(Meddling(inner, f"create log/{1:020d}", others), clock=pair.time.clock)
    slow.append(numbers(0, 3))
    assert slow.version == 4, "the others went first"
    assert found(pair.reopen(pair.follower)) == [0, 1, 2]


def test_lost_race_leaves_no_commit_in_a_follower(pair):
    """The loser's objects are in the follower by then: they go there before the race is decided."""
    pair.stream.followers.add(pair.follower)
    inner, call = (
        pair.reopen(pair.primary)._log.storage,
        f"create log/{pair.stream.version + 1:020d}",
    )
    raced = Meddling(inner, call, lambda: pair.stream.append(numbers(0, 10), layout=STAGED))
    commit = open_on(raced, clock=pair.time.clock).append(numbers(10, 20), layout=STAGED)
    assert commit.attempts == 2
    assert content(pair.follower) == content(pair.primary)
    assert found(pair.reopen(pair.follower)) == list(range(20))


def test_commit_during_a_promotion_is_not_acknowledged(pair):
    """The old primary has looked at its follower before, and looks no more."""
    pair.stream.followers.add(pair.follower)
    pair.stream.append(numbers(0, 1))
    pair.reopen(pair.follower).followers.promote()
    with pytest.raises(FencedError):
        pair.stream.append(numbers(1, 2))
    assert found(pair.reopen(pair.follower)) == [0]


def test_a_stream_with_followers_is_not_dropped(pair):
    from segstore_ds.retention.drop import run_drop

    pair.stream.followers.add(pair.follower)
    with pytest.raises(ConflictError, match="followers"):
        run_drop(
            pair.stream._log.storage, confirm=pair.primary, clock=pair.time.clock, client="test"
        )
    assert pair.reopen(pair.primary).append(numbers(0, 1)).rows == 1


def test_a_folder_that_holds_no_such_stream_is_never_written_to(pair):
    """A commit puts nothing into a folder of another stream that the root names."""
    pair.stream.followers.add(pair.follower)
    storage = open_storage(pair.follower)
    for info in list(storage.list("")):
        storage.delete(info.path)
    with pytest.raises(StorageError, match="nothing was committed"):
        pair.reopen(pair.primary).append(numbers(0, 1))
    assert content(pair.follower) == {}


def test_a_follower_whose_log_was_purged_has_no_hole(pair):
    pair.stream.followers.add(pair.follower)
    for n in range(4):
        pair.stream.append(numbers(n, n + 1))
    pair.time.advance(40 * 86_400.0)
    pair.stream.append(numbers(4, 5))
    pair.stream.maintain(keep=86_400)
    assert pair.stream._log.root.log_start > 1
    pair.reopen(pair.primary).append(numbers(5, 6))
    assert content(pair.follower) == content(pair.primary)
