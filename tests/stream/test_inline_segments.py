"""Small commits carry their events in the commit file, and everything holds for them."""

import pickle
import uuid
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from faults import FaultStorage
from stream_kit import STAGED, Meddling, fresh_url, make_stream, numbers, snapshot, values, wait
from virtual_time import TimedStorage
from wrapped_storage import WrappedStorage

from segstore_ds.errors import CorruptionError
from segstore_ds.format import names
from segstore_ds.format.arrow.frame import encode_frame
from segstore_ds.format.bounds import columns_with_stats, compute
from segstore_ds.format.inline import encoded_entry
from segstore_ds.format.root import Root
from segstore_ds.format.statistics import parse_piece
from segstore_ds.log.newest import ROOT_CODEC
from segstore_ds.read.scan import run_task
from segstore_ds.status import table_status
from segstore_ds.status.inline import join_inline
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream

VALUE = 392  # of a frame of ten numbers: a byte of one of them


@pytest.fixture
def small_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let three small commits fill the root's share, and a fourth make an object of them."""
    monkeypatch.setattr(table_status, "SHARE_BYTES", 2200)
    monkeypatch.setattr(table_status, "JOINED_SHARE", 0)


def _requests(storage: Storage) -> dict[str, int]:
    return dict(storage.stats.requests)


def _spent(storage: Storage, before: dict[str, int]) -> dict[str, int]:
    after = _requests(storage)
    return {verb: n - before.get(verb, 0) for verb, n in after.items() if n != before.get(verb, 0)}


def _inline(root: Root) -> list[bool]:
    return [entry.frame is not None for entry in root.entries]


def _segments(storage: Storage) -> list[str]:
    return sorted(info.path for info in storage.list("segments"))


def _damaged(storage: TimedStorage, stream: Stream, place: int, byte: int = 100) -> None:
    """Flip a byte of the frame of one of the newest root's entries, in its commit file."""
    root = stream._log.root
    path = f"log/{names.build_log_name(root.version)}"
    data = bytearray(storage.get(path))
    behind = sum(len(entry.frame.data) for entry in root.entries[place:] if entry.frame)
    data[len(data) - behind + byte] ^= 1
    storage.put(path, bytes(data))


def test_small_append_is_one_request_and_no_object() -> None:
    """A warm append puts its commit file, and nothing else."""
    stream, storage = make_stream(1)
    before = _requests(storage)
    stream.append(numbers(10, 20))
    assert _spent(storage, before) == {"create": 1}
    assert _segments(storage) == []
    assert _inline(stream._log.root) == [True, True]
    assert values(open_on(storage)) == list(range(20))
    assert stream.verify().check().rows == 20


def test_reading_inline_events_needs_the_root_alone() -> None:
    """No request names a segment, for the newest events nor for all."""
    _, storage = make_stream(3)
    seen = FaultStorage(storage)
    assert values(open_on(seen, clock=storage.time.clock), 5) == list(range(5, 30))
    assert not [call for call in seen.calls if "segments" in call]


def test_inline_bytes_of_0_writes_an_object() -> None:
    """As does whatever is too large for a commit file."""
    stream, storage = make_stream(0)
    stream.append(numbers(0, 3), layout=STAGED)
    stream.append(numbers(3, 3000))
    assert _inline(stream._log.root) == [False, False]
    assert len(_segments(storage)) == 2
    with stream.appender(layout=STAGED) as appender:
        appender.append(numbers(3000, 3001))
    assert len(_segments(storage)) == 3


@pytest.mark.usefixtures("small_share")
def test_full_share_becomes_one_segment_of_one_frame() -> None:
    """The commit that fills it pays a second request; ids, offsets and events stay."""
    stream, storage = make_stream(3)
    assert _inline(stream._log.root) == [True] * 3
    before = _requests(storage)
    stream.append(numbers(30, 40))
    assert _spent(storage, before) == {"create": 2}
    (entry,) = stream._log.root.entries
    assert (entry.frame, entry.rows, entry.segment_id) == (None, 40, 3)
    assert stream._log.root.next_segment == 4
    (path,) = _segments(storage)
    assert names.is_outlined(path)
    report = stream.verify().check()
    assert (report.frames, report.rows, report.leftovers) == (1, 40, [])
    assert values(stream, offset=True) == [(n, n) for n in range(40)]
    assert values(stream, filters=[["n", "==", 33]]) == [33]
    stream.append(numbers(40, 50))
    assert _inline(stream._log.root) == [False, True]


@pytest.fixture
def small_joined_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let three small commits fill the root's share, as `small_share` does, and keep them there."""
    monkeypatch.setattr(table_status, "SHARE_BYTES", 2200)


@pytest.mark.usefixtures("small_joined_share")
def test_full_share_is_joined_in_the_commit_file() -> None:
    """It needs no other request and no object; ids, offsets and events stay."""
    stream, storage = make_stream(3)
    before = _requests(storage)
    stream.append(numbers(30, 40))
    assert _spent(storage, before) == {"create": 1}
    (entry,) = stream._log.root.entries
    assert entry.frame is not None
    assert (entry.rows, entry.segment_id, stream._log.root.next_segment) == (40, 3, 4)
    assert _segments(storage) == []
    stream.append(numbers(40, 50))
    assert _inline(stream._log.root) == [True, True]
    report = stream.verify().check()
    assert (report.frames, report.rows) == (2, 50)
    assert values(open_on(storage), offset=True) == [(n, n) for n in range(50)]
    assert values(stream, filters=[["n", "==", 33]]) == [33]
    assert stream.history().read_all()["rows"].to_pylist() == [0, 10, 10, 10, 10, 10]


@pytest.mark.parametrize(
    "text", ["as written", None, "{}", '{"int:n":[1]}', '{"int:n":{"z":1}}', "no JSON"]
)
def test_joined_events_have_the_statistics_of_their_rows(text: str | None) -> None:
    """They are those of the joined segments together; where one lacks them, of the rows."""
    stream, _ = make_stream(3)
    root = stream._log.root
    if text != "as written":
        entries = (root.entries[0], replace(root.entries[1], stats=text), root.entries[2])
        root = root.changed(entries=entries)
    (entry,) = join_inline(root, stream._context.status.schemas_of(root)).entries
    rows = pa.concat_batches(list(stream.read()))
    chosen = columns_with_stats(stream.schema)
    assert parse_piece(entry.stats, where="x") == compute(rows, chosen)


@pytest.mark.usefixtures("small_joined_share")
def test_joined_events_that_fill_the_share_become_one_segment() -> None:
    """Most of many small commits put one object; the events of many of them share one segment."""
    stream, storage = make_stream(0)
    before = _requests(storage)
    for n in range(40):
        stream.append(numbers(10 * n, 10 * n + 10))
    assert values(stream) == list(range(400))
    made = len(_segments(storage))
    assert 1 <= made <= 5
    assert _spent(storage, before)["create"] == 40 + made
    assert stream.verify().check().leftovers == []


@pytest.mark.usefixtures("small_joined_share")
@pytest.mark.parametrize("reopened", [False, True])
def test_joined_events_are_those_appended_though_their_memory_was_written_again(
    reopened: bool,
) -> None:
    """A caller may fill one array anew for each append."""
    storage = open_storage(fresh_url())
    stream = create_on(storage, pa.schema([("n", pa.int64())]))
    filled = np.zeros(10, np.int64)
    for n in range(12):
        filled[:] = n
        stream.append(pa.record_batch({"n": pa.array(filled)}))
        stream = open_on(storage) if reopened else stream
    assert len(stream._log.root.entries) < 12
    assert values(stream) == [n for n in range(12) for _ in range(10)]


@pytest.mark.parametrize("other", [pa.record_batch({"m": [1]}), pa.record_batch({"n": ["x"]})])
def test_frames_of_other_columns_are_not_joined(other: pa.RecordBatch) -> None:
    """Their values would be read under the names and types of the epoch."""
    stream, _ = make_stream(2)
    root = stream._log.root
    frame = encode_frame(other, compression="none", compression_level=None, stats_columns=())
    for frames in (frame, replace(frame, batch=None)):
        entries = (*root.entries, encoded_entry(9, frames))
        found = join_inline(replace(root, entries=entries), lambda _: stream.schema)
        assert found.entries == entries


@pytest.mark.usefixtures("small_joined_share")
def test_joined_runs_of_two_epochs_stay_apart() -> None:
    """A frame has one schema."""
    stream, storage = make_stream(2)
    wider = pa.table({"n": [20], "s": ["x"], "more": [1.5]})
    stream.append(wider, merge_schema=True)
    stream.append(wider.set_column(0, "n", pa.array([21])))
    epochs = [
        (entry.epoch, entry.rows, entry.frame is not None) for entry in stream._log.root.entries
    ]
    assert epochs == [(0, 20, True), (1, 2, True)]
    assert _segments(storage) == []
    assert values(open_on(storage)) == list(range(22))
    stream.verify().check()


@pytest.mark.usefixtures("small_joined_share")
def test_lost_race_joins_again() -> None:
    """The winner's events are between ours and those before; nothing is left behind."""
    stream, storage = make_stream(3)
    late = open_on(
        Meddling(storage, "create log/", lambda: stream.append(numbers(30, 40))),
        clock=storage.time.clock,
    )
    late.append(numbers(40, 50))
    assert late._log.storage.met
    late.append(numbers(50, 60))
    assert values(late) == list(range(60))
    assert late.verify().check().leftovers == []
    assert _segments(storage) == []


@pytest.mark.usefixtures("small_joined_share")
def test_compaction_skips_segments_that_were_joined_meanwhile() -> None:
    """Its inputs are gone, although one of their numbers is still there: no event is lost."""
    stream, storage = make_stream(3)
    late = open_on(
        Meddling(storage, "create log/", lambda: stream.append(numbers(30, 40))),
        clock=storage.time.clock,
    )
    late.compact()
    assert late._log.storage.met
    assert values(open_on(storage)) == list(range(40))
    open_on(storage).verify().check()


@pytest.mark.usefixtures("small_joined_share")
def test_older_version_and_planned_read_have_the_frames_before_they_were_joined() -> None:
    """Another version may list another frame under the same name."""
    stream, storage = make_stream(3)
    pinned = snapshot(open_on(storage, clock=storage.time.clock))
    reading = pinned.plan()
    tasks = pinned.tasks(reading)
    stream.append(numbers(30, 40))
    found = [batch for task in tasks for batch in run_task(reading, task)]
    assert [n for batch in found for n in batch["n"].to_pylist()] == list(range(30))
    old = stream._log.read_version(2)
    reading = snapshot(stream, old).plan()
    found = [
        batch for task in snapshot(stream, old).tasks(reading) for batch in run_task(reading, task)
    ]
    assert [n for batch in found for n in batch["n"].to_pylist()] == list(range(20))


@pytest.mark.usefixtures("small_share")
def test_runs_of_other_epochs_and_between_segments_stay_apart() -> None:
    """Each run of neighbours of one epoch becomes a segment of its own, in its place."""
    stream, storage = make_stream(2)
    stream.append(numbers(20, 22), layout=STAGED)
    wider = pa.table({"n": [22], "s": ["x"], "more": [1.5]})
    stream.append(wider, merge_schema=True)
    for n in (23, 24):
        stream.append(wider.set_column(0, "n", pa.array([n])))
    assert not any(_inline(stream._log.root)[:3])
    assert values(stream) == list(range(25))
    assert stream.verify().check().leftovers == []
    assert open_on(storage).read(22).read_all()["more"].to_pylist() == [1.5] * 3


class _Contested(WrappedStorage):
    """Another writer has put the same segment, and deletes it as its race is lost."""

    met = False

    def around(self, verb: str, path: str, work: Callable[[], object]) -> object:
        if not self.met and path.startswith("segments/"):
            if verb == "create":
                work()
                return False
            self.met = True
            self.inner.delete(path)
        return work()


@pytest.mark.usefixtures("small_share")
def test_segment_that_another_loser_deletes_is_put_again() -> None:
    """Writers of equal events make the same object of them, and each loser deletes its own."""
    stream, storage = make_stream(3)
    late = open_on(_Contested(storage), clock=storage.time.clock)
    late.append(numbers(30, 40))
    assert late._log.storage.met
    assert values(stream.refresh()) == list(range(40))
    assert late.verify().check().leftovers == []


@pytest.mark.parametrize("byte", [100, VALUE])
@pytest.mark.parametrize("share", ["small_share", "small_joined_share"])
def test_damaged_frame_moves_to_the_segment_as_it_is(
    share: str, byte: int, request: pytest.FixtureRequest
) -> None:
    """Nobody encodes it anew under a good checksum: it is still the only thing that is lost."""
    request.getfixturevalue(share)
    stream, storage = make_stream(3)
    _damaged(storage, stream, 1, byte)
    stream = open_on(storage, clock=storage.time.clock)
    stream.append(numbers(30, 40))
    assert _inline(stream._log.root) == [False]
    assert values(stream, 0, 10) + values(stream, 20) == [*range(10), *range(20, 40)]
    with pytest.raises(CorruptionError, match="checksum"):
        values(stream, 10, 20)


def test_follower_has_inline_events_and_lends_them() -> None:
    """They come with the commit file; a frame that is damaged here is read from there."""
    stream, storage = make_stream(2)
    url = f"{storage.url}-follower"
    stream.followers.add(url)
    stream.append(numbers(20, 30))
    assert _segments(open_storage(url)) == []
    assert values(open_on(open_storage(url))) == list(range(30))
    _damaged(storage, stream, 1)
    assert values(open_on(storage, clock=storage.time.clock)) == list(range(30))


def test_dropping_inline_events_retires_nothing() -> None:
    """Truncation, overwrite and compaction leave no record of what has no object."""
    stream, storage = make_stream(3)
    stream.truncate(10)
    assert (len(stream._log.root.entries), stream._log.root.retired) == (2, ())
    stream.compact()
    assert (_inline(stream._log.root), stream._log.root.retired) == ([False], ())
    assert values(stream) == list(range(10, 30))
    stream.append(numbers(30, 40))
    stream.overwrite(numbers(40, 50))
    assert [item.kind for item in stream._log.root.retired] == ["segment"]
    assert (values(stream), len(_segments(storage))) == (list(range(40, 50)), 1)
    stream.verify().check()


def test_planned_read_outlives_its_version() -> None:
    """A plan carries the inline events: its tasks read them although the log was purged."""
    stream, storage = make_stream(3)
    pinned = snapshot(open_on(open_storage(storage.url)))
    reading = pinned.plan()
    tasks = pinned.tasks(reading)
    reading = pickle.loads(pickle.dumps(reading))  # noqa: S301 - what the test has just made
    stream.compact()
    for n in range(3, 6):
        wait(storage, 86_400 * 40)
        stream.append(numbers(10 * n, 10 * n + 10))
    stream.maintain(keep=3600)
    stream.maintain(grace="7d")
    assert stream._log.root.log_start > 3
    found = [batch for task in tasks for batch in run_task(reading, task)]
    assert [n for batch in found for n in batch["n"].to_pylist()] == list(range(30))


def test_metadata_tables_say_inline() -> None:
    """Segments and frames are listed with paths that say so; history counts the frames' bytes."""
    stream, _ = make_stream(2)
    segments = stream.metadata("segments").read_all()
    assert [path.split("/")[1] for path in segments["path"].to_pylist()] == ["inline"] * 2
    frames = stream.metadata("frames").read_all()
    assert frames["rows"].to_pylist() == [10, 10]
    sizes = [len(entry.frame.data) for entry in stream._log.root.entries if entry.frame]
    assert stream.history().read_all()["bytes"].to_pylist()[-2:] == sizes


def test_statistics_of_inline_segments_prune() -> None:
    """A filter leaves out inline segments that have no match."""
    stream, _ = make_stream(3)
    reading = snapshot(stream).plan(filters=[["n", ">=", 25]])
    assert sum(len(task.slices) for task in snapshot(stream).tasks(reading)) == 1


def test_verify_names_wrong_statistics_of_inline_events() -> None:
    """As it does for those of a segment: they would make filters leave out events."""
    stream, storage = make_stream(2)
    first, second = stream._log.root.entries
    wrong = replace(second, stats='{"int:n":[0,3,0],"string:s":["s0","s9",0]}')
    path = f"log/{names.build_log_name(stream.version)}"
    storage.put(path, ROOT_CODEC.encode_file(replace(stream._log.root, entries=(first, wrong))))
    (problem,) = open_on(storage).verify().problems
    assert problem.where.startswith(f"{path}: segments/inline/0000000000000001.arrow")
    assert "statistics" in problem.what


@pytest.mark.usefixtures("small_joined_share")
def test_reader_that_writes_to_its_memory_changes_no_stored_event() -> None:
    """The rows that a writer still holds are joined later; a reader gets others."""
    storage = open_storage(f"memory://{uuid.uuid4().hex}")
    stream = create_on(storage, pa.schema([("n", pa.int64())]))
    for n in range(12):
        stream.append(pa.record_batch({"n": pa.array([n] * 10)}))
        for batch in stream.read():
            memory = memoryview(batch.column("n").buffers()[1]).cast("B")
            if not memory.readonly:
                memory[:] = bytes(len(memory))
    assert len(stream._log.root.entries) < 12
    assert values(open_on(storage)) == [n for n in range(12) for _ in range(10)]


@pytest.mark.usefixtures("small_share")
def test_lost_race_leaves_no_object() -> None:
    """What a lost attempt made of inline segments is deleted; its retry makes it anew."""
    stream, storage = make_stream(3)
    late = open_on(
        Meddling(storage, "create log/", lambda: stream.append(numbers(30, 40))),
        clock=storage.time.clock,
    )
    late.append(numbers(40, 50))
    assert late._log.storage.met
    assert values(late) == list(range(50))
    report = late.verify().check()
    assert report.leftovers == []
    assert len(_segments(storage)) == 1


def test_damaged_frame_is_named_and_hides_nothing_else() -> None:
    """Commit file, segment and frame are in the error; everything else is read and written."""
    stream, storage = make_stream(4)
    _damaged(storage, stream, 1)
    stream = open_on(storage, clock=storage.time.clock)
    assert values(stream, 0, 10) == list(range(10))
    assert values(stream, 20) == list(range(20, 40))
    with pytest.raises(CorruptionError, match=r"log/0{19}4: segments/inline/0{15}1.arrow\[0:"):
        values(stream)
    (problem,) = stream.verify().problems
    assert problem.where.startswith("log/00000000000000000004: segments/inline/0000000000000001")
    stream.append(numbers(40, 50))
    assert values(stream, 20) == list(range(20, 50))
