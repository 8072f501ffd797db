"""Copies by events: whole or no stream, and no event twice, whatever happens on the way."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest
from faults import Crash, Fault, FaultStorage
from stream_kit import (
    DAY,
    HOUR,
    KINDS,
    STAGED,
    TIGHT,
    WHENS,
    Meddling,
    fresh_url,
    make_stream,
    numbers,
    objects,
    snapshot,
    values,
    wait,
)
from virtual_time import TimedStorage

import segstore_ds as segstore
from segstore_ds.copy import events as copy_events
from segstore_ds.copy.destination import Copied, CopyRequest
from segstore_ds.copy.events import plan_copy_events, run_copy_events
from segstore_ds.copy.segments import run_copy
from segstore_ds.copy.staging import StagedPiece, put_piece, read_pieces
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
    StorageError,
    TruncatedError,
)
from segstore_ds.format import names
from segstore_ds.format.root import SegmentEntry
from segstore_ds.retention.drop import run_drop
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.rescue import salvage as salvage_on
from segstore_ds.stream.stream import Stream


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ten events a piece, which are a segment of the source."""
    monkeypatch.setattr(copy_events, "PIECE_BYTES", 1)
    monkeypatch.setattr(copy_events, "LEAST_PIECE_ROWS", 10)


def _target(stream: Stream) -> TimedStorage:
    return TimedStorage(open_storage(fresh_url()), stream._log.storage.time)


def _copy(
    stream: Stream,
    target: Storage,
    copy_id: str = "c",
    start: object = "head",
    end: object = "tail",
    *,
    seal: bool = False,
    mode: str = "events",
) -> Copied:
    request = CopyRequest(copy_id, str(start), str(end), seal, mode)
    run = run_copy_events if mode == "events" else run_copy
    return run(stream._context, target, request)


def _reopened(stream: Stream, target: Storage) -> Stream:
    return open_on(target, clock=stream._log.clock)


def _pieces(target: Storage) -> list[tuple[int, int]]:
    """Return the ranges that are staged."""
    found = (names.parse_piece(info.path) for info in target.list("segments"))
    return sorted(piece[:2] for piece in found if piece is not None)


class _StoppedError(Exception):
    """What a test ends a copy with."""


def _stop() -> None:
    raise _StoppedError


def _drop(target: TimedStorage) -> None:
    """Drop what is at a destination; nothing but the log is left."""
    run_drop(target, confirm=target.url, clock=target.time.clock, client="")
    assert all(info.path.startswith("log/") for info in target.list(""))


def _halfway(commits: int = 4, pieces: int = 2) -> tuple[Stream, TimedStorage]:
    """Return a stream of so many segments, and a destination that has the first ones staged."""
    stream, _ = make_stream(commits)
    target = _target(stream)
    with pytest.raises(_StoppedError):
        _copy(stream, Meddling(target, f"open_staged segments/copy-c/{10 * pieces}-", _stop))
    assert _pieces(target) == [(10 * n, 10 * n + 10) for n in range(pieces)]
    return stream, target


def test_events_order_and_types_stay() -> None:
    """The copy reads as the source does, in its newest schema; offsets begin at 0."""
    stream, _ = make_stream(3)
    stream.append(pa.table({"n": [30], "s": ["a"], "x": [1.5]}), merge_schema=True)
    stream.append(pa.table({"n": [31], "s": [None], "x": [None]}, stream.schema))
    stream.truncate(5)
    target = _target(stream)
    done = _copy(stream, target)
    copy = _reopened(stream, target)
    assert (done.start, done.end, done.segments, done.repeated) == (5, 32, 3, False)
    assert done.bytes == sum(entry.bytes for entry in copy._log.root.entries)
    assert (copy.head, copy.tail, copy.sealed) == (0, 27, False)
    assert copy.read().read_all().equals(stream.read().read_all())
    assert (copy.version, snapshot(copy).spark_schema) == (0, snapshot(stream).spark_schema)
    assert (len(copy._log.root.epochs), copy._log.root.writers) == (1, {})
    copy.append(numbers(90, 91), merge_schema=True)
    assert values(copy)[-1] == 90
    copy.verify().check()


@pytest.mark.parametrize("mode", ["events", "segments"])
def test_repeated_copy_reports_that_it_did_nothing(mode: str) -> None:
    """Though the source has grown; other arguments under the id are refused."""
    stream, _ = make_stream(3)
    target = _target(stream)
    first = _copy(stream, target, mode=mode)
    stream.append(numbers(30, 40))
    again = _copy(stream, target, mode=mode)
    assert (again.end, again.segments, again.repeated) == (first.end, first.segments, True)
    assert values(_reopened(stream, target)) == list(range(30))
    for changed in ({"start": 10}, {"end": 20}, {"seal": True}):
        with pytest.raises(InvalidInputError, match="was used for another copy"):
            _copy(stream, target, mode=mode, **changed)
    with pytest.raises(AlreadyExistsError):
        _copy(stream, target, "d", mode=mode)
    with pytest.raises(InvalidInputError, match="copy id"):
        stream.copy_to(target.url, copy_id="../x", mode=mode)
    other, _ = make_stream(1, seed=2)
    for source, how in ((other, mode), (stream, "events" if mode == "segments" else "segments")):
        with pytest.raises(InvalidInputError, match="was used for another copy"):
            _copy(source, target, mode=how)
    _reopened(stream, target).append(numbers(50, 51))
    assert _copy(stream, target, mode=mode).repeated


@pytest.mark.parametrize("mode", ["events", "segments"])
def test_empty_sealed_and_self_copies(mode: str) -> None:
    """Each has a clear end."""
    stream, _ = make_stream(0)
    empty = _target(stream)
    assert _copy(stream, empty, seal=True, mode=mode).segments == 0
    assert values(_reopened(stream, empty)) == []
    assert _reopened(stream, empty).sealed
    assert _copy(stream, empty, seal=True, mode=mode).repeated
    stream.append(numbers(0, 10))
    stream.seal()
    plain, sealed = _target(stream), _target(stream)
    _copy(stream, plain, mode=mode)
    _copy(stream, sealed, seal=True, mode=mode)
    _reopened(stream, plain).append(numbers(10, 20))
    with pytest.raises(SealedError):
        _reopened(stream, sealed).append(numbers(10, 20))
    with pytest.raises(InvalidInputError, match="onto itself"):
        _copy(stream, stream._log.storage, mode=mode)
    stream.truncate(5)
    with pytest.raises(TruncatedError):
        _copy(stream, _target(stream), start=0, mode=mode)


# --- while it is not done ---------------------------------------------------------------------


def test_there_is_no_stream_before_it_is_complete() -> None:
    """Nobody opens, reads or salvages a part, and nobody makes another stream of it."""
    stream, target = _halfway()
    with pytest.raises(NotFoundError):
        _reopened(stream, target)
    with pytest.raises(NotFoundError):
        salvage_on(target, open_storage(fresh_url()), clock=stream._log.clock)
    with pytest.raises(CorruptionError, match="holds segments"):
        create_on(target, stream.schema, clock=stream._log.clock)
    with pytest.raises(InvalidInputError, match="was used for another copy"):
        _copy(stream, target, end=30)
    done = _copy(stream, target)
    assert (done.segments, done.reused, done.repeated) == (4, 2, False)
    copy = _reopened(stream, target)
    assert values(copy) == list(range(40))
    assert copy.history().read_all()["operation"].to_pylist() == ["copy"]
    left = {info.path for info in target.list("segments")}
    assert left == {f"segments/{entry.path}" for entry in copy._log.root.entries}


def test_copy_that_was_given_up_is_dropped() -> None:
    """A run of it that goes on finds the location taken, and begins anew when it is run again."""
    stream, target = _halfway()

    with pytest.raises((ConflictError, MissingObjectError)):
        _copy(stream, Meddling(target, "create log/", partial(_drop, target)))
    with pytest.raises(NotFoundError):
        _reopened(stream, target)
    _copy(stream, target)
    copy = _reopened(stream, target)
    copy.verify().check()
    assert (values(copy), copy.version) == (list(range(40)), 1)
    with pytest.raises(NotFoundError):
        segstore.drop(empty := fresh_url(), confirm=open_storage(empty).url)


class _Following(Meddling):
    """A storage where something else happens just after a call, once."""

    def around(self, verb: str, path: str, work: Callable[[], object]) -> object:
        done = work()
        super().around(verb, path, lambda: None)
        return done


@pytest.mark.parametrize("mode", ["events", "segments"])
def test_copy_does_not_name_what_a_drop_has_deleted(mode: str) -> None:
    """It came when all was staged and checked: the version that the copy began with is taken."""
    stream, _ = make_stream(4)
    target, last = _target(stream), "get segments/copy-c/30-"
    if mode == "segments":
        last = f"create segments/copy-c/{stream._log.root.entries[3].segment_id:016x}-"

    def drop() -> None:
        while mode == "segments" and len([*target.list("segments")]) < 4:
            time.sleep(0.001)  # other threads copy the other segments
        _drop(target)

    with pytest.raises(ConflictError, match="made and dropped"):
        _copy(stream, meddling := _Following(target, last, drop), mode=mode)
    assert meddling.met
    with pytest.raises(NotFoundError):
        _reopened(stream, target)
    _copy(stream, target, mode=mode)
    copy = _reopened(stream, target)
    copy.verify().check()
    assert values(copy) == list(range(40))


@pytest.mark.parametrize("place", ["open_staged segments/copy-c/30-", "create segments/copy-c/30-"])
def test_piece_whose_segments_a_drop_deleted_is_staged_again(place: str) -> None:
    """Also if the drop came between the segments of a piece and the object that names them."""
    stream, target = _halfway()

    with pytest.raises((ConflictError, MissingObjectError)):
        _copy(stream, Meddling(target, place, partial(_drop, target)))
    for _ in range(2):
        with suppress(MissingObjectError):
            _copy(stream, target)
    copy = _reopened(stream, target)
    copy.verify().check()
    assert values(copy) == list(range(40))


def test_vacuum_spares_another_copy_for_the_grace() -> None:
    """It lost its location to a stream. What it staged goes after the grace, nothing else does."""
    stream, target = _halfway()
    _copy(stream, target, "other")
    copy = _reopened(stream, target)
    foreign = ["segments/copy-c/notes.txt", "segments/copy-c/0-10.json", "segments/copy-d/x.arrow"]
    for path in foreign:
        target.put(path, b"not ours")
    staged = {info.path for info in target.list("segments/copy-c")} - {*foreign}
    assert len(staged) == 5
    assert copy.maintain(grace=DAY).deleted == ()
    wait(target, DAY / 2)
    late = "segments/copy-c/20-0123456789ab-0.arrow"
    target.create(late, b"its copy goes on")
    wait(target, 3 * DAY / 4)
    assert copy.maintain(grace=DAY).deleted == ()
    wait(target, DAY)
    report = copy.maintain(grace=DAY)
    assert {entry.path for entry in report.deleted} == {*staged, late}
    assert {info.path for info in target.list("segments")} >= {*foreign}
    assert values(copy) == list(range(40))
    with pytest.raises(AlreadyExistsError):
        _copy(stream, target)


def test_leftovers_of_a_finished_copy_go_at_once() -> None:
    """No run of it can commit them any more."""
    stream, target = _halfway()
    left = names.segment_object("copy-c/20-0123456789ab-0.arrow")
    target.create(left, b"of an attempt that was killed")
    _copy(stream, target)
    copy = _reopened(stream, target)
    assert [entry.path for entry in copy.maintain(grace="7d").deleted] == [left]
    copy.verify().check()


def test_damaged_notes_are_damage() -> None:
    """A damaged plan or piece does not begin the copy anew."""
    stream, target = _halfway()
    for info in [*target.list("segments")]:
        if not info.path.endswith(".json"):
            continue
        good = target.get(info.path)
        swapped = good.replace(b"copy-c/", b"copy-d/") if b"copy-d" not in good else good
        for bad in (good[:-3], bytes([*good[:-9], good[-9] ^ 1, *good[-8:]]), swapped):
            target.put(info.path, bad)
            if bad != good:
                with pytest.raises(FormatError):
                    _copy(stream, target)
        target.put(info.path, good)
    foreign = StagedPiece(0, 10, "0" * 12, (_segment("copy-d/0-0123456789ab-0.arrow"),))
    twisted = StagedPiece(0, 20, "0" * 12, (_segment("copy-c/0-0123456789ab-0.arrow"),))
    for piece, error in ((foreign, "outside its copy"), (twisted, "gone")):
        put_piece(target, "c", piece)
        with pytest.raises(FormatError, match=error):
            [*read_pieces(target, "c", "0" * 12, (piece.start, piece.end))]


def _segment(path: str) -> SegmentEntry:
    return SegmentEntry(0, path, 10, 100, 10, 0)


# --- the source goes on -----------------------------------------------------------------------


def test_source_may_change_between_two_runs() -> None:
    """Appended to, widened, compacted over the end of the range: the copy is what it was to be."""
    stream, target = _halfway()
    wider = pa.table({"n": [40], "s": ["a"], "x": [1.5]})
    stream.append(wider, merge_schema=True)
    stream.compact()
    assert len(list(stream._context.status.segments(stream._log.root, 0, 41))) == 1
    assert _copy(stream, target).end == 40
    copy = _reopened(stream, target)
    assert values(copy, offset=True) == [(n, n) for n in range(40)]
    assert copy.schema.names == ["n", "s"]
    copy.verify().check()


def test_widened_source_is_brought_back_to_the_types_it_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A compaction lifted events of the range to types that came later: nothing is lost."""
    stream, _ = make_stream(0)
    schema = pa.schema([("i", pa.int32()), ("f", pa.float32()), ("d", pa.int16())])
    stream = create_on(_target(stream), schema, clock=stream._log.clock)
    for n in range(3):
        stream.append(pa.table({"i": [n, -n], "f": [n / 3, None], "d": [n, None]}, schema))
    before = stream.read().read_all()
    target = _target(stream)
    monkeypatch.setattr(copy_events, "LEAST_PIECE_ROWS", 2)
    with pytest.raises(_StoppedError):
        _copy(stream, Meddling(target, "open_staged segments/copy-c/2-", _stop))
    wide = pa.schema([("i", pa.int64()), ("f", pa.float64()), ("d", pa.float64())])
    more = {"i": [1 << 40], "f": [1e300], "d": [0.5]}
    stream.append(pa.table(more, wide), merge_schema=True)
    stream.compact()
    _copy(stream, target)
    assert _reopened(stream, target).read().read_all().equals(before)


def test_truncated_source_is_an_error_that_names_what_is_lost() -> None:
    """What was copied already does not matter."""
    stream, target = _halfway()
    stream.truncate(15)
    stream.append(numbers(40, 41))
    stream.truncate(25)
    with pytest.raises(TruncatedError, match="under another id") as caught:
        _copy(stream, target)
    assert caught.value.fields["lost"] == "[20, 25)"
    other, target = _halfway()
    other.truncate(15)
    _copy(other, target)
    assert values(_reopened(other, target)) == list(range(40))


def test_source_of_another_generation_is_refused() -> None:
    """What was copied may not be what the stream holds now."""
    stream, target = _halfway()
    promoted = replace(stream._log.root, generation=stream._log.root.generation + 1)
    stream._log.adopt(promoted)
    request = CopyRequest("c", "head", "tail", mode="events")
    with pytest.raises(PositionError, match="another generation"):
        plan_copy_events(stream._context, target, request)


@pytest.mark.usefixtures("no_inline")
def test_copy_replans_after_a_vacuum_of_the_source() -> None:
    """Segments that were compacted away while they were to be read: the same events elsewhere."""
    stream, storage = make_stream(4)
    third = f"get segments/{stream._log.root.entries[2].path}"

    def vacuum() -> None:
        stream.compact()
        for _ in range(2):
            wait(storage, 2 * DAY)
            stream.append(numbers(stream.refresh().tail, stream.tail + 1))
        stream.maintain(keep=HOUR)
        assert stream.maintain(grace=DAY).deleted

    meddling = Meddling(storage, third, vacuum)
    source = open_on(meddling, clock=stream._log.clock)
    target = _target(stream)
    done = _copy(source, target)
    assert meddling.met
    assert done.end == 40
    assert values(_reopened(stream, target)) == list(range(40))


@pytest.mark.usefixtures("no_inline")
def test_lost_segment_of_the_source_is_an_error() -> None:
    """No version lists another one, so the copy fails; copied events are kept."""
    stream, storage = make_stream(4)
    storage.delete(f"segments/{stream._log.root.entries[2].path}")
    target = _target(stream)
    with pytest.raises(MissingObjectError):
        _copy(stream, target)
    assert _pieces(target) == [(0, 10), (10, 20)]


# --- interrupted, and twice at once -----------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("when", WHENS)
def test_interrupted_copies_resume(kind: str, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failure at any call there is no stream or the whole one, and a rerun goes on."""
    for name, value in TIGHT.items():
        monkeypatch.setattr(name, value)
    stream, _ = make_stream(0)
    for n in range(4):
        stream.append(numbers(10 * n, 10 * n + 10), layout=STAGED)
    at, most = 0, 0
    while True:
        at += 1
        target = _target(stream)
        faulty = FaultStorage(target, Fault(at, kind=kind, when=when))
        with suppress(StorageError, CommitUnknownError, Crash):
            _copy(stream, faulty, end=35)
        came, there = len(_pieces(target)), False
        with suppress(NotFoundError):
            opened = _reopened(stream, target)
            opened.verify().check()
            assert values(opened) == list(range(35))
            came, there = 4, True
        stream.append(numbers(0, 1))  # the source goes on meanwhile
        before, written = target.stats.requests, target.stats.bytes_written
        done = _copy(stream, target, end=35)
        copy = _reopened(stream, target)
        assert values(copy, offset=True) == [(n, n) for n in range(35)]
        assert done.repeated == there
        # Each piece that stands already is not read and written again.
        staged = target.stats.requests.get("stage", 0) - before.get("stage", 0)
        assert (staged, done.reused) == ((0, 0) if there else (4 - came, came))
        assert not there or target.stats.bytes_written == written
        listed = [placed.entry for placed in copy._context.status.segments(copy._log.root, 0, 35)]
        assert [entry.rows for entry in listed] == [10, 10, 10, 5]
        copy.verify().check()
        copy.maintain(grace="7d")
        assert objects(target, "segments") == {f"segments/{entry.path}" for entry in listed}
        most = max(most, came)
        if not faulty.struck:
            break
    assert at > 20
    assert most == 4


@pytest.mark.parametrize(
    "place", ["create segments/copy-c/plan", "open_staged segments/copy-c/10-", "create log/"]
)
def test_other_run_finishes_first(place: str) -> None:
    """The slower one says that the copy was made."""
    stream, _ = make_stream(2)
    target = _target(stream)

    def overtake() -> None:
        stream.append(numbers(20, 30))
        _copy(open_on(stream._log.storage, clock=stream._log.clock), target)

    done = _copy(stream, Meddling(target, place, overtake))
    end = 30 if "plan" in place else 20
    assert (done.end, done.repeated) == (end, True)
    assert values(_reopened(stream, target)) == list(range(end))


def test_many_small_segments_become_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece is of about so many bytes of the source, whatever its segments are."""
    stream, _ = make_stream(12)
    size = sum(entry.bytes for entry in stream._log.root.entries)
    monkeypatch.setattr(copy_events, "PIECE_BYTES", size // 3 + 100)
    target = _target(stream)
    done = _copy(stream, target)
    assert (done.segments, _reopened(stream, target).version) == (3, 0)
    assert values(_reopened(stream, target)) == list(range(120))


@pytest.mark.slow
def test_two_runners_at_once_double_nothing() -> None:
    """Each piece counts once, whoever staged it, and one of the two commits."""
    stream, _ = make_stream(5)
    for theirs in range(1, 6):
        stops = f"open_staged segments/copy-c/{10 * theirs}-" if theirs < 5 else "create log/"
        for place in ("open_staged", "create"):
            for at in range(5):
                target = _target(stream)
                other = open_on(stream._log.storage, clock=stream._log.clock)

                def overtake(target=target, other=other, stops=stops) -> None:
                    with suppress(_StoppedError):
                        _copy(other, Meddling(target, stops, _stop))

                meddling = Meddling(target, f"{place} segments/copy-c/{10 * at}-", overtake)
                done = _copy(stream, meddling)
                assert meddling.met
                copy = _reopened(stream, target)
                assert values(copy, offset=True) == [(n, n) for n in range(50)]
                assert (done.end, done.segments, copy.version) == (50, 5, 0)
                copy.maintain(grace="7d")
                copy.verify().check()
                assert objects(target, "segments/") == {
                    f"segments/{entry.path}" for entry in copy._log.root.entries
                }
