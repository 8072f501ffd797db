"""Compaction by Spark's tasks: planned and committed by the driver, as one commit."""

import pyarrow as pa
import pytest

import segstore_ds as segstore

pytestmark = [pytest.mark.usefixtures("verified"), pytest.mark.slow]


def fill(url: str, commits: int):
    stream = segstore.create(url, pa.schema([("id", pa.int64())]))
    for n in range(commits):
        stream.append(pa.table({"id": list(range(10 * n, 10 * n + 10))}))
    return stream


@pytest.mark.smoke
def test_groups_are_merged_by_tasks_in_one_commit(spark, url):
    stream = fill(url, 12)
    done = segstore.spark.compact(
        spark, url, target_rows=30, layout=segstore.Layout(compression="lz4")
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


def test_a_second_call_finds_nothing_to_do(spark, url):
    stream = fill(url, 9)
    assert segstore.spark.compact(spark, url, target_rows=40).groups == 2
    assert segstore.spark.compact(spark, url, target_rows=40).commits == 0
    assert [entry.rows for entry in stream.refresh()._log.root.entries] == [40, 40, 10]
    segstore.spark.compact(spark, url, start=40, mode="split", target_rows=20)
    assert [entry.rows for entry in stream.refresh()._log.root.entries] == [40, 20, 20, 10]


def test_wrong_targets_are_refused_as_python_names_them(spark, url):
    fill(url, 2)
    with pytest.raises(segstore.errors.InvalidInputError, match="give target_rows as an int"):
        segstore.spark.compact(spark, url, target_rows=0)
    with pytest.raises(segstore.errors.NotFoundError):
        segstore.spark.compact(spark, f"{url}-gone")


def test_batch_write_compacts_with_the_option(spark, url, append):
    for _ in range(8):
        append(spark.range(5).coalesce(1), compact="auto")
    assert segstore.open(url).tail == 40
    assert len(segstore.open(url)._log.root.entries) < 8
