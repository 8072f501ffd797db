"""Random schemas and rows come back from a stream as they went in."""

import datetime as dt
import decimal
import itertools
import string

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql import types as t

import segstore_ds as segstore

pytestmark = pytest.mark.slow

_EPOCH, _MOMENTS = dt.datetime(1900, 1, 1), dt.timedelta(days=365 * 200)
_DECIMALS = t.DecimalType(20, 5)
# Within a day, Python's own intervals are the ones that Spark's Python side gives back exactly.
_LEAVES = {
    t.BooleanType(): st.booleans(),
    t.ByteType(): st.integers(-(2**7), 2**7 - 1),
    t.ShortType(): st.integers(-(2**15), 2**15 - 1),
    t.IntegerType(): st.integers(-(2**31), 2**31 - 1),
    t.LongType(): st.integers(-(2**63), 2**63 - 1),
    t.FloatType(): st.floats(width=32),
    t.DoubleType(): st.floats(),
    _DECIMALS: st.integers(-(10**20) + 1, 10**20 - 1).map(
        lambda n: decimal.Decimal(n).scaleb(-5, decimal.Context(prec=38))
    ),
    t.StringType(): st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    t.BinaryType(): st.binary(max_size=8).map(bytearray),
    t.DateType(): st.dates(),
    t.TimestampType(): st.timedeltas(dt.timedelta(0), _MOMENTS).map(lambda d: _EPOCH + d),
    t.TimestampNTZType(): st.timedeltas(dt.timedelta(0), _MOMENTS).map(lambda d: _EPOCH + d),
    t.TimeType(): st.times(),
    t.DayTimeIntervalType(): st.timedeltas(dt.timedelta(days=-9999), dt.timedelta(days=9999)),
    t.NullType(): st.none(),
}
_NAMES = st.text(string.ascii_lowercase + " .`é", min_size=1, max_size=4).filter(str.strip)


def structs(inner: st.SearchStrategy[t.DataType], *, most: int) -> st.SearchStrategy[t.StructType]:
    columns = st.lists(st.tuples(_NAMES, inner, st.booleans()), min_size=1, max_size=most)
    return columns.map(
        lambda fields: t.StructType(
            [
                t.StructField(f"{name}{place}", data_type, nullable or data_type == t.NullType())
                for place, (name, data_type, nullable) in enumerate(fields)
            ]
        )
    )


def _nested(inner: st.SearchStrategy[t.DataType]) -> st.SearchStrategy[t.DataType]:
    keys = st.sampled_from([t.StringType(), t.LongType(), t.DateType()])
    return inner.map(t.ArrayType) | st.builds(t.MapType, keys, inner) | structs(inner, most=3)


TYPES = st.recursive(st.sampled_from(list(_LEAVES)), _nested, max_leaves=4)


def values(data_type: t.DataType, *, nullable: bool = True) -> st.SearchStrategy[object]:
    if isinstance(data_type, t.StructType):
        children = [values(field.dataType, nullable=field.nullable) for field in data_type]
        made = st.tuples(*children).map(lambda found: Row(*data_type.names)(*found))
    elif isinstance(data_type, t.ArrayType):
        made = st.lists(values(data_type.elementType), max_size=3)
    elif isinstance(data_type, t.MapType):
        keys = values(data_type.keyType, nullable=False)
        made = st.dictionaries(keys, values(data_type.valueType), max_size=3)
    else:
        made = _LEAVES[data_type]
    return st.none() | made if nullable else made


_numbers = itertools.count()
OPTIONS = st.tuples(*map(st.sampled_from, ([0, 65536], [1, 2, 1000], ["zstd", "lz4", "none"])))


@settings(
    max_examples=max(12, settings.default.max_examples // 40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_random_rows_come_back_exactly(spark, tmp_path, data):
    schema = data.draw(structs(TYPES, most=4), "schema")
    rows = data.draw(st.lists(values(schema, nullable=False), max_size=6), "rows")
    inline, rows_of_frame, compression = data.draw(OPTIONS, "options")
    options = {"inlineBytes": inline, "frameRows": rows_of_frame, "compression": compression}
    url = f"file://{tmp_path}/{next(_numbers)}"
    df = spark.createDataFrame(rows, schema, verifySchema=False).coalesce(1)
    df.write.format("segstore").mode("append").options(**options).save(url)
    back = spark.read.format("segstore").load(url)
    assert back.schema.simpleString() == df.schema.simpleString()
    # repr: NaN equals itself in it, and -0.0 is not 0.0.
    assert repr(back.collect()) == repr(df.collect())
    segstore.open(url).verify().check()
