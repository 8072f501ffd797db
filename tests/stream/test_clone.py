"""Clones: three commits, nothing copied, and neither stream ever takes anything from the other."""

import shutil
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from faults import Crash, Fault, FaultStorage, die
from stream_kit import (
    DAY,
    HOUR,
    KINDS,
    SOFT,
    STAGED,
    TIGHT,
    WHENS,
    Meddling,
    fresh_url,
    make_stream,
    numbers,
    objects,
    values,
    wait,
)
from virtual_time import TimedStorage
from wrapped_storage import WrappedStorage

import segstore_ds as segstore
from segstore_ds.copy.clone import run_clone, run_materialize
from segstore_ds.copy.destination import CopyRequest
from segstore_ds.copy.pins import last_sharing
from segstore_ds.errors import (
    AlreadyExistsError,
    CommitUnknownError,
    ConflictError,
    CorruptionError,
    FormatError,
    InvalidInputError,
    MissingObjectError,
    NotFoundError,
    PositionError,
    SealedError,
    SnapshotExpiredError,
    StorageError,
)
from segstore_ds.format.copies import origins_of
from segstore_ds.format.root import decode_root, encode_root
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.reads import at_root
from segstore_ds.stream.rescue import repair as repair_on
from segstore_ds.stream.rescue import salvage as salvage_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout

EACH = pytest.mark.usefixtures("each_format")
PARQUET_LAYOUT = Layout(inline_bytes=0, segment_format="parquet")
REQUEST = CopyRequest("c", "head", "tail", mode="clone")


def _clone(stream: Stream, copy_id: str = "c") -> Stream:
    """Clone a stream and open the clone on the same clock."""
    url = fresh_url()
    stream.copy_to(url, copy_id=copy_id, mode="clone")
    storage = open_storage(url)
    if isinstance(stream._log.storage, TimedStorage):
        storage = TimedStorage(storage, stream._log.storage.time)
    return open_on(storage, clock=stream._log.clock)


def _clear(stream: Stream, storage: TimedStorage) -> None:
    """Delete whatever a stream may delete."""
    for _ in range(2):
        wait(storage, 3 * DAY)
        stream.append(numbers(0, 1), merge_schema=True)
    stream.maintain(keep=0)
    stream.maintain(grace=DAY)


def _local(path: Path, commits: int = 3) -> Stream:
    stream = segstore.create(str(path), numbers(0, 0).schema)
    for n in range(commits):
        stream.append(numbers(10 * n, 10 * n + 10), layout=STAGED)
    return stream


@pytest.mark.usefixtures("no_inline")
@EACH
def test_both_go_on_independently(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clone of parts and entries reads as its origin; later events are of one of them only."""
    monkeypatch.setattr(SOFT, 3)
    stream, _ = make_stream(8)
    stream.truncate(5)
    clone = _clone(stream)
    assert clone._log.root.parts
    assert (
        objects(clone._log.storage, "segments/") | objects(clone._log.storage, "status/") == set()
    )
    clone.append(numbers(500, 510))
    stream.append(numbers(80, 90))
    assert values(clone, offset=True) == [(n, n if n < 80 else n + 420) for n in range(5, 90)]
    assert values(stream) == list(range(5, 90))
    clone.compact()
    clone.truncate(17)
    assert values(clone)[:3] == [17, 18, 19]
    clone.verify().check()
    stream.verify().check()


@pytest.mark.usefixtures("no_inline")
@pytest.mark.parametrize("commits", [2, 60])
def test_a_clone_is_three_commits_however_long_the_stream(
    commits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests do not grow with the stream."""
    monkeypatch.setattr(SOFT, 3)
    stream, storage = make_stream(commits)
    target = open_storage(fresh_url())
    storage.stats.reset()
    target.stats.reset()
    before = stream.version
    done = run_clone(stream._context, target, REQUEST)
    assert (stream.version, open_on(target).version, done.segments) == (before + 2, 0, commits)
    assert storage.stats.total + target.stats.total <= 24


@pytest.mark.usefixtures("no_inline")
def test_origin_spares_what_the_clone_needs() -> None:
    """Compacted, truncated and vacuumed: until the pin ends, nothing the clone reads goes."""
    stream, storage = make_stream(6)
    clone = _clone(stream)
    stream.compact()
    stream.truncate(40)
    _clear(stream, storage)
    assert values(clone) == list(range(60))
    clone.verify().check()
    assert list(stream.pins) == ["c"]
    stream.pins.release("c")
    with pytest.raises(NotFoundError, match="no such pin"):
        stream.pins.release("c")
    stream.maintain(grace=DAY)
    with pytest.raises(MissingObjectError, match="neither here nor"):
        values(clone, read_cache_bytes=0)
    assert not clone.verify().ok


def test_clone_deletes_nothing_of_its_origin() -> None:
    """What a clone drops stays where it is, also once its vacuum has run."""
    stream, storage = make_stream(5)
    clone = _clone(stream)
    before = objects(storage)
    clone.compact()
    clone.truncate(30)
    _clear(clone, storage)
    assert objects(storage) == before
    assert values(stream) == list(range(50))
    assert values(clone)[:20] == list(range(30, 50))
    clone.verify().check()


class _Flipping(WrappedStorage):
    """Gives a wrong bit in the n-th read of each object of a folder, once `nth` is set."""

    nth = 0

    def __init__(self, inner: Storage, folder: str, place: int) -> None:
        super().__init__(inner)
        self.folder, self.place, self.reads = folder, place, Counter[str]()

    def around(self, verb, path, work):
        if verb == "copy_from":
            return False  # as a store that copies nothing by itself
        done = work()
        if not self.nth or not isinstance(done, bytes) or not path.startswith(self.folder):
            return done
        self.reads[path] += 1
        if self.reads[path] != self.nth or len(done) <= 60:
            return done
        changed = bytearray(done)
        changed[self.place] ^= 1
        return bytes(changed)


@pytest.mark.usefixtures("no_inline")
@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("form", ["arrow", "parquet"])
@pytest.mark.parametrize(
    ("folder", "place"), [("status/", -20), *(("segments/", at) for at in (1, 40, -60, -20, -2))]
)
def test_wrong_bit_in_a_read_is_not_stored_by_materialize(
    folder: str, place: int, form: str, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The origin may be dropped afterwards."""
    monkeypatch.setattr(SOFT, 3)
    stream, _ = make_stream(0)
    for start in range(0, 70, 10):
        stream.append(numbers(start, start + 10), layout=replace(STAGED, segment_format=form))
    storage = _Flipping(_clone(stream)._log.storage, folder, place)
    clone = open_on(storage, clock=stream._log.clock)
    storage.nth = nth
    for _ in range(20):
        with suppress(FormatError):
            clone.materialize()
            break
    assert storage.reads
    segstore.drop(stream.url, confirm=stream.url)
    assert open_on(open_storage(clone.url)).verify().check().rows == 70


@pytest.mark.usefixtures("no_inline")
@pytest.mark.parametrize("place", [100, -20])
def test_segment_that_is_damaged_in_the_origin_is_not_taken(place: int) -> None:
    """Although the store copies it by itself: the pin stays until the origin is repaired."""
    stream, storage = make_stream(3)
    clone = segstore.open(_clone(stream).url)
    path = f"segments/{stream._log.root.entries[1].path}"
    whole = storage.get(path)
    damaged = bytearray(whole)
    damaged[place] ^= 1
    storage.put(path, bytes(damaged))
    with pytest.raises(CorruptionError):
        clone.materialize()
    assert path not in objects(open_storage(clone.url))
    storage.put(path, whole)
    assert stream.refresh().pins
    clone.materialize()
    segstore.drop(stream.url, confirm=stream.url)
    assert segstore.open(clone.url).verify().check().rows == 30


@pytest.mark.usefixtures("no_inline")
@EACH
def test_materialized_clone_is_independent_of_its_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Afterwards the origin may be dropped; its pin lasts for readers of the clone's past."""
    monkeypatch.setattr(SOFT, 3)
    stream, storage = make_stream(7)
    clone = _clone(stream)
    clone.append(numbers(70, 80))
    clone.compact(0, 20)
    old = clone._log.root
    assert clone.materialize() > 4
    assert (clone.materialize(), clone._log.root.origins) == (0, {})
    assert stream.refresh().pins == {}
    assert stream._log.root.pins["c"]["released_us"] > 0
    stream.compact()
    _clear(stream, storage)
    stream.append(numbers(0, 1))
    stream.maintain(grace=DAY)
    assert values(at_root(Stream, clone._log.storage, old)) == list(range(80))
    segstore.drop(stream.url, confirm=stream.url)
    again = open_on(open_storage(clone.url))
    assert values(again) == list(range(80))
    again.verify().check()
    again.maintain(grace=DAY, dry_run=True)
    with pytest.raises(SnapshotExpiredError, match="needs segments of an origin"):
        again.restore(0)
    assert values(_clone(again, "d")) == list(range(80))


def test_drop_needs_no_pins_and_a_dropped_clone_unpins() -> None:
    """Dropping the clone first lets the origin be dropped."""
    stream, _ = make_stream(2)
    clone = _clone(stream)
    with pytest.raises(ConflictError, match=r"pins=\{'c': ") as refused:
        segstore.drop(stream.url, confirm=stream.url)
    assert not refused.value.retryable
    segstore.drop(clone.url, confirm=clone.url)
    assert values(stream.refresh()) == list(range(20))
    segstore.drop(stream.url, confirm=stream.url)


def test_only_the_own_pin_is_taken_away() -> None:
    """A name that was given up and given out again belongs to the later clone."""
    stream, _ = make_stream(2)
    first, second = _clone(stream), _clone(stream, "d")
    for name in ("c", "d"):
        stream.pins.release(name)
    third, fourth = _clone(stream), _clone(stream, "d")
    segstore.drop(first.url, confirm=first.url)
    second.materialize()
    assert sorted(stream.refresh().pins) == ["c", "d"]
    assert values(third) == values(fourth) == values(second) == list(range(20))


def test_a_moved_clone_is_not_made_again_on_its_pin(tmp_path: Path) -> None:
    """A job that runs again would get a second clone, whose drop took the first one's pin."""
    stream = _local(tmp_path / "a")
    stream.copy_to(tmp_path / "u", copy_id="weekly", mode="clone")
    shutil.move(tmp_path / "u", tmp_path / "v")
    for _ in range(2):
        with pytest.raises(InvalidInputError, match="no longer at its location"):
            stream.copy_to(tmp_path / "u", copy_id="weekly", mode="clone")
    assert not segstore.exists(str(tmp_path / "u"))
    stream.copy_to(tmp_path / "u", copy_id="other", mode="clone")
    segstore.drop(str(tmp_path / "u"), confirm=str(tmp_path / "u"))
    assert list(stream.refresh().pins) == ["weekly"]
    shutil.rmtree(tmp_path / "u")
    shutil.move(tmp_path / "v", tmp_path / "u")
    assert stream.copy_to(tmp_path / "u", copy_id="weekly", mode="clone").repeated
    segstore.drop(str(tmp_path / "u"), confirm=str(tmp_path / "u"))
    assert not stream.copy_to(tmp_path / "u", copy_id="weekly", mode="clone").repeated


def test_refusals() -> None:
    """Clones of clones, into itself, across filesystems, of ranges; and nothing is pinned then."""
    stream, _ = make_stream(2)
    clone = _clone(stream)
    refused: list[tuple[Stream, str, str, dict]] = [
        (clone, fresh_url(), "can't be cloned", {}),
        (stream, stream.url, "is the stream's own", {}),
        (stream, f"{stream.url}/inner", "is inside the stream's own", {}),
        (stream, "/elsewhere/segstore", "filesystem", {}),
        (stream, fresh_url(), "takes no start", {"start": 5}),
        (stream, fresh_url(), "takes no storage options", {"storage_options": {}}),
        (stream, fresh_url(), "version", {"version": "2"}),
        (stream, fresh_url(), "not a cut", {"end": "once"}),
    ]
    for source, url, text, options in refused:
        with pytest.raises(InvalidInputError, match=text):
            source.copy_to(url, copy_id="d", mode="clone", **options)
    with pytest.raises(PositionError, match="beyond the tail"):
        stream.copy_to(fresh_url(), copy_id="d", mode="clone", end=21)
    with pytest.raises(NotFoundError, match="no such version"):
        stream.copy_to(fresh_url(), copy_id="d", mode="clone", version=99)
    with pytest.raises(InvalidInputError, match="only be cloned"):
        stream.copy_to(fresh_url(), copy_id="d", version=1)
    with pytest.raises(InvalidInputError, match="unknown copy mode"):
        stream.copy_to(fresh_url(), copy_id="d", mode="cloned")
    with pytest.raises(InvalidInputError, match="another clone"):
        stream.copy_to(fresh_url(), copy_id="c", mode="clone")
    other, _ = make_stream(0)
    with pytest.raises(AlreadyExistsError):
        stream.copy_to(other.url, copy_id="d", mode="clone")
    assert list(stream.refresh().pins) == ["c"]


def test_empty_truncated_sealed_and_many_epochs() -> None:
    """Each clone continues at its origin's state, and is open unless it is to be sealed."""
    stream, _ = make_stream(0)
    empty = _clone(stream, "empty")
    assert values(empty) == []
    for n in range(4):
        table = pa.table({"n": [n], "s": ["x"], f"x{n}": [n]})
        stream.append(table, merge_schema=True)
    stream.truncate("tail")
    truncated = _clone(stream, "truncated")
    assert (truncated.head, truncated.tail, values(truncated)) == (4, 4, [])
    stream.append(pa.table({"n": [9], "s": ["y"]}), merge_schema=True)
    stream.seal()
    with pytest.raises(SealedError):
        stream.append(numbers(0, 1), merge_schema=True)
    many = _clone(stream, "many")
    assert many.read().read_all().equals(stream.read().read_all())
    for clone in (empty, truncated, many):
        clone.append(numbers(1, 3), merge_schema=True)
        clone.verify().check()
    url = fresh_url()
    stream.copy_to(url, copy_id="sealed", mode="clone", seal=True)
    with pytest.raises(SealedError):
        segstore.open(url).append(numbers(0, 1), merge_schema=True)


def test_moved_clone_and_moved_origin(tmp_path: Path) -> None:
    """A moved clone reads on; a moved origin is named, and moving it back heals everything."""
    stream = _local(tmp_path / "a")
    stream.copy_to(tmp_path / "b", copy_id="c", mode="clone")
    shutil.move(tmp_path / "b", tmp_path / "far")
    clone = segstore.open(str(tmp_path / "far"))
    assert values(clone) == list(range(30))
    shutil.move(tmp_path / "a", tmp_path / "gone")
    clone = segstore.open(str(tmp_path / "far"))
    with pytest.raises(MissingObjectError, match=r"move it back; .*segstore\.verify"):
        values(clone, read_cache_bytes=0)
    with pytest.raises(MissingObjectError):
        clone.materialize()
    shutil.move(tmp_path / "gone", tmp_path / "a")
    assert clone.materialize() == 3
    shutil.rmtree(tmp_path / "a")
    assert values(segstore.open(str(tmp_path / "far"))) == list(range(30))


def test_clone_of_a_lost_origin_can_be_dropped(tmp_path: Path) -> None:
    """There is no origin whose pin could be removed."""
    stream = _local(tmp_path / "a")
    stream.copy_to(tmp_path / "b", copy_id="c", mode="clone")
    shutil.rmtree(tmp_path / "a")
    segstore.drop(str(tmp_path / "b"), confirm=str(tmp_path / "b"))
    assert not segstore.exists(str(tmp_path / "b"))


def test_copy_repair_and_salvage_of_a_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever reads a stream reads a clone."""
    monkeypatch.setattr(SOFT, 3)
    stream, _ = make_stream(7)
    clone = _clone(stream)
    clone.append(numbers(70, 75))
    copied, saved = fresh_url(), open_storage(fresh_url())
    clone.copy_to(copied, copy_id="x", start=5)
    assert values(segstore.open(copied)) == list(range(5, 75))
    assert segstore.open(copied)._log.root.origins == {}
    assert repair_on(open_storage(clone.url)).damaged == []
    assert salvage_on(open_storage(clone.url), saved).rows == 75
    assert values(open_on(saved)) == list(range(75))


def test_origin_vacuumed_between_the_two_commits() -> None:
    """The pin is there first, so the second commit lists nothing that is gone."""
    stream, storage = make_stream(4)
    other = open_on(storage, clock=stream._log.clock)

    def meddle() -> None:
        other.refresh()
        other.compact()
        _clear(other, storage)

    target = Meddling(open_storage(fresh_url()), "create log/", meddle)
    run_clone(stream._context, target, REQUEST)
    assert target.met
    assert values(open_on(target.inner)) == list(range(40))


def test_purged_pinned_version_error_has_a_remedy() -> None:
    """Crashed between the two commits, and run again when the pinned version is gone."""
    stream, storage = make_stream(4)
    inner = open_storage(fresh_url())

    broken = Meddling(inner, "create log/", die)
    with pytest.raises(Crash):
        run_clone(stream._context, broken, REQUEST)
    stream.refresh()
    for _ in range(2):
        _clear(stream, storage)
    with pytest.raises(SnapshotExpiredError, match=r"pins\.release\(copy_id\) on the origin"):
        run_clone(stream._context, inner, REQUEST)
    stream.refresh().pins.release("c")
    run_clone(stream._context, inner, REQUEST)
    assert values(open_on(inner)) == values(stream)


def test_unfinished_clone_of_the_past_is_not_taken_for_one_of_today() -> None:
    """The pin of the first call stays, so a call without a version would get the old one."""
    stream, _ = make_stream(4)
    inner = open_storage(fresh_url())

    past = replace(REQUEST, version=2)
    with pytest.raises(Crash):
        run_clone(stream._context, Meddling(inner, "create log/", die), past)
    with pytest.raises(InvalidInputError, match="clone of an older version"):
        run_clone(stream._context, inner, REQUEST)
    run_clone(stream._context, inner, past)
    assert values(open_on(inner)) == list(range(20))


def test_pin_removed_during_a_clone_is_a_conflict() -> None:
    """Whoever took it away wins, and the clone is not taken for sound."""
    stream, storage = make_stream(2)
    other = open_on(storage, clock=stream._log.clock)
    target = Meddling(
        open_storage(fresh_url()), "create log/", lambda: other.refresh().pins.release("c")
    )
    with pytest.raises(ConflictError, match="pin was removed"):
        run_clone(stream._context, target, REQUEST)


def _sweep(
    make: Callable[[], tuple[Stream, Storage]],
    act: Callable[[Stream, Storage], object],
    check: Callable[[Stream, Storage], None],
    kind: str,
    when: str,
) -> int:
    at = 0
    while True:
        at += 1
        stream, storage = make()
        faulty = FaultStorage(storage, Fault(at, kind=kind, when=when))
        with suppress(StorageError, CommitUnknownError, Crash):
            act(stream, faulty)
        check(stream, storage)
        if not faulty.struck:
            return at


def _past(monkeypatch: pytest.MonkeyPatch) -> tuple[Stream, TimedStorage, dict[int, list[int]]]:
    """Return a stream with lists and parts, and the events of each of its versions."""
    for name, value in {**TIGHT, "segstore_ds.status.table.SEGMENTS.parts": 2}.items():
        monkeypatch.setattr(name, value)
    stream, storage = make_stream(0)
    events: dict[int, list[int]] = {}
    for n in range(14):
        wait(storage, HOUR)
        stream.append(numbers(4 * n, 4 * n + 4), layout=STAGED)
        events[stream.version] = values(stream)
    stream.truncate(6)
    events[stream.version] = values(stream)
    stream.compact(6, 30)
    events[stream.version] = values(stream)
    stream.overwrite(numbers(100, 104))
    events[stream.version] = values(stream)
    return stream, storage, events


@pytest.mark.usefixtures("no_inline")
def test_any_kept_version_can_be_cloned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its events, whatever came after, and they stay when the origin deletes all that it may."""
    stream, storage, events = _past(monkeypatch)
    clones = {}
    for version in events:
        url = fresh_url()
        stream.copy_to(url, copy_id=f"v{version}", mode="clone", version=version)
        clones[version] = open_on(open_storage(url))
    assert {version: stream.pins[f"v{version}"].version for version in events} == {
        version: version for version in events
    }
    _clear(stream, storage)
    for version, clone in clones.items():
        assert values(clone, read_cache_bytes=0) == events[version], version
        clone.verify().check()
        clone.append(numbers(7, 8))
        assert values(clone) == [*events[version], 7]


def test_purged_version_is_not_cloned() -> None:
    """Not when it was purged before, nor when that happens just before the pin's commit."""
    stream, storage = make_stream(6)
    stream.truncate(50)
    other = open_on(storage, clock=stream._log.clock)

    def meddle() -> None:
        other.refresh()
        _clear(other, storage)

    racing = Meddling(storage, "create log/", meddle)
    origin = open_on(racing, clock=stream._log.clock)
    for source in (origin, stream):
        with pytest.raises(SnapshotExpiredError, match="version was forgotten"):
            source.copy_to(fresh_url(), copy_id="c", mode="clone", version=3)
    assert racing.met
    assert stream.refresh().pins == {}


@pytest.mark.parametrize(("layout", "merged"), [(Layout(), 2), (STAGED, 2), (STAGED, 99)])
def test_clone_may_end_at_any_cut(
    layout: Layout, merged: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within lists, parts, segments and commit files: what lies before the cut, and no more."""
    limits = {"rows": 2, "fan_in": merged, "parts": 2, "listed": 3}
    for name, value in limits.items():
        monkeypatch.setattr(f"segstore_ds.status.table.SEGMENTS.{name}", value)
    stream, _ = make_stream(0)
    stream.settings.update(upkeep=None)
    for n in range(12):
        stream.append(numbers(4 * n, 4 * n + 4), layout=layout)
    stream.truncate(5)
    assert stream._log.root.lists if merged == 99 else stream._log.root.parts
    for end in range(5, 49, 9):
        url = fresh_url()
        done = stream.copy_to(url, copy_id=f"c{end}", mode="clone", end=end)
        assert (done.start, done.end) == (5, end)
        clone = open_on(open_storage(url))
        assert values(clone, offset=True) == [(n, n) for n in range(5, end)]
        clone.verify().check()
        clone.append(numbers(70, 71))
        clone.compact()
        clone.materialize()
        assert stream.refresh().pins == {}
        assert values(clone) == [*range(5, end), 70]
        clone.verify().check()
    with pytest.raises(InvalidInputError, match="start is after end"):
        stream.copy_to(fresh_url(), copy_id="low", mode="clone", end=4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("when", WHENS)
@pytest.mark.parametrize("side", ["origin", "clone", "clone of the past"])
def test_interrupted_clones_go_on(kind: str, when: str, side: str) -> None:
    """At every call of either side: no clone or a whole one, and the next run ends it.

    A cut that divides a segment writes objects before the first commit: those are found.
    """
    places: list[Storage] = []
    past = side == "clone of the past"
    request = replace(REQUEST, end="15", version=3) if past else REQUEST
    before = list(range(15 if past else 20))

    def make() -> tuple[Stream, Storage]:
        stream, storage = make_stream(4 if past else 2)
        places[:] = [open_storage(fresh_url())]
        return stream, storage if side == "origin" else places[0]

    def act(stream: Stream, faulty: Storage) -> None:
        source = open_on(faulty, clock=stream._log.clock) if side == "origin" else stream
        target = places[0] if side == "origin" else faulty
        run_clone(source._context, target, request)

    def check(stream: Stream, _storage: Storage) -> None:
        with suppress(NotFoundError):
            assert values(open_on(places[0])) == before
        stream.refresh().append(numbers(20, 30))
        done = run_clone(stream._context, places[0], request)
        clone = open_on(places[0])
        assert (done.end, values(clone)) == (clone.tail, list(range(clone.tail)))
        assert values(clone) == before or not past
        clone.verify().check()
        (pin,) = stream.refresh().pins.values()
        assert (pin.made, pin.clone_id) == (True, clone._log.root.stream_id)
        assert pin.version == 3 or not past

    assert _sweep(make, act, check, kind, when) > 4


def test_clone_can_materialize_after_a_crashed_vacuum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its root still has parts as retired that are deleted; the next vacuum knows that, too."""
    monkeypatch.setattr(SOFT, 3)
    # The origin is opened by its URL, in a store of real time.
    monkeypatch.setattr(StreamLog, "check_clock", lambda *_: None)
    stream, _ = make_stream(2)
    clone = _clone(stream)
    for n in range(12):
        clone.append(numbers(20 + n, 21 + n))
    clone.truncate(28)
    for _ in range(2):
        wait(clone._log.storage, 3 * DAY)
        clone.append(numbers(0, 1))
    clone.maintain(keep=0)

    forgets = f"create log/{clone.version + 2:020d}"
    dying = open_on(Meddling(clone._log.storage, forgets, die), clock=clone._log.clock)
    before = objects(clone._log.storage, "status/")
    with pytest.raises(Crash):
        dying.maintain(grace=DAY)
    gone = before - objects(clone._log.storage, "status/")
    assert gone & {item.path for item in clone.refresh()._log.root.retired if item.kind == "part"}
    seen = values(clone)
    clone.materialize()
    assert stream.refresh().pins == {}
    clone.maintain(grace=DAY)
    assert values(clone) == seen
    clone.verify().check()


def _clone_of_three() -> tuple[Stream, Storage]:
    stream, _ = make_stream(3)
    url = fresh_url()
    stream.copy_to(url, copy_id="c", mode="clone")
    return stream, open_storage(url)


def _materialize(_stream: Stream, faulty: Storage) -> None:
    clone = open_on(faulty)
    run_materialize(clone._context)


class _Raced(WrappedStorage):
    """A storage of a handle before whose commits another writer always commits."""

    races = 0

    def around(self, verb: str, path: str, work: Callable[[], object]) -> object:
        if f"{verb} {path}".startswith("create log/0"):
            self.races += 1
            open_on(open_storage(self.url)).append(numbers(70, 71))
        return work()


def test_materialize_that_loses_every_race_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends as any other commit does, after as many attempts: no restore was in the way."""
    monkeypatch.setitem(StreamLog.commit.__kwdefaults__, "attempts", 3)
    stream, storage = _clone_of_three()
    raced = _Raced(storage)
    with pytest.raises(ConflictError, match="other writers committed first"):
        _materialize(stream, raced)
    assert raced.races == 3
    _materialize(stream, storage)
    assert open_on(storage)._log.root.origins == {}


def test_drop_after_interrupted_materialize_leaves_no_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stopped between its commit, after which no origin is named, and the release."""
    # So that the first hint is the commit's.
    monkeypatch.setattr(StreamLog, "check_clock", lambda *_: None)
    stream, storage = _clone_of_three()

    with pytest.raises(Crash):
        _materialize(stream, Meddling(storage, "put log/_latest", die))
    assert open_on(storage)._log.root.origins == {}
    assert list(stream.refresh().pins) == ["c"]
    segstore.drop(storage.url, confirm=storage.url)
    assert stream.refresh().pins == {}
    segstore.drop(stream.url, confirm=stream.url)


def test_materialized_clone_drops_without_its_origin(caplog: pytest.LogCaptureFixture) -> None:
    """It needs the origin for nothing."""
    stream, storage = _clone_of_three()
    _materialize(stream, storage)
    for path in objects(stream._log.storage, "log/"):
        stream._log.storage.put(path, b"rubbish")
    segstore.drop(storage.url, confirm=storage.url)
    assert "origin of" in caplog.text
    assert not segstore.exists(storage.url)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("when", WHENS)
def test_interrupted_materialisations_go_on(kind: str, when: str) -> None:
    """At every call the clone reads as before, and the next run ends it and lets go."""

    def check(stream: Stream, storage: Storage) -> None:
        clone = open_on(storage)
        assert values(clone) == list(range(30))
        clone.materialize()
        assert stream.refresh().pins == {}
        for path in objects(stream._log.storage):
            stream._log.storage.delete(path)
        again = open_on(open_storage(storage.url))
        assert values(again) == list(range(30))
        again.verify().check()

    assert _sweep(_clone_of_three, _materialize, check, kind, when) > 10


def test_parquet_files_of_a_clone_are_where_they_lie(tmp_path: Path) -> None:
    """Those of the origin are named there, its own and materialized ones here."""
    stream = segstore.create(str(tmp_path / "a"), numbers(0, 0).schema)
    stream.append(numbers(0, 10), layout=PARQUET_LAYOUT)
    stream.copy_to(tmp_path / "b", copy_id="c", mode="clone")
    clone = segstore.open(str(tmp_path / "b"))
    clone.append(numbers(10, 20), layout=PARQUET_LAYOUT)
    before = [file.url for file in clone.scan().files()]
    assert [url.startswith(stream.url) for url in before] == [True, False]
    assert clone.materialize() == 1
    after = [file.url for file in clone.scan().files()]
    assert [url.startswith(clone.url) for url in after] == [True, True]
    assert after[1] == before[1]
    assert values(clone) == list(range(20))
    clone.verify().check()


def _place() -> str:
    return f"memory://{uuid.uuid4().hex}"


def test_moved_clone_is_not_recreated_after_a_purge() -> None:
    """The advice for a pin without a clone would take away what the moved one needs."""
    stream, storage = make_stream(2)
    clone = _clone(stream)
    for path in objects(clone._log.storage):
        clone._log.storage.delete(path)
    for _ in range(2):
        _clear(stream, storage)
    with pytest.raises(InvalidInputError, match="no longer at its location"):
        stream.copy_to(clone.url, copy_id="c", mode="clone")


def test_repeated_clone_reports_that_it_did_nothing() -> None:
    """Though both have gone on."""
    stream, _ = make_stream(2)
    clone = _clone(stream)
    stream.append(numbers(20, 30))
    again = stream.copy_to(clone.url, copy_id="c", mode="clone")
    assert (again.end, again.segments, again.repeated) == (20, 2, True)
    with pytest.raises(InvalidInputError, match="another copy"):
        stream.copy_to(clone.url, copy_id="c")


@pytest.mark.parametrize(
    "value", [3, {"url": "memory://x"}, {"url": "file:///etc", "pin": "c", "version": 1}]
)
def test_an_origin_that_is_none_is_corrupt(value: object) -> None:
    """Metadata can name no other filesystem."""
    stream, _ = make_stream(1)
    clone = _clone(stream)
    bad = encode_root(clone._log.root).replace(
        b'"origins":{', b'"origins":{"x":' + pa_json(value) + b","
    )
    with pytest.raises(CorruptionError, match="origin"):
        clone._log.adopt(decode_root(bad, where="test"))


def pa_json(value: object) -> bytes:
    """Return JSON."""
    from segstore_ds.format.record import build_json

    return build_json(value)


@pytest.mark.usefixtures("no_inline")
def test_unpinned_version_is_not_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above sees is the pins' work: without them the objects go."""
    stream, storage, events = _past(monkeypatch)
    url = _place()
    stream.copy_to(url, copy_id="c", mode="clone", version=5)
    stream.pins.release("c")
    _clear(stream, storage)
    with pytest.raises(MissingObjectError, match="neither here nor"):
        values(open_on(open_storage(url)), read_cache_bytes=0)
    assert events[5]


def test_a_record_of_a_clone_that_is_none_is_corrupt() -> None:
    """What a later version or damage has put there is no KeyError."""
    stream, storage = _clone_of_three()
    _materialize(stream, storage)
    newest = open_on(storage)._log.root
    assert [*last_sharing(newest).origins] == [stream._log.root.stream_id]
    good = newest.copies["c"]
    for record in ({"mode": "clone"}, {**good, "source": 3}, {**good, "origin": 7}):
        with pytest.raises(CorruptionError, match="copy 'c'"):
            last_sharing(replace(newest, copies={"c": record}))
    odd = {"s": {"url": 7, "pin": "c", "version": 1}}
    with pytest.raises(CorruptionError, match="origin 's'"):
        [*origins_of(replace(newest, origins=odd))]
    assert last_sharing(replace(newest, copies={"c": 3})).origins == {}


def test_a_clone_is_not_put_into_its_origin_through_a_link(tmp_path: Path) -> None:
    """Dropping the one would delete the other; and nothing is pinned."""
    stream = segstore.create(tmp_path / "stream", pa.schema([("n", pa.int64())]))
    (tmp_path / "link").symlink_to(tmp_path / "stream")
    for other in ("link", "link/inner", "."):
        with pytest.raises(InvalidInputError, match="the stream's own folder"):
            stream.copy_to(tmp_path / other, copy_id="c", mode="clone")
    assert not stream.refresh().pins
    with pytest.raises(InvalidInputError, match="onto itself"):
        stream.copy_to(tmp_path / "link", copy_id="c")
