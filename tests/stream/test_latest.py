"""`Stream.latest`: the newest event of each key, beside a dict that is updated event by event."""

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stream_kit import fresh_url

import segstore_ds as segstore
from segstore_ds.read import latest
from segstore_ds.stream.stream import Stream

SCHEMA = pa.schema([("user", pa.string()), ("n", pa.int64()), ("gone", pa.bool_())])
Event = tuple[str | None, int, bool | None]
EVENTS: list[Event] = [("ada", 1, False), ("bob", 2, None), (None, 3, False), ("ada", 4, False)]


def _stream(*commits: list[Event], schema: pa.Schema = SCHEMA) -> Stream:
    made = segstore.create(fresh_url(), schema)
    for events in commits:
        made.append(_rows(events, schema))
    return made


def _rows(events: list[Event], schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(schema.names, event, strict=True)) for event in events], schema
    )


def _expected(events: list[Event], key: list[int], tombstone: bool) -> list[Event]:
    newest: dict[tuple[object, ...], Event] = {}
    for event in events:
        place = tuple(event[column] for column in key)
        newest.pop(place, None)  # so that the order is that of the newest ones
        newest[place] = event
    return [event for event in newest.values() if not (tombstone and event[2])]


_EVENT = st.tuples(
    st.sampled_from(["ada", "bob", "", None]),
    st.integers(0, 3),
    st.sampled_from([True, False, None]),
)


@given(
    commits=st.lists(st.lists(_EVENT, min_size=1, max_size=5), max_size=4),
    key=st.sampled_from([["user"], ["n"], ["n", "user"], ["gone"], ["user", "user"]]),
    tombstone=st.sampled_from([None, "gone"]),
    fold=st.sampled_from([1, 3, 1 << 18]),
)
def test_it_is_what_a_dict_holds_in_the_end(commits, key, tombstone, fold):
    stream = _stream(*commits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(latest, "FOLD_ROWS", fold)
        found = stream.latest(key, tombstone=tombstone).read_all()
    events = [event for commit in commits for event in commit]
    places = [SCHEMA.names.index(name) for name in key]
    expected = _expected(events, places, tombstone is not None)
    assert found.equals(_rows(expected))


AT = dt.datetime(2026, 11, 26, 1, 2, tzinfo=dt.UTC)
VALUES = [7, 1.5, True, b"x", Decimal("1.50"), AT, AT.date(), AT.time(), dt.timedelta(3)]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_any_plain_value_is_a_key(value):
    keys = pa.array([value, None, value, None])
    rows = pa.table({"key": keys, "n": [0, 1, 2, 3]})
    stream = segstore.create(fresh_url(), rows.schema)
    stream.append(rows)
    assert stream.latest("key").read_all()["n"].to_pylist() == [2, 3]


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_every_nan_is_one_key_and_so_is_every_zero(kind):
    """0/0 on x86 has another sign than `float("nan")`."""
    keys = np.array([np.nan, 1, 0.0, -np.nan, 1, -0.0], kind.to_pandas_dtype())
    rows = pa.table({"key": pa.array(keys, from_pandas=False), "n": range(6)})
    stream = segstore.create(fresh_url(), rows.schema)
    stream.append(rows)
    assert stream.latest("key").read_all()["n"].to_pylist() == [3, 4, 5]


def test_columns_that_only_decide_are_not_shown():
    stream = _stream(EVENTS, [("bob", 5, True)])
    found = stream.latest(["user"], tombstone="gone", columns=["n"], offset_column="at")
    assert found.schema.names == ["n", "at"]
    assert found.read_all().to_pylist() == [{"n": 3, "at": 2}, {"n": 4, "at": 3}]


def test_cuts_filters_and_versions_are_those_of_a_scan():
    stream = _stream(EVENTS)
    stream.append(_rows([("ada", 9, None)]))
    assert stream.latest(["user"], filters="n < 4").read_all()["n"].to_pylist() == [1, 2, 3]
    assert stream.latest(["user"], end=2).read_all()["n"].to_pylist() == [1, 2]
    assert stream.latest(["user"], as_of=1).read_all()["n"].to_pylist() == [2, 3, 4]
    assert stream.latest(["user"], replicated=True).read_all()["n"].to_pylist() == [2, 3, 9]


def test_each_reading_is_of_the_version_that_it_saw():
    stream = _stream(EVENTS)
    rows = stream.latest(["user"])
    stream.append(_rows([("ada", 9, None)]))
    for _ in range(2):
        assert pa.table(rows)["n"].to_pylist() == [2, 3, 4]


@pytest.mark.parametrize(
    ("key", "how", "said"),
    [
        ([], {}, "no key"),
        (["usr"], {}, "no such column"),
        (["list"], {}, "plain values"),
        (["n"], {"tombstone": "gon"}, "no such column"),
        (["n"], {"tombstone": "user"}, "booleans"),
        (["n"], {"limit": 3}, "limit"),
    ],
)
def test_what_can_not_be_a_key_is_named(key, how, said):
    stream = _stream(schema=SCHEMA.append(pa.field("list", pa.list_(pa.int64()))))
    with pytest.raises(segstore.errors.InvalidInputError, match=said):
        stream.latest(key, **how)
