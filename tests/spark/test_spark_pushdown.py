"""Spark's own filter push-down leaks between scans of one DataFrame; ours is never used by it."""

import pyarrow as pa
import pytest
from sessions import session_settings

import segstore_ds as segstore

CONF = "spark.sql.python.filterPushdown.enabled"

pytestmark = pytest.mark.usefixtures("verified")


@pytest.fixture(params=["true", "false"])
def pushdown(request, spark):
    """Both states of the session's setting."""
    with session_settings(spark, {CONF: request.param}):
        yield


@pytest.fixture
def stream(url):
    """Ten events in two segments, n from 0 to 9."""
    made = segstore.create(url, pa.schema([("n", pa.int64())]))
    for start in (0, 5):
        made.append(
            pa.table({"n": range(start, start + 5)}), layout=segstore.Layout(inline_bytes=0)
        )
    return made


@pytest.mark.smoke
@pytest.mark.usefixtures("pushdown")
@pytest.mark.parametrize("schema", [None, "n bigint"])
def test_filter_then_count_counts_everything(stream, load, schema):
    df = load(schema=schema)
    assert [row.n for row in df.filter("n = 1").collect()] == [1]
    assert df.count() == 10
    assert df.filter("n > 100").count() == 0
    assert df.count() == 10


@pytest.mark.usefixtures("pushdown")
def test_scans_of_one_dataframe_keep_their_filters_and_its_snapshot(spark, stream, load):
    df = load()
    both = df.filter("n = 1").union(df.filter("n = 8"))
    assert sorted(row.n for row in both.collect()) == [1, 8]
    first, second = df.filter("n = 2"), df.filter("n = 3")
    second.explain()
    assert (first.first().n, second.first().n) == (2, 3)
    load(filters='[["n", ">=", 4]]').createOrReplaceTempView("pushed")
    stream.append(pa.table({"n": [10]}))
    assert (df.filter("n >= 0").count(), df.count()) == (10, 10)
    found = spark.sql(
        "SELECT a.n FROM pushed a JOIN pushed b ON a.n = b.n + 1 WHERE a.n > 6 AND b.n < 8"
    )
    assert sorted(row.n for row in found.collect()) == [7, 8]
    assert spark.table("pushed").count() == 6
