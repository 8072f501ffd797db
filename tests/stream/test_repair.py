"""Repair and salvage: what comes back, what is said to be lost, and that nothing is deleted."""

import datetime as dt
import uuid

import pytest
from stream_kit import TIGHT, make_stream, numbers, objects, values, wait
from virtual_time import TimedStorage

from segstore_ds.errors import (
    AlreadyExistsError,
    CorruptionError,
    NotFoundError,
    PositionError,
)
from segstore_ds.format.names import build_hint
from segstore_ds.log.lookup import Outcome, OutcomeState, version_at
from segstore_ds.log.seen import hint_of
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.rescue import repair as repair_on
from segstore_ds.stream.rescue import salvage as salvage_on
from segstore_ds.write.layout import Layout


def damage(storage, path, how):
    """Lose an object, or the end of it."""
    data = storage.get(path)
    storage.delete(path)
    if how == "cut":
        storage.put(path, data[:-7])


def fresh(beside):
    """Return an empty storage on the clock of another one."""
    return TimedStorage(open_storage(f"memory://{uuid.uuid4().hex}"), beside.time)


def log_name(version):
    return f"log/{version:020d}"


def fix(stream, **options):
    return repair_on(stream._log.storage, clock=stream._log.clock, **options)


def test_sound_stream_needs_nothing():
    """And no commit is made."""
    stream, storage = make_stream(3)
    fix(stream)
    before = {path: storage.get(path) for path in objects(storage)}
    report = fix(stream)
    assert (report.ok, report.repaired, [*report.lost], report.version) == (True, [], [], 3)
    assert {path: storage.get(path) for path in objects(storage)} == before
    with pytest.raises(NotFoundError):
        repair_on(open_storage(f"memory://{uuid.uuid4().hex}"))


@pytest.mark.parametrize("hint", [None, b"rubbish", f"{1:020d}".encode()])
def test_repair_rewrites_the_hint(hint):
    """It is only a hint, but a right one opens the stream in three requests."""
    stream, storage = make_stream(3)
    storage.delete("log/_latest")
    if hint:
        storage.put("log/_latest", hint)
    assert fix(stream).repaired == ["the hint"]
    assert storage.get("log/_latest") == build_hint(hint_of(stream._log.root))


def test_hint_beyond_the_log_blocks_until_it_is_deleted():
    """Both could be: the error says how many, which, and what to do if the hint is wrong."""
    stream, storage = make_stream(3)
    storage.put("log/_latest", f"{30_003:020d}".encode())
    with pytest.raises(CorruptionError, match=r"lost=30000, first=4, last=30003.*_latest") as told:
        fix(stream)
    assert len(str(told.value)) < 500
    storage.delete("log/_latest")
    assert fix(stream).repaired == ["the hint"]
    assert open_on(storage, clock=stream._log.clock)._log.root.generation == 0


def test_file_far_behind_the_log_is_named_and_left_alone():
    """Nobody numbers the commits up to it, and nothing is lost for it."""
    stream, storage = make_stream(3)
    stray = log_name(10**17)
    storage.put(stray, b"rubbish")
    for allow_loss in (False, True):
        with pytest.raises(CorruptionError, match=f"do not belong to the stream.*{stray}"):
            fix(stream, allow_loss=allow_loss)
    saved = salvage_on(storage, fresh(storage), clock=stream._log.clock)
    assert ([*saved.lost_versions], saved.rows) == ([], 30)
    storage.delete(stray)
    assert fix(stream).ok


def test_file_of_another_version_is_not_the_newest_commit():
    """A copy of a commit under a wrong name decodes, and is none."""
    stream, storage = make_stream(3)
    storage.put(log_name(4), storage.get(log_name(2)))
    report = fix(stream, allow_loss=True)
    assert ([*report.lost], report.version, report.generation) == ([4], 5, 1)
    assert values(open_on(storage, clock=stream._log.clock)) == list(range(30))


@pytest.mark.usefixtures("each_format")
@pytest.mark.parametrize("how", ["lost", "cut"])
def test_unreadable_newest_commit_is_skipped_only_on_request(how):
    """The stream continues from the commit before, as another generation."""
    stream, storage = make_stream(3)
    position = stream.position(5)
    fix(stream)
    damage(storage, log_name(3), how)
    before = objects(storage)
    with pytest.raises(CorruptionError, match="allow_loss"):
        fix(stream)
    report = fix(stream, allow_loss=True)
    assert ([*report.lost], report.generation) == ([3], 1)
    assert before <= objects(storage)
    seen = open_on(storage, clock=stream._log.clock)
    assert values(seen) == list(range(20))
    assert seen.version == report.version == (3 if how == "lost" else 4)
    with pytest.raises(PositionError, match="another generation"):
        seen.read(position)
    wait(storage, 3600)
    seen = open_on(storage, clock=stream._log.clock)
    assert seen.append(numbers(20, 22)).start == 20
    assert seen._log.root.entries[-1].segment_id > 1 << 16
    assert values(open_on(storage, clock=stream._log.clock)) == list(range(22))
    assert not fix(stream).lost


def abandoned():
    """Return a stream that left its versions 6 and 7 behind, the times of its commits, and lost."""
    stream, storage = make_stream(7)
    roots = [stream._log.read_version(version) for version in range(8)]
    times = [root.time_us for root in roots]
    lost = [root.transaction for root in roots[6:]]
    for version in (6, 7):
        damage(storage, log_name(version), "cut")
    wait(storage, 3600)
    assert fix(stream, allow_loss=True).version == 8
    times[6:] = [storage.time.now_us]
    for start in (50, 60, 70):
        wait(storage, 3600)
        open_on(storage, clock=stream._log.clock).append(numbers(start, start + 10))
        times.append(storage.time.now_us)
    return open_on(storage, clock=stream._log.clock), storage, times, lost


def test_time_is_answered_around_what_was_left_behind():
    """Whichever versions a search would meet: the abandoned ones are never the answer."""
    stream, _, times, _ = abandoned()
    for time_us, version in zip(times, (0, 1, 2, 3, 4, 5, 8, 9, 10, 11), strict=True):
        for later_us in (0, 1_800_000_000):
            assert version_at(stream._log, time_us + later_us).version == version
            asked = dt.datetime.fromtimestamp((time_us + later_us) / 1e6, dt.UTC).isoformat()
            assert stream.position(asked).offset == stream._log.read_version(version).tail
            found = stream.read(as_of=asked, columns=["n"]).read_all()["n"]
            assert found.to_pylist() == list(range(stream._log.read_version(version).tail))
    assert version_at(stream._log, times[0] - 1) is None


@pytest.mark.parametrize("hours", [1, 4, 6, 9])
def test_purge_and_vacuum_go_on_around_what_was_left_behind(hours):
    """And purge keeps the version that the repair went on from while it keeps the one before it."""
    stream, storage, times, _ = abandoned()
    kept = stream.maintain(keep=hours * 3600 - 60).log_start
    asked = storage.time.now_us - (hours * 3600 - 60) * 10**6
    newest = max(place for place, time_us in enumerate(times) if time_us <= asked)
    assert kept == (0, 1, 2, 3, 4, 5, 8, 9, 10, 11)[max(newest - 1, 0)]
    stream._log.read_version(kept)
    wait(storage, hours * 3600)
    stream.maintain(grace=hours * 3600 + 60, short_grace=True)
    stream.verify().check()


def test_outcome_passes_over_what_was_left_behind():
    """What was committed there is in the log no more; the rest is found."""
    stream, _, _, lost = abandoned()
    for version in (0, 3, 5, 8, 11):
        transaction = stream._log.read_version(version).transaction
        assert stream.outcome(transaction) == Outcome(OutcomeState.COMMITTED, version)
        assert stream.outcome(transaction, version) == Outcome(OutcomeState.COMMITTED, version)
    assert stream.outcome("nobody's").state is OutcomeState.UNKNOWN
    for version, transaction in enumerate(lost, 6):
        assert stream.outcome(transaction).state is OutcomeState.UNKNOWN
        assert stream.outcome(transaction, version).state is OutcomeState.NOT_COMMITTED


def test_retention_waits_for_readers_of_an_older_generation(caplog):
    """The reader's offset named other events, so it blocks retention until it starts again."""
    stream, storage = make_stream(10)
    reader = stream.readers.register("etl", start=95)
    for version in (10, 11):
        damage(storage, log_name(version), "cut")
    assert fix(stream, allow_loss=True).generation == 1
    seen = open_on(storage, clock=stream._log.clock)
    assert seen.append(numbers(90, 110)).start == 90
    assert seen.retain().head == seen.retain(max_bytes=0).head == 0
    assert "reader 'etl' at 95 (generation 0) is behind the head 0 (generation 1)" in caplog.text
    wait(storage, 4 * 86_400)  # it may have lapsed, so its next word is a commit too
    for word in (lambda: reader.publish(96), lambda: seen.readers.register("etl")):
        with pytest.raises(PositionError, match="another stream or generation"):
            word()
    again = seen.readers.register("etl", start=90)
    with pytest.raises(PositionError, match="another stream or generation"):
        reader.publish(100)
    assert seen.retain().head == seen.retain(max_bytes=0).head == again.offset == 90
    again.publish(110)
    assert seen.retain().head == 110


@pytest.mark.parametrize("gap", [6, 7])
def test_more_than_one_version_that_was_left_behind_verifies(gap):
    """Whether their files are cut or gone."""
    stream, storage, *_ = abandoned()
    for lost in ([log_name(6), log_name(7)], [log_name(gap)]):
        report = stream.verify().check()
        assert sorted(report.abandoned) == [log_name(6), log_name(7)]
        storage.delete(lost[-1])
    storage.delete(log_name(4))
    assert [problem.what for problem in stream.verify().problems] == [
        "versions are missing: 4 to 4"
    ]


@pytest.mark.usefixtures("each_format")
def test_salvage_skips_damage_only_on_request():
    """One damaged frame; without leave there is no new stream."""
    stream, storage = make_stream(0)
    stream.append(numbers(0, 12), layout=Layout(frame_rows=4, inline_bytes=0))
    stream.append(numbers(12, 20))
    stream.truncate(1)
    path = f"segments/{stream._log.root.entries[0].path}"
    frames = stream.metadata("frames").read_all().to_pylist()
    data = bytearray(storage.get(path))
    data[frames[1]["place"] + 100] ^= 1
    storage.put(path, bytes(data))
    new = fresh(storage)
    with pytest.raises(CorruptionError, match=r"lost='\[4, 8\)'"):
        salvage_on(storage, new, clock=stream._log.clock)
    assert objects(new) == objects(new, "log/")  # of a stream that was dropped again
    before = objects(storage)
    report = salvage_on(storage, new, skip_damaged=True, clock=stream._log.clock)
    assert objects(storage) == before
    assert values(open_on(new)) == [1, 2, 3, *range(8, 20)]
    assert [(run.start, run.end, run.now) for run in report.moved] == [(1, 4, 0), (8, 20, 3)]
    assert (report.rows, [(lost.start, lost.end) for lost in report.lost]) == (15, [(4, 8)])
    open_on(new).verify().check()
    with pytest.raises(AlreadyExistsError):
        salvage_on(storage, new, clock=stream._log.clock)


@pytest.mark.usefixtures("each_format", "no_inline")
def test_salvage_reads_the_newest_version_that_can_be_read(monkeypatch):
    """Lost segments and lost versions are reported beside one another."""
    for name, value in TIGHT.items():
        monkeypatch.setattr(name, value)
    stream, storage = make_stream(6)
    damage(storage, log_name(stream.version), "cut")
    entry = next(iter(stream._context.status.segments(stream._log.root, 20, 30))).entry
    damage(storage, f"segments/{entry.path}", "lost")
    new = fresh(storage)
    report = salvage_on(storage, new, skip_damaged=True, clock=stream._log.clock)
    assert [*report.lost_versions] == [stream.version]
    assert [(lost.start, lost.end) for lost in report.lost] == [(20, 30)]
    found = values(open_on(new))
    assert found == [n for n in range(report.moved[-1].end) if not 20 <= n < 30]


def test_repaired_stream_verifies_but_for_what_was_left_behind():
    """The file that can't be read stays, and is named as known."""
    stream, storage = make_stream(3)
    damage(storage, log_name(3), "cut")
    fix(stream, allow_loss=True)
    report = open_on(storage, clock=stream._log.clock).verify().check()
    assert report.abandoned == [log_name(3)]


def test_salvage_of_a_sound_stream_is_a_copy():
    """Columns that were added come as null, as in a read."""
    stream, storage = make_stream(2)
    stream.append(numbers(20, 21).append_column("x", [[1.5]]), merge_schema=True)
    new = fresh(storage)
    report = salvage_on(storage, new, clock=stream._log.clock)
    assert (report.lost, report.rows) == ([], 21)
    assert open_on(new).read().read_all().equals(stream.read().read_all())
    with pytest.raises(NotFoundError):
        salvage_on(open_storage(f"memory://{uuid.uuid4().hex}"), new)
