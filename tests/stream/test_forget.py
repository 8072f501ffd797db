"""Forgetting: no byte of any object holds a redacted value after it; a report says so before.

Objects are searched as they are stored and decoded by what FORMAT.md says, with pyarrow alone.
"""

import datetime as dt

import pyarrow as pa
import pytest
from erasure_kit import NEEDLE, holders
from follower_kit import Pair
from stream_kit import DAY, HOUR, fresh_url, make_stream, numbers, wait
from virtual_time import TimedStorage, VirtualTime

from segstore_ds.compact.rewrite import plan_job, plan_range_groups, run_group
from segstore_ds.errors import SegstoreError
from segstore_ds.options.arguments import CompactRules
from segstore_ds.redact import forget
from segstore_ds.retention.deletion import run_maintain
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
ROWS = 6
LAYOUTS = [
    Layout(),
    Layout(inline_bytes=0, segment_format="arrow", compression="none"),
    Layout(inline_bytes=0, segment_format="arrow"),
    Layout(inline_bytes=0, segment_format="parquet"),
]


def _events(start: int) -> pa.Table:
    texts = [NEEDLE if row == 1 else f"s{start + row}" for row in range(ROWS)]
    return pa.table({"n": range(start, start + ROWS), "s": texts}, SCHEMA)


def _secretive(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Stream:
    """Return a stream with a follower that holds the value wherever a value can be."""
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.rows", 5)
    stream = pair.stream
    stream.followers.add(pair.follower)
    for place in range(8):
        pair.time.advance(60)
        layout = LAYOUTS[place % 4]
        write = stream.overwrite if place == 2 else stream.append
        write(_events(ROWS * place), layout=layout, writer_id=f"w{place}", batch_id=0)
    # What killed jobs left: of an append and of a compaction.
    job = stream.plan_write(SCHEMA, layout=LAYOUTS[1])
    task = job.open_task(0, "a")
    task.append(_events(0).to_batches()[0])
    task.finish()
    root, context = stream._log.root, stream._context
    job, bounds = plan_job(context, root, LAYOUTS[1]), (root.listed_start, root.tail)
    for group in plan_range_groups(context.status, root, job, CompactRules(), bounds):
        run_group(job, group, nonce=12 * "a")
    stream.truncate(root.head + 2)
    return stream


def _redact(stream: Stream, **options: bool) -> object:
    filters = [["s", "==", NEEDLE]]
    done = stream.refresh().redact(filters, columns=["s"], redact_id="r", forget=True, **options)
    return done.forgotten


def test_forgotten_values_are_in_no_byte_of_any_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments, statistics, commit files, orphans: here and in the follower, after the grace."""
    pair = Pair()
    stream = _secretive(pair, monkeypatch)
    for url in (pair.primary, pair.follower):
        held = holders(url)
        for kind in (".arrow", ".parquet", "-segments-"):
            assert any(kind in path for path in held), (kind, held)
        assert sum(path.startswith("log/") for path in held) > 5
    first = _redact(stream)
    assert not first.done
    assert {left.where for left in first.left} == {pair.primary, pair.follower}
    pair.time.advance(2 * HOUR)
    second = _redact(stream)
    assert not second.done
    assert not any("commit files" in left.what for left in second.left)
    assert not [path for path in holders(pair.primary) if path.startswith("log/")]
    pair.time.advance((second.due.timestamp() * 1e6 - pair.time.now_us) / 1e6)
    third = _redact(stream)
    assert (third.done, third.due, third.left) == (True, None, ())
    assert "noncurrent" in str(third)
    assert holders(pair.primary) == holders(pair.follower) == []
    assert stream.read().read_all()["s"].to_pylist() == [
        None if n % ROWS == 1 else f"s{n}" for n in range(2 * ROWS + 2, 8 * ROWS)
    ]
    assert stream.verify().ok
    assert pair.reopen(pair.follower).verify().ok


def test_a_shorter_grace_needs_a_second_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """With it objects go as soon as the versions have, which takes an hour."""
    pair = Pair()
    stream = _secretive(pair, monkeypatch)
    assert not _redact(stream, short_grace=True).done
    pair.time.advance(HOUR + 60)
    assert _redact(stream, short_grace=True).done
    assert holders(pair.primary) == holders(pair.follower) == []


def test_versions_since_the_redaction_stay() -> None:
    """Forgetting purges no version that is clean already."""
    stream, storage = make_stream(4)
    done = stream.redact([["n", "==", 3]], columns=["s"], redact_id="r")
    for n in range(3):
        wait(storage, DAY)
        stream.append(numbers(40 + n, 41 + n))
    wait(storage, 8 * DAY)
    again = stream.redact([["n", "==", 3]], columns=["s"], redact_id="r", forget=True)
    assert again.forgotten.done
    assert stream.refresh()._log.root.log_start == done.version
    assert stream.scan(as_of=done.version).end == 40


def test_a_lost_follower_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may hold the values for as long as nobody can tell."""
    pair = Pair()
    stream = _secretive(pair, monkeypatch)
    _redact(stream)
    root = stream._log.root
    report = run_maintain(stream._context, keep_s=0, keep_from=root.version, grace_s=DAY)
    left = list(forget._copies(stream._context, report, root.version))[1]
    assert (left.where, left.what.split(":")[0]) == (pair.follower, "objects (overwritten)")
    pair.world.lost.add(pair.follower)
    (left,) = forget._copies(stream._context, report, root.version)
    assert (left.where, left.why) == (pair.follower, "it can't be reached")
    assert "followers.remove" in left.call
    with pytest.raises(SegstoreError):
        _redact(stream)


def test_clones_and_origins_are_reported() -> None:
    """A pin keeps the old objects; the clone has to be redacted itself, or given up."""
    time = VirtualTime(3)
    place = fresh_url()
    storage = TimedStorage(open_storage(place), time)
    stream = create_on(storage, SCHEMA, clock=time.clock, upkeep=None)
    stream.append(_events(0), layout=LAYOUTS[1])
    clone_url = fresh_url()
    stream.copy_to(clone_url, copy_id="c", mode="clone")
    for _ in range(2):
        report = _redact(stream)
        time.advance(8 * DAY)
    assert not report.done
    assert [left.where for left in _redact(stream).left if "clone" in left.what] == [
        open_storage(clone_url).url
    ]
    clone = open_on(TimedStorage(open_storage(clone_url), time), clock=time.clock)
    assert [left.where for left in _redact(clone).left if "origin" in left.what] == [storage.url]
    clone.materialize()
    time.advance(16 * DAY)
    _redact(clone)
    time.advance(8 * DAY)
    assert _redact(stream).done
    assert _redact(clone).done
    assert holders(place) == holders(clone_url) == []


def test_what_a_repair_moved_aside_is_reported() -> None:
    """It may be a commit with events; segstore deletes nothing there, so no wait ends it."""
    stream, storage = make_stream(4)
    path = f"aside/{7:020d}-0123456789abcdef0123456789abcdef"
    storage.create(path, NEEDLE.encode())
    _redact(stream)
    wait(storage, 8 * DAY)
    report = _redact(stream)
    assert (report.done, report.due) == (False, None)
    assert [left.what for left in report.left] == [path]
    assert "None" not in str(report)
    storage.delete(path)
    assert _redact(stream).done


def test_sources_of_copies_are_named() -> None:
    """Nothing here reaches them, so they don't keep it from being done."""
    stream, storage = make_stream(2)
    wait(storage, HOUR)
    target = fresh_url()
    stream.copy_to(target, copy_id="c")
    copy = open_on(TimedStorage(open_storage(target), storage.time), clock=storage.time.clock)
    report = _redact(copy)
    assert [text for text in report.beyond if stream._log.root.stream_id in text and "'c'" in text]
    assert any("once replicated to" in text for text in report.beyond)


def test_a_nightly_rule_forgets_what_comes_of_age() -> None:
    """E-mail is redacted after 10 days; a grace later, no byte of it is left."""
    time, place = VirtualTime(5), fresh_url()
    schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("email", pa.string())])
    storage = TimedStorage(open_storage(place), time)
    stream = create_on(storage, schema, clock=time.clock, upkeep=None, time_column="ts")
    redacted = []
    for day in range(25):
        now = dt.datetime.fromtimestamp(time.now_us / 1e6, dt.UTC)
        hours = [now + dt.timedelta(hours=hour) for hour in (1, 13)]
        texts = [f"mail-{day}-{hour}@a.org" for hour in (1, 13)]
        stream.append(pa.table([hours, texts], schema), layout=LAYOUTS[day % 4])
        time.advance(DAY)
        now = dt.datetime.fromtimestamp(time.now_us / 1e6, dt.UTC)
        before = (now - dt.timedelta(days=10)).isoformat()
        filters = [["ts", "<", before]]
        redacted.append(stream.redact(filters, columns=["email"], reason="10 days", forget=True))
    assert [done.rows for done in redacted] == [0] * 10 + [2] * 15
    assert [done.segments for done in redacted] == [0] * 10 + [1] * 15
    kept = stream.read().read_all()["email"].to_pylist()
    assert [text is None for text in kept] == [True] * 30 + [False] * 20
    assert holders(place, "mail-13-1@")
    for day in range(7):
        assert holders(place, f"mail-{day}-") == []
    stream.verify().check()
