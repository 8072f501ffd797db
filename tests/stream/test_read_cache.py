"""The read cache through `Stream`: a second read sends no data request, and is never stale."""

import gc
import os
import pickle
import tracemalloc
import uuid

import pyarrow as pa
import pytest
from faults import FaultStorage
from stream_kit import snapshot
from wrapped_storage import WrappedStorage

import segstore_ds as segstore
from segstore_ds.errors import CorruptionError, FormatError
from segstore_ds.read import segments
from segstore_ds.read.scan import run_task
from segstore_ds.read.segments import PROCESS_CACHE
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string()), ("x", pa.int64())])
FORMS = ["arrow", "parquet"]
SIZES = [0, 1 << 20]  # objects up to so many bytes are fetched whole


def events(start: int, end: int) -> pa.Table:
    """Return the events start to end."""
    numbers = range(start, end)
    return pa.table({"n": numbers, "s": [f"s{n}" for n in numbers], "x": numbers}, SCHEMA)


def fill(storage: Storage, form: str = "arrow", *, segments_: int = 3) -> Stream:
    """Return a stream of segments of a hundred events, in frames of ten."""
    stream = create_on(storage, SCHEMA, upkeep=None)
    layout = Layout(frame_rows=10, segment_format=form, inline_bytes=0, compression="none")
    for start in range(0, 100 * segments_, 100):
        stream.append(events(start, start + 100), layout=layout)
    return stream


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    """Each format of segments."""
    return request.param


@pytest.fixture(params=SIZES, autouse=True)
def _sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "WHOLE_OBJECT_BYTES", request.param)


@pytest.fixture
def storage() -> FaultStorage:
    """A storage that lists its calls."""
    return FaultStorage(open_storage(f"memory://{uuid.uuid4().hex}"))


def data_calls(storage: FaultStorage) -> list[str]:
    """Return the requests for segments since the last question."""
    found = [call for call in storage.calls if "segments/" in call]
    storage.calls.clear()
    return found


def damage(stream: Stream, *, segment: int = 0, frame: int = 1) -> None:
    """Change a byte of a frame, in place."""
    entry = stream._log.root.entries[segment]
    name = f"segments/{entry.path}"
    data = bytearray(stream._log.storage.get(name))
    found = segments.open_segment(stream._log.storage, entry).frames[frame]
    data[(found.start + found.end) // 2] ^= 1
    stream._log.storage.put(name, bytes(data))


def test_second_read_sends_no_data_request(storage, form):
    """Nor does another handle's read, a part of the range, or the tasks of a plan."""
    stream = fill(storage, form)
    data_calls(storage)
    assert stream.read().read_all() == events(0, 300)
    assert data_calls(storage)
    assert stream.read().read_all() == events(0, 300)
    assert data_calls(storage) == []
    # Should one name stand for other bytes after all, they are not confused.
    kept = {(path, crc) for (_, path, crc), _ in PROCESS_CACHE._pieces}
    assert kept == {(entry.path, entry.footer_crc) for entry in stream._log.root.entries}
    again = open_on(storage)
    assert again.read(55, 145).read_all() == events(55, 145)
    reading = snapshot(again).plan(120)
    for task in snapshot(again).tasks(reading, partition_bytes=1):
        list(run_task(reading, task))
    assert data_calls(storage) == []
    counters = segstore.read_cache_counters()
    for task in snapshot(again).tasks(reading, partition_bytes=1):
        list(run_task(*pickle.loads(pickle.dumps((reading, task)))))  # noqa: S301
    assert segstore.read_cache_counters().misses == counters.misses
    assert counters.misses > 0
    assert counters.hits > counters.misses
    assert counters.hit_bytes > counters.miss_bytes > 0
    assert counters.held_bytes >= counters.miss_bytes


def test_columns_are_cached_apart(storage, form):
    """A read of other columns of Parquet fetches those, and nothing twice."""
    stream = fill(storage, form)
    for columns in (["n"], ["x"], ["n"], ["x"]):
        expected = events(0, 300).select(columns)
        assert stream.read(columns=columns).read_all() == expected
    data_calls(storage)
    assert stream.read(columns=["n"]).read_all() == events(0, 300).select(["n"])
    assert data_calls(storage) == []


def test_poll_fetches_only_what_is_new(storage, form):
    """A reader that reads the last events again gets the older ones from memory."""
    stream = fill(storage, form, segments_=1)
    seen = stream.read().read_all()
    data_calls(storage)
    other = open_on(storage)
    layout = Layout(segment_format=form, inline_bytes=0)
    other.append(events(100, 150), layout=layout)
    (new,) = (entry.path for entry in other._log.root.entries[1:])
    data_calls(storage)
    assert stream.read().read_all() == pa.concat_tables([seen, events(100, 150)])
    calls = data_calls(storage)
    assert calls
    assert all(new in call for call in calls)


def test_zero_bytes_switch_the_cache_off(storage, form):
    stream = fill(storage, form)
    for _ in range(2):
        data_calls(storage)
        stream.read(read_cache_bytes=0).read_all()
        assert data_calls(storage)
    assert segstore.read_cache_counters().entries == 0
    stream.read().read_all()
    stream.read(read_cache_bytes=0).read_all()
    assert data_calls(storage)  # what others keep is not used either
    with pytest.raises(segstore.SegstoreError, match="read_cache_bytes"):
        stream.read(read_cache_bytes=-1)


class Users(WrappedStorage):
    """A storage with the rights of a user."""

    def __init__(self, inner: Storage, user: str | None) -> None:
        super().__init__(inner)
        self.user = user

    def rights(self) -> str | None:
        return self.user


def test_two_credentials_never_share(storage, form):
    stream = fill(storage, form)
    stream.read().read_all()
    for user in ("ada", "bob", None):
        other = open_on(Users(storage, user))
        data_calls(storage)
        other.read().read_all()
        assert data_calls(storage)
        other.read().read_all()
        assert (data_calls(storage) == []) == (user is not None)


def test_rights_are_location_options_and_environment(tmp_path, monkeypatch):
    """The values count, not the names that they are read by."""

    def rights(url: str, **options: object) -> str | None:
        return open_storage(url, options).rights()

    one = rights(f"{tmp_path}/a", key="secret")
    assert one is not None
    assert "secret" not in one
    assert one == rights(f"{tmp_path}/a", key="secret")
    assert one != rights(f"{tmp_path}/a", key="other")
    assert one != rights(f"{tmp_path}/b", key="secret")
    monkeypatch.setenv("TEST_KEY", "secret")
    assert rights(f"{tmp_path}/a", key="env:TEST_KEY") == one
    monkeypatch.setenv("TEST_KEY", "other")
    assert rights(f"{tmp_path}/a", key="env:TEST_KEY") == rights(f"{tmp_path}/a", key="other")
    monkeypatch.setenv("AWS_PROFILE", "somebody")
    assert rights(f"{tmp_path}/a", key="secret") != one
    assert rights(f"{tmp_path}/a", key=object()) is None


def test_rights_of_a_clone_are_also_those_in_its_origin(storage):
    """What a clone reads of its origin's objects depends on who may read them."""
    inner = open_storage(storage.url)
    before = inner.rights()
    inner.share(f"memory://{uuid.uuid4().hex}", ("segments/",), bool)
    assert inner.rights() not in (before, None)
    assert pickle.loads(pickle.dumps(inner)).rights() == inner.rights()  # noqa: S301


def test_verify_bypasses_the_cache(storage, form):
    """A damaged object is found, whatever was read of it before; the answer of a read stays."""
    stream = fill(storage, form)
    stream.read().read_all()
    damage(stream)
    assert stream.read().read_all() == events(0, 300)
    report = stream.verify()
    assert [problem.code for problem in report.problems] == [CorruptionError("x").code]
    with pytest.raises(CorruptionError):
        stream.read(read_cache_bytes=0).read_all()


def test_damage_is_never_cached(storage, form):
    """A damaged object that is repaired is read well, and its sound frames are read meanwhile."""
    stream = fill(storage, form)
    name = f"segments/{stream._log.root.entries[0].path}"
    sound = storage.get(name)
    damage(stream, frame=5)
    for _ in range(2):
        reader = stream.read()
        found = [reader.read_next_batch() for _ in range(5)]
        assert pa.Table.from_batches(found) == events(0, 50)
        with pytest.raises(CorruptionError):
            reader.read_next_batch()
    assert stream.read(60).read_all() == events(60, 300)
    storage.put(name, sound)
    assert stream.read().read_all() == events(0, 300)


def test_stream_created_again_gives_its_own_events(tmp_path, form):
    """Drop and create at one location: another stream, whatever its objects are called."""
    url, layout = tmp_path / "s", Layout(segment_format=form, inline_bytes=0)
    for start in (0, 1_000):
        stream = segstore.create(url, SCHEMA)
        stream.append(events(start, start + 100), layout=layout)
        for _ in range(2):
            assert stream.read().read_all() == events(start, start + 100)
        segstore.drop(url, confirm=f"file://{url}")


def test_compaction_and_copies_leave_the_cache_alone(storage, form):
    """What is read once would only displace what is read again."""
    stream = fill(storage, form)
    stream.compact()
    stream.copy_to(f"memory://{uuid.uuid4().hex}", copy_id="c", mode="events")
    counters = segstore.read_cache_counters()
    assert (counters.hits, counters.misses) == (0, 0)


def test_cached_frames_hold_no_memory_of_others(storage, form, monkeypatch):
    """Beside a small bound, a frame is a copy: a slice would hold all that was fetched."""
    monkeypatch.setattr(segments, "MOST_COLUMNS", 1)  # nothing is fetched whole
    stream = create_on(storage, SCHEMA, upkeep=None)
    layout = Layout(frame_rows=4_000, segment_format=form, inline_bytes=0, compression="none")
    stream.append(events(0, 180_000), layout=layout)
    assert stream._log.root.entries[0].bytes > 1 << 20
    stream.read(read_cache_bytes=0).read_all()
    tracemalloc.start()
    try:
        stream.read(read_cache_bytes=200_000).read_all()
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert segstore.read_cache_counters().held_bytes > 100_000
    assert held < 700_000


def test_missing_object_is_not_remembered(storage, form):
    stream = fill(storage, form)
    name = f"segments/{stream._log.root.entries[0].path}"
    sound = storage.get(name)
    storage.delete(name)
    with pytest.raises(FormatError):
        stream.read().read_all()
    storage.put(name, sound)
    assert stream.read().read_all() == events(0, 300)


def test_read_after_salvage_is_of_the_new_stream(tmp_path, form):
    """Salvage leaves damaged frames out, and keeps no name of theirs for other bytes."""
    url = tmp_path / "s"
    stream = fill(open_storage(url), form)
    assert stream.read().read_all() == events(0, 300)
    damage(stream, frame=3)
    segstore.salvage(url, tmp_path / "new", skip_damaged=True)
    found = segstore.open(tmp_path / "new").read(columns=["n"]).read_all()["n"].to_pylist()
    assert found == [*range(30), *range(40, 300)]
    assert os.fspath(url) in stream._log.storage.url
