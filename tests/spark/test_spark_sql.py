"""SQL: views, tables with a path at query time, and tables without one."""

import subprocess
import sys
from pathlib import Path

import pytest
from process_kit import spark_environment
from pyspark.errors import AnalysisException

import segstore_ds as segstore
from segstore_ds.errors import InvalidInputError

SENTENCE = "Spark forgets a catalog table's options"

pytestmark = pytest.mark.usefixtures("verified")


@pytest.fixture
def table(spark):
    """The name of a catalog table that is dropped afterwards."""
    yield "events"
    spark.sql("DROP TABLE IF EXISTS events")
    spark.sql("DROP VIEW IF EXISTS events_view")


def ids(url: str) -> list[int]:
    return sorted(row["id"] for row in segstore.open(url).read().read_all().to_pylist())


def refused(spark, statement: str) -> str:
    with pytest.raises(AnalysisException) as caught:
        spark.sql(statement).collect()
    return str(caught.value)


def test_temporary_view_reads_and_inserts(spark, url, append, table):
    append(spark.range(3))
    spark.sql(
        "CREATE TEMPORARY VIEW events_view USING segstore "
        f"OPTIONS (path '{url}', startCut '1', offsetColumn 'o')"
    )
    found = spark.sql("SELECT id, o FROM events_view WHERE id > 0 ORDER BY o").collect()
    assert [tuple(row) for row in found] == [(1, 1), (2, 2)]


@pytest.mark.smoke
def test_insert_into_a_temporary_view(spark, url, append, table):
    append(spark.range(3))
    spark.sql(f"CREATE TEMPORARY VIEW events_view USING segstore OPTIONS (path '{url}')")
    spark.sql("INSERT INTO events_view VALUES (10), (11)")
    spark.sql("INSERT INTO events_view SELECT id + 100 FROM range(2)")
    assert ids(url) == [0, 1, 2, 10, 11, 100, 101]
    spark.sql("INSERT OVERWRITE events_view SELECT 7L")
    assert ids(url) == [7]
    # A view is a snapshot as any DataFrame is.
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW events_view USING segstore OPTIONS (path '{url}')")
    assert spark.table("events_view").count() == 1


def test_insert_into_a_view_with_read_options_is_refused(spark, url, append, table):
    append(spark.range(3))
    spark.sql(
        f"CREATE TEMPORARY VIEW events_view USING segstore OPTIONS (path '{url}', startCut '1')"
    )
    text = refused(spark, "INSERT INTO events_view VALUES (10)")
    assert "option belongs to a read, not to a write" in text
    assert ids(url) == [0, 1, 2]


def test_table_with_a_path_at_query_time(spark, url, append, table):
    append(spark.range(3))
    spark.sql("CREATE TABLE events (id BIGINT) USING segstore")
    found = spark.sql(f"SELECT * FROM events WITH (path = '{url}', startCut = '1')").collect()
    assert sorted(row.id for row in found) == [1, 2]
    spark.sql(f"INSERT INTO events WITH (path = '{url}') VALUES (10)")
    assert ids(url) == [0, 1, 2, 10]
    overwrite = "INSERT OVERWRITE events WITH (path = '{}', expectedTail = {}) VALUES ({})"
    assert "SEG_CONFLICT" in refused(spark, overwrite.format(url, 3, 11))
    assert ids(url) == [0, 1, 2, 10]
    found = spark.read.option("path", url).table("events")
    assert found.count() == 4


def test_table_without_a_path_fails_and_creates_nothing(spark, table, sessions):
    spark.sql("CREATE TABLE events (id BIGINT) USING segstore")
    before = _files(sessions.folder, Path.cwd())
    for statement in (
        "SELECT * FROM events",
        "SELECT count(*) FROM events",
        "INSERT INTO events VALUES (1)",
        "INSERT OVERWRITE events VALUES (1)",
    ):
        text = refused(spark, statement)
        assert SENTENCE in text
        assert "WITH (path" in text
    with pytest.raises(AnalysisException, match=SENTENCE):
        spark.range(1).writeTo("events").append()
    with pytest.raises(AnalysisException, match=SENTENCE):
        spark.range(1).write.mode("append").format("segstore").saveAsTable("events")
    assert _files(sessions.folder, Path.cwd()) == before


def test_table_created_with_a_path_asks_for_the_path_again(spark, url, append, table):
    append(spark.range(3))
    spark.sql(f"CREATE TABLE events USING segstore OPTIONS (path '{url}')")
    assert spark.table("events").schema.simpleString() == "struct<id:bigint>"
    assert SENTENCE in refused(spark, "SELECT * FROM events")
    assert SENTENCE in refused(spark, "INSERT INTO events VALUES (1)")
    spark.sql("DROP TABLE events")
    spark.sql(f"CREATE TABLE events USING segstore LOCATION '{url.removeprefix('file://')}'")
    assert SENTENCE in refused(spark, "SELECT * FROM events")
    spark.sql("DROP TABLE events")
    assert ids(url) == [0, 1, 2]  # dropping a table deletes nothing


def test_create_table_without_columns_needs_a_stream(spark, url, table):
    assert SENTENCE in refused(spark, "CREATE TABLE events USING segstore")
    text = refused(spark, f"CREATE TABLE events USING segstore OPTIONS (path '{url}')")
    assert "SEG_NOT_FOUND" in text
    assert not segstore.exists(url)


def test_create_table_as_select_fails_with_the_sentence(spark, url, table):
    for clause in ("", f"OPTIONS (path '{url}')", f"LOCATION '{url}'"):
        text = refused(spark, f"CREATE TABLE events USING segstore {clause} AS SELECT 1L AS id")
        assert SENTENCE in text
        assert not segstore.exists(url)
        assert not spark.catalog.tableExists("events")


def test_statements_that_change_rows_are_refused_by_spark(spark, url, append, table):
    append(spark.range(3))
    spark.sql("CREATE TABLE events (id BIGINT) USING segstore")
    for statement in ("DELETE FROM events WHERE id = 1", "UPDATE events SET id = 2"):
        with pytest.raises(Exception, match=r"does not support|UNSUPPORTED"):
            spark.sql(statement)
    assert ids(url) == [0, 1, 2]


def _files(*folders: Path) -> set[str]:
    found = (path for folder in folders for path in folder.glob("**/log/*"))
    return {str(path) for path in found if ".git" not in path.parts and ".venv" not in path.parts}


@pytest.fixture
def views(spark):
    """Drop what `create_view` makes."""
    yield
    for name in ("late", "early"):
        spark.sql(f"DROP VIEW IF EXISTS {name}")
        spark.sql(f"DROP TABLE IF EXISTS {name}__columns")


@pytest.mark.smoke
def test_a_view_of_its_own_names_a_stream(spark, url, append, views):
    append(spark.range(5))
    segstore.spark.create_view(spark, "late", url, startCut=3, offsetColumn="it's")
    filters = [["id", "<", 2], ["id", "!=", 0]]
    segstore.spark.create_view(spark, "early", url, endCut=3, filters=filters)
    append(spark.range(5, 6))
    assert sorted(map(tuple, spark.table("late").collect())) == [(3, 3), (4, 4), (5, 5)]
    both = "SELECT * FROM (SELECT id FROM late UNION ALL SELECT id FROM early) ORDER BY id"
    assert [row.id for row in spark.sql(both).collect()] == [1, 3, 4, 5]
    with pytest.raises(AnalysisException, match="ALREADY_EXISTS"):
        segstore.spark.create_view(spark, "late", url)
    segstore.spark.create_view(spark, "late", url, replace=True)
    spark.sql(f"INSERT INTO late__columns WITH (path = '{url}') VALUES (9)")
    assert sorted(row.id for row in spark.table("late").collect()) == [0, 1, 2, 3, 4, 5, 9]
    for refused in ({"versionAsOf": 1}, {"storageOptions": {"key": "k"}}, {"path": url}):
        with pytest.raises(InvalidInputError, match="a view can't keep the option"):
            segstore.spark.create_view(spark, "none", url, **refused)


def test_a_view_that_can_not_be_made_leaves_no_table(spark, url, append, views):
    append(spark.range(5))
    spark.sql("CREATE VIEW late AS SELECT 1 AS n")
    for _ in range(2):
        with pytest.raises(AnalysisException, match="ALREADY_EXISTS"):
            segstore.spark.create_view(spark, "late", url)
    assert not spark.catalog.tableExists("late__columns")
    segstore.spark.create_view(spark, "late", url, replace=True)
    assert spark.table("late").count() == 5


@pytest.mark.slow
def test_a_view_lasts_in_a_persistent_catalog(tmp_path, worker_python):
    inside = {"PYTHONPATH": str(Path(__file__).parents[2]), "PYSPARK_PYTHON": worker_python}
    for events in (3, 6):
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("view_driver.py")), str(tmp_path)],
            env=spark_environment(**inside),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.split() == [str(events)], done.stderr[-3000:]
