"""Copies by segment objects: all at once or not at all, and never twice."""

import datetime as dt
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pyarrow as pa
import pytest
from faults import Crash, Fault, FaultStorage, die
from stream_kit import (
    DAY,
    KINDS,
    SCHEMA,
    SOFT,
    STAGED,
    WHENS,
    Meddling,
    fresh_url,
    make_stream,
    numbers,
    objects,
    values,
    wait,
)
from wrapped_storage import WrappedStorage

import segstore_ds as segstore
from segstore_ds.copy.destination import CopyRequest
from segstore_ds.copy.segments import run_copy
from segstore_ds.errors import (
    CommitUnknownError,
    CorruptionError,
    MissingObjectError,
    NotFoundError,
    SegstoreError,
    SnapshotExpiredError,
    StorageError,
    TruncatedError,
)
from segstore_ds.format import names
from segstore_ds.read.cuts import Position
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream

pytestmark = pytest.mark.usefixtures("format_by_name")


def _segments(stream: Stream) -> list:
    root = stream._log.root
    return list(stream._context.status.segments(root, root.listed_start, root.tail))


def _ids(stream: Stream) -> list[int]:
    return [segment.entry.segment_id for segment in _segments(stream)]


def test_ids_epochs_offsets_and_bytes_stay() -> None:
    """Both streams hold the same segments under different names; each goes its own way."""
    stream, _ = make_stream(4)
    wider = pa.table({"n": [40], "s": ["a"], "x": [1.5]})
    stream.append(wider, merge_schema=True, writer_id="w", batch_id=3)
    stream.truncate(10)
    url = fresh_url()
    done = stream.copy_to(url, copy_id="night-1")
    copy = segstore.open(url)
    assert (done.start, done.end, done.segments, done.repeated) == (10, 41, 4, False)
    assert (copy.head, copy.tail, copy.version) == (10, 41, 0)
    assert _ids(copy) == _ids(stream)
    assert [e.since for e in copy._log.root.epochs] == [e.since for e in stream._log.root.epochs]
    assert copy.read().read_all().equals(stream.read().read_all())
    assert copy._log.root.writers == {}
    assert copy._log.root.stream_id != stream._log.root.stream_id
    copy.append(numbers(41, 45), merge_schema=True)
    stream.append(numbers(90, 91), merge_schema=True)
    assert values(copy, offset=True)[-4:] == [(n, n) for n in range(41, 45)]
    copy.verify().check()


def test_followers_are_not_copied() -> None:
    """A copy with the source's followers could not commit."""
    stream, _ = make_stream(2)
    stream.append(numbers(20, 30))
    follower, url = fresh_url(), fresh_url()
    stream.followers.add(follower)
    stream.copy_to(url, copy_id="c")
    copy = segstore.open(url)
    assert (stream.followers, copy.followers) == ((follower,), ())
    copy.append(numbers(30, 31))
    assert segstore.open(follower).tail == 30


def test_a_damaged_segment_is_copied_from_a_follower() -> None:
    """The copy has the bytes that its entry promises, the source stays as damaged as it was."""
    stream, _ = make_stream(0)
    stream.append(numbers(0, 500), layout=STAGED)
    follower, url = fresh_url(), fresh_url()
    stream.followers.add(follower)
    [segment] = _segments(stream)
    name = names.segment_object(segment.entry.path)
    whole = stream._log.storage.get(name)
    middle = len(whole) // 2
    stream._log.storage.delete(name)
    stream._log.storage.create(
        name, whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    )
    stream.copy_to(url, copy_id="c")
    copy = segstore.open(url)
    copy.verify().check()
    assert values(copy) == list(range(500))
    assert not stream.verify().ok


def test_cuts_within_segments_rewrite_only_the_edges() -> None:
    """Edge segments get new numbers, those between keep theirs."""
    stream, _ = make_stream(5)
    url = fresh_url()
    stream.copy_to(url, copy_id="c", start=15, end=33)
    copy = segstore.open(url)
    assert values(copy, offset=True) == [(n, n) for n in range(15, 33)]
    old = _ids(stream)
    assert _ids(copy) == [stream._log.root.next_segment, old[2], stream._log.root.next_segment + 1]
    assert copy._log.root.next_segment == stream._log.root.next_segment + 2
    copy.compact()
    assert values(copy) == list(range(15, 33))
    copy.verify().check()


@pytest.mark.usefixtures("no_inline")
def test_long_lists_spill_to_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first commit stays small however many segments there are."""
    monkeypatch.setattr(SOFT, 3)
    stream, _ = make_stream(12)
    url = fresh_url()
    stream.copy_to(url, copy_id="c")
    copy = segstore.open(url)
    assert copy._log.root.parts
    assert values(copy) == list(range(120))
    copy.verify().check()


@pytest.mark.parametrize("mode", ["segments", "events"])
def test_a_done_copy_needs_its_cuts_no_more(mode: str) -> None:
    """The source was truncated and the tag removed since; what was not copied says what to do."""
    stream = segstore.create(fresh_url(), SCHEMA)
    stream.append(numbers(0, 30))
    stream.tags.set("x", 4)
    places = {start: fresh_url() for start in (1, "tag:x")}
    for start, url in places.items():
        stream.copy_to(url, copy_id="c", mode=mode, start=start)
    stream.truncate(5)
    stream.tags.delete("x")
    for start, url in places.items():
        again = stream.copy_to(url, copy_id="c", mode=mode, start=start)
        assert (again.repeated, again.start) == (True, 1 if start == 1 else 4)
    with pytest.raises(TruncatedError, match="start the copy at 'head'") as caught:
        stream.copy_to(fresh_url(), copy_id="c", mode=mode, start=1)
    assert "fail_on_data_loss" not in str(caught.value)
    with pytest.raises(NotFoundError, match="no such tag"):
        stream.copy_to(fresh_url(), copy_id="c", mode=mode, start="tag:x")


@pytest.mark.usefixtures("no_inline")
@pytest.mark.parametrize("wrapped", [False, True])
def test_damaged_source_makes_no_copy(wrapped: bool) -> None:
    """The error names the frame, and there is no stream, and no copy of it, at the destination."""
    stream, storage = make_stream(3)
    if not wrapped:  # the store copies it first
        storage = storage.inner
        stream = open_on(storage)
    path = names.segment_object(_segments(stream)[1].entry.path)
    data = bytearray(storage.get(path))
    data[100] ^= 1
    storage.put(path, bytes(data))
    url = fresh_url()
    with pytest.raises(CorruptionError, match="checksum") as caught:
        stream.copy_to(url, copy_id="c")
    assert caught.value.fields["where"].startswith(f"{stream.url}/{path}[")
    with pytest.raises(NotFoundError):
        segstore.open(url)
    damaged = f"segments/copy-c/{_ids(stream)[1]:016x}"
    assert [path for path in objects(open_storage(url)) if path.startswith(damaged)] == []


class Careless(WrappedStorage):
    """A store whose own copies are damaged."""

    def copy_from(
        self,
        source: Storage,
        source_path: str,
        path: str,
        *,
        replace: bool = False,  # noqa: ARG002
    ) -> bool:
        data = bytearray(source.get(source_path))
        data[len(data) // 3] ^= 1
        self.inner.put(path, bytes(data))
        return True


def test_what_a_store_copies_is_read_back() -> None:
    """A copy that is not the source is made again, by bytes."""
    stream, _ = make_stream(3)
    careless = Careless(open_storage(fresh_url()))
    request = CopyRequest("c", "head", "tail")
    run_copy(stream._context, careless, request)
    copy = open_on(careless.inner)
    copy.verify().check()
    assert values(copy) == list(range(30))
    assert len(objects(careless.inner, "segments")) == 3


@pytest.mark.parametrize("mode", ["segments", "events"])
def test_a_position_and_a_time_bound_a_copy(mode: str) -> None:
    """What a caller gives as a value means the same as its text, also when the call is repeated."""
    stream, _ = make_stream(3)
    start = Position.of(stream._log.root, 5)
    end = dt.datetime.fromtimestamp(stream._log.root.time_us / 1e6 + 1, dt.UTC)
    place = fresh_url()
    for repeated in (False, True):
        done = stream.copy_to(place, copy_id="c", mode=mode, start=start, end=end)
        assert (done.start, done.end, done.repeated) == (5, 30, repeated)
    assert values(segstore.open(place)) == list(range(5, 30))


def _copy(stream: Stream, target: Storage) -> object:
    stream.refresh()
    return run_copy(stream._context, target, CopyRequest("c", "head", "35"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("when", WHENS)
@pytest.mark.parametrize("side", ["source", "target", "target within the store"])
def test_interrupted_copies_resume(kind: str, when: str, side: str) -> None:
    """At every call: nothing or all of it is there, and the next run takes up what arrived."""
    stream, origin = make_stream(0)
    if side == "target within the store":  # what a test wraps is no store's own
        stream = segstore.create(fresh_url(), SCHEMA)
    for n in range(4):
        stream.append(numbers(10 * n, 10 * n + 10), layout=STAGED)
    at, reused = 0, 0
    while True:
        at += 1
        storage = open_storage(fresh_url())
        faulty = FaultStorage(
            origin if side == "source" else storage, Fault(at, kind=kind, when=when)
        )
        with suppress(StorageError, CommitUnknownError, Crash):
            if side == "source":
                _copy(open_on(faulty, clock=stream._log.clock), storage)
            else:
                _copy(stream, faulty)
        with suppress(NotFoundError):
            assert values(open_on(storage)) == list(range(35))
        stream.append(numbers(0, 1))  # the source goes on meanwhile
        done = _copy(stream, storage)
        reused = max(reused, done.reused)
        copy = open_on(storage)
        assert values(copy) == list(range(35))
        copy.verify().check()
        assert len(objects(storage, "log/")) <= 2
        copy.maintain(grace=86_400)
        assert copy.refresh().verify().leftovers == []
        if not faulty.struck:
            break
    assert at > (7 if "store" in side else 9)
    assert 1 <= reused <= 3
    assert side == "source" or reused == 3


@pytest.mark.usefixtures("no_inline")
def test_changes_to_the_source_during_a_copy_are_not_copied() -> None:
    """Others append, compact and vacuum between two segments: the copy is of its version."""
    stream, storage = make_stream(4)
    other = open_on(storage, clock=stream._log.clock)

    def meddle() -> None:
        other.append(numbers(40, 50))
        other.compact()
        other.maintain(grace=86_400)

    target = Meddling(
        open_storage(fresh_url()), "copy_from segments/copy-c/0000000000000002", meddle
    )
    done = run_copy(stream._context, target, CopyRequest("c", "head", "tail"))
    assert target.met
    assert (done.end, values(open_on(target.inner))) == (40, list(range(40)))
    open_on(target.inner).verify().check()
    assert values(stream.refresh()) == list(range(50))


@pytest.mark.usefixtures("no_inline")
@pytest.mark.parametrize("lost", [True, False])
def test_segment_that_is_gone_was_lost_or_deleted(
    lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copying again helps only where the version is gone, and not the newest one's segment."""
    monkeypatch.setattr("segstore_ds.copy.segments._THREADS", 1)
    stream, storage = make_stream(4)
    other = open_on(storage, clock=stream._log.clock)

    def meddle() -> None:
        if lost:
            storage.delete(names.segment_object(_segments(stream)[3].entry.path))
            return
        other.compact()
        for _ in range(3):
            wait(storage, 3 * DAY)
            other.maintain(keep=3600, grace=86_400)

    url = fresh_url()
    target = Meddling(open_storage(url), "copy_from segments/copy-c/0000000000000000", meddle)
    raised = MissingObjectError if lost else SnapshotExpiredError
    with pytest.raises(raised, match=r"segstore\.repair" if lost else "copy again"):
        run_copy(stream._context, target, CopyRequest("c", "head", "tail"))
    if not lost:
        assert stream.refresh().copy_to(url, copy_id="c").end == 40


def test_a_segment_that_arrived_damaged_is_copied_again() -> None:
    """Its last bytes tell, which are written last: the size alone would not."""
    stream, _ = make_stream(3)
    target, request = open_storage(fresh_url()), CopyRequest("c", "head", "tail")
    with pytest.raises(Crash):
        run_copy(stream._context, Meddling(target, "create log/", die), request)
    [first, *_] = sorted(info.path for info in target.list("segments"))
    data = bytearray(target.get(first))
    data[-50] ^= 1
    target.put(first, bytes(data))
    assert run_copy(stream._context, target, request).reused == 2
    open_on(target).verify().check()
    assert values(open_on(target)) == list(range(30))


def test_vacuum_of_a_dropped_stream_leaves_the_next_copy_in_its_folder() -> None:
    """It has the same id, as that of a copy that is made anew each night."""
    stream, _ = make_stream(2)
    storage = open_storage(fresh_url())
    stream.copy_to(storage.url, copy_id="c")

    def copy_anew() -> None:
        segstore.drop(storage.url, confirm=storage.url)
        stream.copy_to(storage.url, copy_id="c")

    vacuuming = Meddling(storage, "list segments", copy_anew)
    with pytest.raises(SegstoreError):
        open_on(vacuuming).maintain(grace=86_400)
    assert vacuuming.met
    segstore.open(storage.url).verify().check()


def _place() -> str:
    return f"memory://{uuid.uuid4().hex}"


def test_copies_during_appends_are_prefixes_without_gaps() -> None:
    """Threads append all the while; each copy holds exactly what the source held when it began."""
    stream = segstore.create(_place(), SCHEMA)
    stop = threading.Event()

    def append() -> None:
        mine = segstore.open(stream.url)
        while not stop.is_set():
            mine.append(pa.table({"n": [mine.tail], "s": ["x"]}, SCHEMA))

    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(append) for _ in range(2)]
        try:
            for n in range(6):
                url, least = _place(), stream.refresh().tail
                done = segstore.open(stream.url).copy_to(url, copy_id=f"c{n}", start="head")
                copy = segstore.open(url)
                assert least <= done.end == copy.tail
                assert copy.read().read_all().equals(stream.refresh().read(0, copy.tail).read_all())
                copy.verify().check()
        finally:
            stop.set()
        for one in running:
            one.result()
    assert stream.refresh().tail > done.end


def test_vacuum_deletes_leftovers_of_a_finished_copy() -> None:
    """What no commit names goes from that copy's folder, and from no other one."""
    stream, _ = make_stream(2)
    copy = segstore.open(_copied(stream))
    left = "segments/copy-c/0000000000000001-aaaaaaaaaaaa.arrow"
    other = "segments/copy-d/0000000000000001-aaaaaaaaaaaa.arrow"
    for path in (left, other):
        copy._log.storage.put(path, b"in part")
    assert [entry.path for entry in copy.maintain(grace=86_400).deleted] == [left]
    assert objects(copy._log.storage, "segments") >= {other}
    assert values(segstore.open(copy.url)) == list(range(20))


def _copied(stream: Stream) -> str:
    url = _place()
    stream.copy_to(url, copy_id="c")
    return url
