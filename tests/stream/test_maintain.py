"""Maintain: everything that upkeep does, at once, with a reason for each object."""

from collections import Counter
from datetime import timedelta

import pytest
from stream_kit import DAY, HOUR, STAGED, make_stream, numbers, objects, staged_job, values, wait

from segstore_ds.errors import InvalidInputError, SnapshotExpiredError, StagedExpiredError
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import open as open_on


def neglected():
    """Return a stream without upkeep, with old versions, dropped segments and a dead job."""
    stream, storage = make_stream(3)
    staged_job(open_on(storage, clock=stream._log.clock), 90, 95)
    stream.truncate(20)
    for n in range(6):
        wait(storage, 3 * DAY)
        stream.append(numbers(30 + n, 31 + n), layout=STAGED)
    return stream, storage


@pytest.mark.usefixtures("no_inline")
def test_maintain_does_all_of_it_and_reports_totals() -> None:
    stream, storage = neglected()
    before = objects(storage, "segments")
    assert stream.metrics().last_upkeep is None
    done = stream.maintain()
    assert (stream.metrics().measured - stream.metrics().last_upkeep).total_seconds() < 60
    gone = len(before - objects(storage, "segments"))
    assert len(done.deleted) == gone == 3
    assert {item.why for item in done.deleted} == {
        "dropped by truncate or retention",
        "never committed",
    }
    assert done.versions == stream.refresh()._log.root.log_start > 0
    assert done.bytes > 0
    assert "deleted: 2 objects" in str(done)
    assert stream.verify().check().leftovers == []


@pytest.mark.usefixtures("no_inline")
def test_maintain_says_what_stays_and_why() -> None:
    stream, storage = make_stream(3)
    stream.truncate(20)
    wait(storage, HOUR)
    done = stream.maintain()
    assert (done.versions, done.deleted) == (0, ())
    dropped = "dropped by truncate or retention"
    assert [(item.why, item.waits_for) for item in done.kept] == 2 * [
        (dropped, "a version that is kept still needs it")
    ]
    assert f"kept for now: 2 objects, {sum(item.bytes for item in done.kept)} bytes" in str(done)
    stream.compact()
    wait(storage, HOUR)
    stream.overwrite(numbers(0, 1), layout=STAGED)
    for n in range(2):
        wait(storage, 2 * DAY)
        stream.append(numbers(n, n + 1), layout=STAGED)
    done = stream.maintain()
    assert Counter((item.why, item.waits_for) for item in done.kept) == {
        (dropped, "within the grace"): 2,
        ("overwritten", "within the grace"): 1,
    }
    assert all(item.bytes > 0 for item in done.kept)
    week = timedelta(days=7)
    assert all(item.until - item.since == week for item in done.kept)


@pytest.mark.usefixtures("no_inline")
def test_maintain_says_how_much_waits_and_until_when() -> None:
    """Also where it deletes nothing: all of it is younger than an hour, or within the grace."""
    stream, storage = make_stream(3)
    stream.truncate(20)
    truncated = storage.time.now_us
    done = stream.maintain(keep=0, grace=0, short_grace=True)
    commits = [info.size for info in storage.list("log/") if info.path != "log/_latest"]
    assert (done.log_files, done.log_bytes) == (len(commits) - 1, sum(commits[:-1]))
    assert (len(done.kept), done.deleted) == (2, ())
    assert done.until is not None
    assert abs(done.until.timestamp() - truncated / 1e6 - HOUR) < 60
    assert f"{done.log_files} commit files, {done.log_bytes} bytes" in str(done)
    assert "may be deleted at 2025-" in str(done)
    wait(storage, HOUR + 60)
    done = stream.maintain(keep=0, grace=0, short_grace=True)
    assert (len(done.deleted), done.kept) == (2, ())


@pytest.mark.usefixtures("no_inline")
def test_free_now_frees_what_no_reader_of_the_last_minutes_needs() -> None:
    """Older versions end, but not the files of the log, or what was dropped just now."""
    stream, storage = make_stream(4)
    version = stream.version
    old, job = stream.scan(), staged_job(stream, 90, 95)
    stream.truncate(20)
    wait(storage, 600)
    young, late = stream.scan(), staged_job(stream, 95, 99)
    stream.truncate(30)
    log = {path for path in objects(storage, "log") if path >= f"log/{version - 1:020}"}
    planned = stream.maintain(free_now=True, dry_run=True)
    assert len(planned.deleted) == 3
    done = stream.maintain(free_now=True)
    assert planned.log_files == done.log_files - 1 > 1  # which superseded one itself
    assert stream.maintain(dry_run=True).log_files == len(objects(storage, "log")) - 2
    assert [item.dropped for item in done.deleted] == [version + 1, version + 1, None]
    assert [item.dropped for item in done.kept] == [version + 2, None]
    assert log <= objects(storage, "log")
    assert values(stream) == list(range(30, 40))
    assert young.to_arrow()["n"].to_pylist() == list(range(20, 40))
    for call in (old.to_arrow, lambda: stream.read(as_of=version), lambda: stream.restore(version)):
        with pytest.raises(SnapshotExpiredError):
            call()
    with pytest.raises(StagedExpiredError):
        stream.commit(job[0], [job[1]])
    assert stream.commit(late[0], [late[1]]).end == 44
    stream.verify().check()
    # Until the hour is over, nothing that goes by `log_start` takes the log's files.
    stream.maintain()
    assert log <= objects(storage, "log")
    wait(storage, 2 * HOUR)
    stream.maintain(keep=0)
    assert not log & objects(storage, "log") - {"log/_latest"}


def test_free_now_has_ages_of_its_own() -> None:
    with pytest.raises(InvalidInputError, match="leave keep and grace out"):
        make_stream(1)[0].maintain(free_now=True, grace="1d")


@pytest.mark.usefixtures("no_inline")
def test_free_now_respects_pins() -> None:
    """A clone that is made or read meanwhile has its version."""
    stream, storage = make_stream(2)
    clone = f"{storage.url}-clone"
    stream.copy_to(clone, mode="clone", copy_id="c")
    stream.truncate(20)
    wait(storage, 600)
    assert stream.maintain(free_now=True).deleted == ()
    assert values(open_on(open_storage(clone))) == list(range(20))
