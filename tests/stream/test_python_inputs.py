"""What Python callers have at hand: events as dicts, frames of other libraries, cuts as words."""

import datetime as dt
import uuid
from functools import partial
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from stream_kit import make_stream, values

import segstore_ds as segstore
from segstore_ds.errors import ConflictError, InvalidInputError, SchemaMismatchError

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


def test_events_come_from_a_generator_once():
    stream = make(schema=SCHEMA)
    events = ({"n": n} for n in range(3))
    stream.append(events)
    with pytest.raises(InvalidInputError, match="already consumed"):
        stream.append(events)
    with pytest.raises(ConflictError) as failed:
        stream.append(({"n": n} for n in range(3)), expected_tail=7)
    assert not failed.value.retryable
    with stream.appender() as appender:
        appender.append({"n": n, "s": "x"} for n in range(3, 5))
    assert values(stream) == [*range(5)]


@pytest.mark.parametrize(
    ("events", "error", "why"),
    [
        ([{"n": 1}, {"n": 1.5}], SchemaMismatchError, "does not fit"),
        ({"n": [1], "s": ["columns are no event"]}, SchemaMismatchError, "is one event"),
        ({"m": 1}, SchemaMismatchError, "unknown columns"),
        ([{"n": 1}, 2], InvalidInputError, "not an event"),
        ([None], InvalidInputError, "not Arrow data"),
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
    with pytest.raises(InvalidInputError, match="both schema and like"):
        make(schema=SCHEMA, like=SCHEMA)


def test_cuts_in_words_and_in_time_before_now():
    stream, _ = make_stream(3)  # an hour apart, the last one now
    assert values(stream, "earliest", "latest") == list(range(30))
    assert values(stream, "-30m") == list(range(20, 30))
    assert values(stream, "-90m", "-1s") == list(range(10, 20))
    assert values(stream, "-9w") == list(range(30))
    with pytest.raises(InvalidInputError, match="-1h"):
        stream.read("-1 fortnight")


def test_new_columns_of_events_are_added_with_merge_schema():
    """Each gets the type that Arrow finds in its values; events without it hold null."""
    stream = make(schema=SCHEMA)
    stream.append(ROWS)
    more = [{"n": 3, "x": 1.5, "tags": ["a"]}, {"s": "b", "at": dt.date(2026, 11, 24)}]
    with pytest.raises(SchemaMismatchError, match="merge_schema=True"):
        stream.append(more)
    stream.append(more, merge_schema=True)
    assert stream.schema.names == ["n", "s", "x", "tags", "at"]
    assert stream.schema.field("x").type == pa.float64()
    assert stream.schema.field("at").type == pa.date32()
    empty = dict.fromkeys(stream.schema.names)
    rows = [{**empty, **row} for row in [*ROWS, *more]]
    assert stream.read().read_all().to_pylist() == rows
    stream.append({"n": 4, "later": None}, merge_schema=True)
    stream.append({"later": 7}, merge_schema=True)
    assert stream.read(columns=["n", "later"]).read_all().to_pylist()[-2:] == [
        {"n": 4, "later": None},
        {"n": None, "later": 7},
    ]
    stream.overwrite([{"y": True}], merge_schema=True)
    assert stream.read(columns=["y", "n"]).read_all().to_pylist() == [{"y": True, "n": None}]


@pytest.mark.parametrize(
    ("kind", "values", "wider"),
    [
        (pa.int32(), [1, 1.5], pa.float64()),
        (pa.int32(), [2**40, 1], pa.int64()),
        (pa.int32(), [2**20, 1], pa.int32()),
        (pa.float32(), [1e300], pa.float64()),
        (pa.struct([("a", pa.int32())]), [{"a": 1, "b": "x"}], None),
    ],
)
def test_values_of_events_widen_a_column_as_those_of_a_table_do(kind, values, wider):
    """With merge_schema, and only where a value needs it."""
    kind = pa.struct([("x", kind)]).field("x").type
    stream, other = make(schema=pa.schema([("x", kind)])), make(schema=pa.schema([("x", kind)]))
    events = [{"x": value} for value in values]
    if wider != kind:
        with pytest.raises(SchemaMismatchError, match="column='x'"):
            stream.append(events)
    stream.append(events, merge_schema=True)
    other.append(pa.Table.from_pylist(events), merge_schema=True)
    assert stream.read().read_all().to_pylist() == events
    assert other.read().read_all().to_pylist() == events
    found = stream.schema.field("x").type
    assert found == (other.schema.field("x").type if wider is None else wider)
    for merge in (False, True):
        with pytest.raises(SchemaMismatchError, match=r"value does not fit.*column='x'"):
            stream.append({"x": "a"}, merge_schema=merge)


@pytest.mark.parametrize("value", [1.5, 1 << 64])
def test_a_value_that_no_wider_type_holds_is_refused(value):
    """As it is without merge_schema: the error names the column and its type."""
    stream = make(schema=pa.schema([("x", pa.int64())]))
    for merge in (False, True):
        with pytest.raises(SchemaMismatchError, match=r"value does not fit.*column='x'"):
            stream.append({"x": value}, merge_schema=merge)


@pytest.mark.parametrize("values", [[1, "a"], [object()], [1, None, [2]]])
def test_new_column_whose_values_have_no_common_type_is_refused(values):
    """Nothing is appended, and the error names the column."""
    stream = make(schema=SCHEMA)
    with pytest.raises(SchemaMismatchError, match="column='x'"):
        stream.append([{"x": value} for value in values], merge_schema=True)
    with pytest.raises(SchemaMismatchError, match="columns="):
        stream.append([{5: 1}], merge_schema=True)
    assert (stream.tail, stream.refresh().version) == (0, 0)


FINE = "2026-11-20 12:00:00.123456789"


@pytest.mark.parametrize("data", [pl.DataFrame, pl.LazyFrame])
def test_objects_of_polars_are_refused_and_not_stored_as_addresses(data):
    given = data({"s": [uuid.uuid4()], "n": [1]})
    stream = make(schema=pa.schema([("s", pa.binary()), ("n", pa.int64())]))
    appender = stream.appender()
    for take in (stream.append, stream.overwrite, appender.append, lambda rows: make(like=rows)):
        with pytest.raises(InvalidInputError, match=r"Python objects: columns=\['s'\]; make texts"):
            take(given)
    appender.close()
    assert stream.tail == 0


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (pd.arrays.SparseArray([1, 0]), r"type='Sparse.*to_dense"),
        (pd.Series(["\ud800"], dtype=object), "column='a', type='object'"),
        ([2**70], "column='a', type='object'"),
        ([1j], "column='a', type='complex128'"),
        (pd.period_range("2026", periods=2, freq="M"), "column='a'.*to_timestamp"),
        (pd.Categorical(pd.period_range("2026", periods=2, freq="M")), "periods of pandas"),
    ],
)
def test_what_pandas_holds_and_arrow_does_not_is_an_error_with_the_column(values, why):
    data = pd.DataFrame({"b": 1, "a": values})
    stream = make(schema=SCHEMA)
    for take in (stream.append, lambda rows: make(like=rows)):
        with pytest.raises(InvalidInputError, match=why):
            take(data)


def series(values, kind):
    return pl.DataFrame({"a": pl.Series(values, dtype=kind)})


def column(values, kind=None):
    return pd.DataFrame({"a": pd.Series(values, dtype=kind)})


def arrow(values, kind):
    return pa.table({"a": pa.array(values, kind)})


UUID, MAX, DAY = uuid.UUID(int=5), 2**64 - 1, pd.Timestamp("2026-01-02").to_pydatetime()
# For each row of the page's table: data, and how it is stored; None where it is refused.
STORED = {
    "uint8, uint16, uint32; uint64": [
        (series([255], pl.UInt8), "int16", [255]),
        (column([65535], "uint16"), "int32", [65535]),
        (arrow([2**32 - 1], pa.uint32()), "int64", [2**32 - 1]),
        (series([MAX], pl.UInt64), "decimal128(20, 0)", [MAX]),
        (column([MAX, None], "UInt64"), "decimal128(20, 0)", [MAX, None]),
    ],
    "categorical, Enum, dictionary": [
        (series(["x"], pl.Categorical), "string", ["x"]),
        (series(["x"], pl.Enum(["x"])), "string", ["x"]),
        (column(["x", None], "category"), "string", ["x", None]),
        (arrow([7], pa.dictionary(pa.int8(), pa.uint8())), "int16", [7]),
    ],
    "fixed-size, large and view types; sets": [
        (series([[1, 2]], pl.Array(pl.Int64, 2)), "list<element: int64>", [[1, 2]]),
        (arrow(["x"], pa.large_string()), "string", ["x"]),
        (arrow([b"ab"], pa.binary(2)), "binary", [b"ab"]),
        (arrow([[1]], pa.list_view(pa.int64())), "list<element: int64>", [[1]]),
        (column([{1}]), "list<element: int64>", [[1]]),
    ],
    "`Int64`, `boolean`, `string` of pandas; its NaN and NA": [
        (column([1, None], "Int64"), "int64", [1, None]),
        (column([True, None], "boolean"), "bool", [True, None]),
        (column(["x", None], "string"), "string", ["x", None]),
        (column([1.5, float("nan")]), "double", [1.5, None]),
    ],
    "half float; time; date64": [
        (column([1.5], "float16"), "float", [1.5]),
        (arrow([dt.time(1)], pa.time32("s")), "time64[ns]", [dt.time(1)]),
        (arrow([dt.date(2026, 1, 2)], pa.date64()), "date32[day]", [dt.date(2026, 1, 2)]),
    ],
    "seconds, milliseconds; other time zones": [
        (column([DAY], "datetime64[s]"), "timestamp[us]", [DAY]),
        (
            series([DAY], pl.Datetime("ms")).select(
                pl.col("a").dt.replace_time_zone("Europe/Berlin")
            ),
            "timestamp[us, tz=UTC]",
            [DAY.replace(tzinfo=dt.UTC) - dt.timedelta(hours=1)],
        ),
    ],
    "extension types; intervals of pandas; UUIDs": [
        (arrow(["{}"], pa.json_()), "string", ["{}"]),
        (
            pd.DataFrame({"a": pd.interval_range(0, 1)}),
            "struct<left: int64, right: int64>",
            [{"left": 0, "right": 1}],
        ),
        (column([UUID]), "binary", [UUID.bytes]),
        ({"a": UUID}, "binary", [UUID.bytes]),
    ],
    "`Object` and 128-bit integers of Polars": [
        (series([UUID], pl.Object), None, "columns=['a']"),
        (series([2**100], pl.Int128), None, "columns=['a']"),
    ],
    "periods, sparse and complex columns of pandas": [
        (pd.DataFrame({"a": pd.period_range("2026", periods=1)}), None, "column='a'"),
        (pd.DataFrame({"a": pd.arrays.SparseArray([1, 0])}), None, "column='a'"),
        (column([1j]), None, "column='a'"),
    ],
    "values of several types, whole numbers beyond 64 bits": [
        (column([1, "x"], object), None, "column='a'"),
        (column([2**70], object), None, "column='a'"),
        ([{"a": 1}, {"a": "x"}], None, "column='a'"),
        ({"a": 2**70}, None, "column='a'"),
    ],
    "lone surrogates in texts, two columns of one name": [
        (column(["\ud800"], object), None, "column='a'"),
        ({"a": "\ud800"}, None, "column='a'"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), None, "names=['a']"),
        (pa.table([[1], [2]], names=["a", "a"]), None, "names=['a']"),
    ],
    "decimals of more than 38 digits, unions, run-end encoding": [
        (arrow([10**40], pa.decimal256(60, 0)), None, "column='a'"),
        (
            pa.table({"a": pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])}),
            None,
            "column='a'",
        ),
        (
            pa.table({"a": pa.RunEndEncodedArray.from_arrays([2], ["x"])}),
            None,
            "column='a'",
        ),
    ],
}


def test_types_become_what_the_page_says():
    """Through create and append; other data than the page's rows is not tested here."""
    page = (Path(segstore.__file__).parent / "docs" / "python.md").read_text()
    table = page.partition("| given | stored |")[2].partition("\n\n")[0].splitlines()[2:]
    assert [row.split(" | ")[0].removeprefix("| ") for row in table] == [*STORED]
    assert [row.split(" | ")[1][:5] == "error" for row in table] == [
        found[0][1] is None for found in STORED.values()
    ]
    for given, stored, expected in (case for found in STORED.values() for case in found):
        if stored is not None:
            stream = make(like=given)
            stream.append(given)
            found = stream.read().read_all()["a"]
            assert (str(found.type), found.to_pylist()) == (stored, expected)
            continue
        other = make(schema=pa.schema([("b", pa.int64())]))
        for take in (partial(make, like=given), partial(other.append, given, merge_schema=True)):
            with pytest.raises((InvalidInputError, SchemaMismatchError)) as refused:
                take()
            assert expected in str(refused.value)
        assert other.refresh().tail == 0


def test_objects_of_pandas_keep_their_nanoseconds():
    """Arrow infers microseconds for them, without a word."""
    time, lasts = pd.Timestamp(FINE), pd.Timedelta(123456789)
    cells = {"t": time, "z": time.tz_localize("UTC"), "d": lasts, "l": [time], "s": {"d": lasts}}
    frame = pd.DataFrame({name: pd.Series([cell], dtype=object) for name, cell in cells.items()})
    kinds = {name: pa.timestamp("ns") for name in "tl"} | dict.fromkeys("ds", pa.duration("ns"))
    kinds |= {"z": pa.timestamp("ns", "UTC"), "l": pa.list_(pa.timestamp("ns"))}
    schema = pa.schema([(name, kinds[name]) for name in cells if name != "s"])
    schema = schema.append(pa.field("s", pa.struct([("d", pa.duration("ns"))])))
    expected = pa.Table.from_pylist([cells], schema)
    indexed = frame[["t", "d"]].set_index("t")
    for data in (frame, cells, [cells], indexed):
        stream = make(like=data)
        stream.append(data)
        found = stream.read().read_all()
        assert found.equals(expected.select(found.column_names).cast(found.schema))
    stream = make(schema=pa.schema([("t", pa.timestamp("us"))]))
    with pytest.raises(SchemaMismatchError):
        stream.append(frame[["t"]])


def test_events_without_a_schema_have_the_columns_of_all():
    """`Table.from_pylist` takes the columns of the first, and leaves out the others' values."""
    events = [{"n": 1}, {"n": 2, "s": "x"}]
    stream = make(like=events)
    with stream.appender() as appender:
        appender.append(events)
        with pytest.raises(SchemaMismatchError, match="column='n'"):
            appender.append([{"n": 2**70}])
        with pytest.raises(InvalidInputError, match="not an event"):
            appender.append([{"n": 1}, 2])
    stream.overwrite([*events, {"b": True}], overwrite_schema=True)
    assert stream.read().read_all().to_pylist()[1:] == [
        {"n": 2, "s": "x", "b": None},
        {"n": None, "s": None, "b": True},
    ]
    with pytest.raises(InvalidInputError, match=r"type of a column: columns=\['user'\]"):
        make(like={"user": None, "n": 1})
