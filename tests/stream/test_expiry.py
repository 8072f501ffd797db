"""Values that expire: which go and when, what stays, and what comes in between."""

import datetime as dt
import random
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
from erasure_kit import NEEDLE, holders
from follower_kit import Pair
from latest_kit import Timed, beside
from stream_kit import DAY, HOUR, STAGED, fresh_url, make_old, make_stream, numbers, wait
from virtual_time import TimedStorage, VirtualTime

import segstore_ds as segstore
from segstore_ds.errors import InvalidInputError, MissingObjectError
from segstore_ds.format.redactions import MOST_RULES, Expiry, clean_since, redactions_of
from segstore_ds.options.quantities import to_moment
from segstore_ds.redact import expire
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout

TIMED = pa.schema([("ts", pa.timestamp("us", "UTC")), ("s", pa.string()), ("n", pa.int64())])
NUMBERED = pa.schema([("n", pa.int64()), ("s", pa.string())])
LAYOUTS = (Layout(), STAGED, Layout(inline_bytes=0, segment_format="parquet"))


def texts(stream: Stream) -> list[str | None]:
    return stream.refresh().read().read_all()["s"].to_pylist()


def timed_stream(**options: object) -> tuple[Stream, TimedStorage]:
    """Return an empty stream with a time column."""
    clock = VirtualTime(1)
    storage = TimedStorage(open_storage(fresh_url()), clock)
    stream = create_on(storage, TIMED, time_column="ts", clock=clock.clock, **options)
    return stream, storage


def events(storage: TimedStorage, *ages: float | None) -> pa.Table:
    """Return events of such ages in seconds, whose texts say the ages."""
    now_us = storage.time.now_us
    times = [None if age is None else to_moment(now_us - int(age * 1e6)) for age in ages]
    rows = {"ts": times, "s": [f"{age}" for age in ages], "n": range(len(ages))}
    return pa.table(rows, TIMED)


def record(stream: Stream):
    (found,) = redactions_of(stream.refresh()._log.root).values()
    return found


def redactions(stream: Stream) -> list[tuple[str, int]]:
    """Return the ids and numbers of events of the history's redactions."""
    rows = stream.history().read_all().to_pylist()
    return [(row["writer_id"], row["batch_id"]) for row in rows if row["operation"] == "redact"]


@pytest.mark.parametrize("layout", LAYOUTS, ids=["inline", "arrow", "parquet"])
def test_values_expire_by_the_age_of_their_commits(layout: Layout) -> None:
    """Nothing but the values goes; and only those of whole steps."""
    stream, storage = make_stream(0)
    stream.settings.update(expiry={"s": "3h"})
    for n in range(4):
        stream.append(numbers(3 * n, 3 * n + 3), layout=layout)
        wait(storage, HOUR)
    wait(storage, 600)
    assert stream.maintain(dry_run=True).expired == 6
    assert texts(stream).count(None) == 0
    assert stream.maintain().expired == 6
    assert texts(stream) == [None] * 6 + [f"s{n}" for n in range(6, 12)]
    assert (stream.head, stream.tail) == (0, 12)
    assert stream.read().read_all()["n"].to_pylist() == list(range(12))
    (rule,) = stream.settings.expiry
    assert sum(rows for name, rows in redactions(stream) if rule.redact_id in name) == 6
    assert stream.maintain().expired == 0
    stream.verify().check()


def test_values_expire_by_the_times_of_their_events() -> None:
    """Late ones, those without a time by their commits, those of tomorrow not at all."""
    stream, storage = timed_stream()
    stream.settings.update(expiry={"s": "30d"})
    stream.append(events(storage, 31 * DAY, 29.5 * DAY, DAY, None, -10 * DAY), layout=STAGED)
    stream.maintain()
    assert record(stream).rows == 1
    assert texts(stream) == [None, f"{29.5 * DAY}", f"{DAY}", "None", f"{-10 * DAY}"]
    wait(storage, 2 * DAY)
    stream.append(events(storage, 40 * DAY, None))
    stream.maintain()
    assert texts(stream)[:3] == [None, None, f"{DAY}"]
    assert texts(stream)[5:] == [None, "None"]
    wait(storage, 30 * DAY)
    stream.maintain()
    assert texts(stream) == [None, None, None, None, f"{-10 * DAY}", None, "None"]
    wait(storage, 12 * DAY)
    stream.maintain()
    assert texts(stream) == [None] * 7


def test_time_column_of_dates_and_one_that_says_no_moment() -> None:
    for kind, gone in ((pa.date32(), [None, "1"]), (pa.timestamp("us"), [None, None])):
        schema = pa.schema([("at", kind), ("s", pa.string())])
        clock = VirtualTime(1)
        storage = TimedStorage(open_storage(fresh_url()), clock)
        stream = create_on(storage, schema, time_column="at", clock=clock.clock)
        stream.settings.update(expiry={"s": "5d"})
        now = to_moment(clock.now_us).replace(tzinfo=None)
        times = [now - dt.timedelta(days=7), now + dt.timedelta(days=3)]
        at = pa.array([each.date() for each in times] if kind == pa.date32() else times, kind)
        stream.append(pa.table({"at": at, "s": ["0", "1"]}))
        wait(storage, 6 * DAY)  # the commit is older than the rule allows, too
        stream.maintain()
        assert record(stream).rows == gone.count(None)
        assert texts(stream) == gone


def test_rounds_after_commits_expire_values() -> None:
    """The root says when the next one is due: at most a round for each step."""
    stream, storage = make_stream(0)
    stream.settings.update(expiry={"s": "64h"})
    for n in range(120):
        wait(storage, HOUR)
        stream.append(numbers(n, n + 1))
    found = texts(stream)
    gone = found.count(None)
    assert found == [None] * gone + [f"s{n}" for n in range(gone, 120)]
    assert 120 - 64 - 5 <= gone <= 120 - 64
    rounds = redactions(stream)
    assert len(rounds) <= 120 + 2
    (figures,) = stream.metrics().expiry
    assert (figures.column, figures.rows) == ("s", gone)
    assert 0 <= figures.lag_s <= 3 * HOUR
    stream.verify().check()


def test_filters_of_a_rule() -> None:
    stream, storage = timed_stream()
    rule = {"age": "1d", "filters": "n < 2"}
    stream.settings.update(expiry={"s": rule})
    stream.append(events(storage, 2 * DAY, 2 * DAY, 2 * DAY))
    stream.maintain()
    assert texts(stream) == [None, None, f"{2 * DAY}"]
    assert stream.settings.expiry == (Expiry("s", DAY, "n < 2"),)
    stream.settings.update(expiry={"s": {**rule, "filters": "n == 2"}})
    assert stream.maintain().expired == 1
    stream.settings.update(expiry=None)
    assert stream.settings.expiry == ()
    assert stream.maintain().expired == 0


def test_what_is_done_is_not_looked_at_again() -> None:
    """Neither rewritten nor read: a round costs as much as is newly due."""
    stream, storage = timed_stream()
    stream.settings.update(expiry={"s": {"age": "10d", "filters": "n >= 0 or n < 0"}})
    for _ in range(20):
        wait(storage, DAY)
        stream.append(events(storage, HOUR, 0, 0), layout=STAGED)
    stream.maintain()
    before, find = record(stream), expire.find_matches
    read: set[int] = set()

    def look(job, placed):
        read.add(placed.start)
        return find(job, placed)

    assert (before.rows, before.done) == (27, True)
    for _ in range(5):
        wait(storage, DAY)
        stream.append(events(storage, HOUR, 0, 0), layout=STAGED)
        read.clear()
        with patch("segstore_ds.redact.rewrite.find_matches", look):
            stream.maintain()
        after = record(stream)
        assert (after.rows - before.rows, after.segments - before.segments) == (3, 1)
        assert len(read) <= 2
        before = after


def test_round_that_finds_nothing_reads_no_segment_and_commits_once() -> None:
    stream, storage = make_stream(0)
    stream.settings.update(expiry={"s": "10d"})
    stream.append(numbers(0, 10), layout=STAGED)
    stream.maintain()
    version = stream.refresh().version
    wait(storage, DAY)
    stream.maintain()
    assert stream.refresh().version <= version + 2  # how far it came, and upkeep's
    assert record(stream).version == 0  # older versions hold nothing that is gone
    assert texts(stream.restore(version) and stream) == [f"s{n}" for n in range(10)]


def test_events_that_the_head_hides_expire_too() -> None:
    """Also those whose time comes when a round begins behind them."""
    stream, storage = timed_stream()
    stream.append(events(storage, -2 * DAY, -2 * DAY, 0, 0), layout=STAGED)
    stream.truncate(2)
    stream.settings.update(expiry={"s": "1d"})
    wait(storage, 1.5 * DAY)
    stream.append(events(storage, 0), layout=STAGED)
    stream.maintain()
    assert (record(stream).start, record(stream).rows) == (4, 2)
    wait(storage, 2 * DAY)
    stream.maintain()
    root = stream._log.root
    assert (root.listed_start, root.head, root.tail) == (0, 2, 5)
    assert record(stream).rows == 5


def test_restored_events_expire_again() -> None:
    stream, storage = make_stream(0)
    stream.settings.update(expiry={"s": "1d"})
    stream.append(numbers(0, 5), layout=STAGED)
    version = stream.version
    wait(storage, 2 * DAY)
    stream.maintain()
    with pytest.raises(InvalidInputError, match="older than a redaction"):
        stream.restore(version)
    assert stream.scan(as_of=version).to_arrow()["s"].to_pylist() == [f"s{n}" for n in range(5)]
    stream.restore(version, allow_redacted=True)
    assert texts(stream) == [f"s{n}" for n in range(5)]
    wait(storage, 2 * DAY)
    stream.maintain()
    assert texts(stream) == [None] * 5


def test_round_without_time_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expire, "COMMIT_BYTES", 1)
    stream, storage = make_stream(0)
    stream.settings.update(expiry={"s": "1d"})
    for n in range(5):
        stream.append(numbers(10 * n, 10 * n + 10), layout=STAGED)
    wait(storage, 2 * DAY)
    for n in range(5):
        assert expire.run_expiry(stream._context, -1.0) == 10
        assert texts(stream).count(None) == 10 * (n + 1)
        assert not record(stream).done
    assert expire.run_expiry(stream._context) == 0
    assert record(stream).done


def test_record_of_a_rule_that_is_gone_leaves_its_version() -> None:
    """Newer rules that found nothing would let a version with expired values be restored."""
    stream, storage = make_stream(4)
    before = stream.version
    stream.settings.update(expiry={"s": "1h"})
    first = stream.settings.expiry[0].redact_id
    wait(storage, 2 * HOUR)
    assert stream.maintain().expired == 40
    clean = clean_since(stream._log.root)
    for n in range(MOST_RULES):
        stream.settings.update(expiry={"n": {"age": "1h", "filters": f"n == {n + 90}"}})
        wait(storage, HOUR)
        stream.maintain()
    known = redactions_of(stream._log.root)
    assert first not in known
    assert len(known) == MOST_RULES
    assert clean_since(stream._log.root) == clean > before
    with pytest.raises(InvalidInputError, match="redact"):
        stream.restore(before)


def test_rule_that_is_none_is_refused() -> None:
    stream, _ = timed_stream()
    ages = ({"x": "30d"}, {"s": "0s"}, {"s": None}, {"s": "30"}, {"ts": "30d"}, ["s"])
    filters = ({"filter": "n > 1"}, {"filters": "m > 1"}, {"filters": [["n", ">", 1]]})
    many = {f"c{n}": "1d" for n in range(MOST_RULES + 1)}
    for rules in (*ages, *({"s": {"age": "30d", **rule}} for rule in filters), many):
        with pytest.raises(InvalidInputError):
            stream.settings.update(expiry=rules)
    assert stream.refresh().settings.expiry == ()


def test_time_column_can_t_be_one_that_expires() -> None:
    stream, _ = timed_stream()
    stream.settings.update(time_column=None, expiry={"ts": "1d"})
    with pytest.raises(InvalidInputError, match="time column"):
        stream.settings.update(time_column="ts")
    stream.settings.update(time_column="ts", expiry=None)


def test_rules_that_can_t_be_read_keep_no_other_round_from_its_work(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stream, storage = make_stream(0)
    monkeypatch.setattr("segstore_ds.stream.namespaces.build_expiry", lambda _: "oops")
    stream.settings.update(expiry={"s": "1d"}, upkeep=segstore.UpkeepPolicy())
    for n in range(3):
        wait(storage, DAY)
        stream.append(numbers(n, n + 1))
    assert "expiry failed" in caplog.text
    assert "upkeep failed" not in caplog.text
    assert "upkeep" in stream.history().read_all()["operation"].to_pylist()


def test_damaged_segment_stops_expiry_and_not_the_rest_of_maintain() -> None:
    stream, storage = make_stream(0)
    stream.append(numbers(0, 5), layout=STAGED)
    for n in range(3):
        stream.append(numbers(n, n + 1))
    stream.settings.update(expiry={"s": "1d"})
    storage.delete(f"segments/{stream._log.root.entries[0].path}")
    wait(storage, 9 * DAY)
    with pytest.raises(MissingObjectError):
        stream.maintain()
    assert stream.refresh()._log.root.log_start > 2


def test_rule_of_a_newer_version_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, storage = make_stream(0)
    newer = Expiry("s", 1, extra={"unless": "n > 3"})
    monkeypatch.setattr("segstore_ds.stream.namespaces.parse_expiry", lambda *_: (newer,))
    stream.settings.update(expiry={"s": "1s"})
    assert stream.settings.expiry == (newer,)
    stream.append(numbers(0, 5))
    wait(storage, DAY)
    assert stream.maintain().expired == 0


def test_clone_keeps_what_it_was_made_of_and_has_no_rules() -> None:
    stream, storage = make_stream(0)
    stream.settings.update(expiry={"s": "1d"})
    stream.append(numbers(0, 5), layout=STAGED)
    version = stream.version
    url = fresh_url()
    stream.copy_to(url, copy_id="before", mode="clone")
    wait(storage, 2 * DAY)
    expire.run_expiry(stream._context)
    clone = open_on(url)
    assert (texts(clone), clone.settings.expiry) == ([f"s{n}" for n in range(5)], ())
    other = fresh_url()
    with pytest.raises(InvalidInputError, match="older than a redaction"):
        stream.copy_to(other, copy_id="after", mode="clone", version=version)
    stream.copy_to(other, copy_id="after", mode="clone")
    assert texts(open_on(other)) == [None] * 5


def test_old_values_are_gone_after_the_grace(tmp_path: Path) -> None:
    """Upkeep forgets the versions and deletes the objects that still hold them."""
    stream, storage = make_old(tmp_path, 30)
    stream.settings.update(upkeep=segstore.UpkeepPolicy(), expiry={"s": "1d"})
    stream.append(pa.table({"n": [1, 2], "s": [NEEDLE, "x"]}), layout=STAGED)
    stream.append(pa.table({"n": [3], "s": [NEEDLE]}))
    wait(storage, 2 * DAY)
    stream.maintain()
    assert [*holders(stream.url)]
    for _ in range(3):
        wait(storage, 8 * DAY)
        stream.maintain()
    assert not [*holders(stream.url)]


@pytest.mark.parametrize("table", ["delta", "iceberg"])
def test_old_values_leave_tables_that_are_published_by_hand(table: str) -> None:
    """Bounds in metadata, too, a grace after the next publication."""
    stream, storage = make_stream(0)
    stream.settings.update(upkeep=segstore.UpkeepPolicy(), expiry={"s": "1d"})
    layout = Layout(inline_bytes=0, segment_format="parquet")
    stream.append(pa.table({"n": [1], "s": [NEEDLE]}), layout=layout)
    for _ in range(2):
        stream.publish(table)
        wait(storage, 2 * DAY)
        stream.maintain()
    assert [*holders(stream.url)]
    wait(storage, 8 * DAY)
    stream.maintain()
    assert not [*holders(stream.url)]
    assert stream.published[table].lag == 0
    stream.verify().check()


@pytest.mark.parametrize("auto", [False, True])
@pytest.mark.parametrize("table", ["delta", "iceberg"])
def test_old_values_leave_the_newest_events(table: str, auto: bool) -> None:
    """`maintain` keeps up the stream beside, which nothing else does between publications."""
    storage = Timed(open_storage(fresh_url()), VirtualTime(1))
    stream = create_on(storage, NUMBERED, clock=storage.time.clock)
    stream.settings.update(expiry={"s": "1d"})
    stream.append(pa.table({"n": [1], "s": [NEEDLE]}))
    for shown in ([NEEDLE], [None]):
        stream.publish(table, latest_by=["n"], auto=auto)
        newest = beside(stream)
        assert texts(newest) == shown
        assert holders(newest.url)
        wait(storage, 2 * DAY)
        stream.maintain()
    for _ in range(2):
        wait(storage, 8 * DAY)
        stream.maintain()
    assert not holders(newest.url)
    assert stream.published.latest[table].lag == 0
    stream.verify().check()


def test_values_of_nanoseconds_expire_when_the_clock_is_past_their_years() -> None:
    """No column of nanoseconds holds a moment after 2262; all before it are due."""
    clock = VirtualTime(1, now_us=9_300_000_000_000_000)  # in 2264
    storage = TimedStorage(open_storage(fresh_url()), clock)
    schema = pa.schema([("at", pa.timestamp("ns", "UTC")), ("s", pa.string())])
    stream = create_on(storage, schema, time_column="at", clock=clock.clock)
    stream.settings.update(expiry={"s": "5d"})
    stream.append(pa.table([pa.array([10**18], schema.field(0).type), ["0"]], schema))
    stream.maintain()
    assert texts(stream) == [None]
    assert stream.retain(max_event_age="5d", dry_run=True).head == 1


def test_two_rounds_and_a_compaction_at_once() -> None:
    """Who is late leaves it to the other, or to the next round; nothing is lost."""
    stream, storage = make_stream(0)
    stream.settings.update(expiry={"s": "1d"})
    for n in range(6):
        stream.append(numbers(10 * n, 10 * n + 10), layout=STAGED)
    wait(storage, 2 * DAY)
    other = open_on(storage, clock=stream._log.clock)
    happened = []

    def launch(job, chosen):
        found = [*job.run(chosen)]
        if not happened:
            happened.append(1)
            other.compact(0, 30)
            other.maintain()
        yield from found

    Stream(replace(stream._context, launch=launch)).maintain()
    assert happened
    stream.maintain()
    assert texts(stream) == [None] * 60
    assert stream.read().read_all()["n"].to_pylist() == list(range(60))
    stream.verify().check()


def test_follower_has_what_is_left_and_goes_on_when_it_is_promoted() -> None:
    pair = Pair()
    pair.stream.settings.update(expiry={"s": "1d"})
    pair.stream.append(numbers(0, 5), layout=STAGED)
    pair.stream.followers.add(pair.follower)
    pair.time.advance(2 * DAY)
    pair.stream.append(numbers(5, 10), layout=STAGED)
    pair.stream.maintain()
    follower = pair.reopen(pair.follower)
    assert texts(follower) == [None] * 5 + [f"s{n}" for n in range(5, 10)]
    follower.followers.promote()
    pair.time.advance(2 * DAY)
    follower.maintain()
    assert texts(follower) == [None] * 10
    follower.verify().check()


@pytest.mark.parametrize("table", ["delta", "iceberg"])
def test_published_tables_follow(table: str) -> None:
    stream, storage = make_stream(0)
    stream.settings.update(expiry={"s": "1d"}, publish=[table])
    layout = Layout(inline_bytes=0, segment_format="parquet")
    stream.append(numbers(0, 10), layout=layout)
    wait(storage, 2 * DAY)
    stream.append(numbers(10, 20), layout=layout)
    wait(storage, 120)
    stream.maintain()
    assert texts(stream) == [None] * 10 + [f"s{n}" for n in range(10, 20)]
    assert stream.published[table].lag == 0


def test_random_lives_leave_exactly_what_is_due() -> None:
    """Against a model: appends of all ages, truncations, compactions, rounds, in any order."""
    for seed in range(6):
        chance = random.Random(seed)
        stream, storage = timed_stream()
        stream.settings.update(expiry={"s": "32h"})
        model: list[tuple[int | None, int, bool]] = []  # time, commit time, whether it is gone
        with patch.multiple("segstore_ds.stream.commits.AfterCommit", keep_up=lambda _: None):
            for _ in range(25):
                wait(storage, chance.choice((60, HOUR, 9 * HOUR)))
                match chance.randrange(5):
                    case 0 | 1:
                        ages = [chance.choice((0, HOUR, 31 * HOUR, 90 * HOUR, None, -HOUR))]
                        ages = ages * chance.randrange(1, 3) + [chance.randrange(40 * HOUR)]
                        given = events(storage, *ages)
                        commit = stream.append(given, layout=chance.choice(LAYOUTS))
                        del commit
                        at_us = stream._log.root.time_us
                        times = given["ts"].cast(pa.int64()).to_pylist()
                        model += [(time_us, at_us, False) for time_us in times]
                    case 2:
                        stream.compact()
                    case 3:
                        stream.truncate(chance.randint(stream.head, stream.tail))
                    case 4:
                        due = {*expire.due_rules(stream.refresh()._log.root, storage.time.now_us)}
                        stream.maintain()
                        for rule, until in due:
                            assert rule.column == "s"
                            model = [
                                (t, at, gone or (at <= until if t is None else t < until))
                                for t, at, gone in model
                            ]
                found = stream.refresh().read().read_all()["s"].to_pylist()
                assert [text is None for text in found] == [
                    gone for _, _, gone in model[stream.head :]
                ], seed
        stream.verify().check()
