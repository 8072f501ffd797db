"""SQL beside the statements of the page: views with options, tables without a path."""

from pathlib import Path

import pytest
from process_kit import spark_environment
from pyspark.errors import AnalysisException
from sessions import run_program

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


def refused(spark, statement: str) -> str:
    with pytest.raises(AnalysisException) as caught:
        spark.sql(statement).collect()
    return str(caught.value)


def test_view_with_read_options_reads_by_them_and_takes_no_events(spark, url, append, table):
    append(spark.range(3))
    spark.sql(
        "CREATE TEMPORARY VIEW events_view USING segstore "
        f"OPTIONS (path '{url}', startCut '1', offsetColumn 'o')"
    )
    found = spark.sql("SELECT id, o FROM events_view WHERE id > 0 ORDER BY o").collect()
    assert [tuple(row) for row in found] == [(1, 1), (2, 2)]
    text = refused(spark, "INSERT INTO events_view VALUES (10, 3)")
    assert "option belongs to a read, not to a write" in text
    assert segstore.open(url).tail == 3


def test_table_without_a_path_fails_and_creates_nothing(spark, url, table, sessions):
    assert "SEG_NOT_FOUND" in refused(
        spark, f"CREATE TABLE events USING segstore OPTIONS (path '{url}')"
    )
    spark.sql(f"CREATE TABLE events (id BIGINT) USING segstore LOCATION '{url}'")
    before = _logs(sessions.folder, Path.cwd())
    assert SENTENCE in refused(spark, "SELECT count(*) FROM events")
    text = refused(spark, "INSERT OVERWRITE events VALUES (1)")
    assert SENTENCE in text
    assert "WITH (path" in text
    with pytest.raises(AnalysisException, match=SENTENCE):
        spark.range(1).writeTo("events").append()
    with pytest.raises(AnalysisException, match=SENTENCE):
        spark.range(1).write.mode("append").format("segstore").saveAsTable("events")
    assert _logs(sessions.folder, Path.cwd()) == before
    assert not segstore.exists(url)


def _logs(*folders: Path) -> set[str]:
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


# A session with Hive's catalog in a folder: it appends three events, and counts by a view.
VIEW = """
import sys
import segstore_ds as segstore
from pyspark.sql import SparkSession

folder, place = sys.argv[1], "spark.hadoop.javax.jdo.option.ConnectionURL"
settings = {
    "spark.ui.enabled": "false",
    "spark.sql.catalogImplementation": "hive",
    "spark.sql.warehouse.dir": f"{folder}/warehouse",
    place: f"jdbc:derby:;databaseName={folder}/metastore;create=true",
}
spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
segstore.spark.register(spark)
segstore.spark.write(spark.range(3), f"{folder}/stream")
if not spark.catalog.tableExists("clicks"):
    segstore.spark.create_view(spark, "clicks", f"{folder}/stream")
print(spark.table("clicks").count())
"""


@pytest.mark.slow
def test_a_view_lasts_in_a_persistent_catalog(tmp_path, worker_python):
    inside = {"PYTHONPATH": str(Path(__file__).parents[2]), "PYSPARK_PYTHON": worker_python}
    for events in (3, 6):
        printed = run_program("-c", VIEW, tmp_path, cwd=tmp_path, env=spark_environment(**inside))
        assert printed.split() == [str(events)]
