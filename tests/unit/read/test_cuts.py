"""Cuts and moments: what users may write, where it lies, and which ranges are refused."""

import datetime as dt
import uuid
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from virtual_time import TimedStorage, VirtualTime

from segstore_ds.errors import InvalidInputError, NotFoundError, PositionError, TruncatedError
from segstore_ds.format.root import Epoch, Root, SegmentEntry
from segstore_ds.log.commit import Change
from segstore_ds.log.context import StreamContext
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.read.cuts import Cut, Position, check_position, check_range, parse_cut, resolve_cut
from segstore_ds.read.event_time import parse_moment, time_conditions
from segstore_ds.status.history import begin_history
from segstore_ds.storage import open_storage

HOUR = dt.timezone(dt.timedelta(hours=1))
ROOT = Root("s", 5, "t", "p", 0, "x", (Epoch(0, 0, "x", None),), generation=2, head=10, tail=30)


@pytest.mark.parametrize(
    ("given", "cut"),
    [
        (0, Cut("offset", 0)),
        (17, Cut("offset", 17)),
        (2**63 - 1, Cut("offset", 2**63 - 1)),
        ("17", Cut("offset", 17)),
        (" 017 ", Cut("offset", 17)),
        ("head", Cut("head")),
        ("TAIL", Cut("tail")),
        (" Tail\n", Cut("tail")),
        ("version:0", Cut("version", 0)),
        ("version:41", Cut("version", 41)),
        ("1970-01-01T00:00:01Z", Cut("time", 1_000_000)),
        ("1970-01-01T01:00:01+01:00", Cut("time", 1_000_000)),
        ("1970-01-01 00:00:00.000001+00:00", Cut("time", 1)),
        ("1969-12-31T23:59:59Z", Cut("time", -1_000_000)),
        (dt.datetime(1970, 1, 1, 1, 0, 1, tzinfo=HOUR), Cut("time", 1_000_000)),
        (dt.datetime(2026, 11, 20, 10, 0, 0, 123456, tzinfo=dt.UTC), Cut("time", 1795168800123456)),
        (Position("s", 1, 2), Cut("position", Position("s", 1, 2))),
        ('{"stream":"s","generation":1,"offset":2}', Cut("position", Position("s", 1, 2))),
        ('{"stream":"s","generation":1,"offset":2,"more":0}', Cut("position", Position("s", 1, 2))),
    ],
)
def test_a_cut_in_each_of_its_forms(given, cut):
    assert parse_cut(given) == cut


@pytest.mark.parametrize(
    "given",
    [
        None,
        True,
        -1,
        2**63,
        1.0,
        b"head",
        ["head"],
        "",
        "  ",
        "-1",
        "+1",
        "1e3",
        "middle",
        "head ish",
        "version:",
        "version:-1",
        "version:x",
        "version: 3",
        "version:" + "1" * 19,
        "tags:eod",
        "{",
        "{}",
        '{"stream":"s","generation":1,"offset":-2}',
        '{"stream":7,"generation":1,"offset":2}',
        '{"stream":"s","generation":1}',
        '{"stream":"s","generation":"1","offset":2}',
        "10:00:00Z",
        "2026-13-01T00:00:00Z",
        "2026-11-20T10:00:00.1234567Z",
        "yesterday",
    ],
)
def test_what_is_no_cut_is_answered_with_the_forms(given):
    with pytest.raises(InvalidInputError, match=r"not a cut.*version:N"):
        parse_cut(given)


@pytest.mark.parametrize(
    "given",
    ["2026-11-20T10:00:00", "2026-11-20", dt.datetime(2026, 11, 20)],  # noqa: DTZ001
)
def test_a_time_without_a_zone_is_refused_with_the_remedy(given):
    with pytest.raises(InvalidInputError, match="time has no time zone") as told:
        parse_cut(given)
    remedy = told.value.remedy.split()[1].rstrip(",")
    assert parse_cut(remedy).kind == "time"


def test_a_position_has_one_text_that_parses_back():
    position = Position('a"b', 3, 99)
    assert position.to_json() == '{"generation":3,"offset":99,"stream":"a\\"b"}'
    assert parse_cut(position.to_json()).value == position


def test_a_position_of_another_stream_or_generation_is_refused():
    check_position(ROOT, Position("s", 2, 1000))  # where it lies is the range's business
    with pytest.raises(PositionError, match=r"another stream.*position='x', stream='s'"):
        check_position(ROOT, Position("x", 2, 0))
    for generation in (1, 3):
        with pytest.raises(PositionError, match=f"another generation.*position={generation}"):
            check_position(ROOT, Position("s", generation, 0))


@pytest.mark.parametrize(
    ("start", "end", "strict", "lenient"),
    [
        (10, 30, (10, 30), (10, 30)),
        (12, 12, (12, 12), (12, 12)),
        (30, 30, (30, 30), (30, 30)),
        (9, 30, TruncatedError, (10, 30)),
        (0, 10, TruncatedError, (10, 10)),
        (0, 5, TruncatedError, (10, 10)),
        (0, 0, TruncatedError, (10, 10)),
        (20, 19, InvalidInputError, InvalidInputError),
        (10, 31, PositionError, PositionError),
        (31, 31, PositionError, PositionError),
        (0, 31, PositionError, PositionError),
        (31, 30, PositionError, PositionError),
    ],
)
def test_a_range(start, end, strict, lenient):
    for expected, fail_on_data_loss in ((strict, True), (lenient, False)):
        if isinstance(expected, tuple):
            assert check_range(ROOT, start, end, fail_on_data_loss=fail_on_data_loss) == expected
        else:
            with pytest.raises(expected):
                check_range(ROOT, start, end, fail_on_data_loss=fail_on_data_loss)


def test_loss_that_is_accepted_is_reported(caplog):
    assert check_range(ROOT, 3, 30, fail_on_data_loss=False, url="memory://s") == (10, 30)
    told = "the events [3, 10) of memory://s are gone; reading continues at 10"
    assert caplog.messages == [told]
    assert check_range(ROOT, 3, 5, fail_on_data_loss=False, url="memory://s") == (10, 10)
    assert "the events [3, 5) of" in caplog.messages[1]
    check_range(ROOT, 10, 30, fail_on_data_loss=False, url="memory://s")
    assert len(caplog.messages) == 2
    with pytest.raises(TruncatedError):
        check_range(ROOT, 3, 30, fail_on_data_loss=True, url="memory://s")


@pytest.fixture
def log() -> StreamLog:
    """Versions 1 to 6 with ten events each: three at one instant, three ten seconds apart."""
    time = VirtualTime(now_us=1_000_000_000)
    storage = TimedStorage(open_storage(f"memory://{uuid.uuid4().hex}"), time)
    log = StreamLog(storage, clock=time.clock)
    first = Root("s", 0, "t0", "", time.now_us, "create", (Epoch(0, 0, "x", None),))
    assert log.create(begin_history(first))
    for number in range(6):
        time.advance(10 if number == 0 or number >= 3 else 0)
        entry = SegmentEntry(number, f"t/{number}", 10, 1, 1, 0)

        def build(root: Root, _slot: object, entry: SegmentEntry = entry) -> Change[None]:
            entries = (*root.entries, entry)
            number = len(entries)
            return Change(replace(root, entries=entries, tail=10 * number, next_segment=number))

        log.commit(build, transaction=f"t{number + 1}")
    return log


@pytest.mark.parametrize(
    ("cut", "offset"),
    [
        (25, 25),
        (10**6, 10**6),
        ("head", 0),
        ("tail", 60),
        ("version:0", 0),
        ("version:3", 30),
        ("version:6", 60),
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:16:39.999999Z", 0),
        ("1970-01-01T00:16:40Z", 0),
        ("1970-01-01T00:16:49.999999Z", 0),
        ("1970-01-01T00:16:50Z", 30),
        ("1970-01-01T00:16:59.999999Z", 30),
        ("1970-01-01T00:17:00Z", 40),
        ("1970-01-01T00:17:10Z", 50),
        ("1970-01-01T00:17:20Z", 60),
        ("2099-01-01T00:00:00Z", 60),
        (Position("s", 0, 7), 7),
    ],
)
def test_a_cut_is_bound_to_an_offset(log, cut, offset):
    assert resolve_cut(StreamContext.of(log), log.root, parse_cut(cut)) == offset


def test_unresolvable_cut_error_explains_why(log):
    with pytest.raises(NotFoundError, match="version=7, newest=6"):
        resolve_cut(StreamContext.of(log), log.root, parse_cut("version:7"))
    with pytest.raises(PositionError):
        resolve_cut(StreamContext.of(log), log.root, Cut("position", Position("x", 0, 0)))


ZONED = pa.timestamp("us", "UTC")
DAY = dt.date(1970, 1, 3)
EAST = dt.timezone(dt.timedelta(hours=1))


@pytest.mark.parametrize(
    ("data_type", "given", "expected"),
    [
        (ZONED, "1970-01-01T00:00:01Z", 1_000_000),
        (ZONED, "1970-01-01T01:00:00+01:00", 0),
        (ZONED, dt.datetime(1970, 1, 1, 1, tzinfo=EAST), 0),
        (pa.timestamp("us"), "1970-01-01", 0),
        (pa.timestamp("us"), "1970-01-01T00:00:00.000001", 1),
        (pa.date32(), "1970-01-03", 2),
        (pa.date32(), DAY, 2),
        (pa.date32(), "1970-01-03T00:00:00", 2),
        (pa.date32(), "1970-01-03T00:00:00.000001Z", 3),
        (pa.date32(), "1969-12-31T12:00:00Z", 0),
        (pa.date32(), dt.datetime(1970, 1, 3, 0, 30, tzinfo=EAST), 2),
        (pa.int64(), 7, 7),
        (pa.int64(), "-1.5", -1),
        (pa.int8(), 1.5, 2),
        (pa.float64(), "1.5", 1.5),
    ],
)
def test_moment_is_rounded_up_to_the_unit(data_type: Any, given: Any, expected: Any) -> None:
    assert parse_moment(pa.field("t", data_type), given) == expected


@pytest.mark.parametrize(
    ("data_type", "given"),
    [
        (ZONED, "1970-01-01T00:00:00"),
        (ZONED, DAY),
        (ZONED, 5),
        (pa.timestamp("us"), "1970-01-01T00:00:00Z"),
        (pa.date32(), 5),
        (pa.date32(), "soon"),
        (pa.int8(), 1000),
        (pa.int8(), None),
        (pa.int64(), "Infinity"),
        (pa.float64(), "nan"),
        (pa.float64(), "x"),
    ],
)
def test_moment_that_does_not_fit_is_refused(data_type: Any, given: Any) -> None:
    with pytest.raises(InvalidInputError, match="does not fit the time column"):
        parse_moment(pa.field("t", data_type), given)


def test_interval_becomes_conditions_that_leave_nan_out() -> None:
    field = pa.field("t", pa.float64())
    found = time_conditions(field, (1, 2))
    assert {(part.op, part.literal) for part in found} == {(">=", 1.0), ("<", 2.0), ("!=", "NaN")}
    assert [part.op for part in time_conditions(pa.field("t", ZONED), (None, None))] == [
        "is not null"
    ]
