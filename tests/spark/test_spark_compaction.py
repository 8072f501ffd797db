"""Compaction by Spark's tasks: planned and committed by the driver, as one commit."""

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PythonException

import segstore_ds as segstore

pytestmark = [pytest.mark.usefixtures("verified", "large_scans"), pytest.mark.slow]


def error(action) -> str:
    with pytest.raises((AnalysisException, PythonException)) as caught:
        action()
    return str(caught.value)


def fill(url: str, commits: int):
    stream = segstore.create(url, pa.schema([("id", pa.int64())]))
    for n in range(commits):
        stream.append(pa.table({"id": list(range(10 * n, 10 * n + 10))}))
    return stream


@pytest.mark.smoke
def test_groups_are_merged_by_tasks_in_one_commit(spark, url):
    stream = fill(url, 12)
    done = segstore.spark.open(spark, url).compact(
        target_rows=30, layout=segstore.Layout(compression="lz4")
    )
    assert (done.groups, done.commits) == (4, 1)
    assert (done.segments_before, done.segments_after) == (12, 4)
    root = stream.refresh()._log.root
    assert (root.version, root.operation) == (13, "compact")
    assert "pyspark/" in root.client
    assert " app/" in root.client
    assert [entry.rows for entry in root.entries] == [30, 30, 30, 30]
    assert stream.read(offset_column="o").read_all()["o"].to_pylist() == list(range(120))
    assert stream.read().read_all()["id"].to_pylist() == list(range(120))


def test_wrong_targets_are_refused_as_python_names_them(spark, url):
    fill(url, 2)
    with pytest.raises(segstore.errors.InvalidInputError, match="give target_rows as an int"):
        segstore.spark.open(spark, url).compact(target_rows=0)
    with pytest.raises(segstore.errors.NotFoundError):
        segstore.spark.open(spark, f"{url}-gone").compact()


def plan_of(spark, url: str, **options: object):
    reader = spark.read.format("segstore").option("metadata", "compactionPlan")
    return reader.options(**options).load(url)


def write(plan, url: str, **options: object) -> None:
    writer = plan.write.format("segstore").mode("append").options(operation="compact", **options)
    writer.save(url)


@pytest.mark.smoke
def test_plan_is_written_back_as_one_commit(spark, url):
    stream = fill(url, 12)
    plan = plan_of(spark, url, compactRows=30)
    assert plan.rdd.getNumPartitions() == 4
    assert [(row.start, row.rows, row.segments) for row in plan.collect()] == [
        (30 * n, 30, 3) for n in range(4)
    ]
    stream.append(pa.table({"id": [120]}))
    write(plan.repartition(2), url, compression="lz4")
    root = stream.refresh()._log.root
    assert (root.version, root.operation) == (14, "compact")
    assert [entry.rows for entry in root.entries] == [30, 30, 30, 30, 1]
    assert stream.read(offset_column="o").read_all()["o"].to_pylist() == list(range(121))
    assert stream.read().read_all()["id"].to_pylist() == list(range(121))
    text = error(lambda: write(plan, url))
    assert "SEG_CONFLICT" in text
    assert "plan again" in text
    assert stream.refresh().version == 14


def test_only_unchanged_rows_of_this_stream_are_accepted(spark, url, tmp_path):
    stream = fill(url, 4)
    other = f"file://{tmp_path}/other"
    fill(other, 4)
    version = stream.version
    text = error(lambda: write(spark.range(3), url))
    assert "takes the rows of metadata=compactionPlan" in text
    plan = plan_of(spark, url)
    assert "takes the rows" in error(lambda: write(plan.select("stream", "version"), url))
    assert "was changed" in error(
        lambda: write(
            plan.selectExpr(
                "stream",
                "version",
                "number",
                "start + 10 AS start",
                "rows",
                "bytes",
                "segments",
                "plan",
                "digest",
            ),
            url,
        )
    )
    assert "another stream" in error(lambda: write(plan_of(spark, other), url))
    overwrite = plan.write.format("segstore").mode("overwrite").option("operation", "compact")
    assert "in mode append" in error(lambda: overwrite.save(url))
    assert stream.refresh().version == version
    assert stream.verify().check().leftovers == []


def test_doubled_rows_are_merged_once(spark, url):
    stream = fill(url, 4)
    plan = plan_of(spark, url)
    write(plan.union(plan), url)
    assert stream.refresh().read().read_all()["id"].to_pylist() == list(range(40))
    assert stream.verify().check().leftovers == []


def test_batch_write_compacts_with_the_option(spark, url, append):
    for _ in range(8):
        append(spark.range(5).coalesce(1), compact="auto")
    assert segstore.open(url).tail == 40
    assert len(segstore.open(url)._log.root.entries) < 8
    assert "belongs to a" in error(
        lambda: spark.read.format("segstore").option("operation", "compact").load(url)
    )
