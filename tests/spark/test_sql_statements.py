"""The table of SQL statements in docs/sql.md: each row is run, and does what the table says."""

import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSourceReader

import segstore_ds as segstore

pytestmark = [pytest.mark.smoke, pytest.mark.usefixtures("verified")]

PAGE = (Path(__file__).parents[2] / "segstore_ds/docs/sql.md").read_text()
_TABLE = PAGE.split("<!-- sql -->\n")[1].split("<!-- /sql -->")[0]
_ROW = re.compile(r"^\| (`+)(.+?) ?\1 \| (yes|no) \| (.*?) ?\|$", re.MULTILINE)
ROWS = [(statement, works, text) for _, statement, works, text in _ROW.findall(_TABLE)]
WORKING = [statement for statement, works, _ in ROWS if works == "yes"]
REFUSED = [(statement, text.split("`")[1]) for statement, works, text in ROWS if works == "no"]

# Spark 4.0 plans a snapshot for each query and a table for each mention, with the same rows, and it
# says less of what it refuses. Before 4.2 a catalog's table may be made like another one.
PLANS_AGAIN = not hasattr(DataSourceReader, "pushFilters")
MAKES_LIKE = find_spec("pyspark.sql.streaming.datasource") is None
if PLANS_AGAIN:
    REFUSED = [
        (statement, re.sub("does not support (UPDATE|MERGE)", r"\1", text))
        for statement, text in REFUSED
    ]
if MAKES_LIKE:
    REFUSED = [each for each in REFUSED if each[0] != "CREATE TABLE n LIKE t"]

# What each statement that works returns, if that is told, and the events after it. The stream held
# 0, 1 and 2 when the snapshot `s` was made, and 3 was appended since.
BEFORE = [0, 1, 2, 3]
RESULTS = {
    "CREATE TABLE n USING segstore OPTIONS (path '/tmp/s')": (None, BEFORE),
    "CREATE TABLE n (id BIGINT) USING segstore": (None, BEFORE),
    "CREATE TEMPORARY VIEW n USING segstore OPTIONS (path '/tmp/s', versionAsOf 1)": (None, BEFORE),
    "SELECT id FROM t WITH (path = '/tmp/s', startCut = 1)": ([1, 2, 3], BEFORE),
    "SELECT id FROM v": (BEFORE, BEFORE),
    "SELECT id FROM s": ([0, 1, 2], BEFORE),
    "SELECT id FROM s WITH (startCut = 1)": ([0, 1, 2], BEFORE),
    "INSERT INTO t WITH (path = '/tmp/s', writerId = 'etl', batchId = 1) VALUES (7)": (
        None,
        [*BEFORE, 7],
    ),
    "INSERT INTO t WITH (path = '/tmp/s') BY NAME SELECT id + 10 AS id FROM v": (
        None,
        [*BEFORE, 10, 11, 12, 13],
    ),
    "INSERT INTO s SELECT id + 10 FROM v": (None, [*BEFORE, 10, 11, 12, 13]),
    "INSERT INTO s WITH (writerId = 'etl', batchId = 1) VALUES (7)": (None, [*BEFORE, 7]),
    "INSERT OVERWRITE t WITH (path = '/tmp/s') SELECT id + 1 FROM v": (None, [1, 2, 3, 4]),
    "INSERT OVERWRITE s SELECT id + 1 FROM s": (None, [1, 2, 3]),
    "CACHE TABLE s": (None, BEFORE),
    "CACHE TABLE v": (None, BEFORE),
    "REFRESH TABLE s": (None, BEFORE),
    "DESCRIBE t": (["id"], BEFORE),
    "SHOW CREATE TABLE t": (None, BEFORE),
    "ALTER TABLE t ADD COLUMN x INT": (None, BEFORE),
    "DROP TABLE t": (None, BEFORE),
}


@pytest.fixture
def sql(spark, url: str) -> Iterator[Callable[[str], list[object]]]:
    """Run a statement of the table beside `t`, `v` and `s`; returns the first column, sorted."""

    def run(statement: str) -> list[object]:
        there = statement.replace("/tmp/s", url).replace("/tmp/n", f"{url}-new")  # noqa: S108
        return sorted(row[0] for row in spark.sql(there).collect())

    stream = segstore.create(url, pa.schema([("id", pa.int64())]))
    stream.append(pa.table({"id": [0, 1, 2]}))
    run("CREATE TABLE t USING segstore OPTIONS (path '/tmp/s')")
    run("CREATE VIEW v AS SELECT * FROM t WITH (path = '/tmp/s')")
    run("CREATE TEMPORARY VIEW s USING segstore OPTIONS (path '/tmp/s')")
    stream.append(pa.table({"id": [3]}))
    yield run
    spark.sql("CLEAR CACHE")
    for kind, name in (("VIEW", "s"), ("VIEW", "v"), ("TABLE", "t")):
        spark.sql(f"DROP {kind} IF EXISTS {name}")
    if not spark.catalog.dropTempView("n"):
        spark.sql("DROP TABLE IF EXISTS n")


def ids(url: str) -> list[int]:
    return sorted(segstore.open(url).read().read_all()["id"].to_pylist())


def test_every_row_of_the_table_is_run():
    rows = [line for line in _TABLE.splitlines() if line.startswith("| `")]
    assert len(rows) == len(ROWS) == len(WORKING) + len(REFUSED) + MAKES_LIKE
    assert {*WORKING} == {*RESULTS}


@pytest.mark.parametrize("statement", WORKING)
def test_supported_statement_has_the_documented_result(sql, url, statement):
    returned, after = RESULTS[statement]
    found = sql(statement)
    assert returned is None or found == returned
    assert ids(url) == after


def test_unsupported_statements_fail_and_change_nothing(sql, url):
    for statement, reason in REFUSED:
        # Some of Spark's own refusals are no AnalysisException.
        with pytest.raises(PySparkException, match=re.escape(reason)):
            sql(statement)
        assert ids(url) == BEFORE, statement
        assert not segstore.exists(f"{url}-new"), statement


def test_writer_of_a_table_is_remembered_and_of_a_snapshot_not(sql, url):
    for target in ("t WITH (path = '/tmp/s', {})", "s WITH ({})"):
        for _ in range(2):
            batch = target.format("writerId = 'etl', batchId = 1")
            sql(f"INSERT INTO {batch} VALUES (7)")
    assert ids(url) == [*BEFORE, 7, 7, 7]


@pytest.mark.parametrize("read", ["t WITH (path = '/tmp/s')", "v", "n WITH (path = '/tmp/s')"])
def test_writer_is_remembered_where_another_table_is_read(sql, url, read):
    """Of one table the first Spark of a line gives the write the options of the read."""
    sql("CREATE TABLE n USING segstore OPTIONS (path '/tmp/s')")
    for _ in range(2):
        sql(
            "INSERT INTO t WITH (path = '/tmp/s', writerId = 'etl', batchId = 1) "
            f"SELECT DISTINCT id FROM {read} WHERE id = 3"
        )
    lost = pyspark.__version__ in ("4.0.0", "4.1.0", "4.2.0") and not read.startswith("n")
    assert ids(url) == [*BEFORE, 3, *[3] * lost]


def test_columns_added_in_the_catalog_fail_by_name(sql):
    sql("ALTER TABLE t ADD COLUMN x INT")
    with pytest.raises(PySparkException, match="column='x'"):
        sql("SELECT id FROM t WITH (path = '/tmp/s')")


@pytest.mark.parametrize(("view", "cached"), [("s", True), ("v", False)])
def test_cache_serves_snapshots_alone(spark, sql, url, view, cached):
    sql(f"CACHE TABLE {view}")
    assert spark.catalog.isCached(view) == cached
    segstore.open(url).append(pa.table({"id": [4]}))
    assert sql(f"SELECT id FROM {view}") == ([0, 1, 2] if cached else [*BEFORE, 4])


def test_snapshot_is_current_again_when_it_is_made_again(sql):
    sql("INSERT INTO s VALUES (4)")
    assert sql("SELECT id FROM s") == [0, 1, 2]
    sql("CREATE OR REPLACE TEMPORARY VIEW s USING segstore OPTIONS (path '/tmp/s')")
    assert sql("SELECT id FROM s") == [*BEFORE, 4]


def test_tables_from_python(spark, sql, url):
    def count() -> int:
        return spark.read.option("path", url).table("n").count()

    spark.catalog.createTable("n", path=url, source="segstore")
    assert count() == 4
    spark.range(1).writeTo("n").option("path", url).append()
    assert count() == 5
    spark.range(1).write.format("segstore").option("path", url).mode("append").saveAsTable("n")
    assert count() == 6
    with pytest.raises(PySparkException, match="Spark forgets"):
        spark.range(1).write.option("path", url).mode("append").insertInto("n")


def test_spark_plans_a_table_once_per_statement(sql):
    """Wrong rows that no code of ours sees. Where this fails, Spark and the page got better."""
    sql("CREATE TABLE n USING segstore OPTIONS (path '/tmp/s')")
    both = "SELECT id FROM n WITH (path = '/tmp/s', startCut = 3) UNION ALL SELECT id FROM {}"
    assert sql(both.format("n WITH (path = '/tmp/s')")) == [3, 3]
    assert sql(both.format("t WITH (path = '/tmp/s')")) == sorted([3, *BEFORE])
