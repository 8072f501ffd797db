"""Copies by events: whole or unreadable, and no event twice, whatever happens on the way."""

import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pytest
from stream_kit import (
    DAY,
    HOUR,
    KINDS,
    STAGED,
    TIGHT,
    WHENS,
    Meddling,
    make_stream,
    numbers,
    values,
    wait,
)

import segstore_ds as segstore
from benchmarks.faults import Crash, Fault, FaultStorage
from benchmarks.virtual_time import TimedStorage
from segstore_ds.copy import events as copy_events
from segstore_ds.copy.destination import find_copy, find_done
from segstore_ds.copy.events import run_copy_events
from segstore_ds.copy.request import Copied, CopyRequest
from segstore_ds.errors import (
    AlreadyExistsError,
    CommitUnknownError,
    CorruptionError,
    IncompleteStreamError,
    InvalidInputError,
    MissingObjectError,
    NotFoundError,
    PositionError,
    SealedError,
    StorageError,
    TruncatedError,
)
from segstore_ds.format.copies import parse_copy
from segstore_ds.format.retention import RetentionPolicy
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.read.cuts import check_range, parse_cut, resolve_cut
from segstore_ds.retention.drop import run_drop
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream import Stream, create_on, open_on
from segstore_ds.stream.rescue import salvage_on


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each segment of the source a step of its own."""
    monkeypatch.setattr(copy_events, "STEP_BYTES", 1)


def _place() -> str:
    return f"memory://{uuid.uuid4().hex}"


def _target(stream: Stream) -> TimedStorage:
    return TimedStorage(open_storage(_place()), stream.storage.time)


def _copy(
    stream: Stream,
    target: Storage,
    copy_id: str = "c",
    start: object = "head",
    end: object = "tail",
    *,
    seal: bool = False,
) -> Copied:
    def bind(root) -> tuple[int, int]:
        first, last = (resolve_cut(stream._context, root, parse_cut(cut)) for cut in (start, end))
        return check_range(root, first, last, fail_on_data_loss=True)

    return run_copy_events(
        stream._context,
        target,
        CopyRequest(copy_id, str(start), str(end), seal, "events"),
        bind,
    )


def _reopened(stream: Stream, target: Storage, **options: bool) -> Stream:
    return open_on(target, clock=stream._log.clock, **options)


class _StoppedError(Exception):
    """What a test ends a copy with."""


def _stop() -> None:
    raise _StoppedError


def _halfway(commits: int = 4, steps: int = 2) -> tuple[Stream, TimedStorage]:
    """Return a stream of so many segments, and a destination that has the first ones."""
    stream, _ = make_stream(commits)
    target = _target(stream)
    with pytest.raises(_StoppedError):
        _copy(stream, Meddling(target, f"create log/{steps + 1:020}", _stop))
    state = _reopened(stream, target, incomplete=True).root.copies["c"]
    assert (state["progress"], state["done"]) == (10 * steps, False)
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
    assert (done.start, done.end, done.segments, done.repeated) == (5, 32, 5, False)
    assert done.bytes == sum(entry.bytes for entry in copy.root.entries)
    assert (copy.head, copy.tail, copy.sealed) == (0, 27, False)
    assert copy.read().read_all().equals(stream.read().read_all())
    assert copy.spark_schema == stream.spark_schema
    assert (len(copy.root.epochs), copy.root.writers) == (1, {})
    copy.append(numbers(90, 91), merge_schema=True)
    assert values(copy)[-1] == 90
    copy.verify().check()


def test_one_call_of_the_front_door_is_enough() -> None:
    """With the machine's own clock; a range is bound once."""
    stream = segstore.create(_place(), numbers(0, 1).schema)
    for n in range(4):
        stream.append(numbers(10 * n, 10 * n + 10))
    url = _place()
    done = stream.copy_to(url, mode="events", copy_id="c", start=15, end=33, seal=True)
    copy = segstore.open(url)
    assert (done.start, done.end, done.segments) == (15, 33, 3)
    assert values(copy, offset=True) == [(n - 15, n) for n in range(15, 33)]
    assert copy.sealed
    assert stream.copy_to(url, mode="events", copy_id="c", start=15, end=33, seal=True).repeated
    with pytest.raises(InvalidInputError, match="unknown copy mode"):
        stream.copy_to(_place(), mode="bytes", copy_id="c")


def test_repeated_copy_reports_that_it_did_nothing() -> None:
    """Though the source has grown; other arguments under the id are refused."""
    stream, _ = make_stream(3)
    target = _target(stream)
    first = _copy(stream, target)
    stream.append(numbers(30, 40))
    again = _copy(stream, target)
    assert (again.end, again.segments, again.repeated) == (first.end, first.segments, True)
    assert values(_reopened(stream, target)) == list(range(30))
    for changed in ({"start": 10}, {"end": 20}, {"seal": True}):
        with pytest.raises(InvalidInputError, match="was used for another copy"):
            _copy(stream, target, **changed)
    with pytest.raises(AlreadyExistsError):
        _copy(stream, target, "d")
    other, _ = make_stream(1, seed=2)
    with pytest.raises(InvalidInputError, match="was used for another copy"):
        _copy(other, target)
    _reopened(stream, target).append(numbers(50, 51))
    assert _copy(stream, target).repeated


def test_modes_do_not_continue_each_others_copies() -> None:
    """The id of a copy by segments is refused for a copy by events, and the reverse."""
    stream = segstore.create(_place(), numbers(0, 1).schema)
    stream.append(numbers(0, 10))
    one, other = _place(), _place()
    stream.copy_to(one, copy_id="c")
    stream.copy_to(other, copy_id="c", mode="events")
    with pytest.raises(InvalidInputError, match="was used for another copy"):
        stream.copy_to(one, copy_id="c", mode="events")
    with pytest.raises(InvalidInputError, match="was used for another copy"):
        stream.copy_to(other, copy_id="c")


def test_empty_sealed_and_self_copies() -> None:
    """Each has a clear end."""
    stream, _ = make_stream(0)
    empty = _target(stream)
    assert _copy(stream, empty, seal=True).segments == 0
    assert values(_reopened(stream, empty)) == []
    assert _reopened(stream, empty).sealed
    assert _copy(stream, empty, seal=True).repeated
    stream.append(numbers(0, 10))
    stream.seal()
    plain, sealed = _target(stream), _target(stream)
    _copy(stream, plain)
    _copy(stream, sealed, seal=True)
    _reopened(stream, plain).append(numbers(10, 20))
    with pytest.raises(SealedError):
        _reopened(stream, sealed).append(numbers(10, 20))
    with pytest.raises(InvalidInputError, match="onto itself"):
        _copy(stream, stream.storage)
    stream.truncate(5)
    with pytest.raises(TruncatedError):
        _copy(stream, _target(stream), start=0)


# --- while it is not done ---------------------------------------------------------------------


def test_nothing_is_read_before_it_is_complete() -> None:
    """Opening the destination names the copy to run again; no reader sees a part."""
    stream, target = _halfway()
    with pytest.raises(IncompleteStreamError, match="copy again under its id") as caught:
        _reopened(stream, target)
    assert caught.value.fields["copied"] == 20
    with pytest.raises(IncompleteStreamError):
        Stream.at_root(target, _reopened(stream, target, incomplete=True).root).read()
    request = CopyRequest("c", "head", "tail")
    with pytest.raises(IncompleteStreamError):
        find_done(StreamLog(target, clock=stream._log.clock), request, stream.root)
    with pytest.raises(IncompleteStreamError):
        salvage_on(target, open_storage(_place()), clock=stream._log.clock)
    with pytest.raises(AlreadyExistsError):
        create_on(target, stream.schema, clock=stream._log.clock)


USES: dict[str, Callable[[Stream], object]] = {
    "read": lambda stream: stream.read(),
    "read of a version": lambda stream: stream.read(version_as_of=1),
    "position": lambda stream: stream.position("head"),
    "segments": lambda stream: stream.segments(),
    "frames": lambda stream: stream.metadata("frames"),
    "parquet files": lambda stream: stream.parquet_files(),
    "append": lambda stream: stream.append(numbers(0, 1)),
    "append of nothing": lambda stream: stream.append(numbers(0, 1), writer_id="w", batch_id=1),
    "overwrite": lambda stream: stream.overwrite(numbers(0, 1)),
    "compact": lambda stream: stream.compact(),
    "truncate": lambda stream: stream.truncate(5),
    "seal": lambda stream: stream.seal(),
    "restore": lambda stream: stream.restore(1),
    "tag": lambda stream: stream.tag("t", 5),
    "retain": lambda stream: stream.retain(max_bytes=1),
    "set retention": lambda stream: stream.set_retention(RetentionPolicy(max_bytes=1)),
    "reader": lambda stream: stream.reader("r"),
    "copy": lambda stream: stream.copy_to(_place(), copy_id="x"),
    "copy of events": lambda stream: stream.copy_to(_place(), copy_id="x", mode="events"),
    "clone": lambda stream: stream.copy_to(_place(), copy_id="x", mode="clone"),
}


@pytest.mark.parametrize("use", USES)
def test_incomplete_stream_refuses_reads_and_writes(use: str) -> None:
    """Not even one that was opened on purpose."""
    stream, target = _halfway()
    opened = _reopened(stream, target, incomplete=True)
    version = opened.version
    with pytest.raises(IncompleteStreamError):
        USES[use](opened)
    assert opened.refresh().version == version
    _copy(stream, target)
    assert values(_reopened(stream, target)) == list(range(40))


def test_upkeep_of_an_incomplete_stream_works() -> None:
    """Info, verify and vacuum work, and the copy continues; or the stream is dropped."""
    stream, target = _halfway()
    left = "segments/00000000000000000001-aaaaaaaaaaaa/0-0-0.arrow"
    target.put(left, b"of a step that was killed")
    opened = _reopened(stream, target, incomplete=True)
    assert (opened.info()["events"], opened.history().read_all().num_rows) == (20, 3)
    opened.verify().check()
    for _ in range(2):
        wait(target, 2 * DAY)
        opened.purge(older_than_s=HOUR)
        opened.vacuum(dry_run=False, grace_s=DAY)
    assert left not in {info.path for info in target.list("")}
    _copy(stream, target)
    assert values(_reopened(stream, target)) == list(range(40))

    _, given_up = _halfway()
    run_drop(given_up, confirm=given_up.url, clock=given_up.time.clock, client="")
    with pytest.raises(NotFoundError):
        _reopened(stream, given_up)
    assert all(info.path.startswith("log/") for info in given_up.list(""))


def test_versions_before_the_end_stay_unreadable() -> None:
    """Reading as of them or restoring them would show a part; cuts and history go on."""
    stream, target = _halfway()
    _copy(stream, target)
    copy = _reopened(stream, target)
    with pytest.raises(IncompleteStreamError):
        copy.read(version_as_of=2)
    with pytest.raises(IncompleteStreamError):
        copy.restore(2)
    assert values(copy, "version:2") == list(range(20, 40))
    assert copy.history().read_all()["operation"].to_pylist() == ["copy"] * 5


def test_damaged_records_are_damage() -> None:
    """A damaged record is not an empty stream, and does not restart the copy."""
    stream, target = _halfway()
    opened = _reopened(stream, target, incomplete=True)
    request = CopyRequest("c", "head", "tail", mode="events")
    good = opened.root.copies["c"]

    parse_copy(request.copy_id, good)
    for bad in ({"progress": 41}, {"done": True}, {"progress": 40}, {"end": "x"}, {"mode": "m"}):
        with pytest.raises(CorruptionError):
            parse_copy(request.copy_id, {**good, **bad})
    with pytest.raises(CorruptionError):
        parse_copy(request.copy_id, None)


# --- the source goes on -----------------------------------------------------------------------


def test_source_may_change_between_two_runs() -> None:
    """Appended to, widened, compacted over the end of the range: the copy is what it was to be."""
    stream, target = _halfway()
    wider = pa.table({"n": [40], "s": ["a"], "x": [1.5]})
    stream.append(wider, merge_schema=True)
    stream.compact()
    assert len(list(stream._status.segments(stream.root, 0, 41))) == 1
    assert _copy(stream, target).end == 40
    copy = _reopened(stream, target)
    assert values(copy, offset=True) == [(n, n) for n in range(40)]
    assert copy.schema.names == ["n", "s"]
    copy.verify().check()


def test_widened_source_is_brought_back_to_the_types_it_had() -> None:
    """A compaction lifted events of the range to types that came later: nothing is lost."""
    stream, _ = make_stream(0)
    schema = pa.schema([("i", pa.int32()), ("f", pa.float32())])
    stream = create_on(_target(stream), schema, clock=stream._log.clock)
    for n in range(3):
        stream.append(pa.table({"i": [n, -n], "f": [n / 3, None]}, schema))
    before = stream.read().read_all()
    target = _target(stream)
    with pytest.raises(_StoppedError):
        _copy(stream, Meddling(target, f"create log/{2:020}", _stop))
    wide = pa.schema([("i", pa.int64()), ("f", pa.float64())])
    stream.append(pa.table({"i": [1 << 40], "f": [1e300]}, wide), merge_schema=True)
    stream.compact()
    _copy(stream, target)
    assert _reopened(stream, target).read().read_all().equals(before)


def test_truncated_source_is_an_error_that_names_what_is_lost() -> None:
    """What was copied already does not matter."""
    stream, target = _halfway()
    stream.truncate(15)
    stream.append(numbers(40, 41))
    stream.truncate(25)
    with pytest.raises(TruncatedError, match="drop the destination") as caught:
        _copy(stream, target)
    assert caught.value.fields["lost"] == "[20, 25)"
    other, target = _halfway()
    other.truncate(15)
    _copy(other, target)
    assert values(_reopened(other, target)) == list(range(40))


def test_source_of_another_generation_is_refused() -> None:
    """What was copied may not be what the stream holds now."""
    stream, target = _halfway()
    log = StreamLog(target, clock=stream._log.clock, incomplete=True)
    request = CopyRequest("c", "head", "tail", mode="events")
    promoted = replace(stream.root, generation=stream.root.generation + 1)
    with pytest.raises(PositionError, match="another generation"):
        find_copy(log, request, promoted)


@pytest.mark.usefixtures("no_inline")
def test_copy_replans_after_a_vacuum_of_the_source() -> None:
    """Segments that were compacted away while they were to be read: the same events elsewhere."""
    stream, storage = make_stream(4)
    third = f"get segments/{stream.root.entries[2].path}"

    def vacuum() -> None:
        stream.compact()
        for _ in range(2):
            wait(storage, 2 * DAY)
            stream.append(numbers(stream.refresh().tail, stream.tail + 1))
        stream.purge(older_than_s=HOUR)
        assert stream.vacuum(dry_run=False, grace_s=DAY).deleted

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
    storage.delete(f"segments/{stream.root.entries[2].path}")
    target = _target(stream)
    with pytest.raises(MissingObjectError):
        _copy(stream, target)
    assert _reopened(stream, target, incomplete=True).root.copies["c"]["progress"] == 20


# --- interrupted, and twice at once -----------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("when", WHENS)
def test_interrupted_copies_resume(kind: str, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failure at any call the copy is unreadable or complete, and a rerun continues."""
    for name, value in TIGHT.items():
        monkeypatch.setattr(name, value)
    stream, _ = make_stream(0)
    for n in range(5):
        stream.append(numbers(10 * n, 10 * n + 10), layout=STAGED)
    at, most = 0, 0
    while True:
        at += 1
        target = _target(stream)
        faulty = FaultStorage(target, Fault(at, kind=kind, when=when))
        with suppress(StorageError, CommitUnknownError, Crash):
            _copy(stream, faulty, end=45)
        came = 0
        with suppress(NotFoundError):
            opened = _reopened(stream, target, incomplete=True)
            opened.verify().check()
            came = opened.root.copies["c"]["progress"]
            assert opened.tail == came
        with suppress(NotFoundError, IncompleteStreamError):
            assert values(_reopened(stream, target)) == list(range(45))
        stream.append(numbers(0, 1))  # the source goes on meanwhile
        written = target.stats.bytes_written
        done = _copy(stream, target, end=45)
        copy = _reopened(stream, target)
        assert values(copy, offset=True) == [(n, n) for n in range(45)]
        assert done.repeated == (came == 45)
        # Each step that stands already is not read and written again.
        steps = [row for row in copy.history().read_all().to_pylist() if row["rows"]]
        assert [row["rows"] for row in steps] == [10, 10, 10, 10, 5]
        assert came < 45 or target.stats.bytes_written == written
        copy.verify().check()
        most = max(most, came)
        if not faulty.struck:
            break
    assert at > 30
    assert most == 45


@pytest.mark.slow
def test_two_runners_at_once_double_nothing() -> None:
    """The faster runner commits a step; the other one continues after it."""
    stream, _ = make_stream(5)
    steps = 5
    for theirs in range(1, steps + 1):
        for place in ("open_staged segments/", "create log/"):
            for at in range(1, steps + 1):
                target = _target(stream)
                other = open_on(stream.storage, clock=stream._log.clock)

                def overtake(target=target, other=other, theirs=theirs) -> None:
                    stop = Meddling(target, f"create log/{theirs + 1:020}", _stop)
                    with suppress(_StoppedError):
                        _copy(other, stop)

                exact = f"{at:020}" if place == "create log/" else f"{at - 1:020}-"
                meddling = Meddling(target, place + exact, overtake)
                done = _copy(stream, meddling)
                copy = _reopened(stream, target)
                assert values(copy, offset=True) == [(n, n) for n in range(50)]
                assert (done.end, done.segments) == (50, 5)
                copy.verify().check()
                listed = {f"segments/{entry.path}" for entry in copy.root.entries}
                # Only what the stopped runner was about to commit is left over.
                assert len({info.path for info in target.list("segments/")} - listed) <= 1


def test_two_runners_begin_at_once() -> None:
    """One makes the destination and binds the range, the other takes what it finds."""
    stream, _ = make_stream(2)
    target = _target(stream)

    def overtake() -> None:
        stream.append(numbers(20, 30))
        _copy(open_on(stream.storage, clock=stream._log.clock), target)

    done = _copy(stream, Meddling(target, "create log/", overtake))
    assert (done.end, done.repeated) == (30, True)
    assert values(_reopened(stream, target)) == list(range(30))


def test_large_steps_are_one_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few commits for many small segments, one for a stream below the size of a step."""
    stream, _ = make_stream(12)
    monkeypatch.setattr(copy_events, "STEP_BYTES", 4 * stream.root.entries[0].bytes)
    target = _target(stream)
    done = _copy(stream, target)
    assert (done.segments, _reopened(stream, target).version) == (3, 3)
    assert values(_reopened(stream, target)) == list(range(120))
