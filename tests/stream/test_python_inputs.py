"""What Python callers have at hand: events as dicts, frames of other libraries, cuts as words."""

import uuid

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from stream_kit import make_stream, values

import segstore_ds as segstore
from segstore_ds.errors import InvalidInputError, SchemaMismatchError

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
ROWS = [{"n": 1, "s": "a"}, {"n": 2, "s": None}]


def make(**given):
    return segstore.create(f"memory://{uuid.uuid4().hex}", upkeep=None, **given)


def frames():
    relation = duckdb.sql("SELECT * FROM (VALUES (1::BIGINT, 'a'), (2::BIGINT, NULL)) AS t(n, s)")
    return {
        "dicts": ROWS,
        "pandas": pd.DataFrame({"n": [1, 2], "s": ["a", None]}),
        "polars": pl.DataFrame(ROWS),
        "lazy": pl.LazyFrame(ROWS),
        "duckdb": relation,
    }


@pytest.mark.parametrize("kind", ["dicts", "pandas", "polars", "lazy", "duckdb"])
def test_frames_and_events_make_a_stream_and_fill_it(kind):
    data = frames()[kind]
    stream = make(like=data)
    assert stream.schema == SCHEMA
    stream.append(data)
    assert stream.read().read_all().to_pylist() == ROWS


def test_an_event_is_a_dict_whose_missing_columns_are_null():
    stream = make(schema=SCHEMA)
    stream.append({"n": 5})
    stream.append([{"s": "x"}] * 5000)
    assert (stream.tail, stream.read(limit=1).read_all().to_pylist()) == (
        5001,
        [{"n": 5, "s": None}],
    )


@pytest.mark.parametrize(
    ("events", "error", "why"),
    [
        ([{"n": 1}, {"n": 1.5}], SchemaMismatchError, "does not fit"),
        ({"n": [1], "s": ["columns are no event"]}, SchemaMismatchError, "is one event"),
        ({"m": 1}, SchemaMismatchError, "unknown columns"),
        ([{"n": 1}, 2], InvalidInputError, "not an event"),
        ([], InvalidInputError, "not Arrow data"),
    ],
)
def test_events_that_do_not_fit_are_refused_whole(events, error, why):
    stream = make(schema=SCHEMA)
    with pytest.raises(error, match=why):
        stream.append(events)
    assert stream.refresh().tail == 0


def test_overwrite_takes_events_of_a_new_schema_too():
    stream = make(schema=SCHEMA)
    stream.overwrite([{"n": 7}])
    assert values(stream) == [7]
    stream.overwrite([{"other": "x"}], overwrite_schema=True)
    assert stream.schema == pa.schema([("other", pa.string())])


def test_a_stream_is_made_by_one_schema():
    assert make(like=make(schema=SCHEMA)).schema == SCHEMA
    for given, why in (({}, "not a schema"), ({"schema": SCHEMA, "like": SCHEMA}, "two schemas")):
        with pytest.raises(InvalidInputError, match=why):
            make(**given)


def test_cuts_in_words_and_in_time_before_now():
    stream, _ = make_stream(3)  # an hour apart, the last one now
    assert values(stream, "earliest", "latest") == list(range(30))
    assert values(stream, "-30m") == list(range(20, 30))
    assert values(stream, "-90m", "-1s") == list(range(10, 20))
    assert values(stream, "-9w") == list(range(30))
    with pytest.raises(InvalidInputError, match="-1h"):
        stream.read("-1 fortnight")
