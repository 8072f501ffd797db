"""Moments in the type of the time column, and the conditions of an interval."""

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from segstore_ds.errors import InvalidInputError
from segstore_ds.read.event_time import parse_moment, time_conditions

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
