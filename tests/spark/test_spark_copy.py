"""Copies as a Spark job: rows of segments in, one commit out, and what is refused."""

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PythonException

import segstore_ds as segstore

pytestmark = pytest.mark.usefixtures("verified")


def error(action) -> str:
    with pytest.raises((AnalysisException, PythonException)) as caught:
        action()
    return str(caught.value)


def fill(url: str, commits: int):
    stream = segstore.create(url, pa.schema([("id", pa.int64())]))
    for n in range(commits):
        stream.append(pa.table({"id": list(range(10 * n, 10 * n + 10))}))
    return stream


def test_segments_are_copied_by_tasks_in_one_commit(spark, url, tmp_path, monkeypatch):
    monkeypatch.setattr("segstore_ds.spark.copying.TASK_BYTES", 1)
    stream = fill(url, 4)
    target = f"file://{tmp_path}/copied"
    segstore.copy(spark, url, target, "night", seal=True)
    copy = segstore.open(target)
    assert (copy.version, copy.tail, copy.sealed) == (0, 40, True)
    assert copy.read().read_all().equals(stream.read().read_all())
    assert copy.verify().ok
    stream.append(pa.table({"id": [1]}))
    segstore.copy(spark, url, target, "night", seal=True)
    assert segstore.open(target).version == 0
    assert "SEG_ALREADY_EXISTS" in error(lambda: segstore.copy(spark, url, target, "other"))


def test_only_segments_of_one_range_and_a_whole_set_of_options_are_taken(spark, url, tmp_path):
    fill(url, 4)
    target = f"file://{tmp_path}/copied"

    def write(rows, **options: object) -> None:
        rows.write.format("segstore").mode("append").options(**options).save(target)

    rows = spark.read.format("segstore").option("metadata", "segments").load(url)
    whole = {"operation": "copy", "copyFrom": url, "copyId": "c"}
    assert "metadata=segments" in error(lambda: write(spark.range(3), **whole))
    assert "copyId" in error(lambda: write(rows, operation="copy", copyFrom=url))
    assert "operation=copy only" in error(lambda: write(spark.range(3), copyId="c"))
    assert "gap=" in error(lambda: write(rows.where("start <> 10"), **whole))
    assert not segstore.exists(target)
    write(rows.where("start >= 10 and start < 30"), **whole)
    assert segstore.open(target).read().read_all()["id"].to_pylist() == list(range(10, 30))
