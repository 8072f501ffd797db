"""Compaction and redaction by Spark's tasks: planned and committed by the driver."""

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from sessions import error_of

import segstore_ds as segstore
from segstore_ds.errors import InvalidInputError

pytestmark = [pytest.mark.usefixtures("verified", "large_scans"), pytest.mark.slow]


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
    write(plan.union(plan).repartition(2), url, compression="lz4")  # doubled rows count once
    root = stream.refresh()._log.root
    assert (root.version, root.operation) == (14, "compact")
    assert [entry.rows for entry in root.entries] == [30, 30, 30, 30, 1]
    assert stream.read(offset_column="o").read_all()["o"].to_pylist() == list(range(121))
    assert stream.read().read_all()["id"].to_pylist() == list(range(121))
    assert stream.verify().check().leftovers == []
    text = error_of(lambda: write(plan, url))
    assert "SEG_CONFLICT" in text
    assert "plan again" in text
    assert stream.refresh().version == 14


def test_only_unchanged_rows_of_this_stream_are_accepted(spark, url, tmp_path):
    stream = fill(url, 4)
    other = f"file://{tmp_path}/other"
    fill(other, 4)
    version = stream.version
    text = error_of(lambda: write(spark.range(3), url))
    assert "takes the rows of metadata=compactionPlan" in text
    plan = plan_of(spark, url)
    assert "takes the rows" in error_of(lambda: write(plan.select("stream", "version"), url))
    changed = plan.withColumn("start", plan["start"] + 10)
    assert "was changed" in error_of(lambda: write(changed, url))
    assert "another stream" in error_of(lambda: write(plan_of(spark, other), url))
    overwrite = plan.write.format("segstore").mode("overwrite").option("operation", "compact")
    assert "in mode append" in error_of(lambda: overwrite.save(url))
    assert stream.refresh().version == version
    assert stream.verify().check().leftovers == []


def test_batch_write_compacts_with_the_option(spark, url, append):
    for _ in range(8):
        append(spark.range(5).coalesce(1), compact="auto")
    assert segstore.open(url).tail == 40
    assert len(segstore.open(url)._log.root.entries) < 8
    assert "belongs to a" in error_of(
        lambda: spark.read.format("segstore").option("operation", "compact").load(url)
    )


LAYOUTS = [
    segstore.Layout(),
    *(segstore.Layout(inline_bytes=0, segment_format=f) for f in ("arrow", "parquet")),
]


def fill_each_kind(url: str) -> segstore.Stream:
    stream = segstore.create(url, pa.schema([("id", pa.int64()), ("s", pa.string())]))
    for n, layout in enumerate(LAYOUTS * 2):
        ids = list(range(10 * n, 10 * n + 10))
        stream.append(pa.table({"id": ids, "s": [f"s{i}" for i in ids]}), layout=layout)
    return stream


def test_tasks_redact_segments_of_every_kind(spark, url):
    stream = fill_each_kind(url)
    wanted = [["id", "in", [3, 17, 25, 44]]]
    done = segstore.spark.open(spark, url).redact(wanted, columns=["s"], redact_id="r")
    assert (done.rows, done.segments, done.tail) == (4, 4, 60)
    assert stream.refresh().read().read_all()["s"].to_pylist() == [
        None if n in (3, 17, 25, 44) else f"s{n}" for n in range(60)
    ]
    assert segstore.spark.open(spark, url).redact(wanted, columns=["s"], redact_id="r").repeated
    opened = segstore.spark.open(spark, url)
    forgotten = opened.redact(wanted, columns=["s"], redact_id="r", forget=True).forgotten
    assert not forgotten.done
    with pytest.raises(InvalidInputError):
        segstore.spark.open(spark, url).redact([], columns=["s"])


def test_a_failed_redaction_changes_nothing(spark, url):
    stream = fill_each_kind(url)
    version = stream.version
    path = f"segments/{stream._log.root.entries[-1].path}"
    data = stream._log.storage.get(path)
    stream._log.storage.delete(path)
    with pytest.raises(PythonException, match="SEG_MISSING_OBJECT"):
        segstore.spark.open(spark, url).redact([["id", ">=", 0]], columns=["s"], redact_id="r")
    assert stream.refresh().version == version
    stream._log.storage.put(path, data)
