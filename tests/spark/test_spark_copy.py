"""Copies as a Spark job: rows of segments in, one commit out, and what is refused."""

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from sessions import error_of, plan_of
from test_spark_compaction import fill

import segstore_ds as segstore
from segstore_ds.copy import events as copy_events
from segstore_ds.errors import AlreadyExistsError, InvalidInputError

pytestmark = [pytest.mark.usefixtures("verified", "large_scans"), pytest.mark.slow]


def test_segments_are_copied_by_tasks_in_one_commit(spark, url, tmp_path, monkeypatch):
    monkeypatch.setattr("segstore_ds.copy.segments.TASK_BYTES", 1)
    stream = fill(url, 4)
    target = f"file://{tmp_path}/copied"
    done = segstore.spark.copy(spark, url, target, "night", seal=True)
    assert (done.start, done.end, done.segments, done.repeated) == (0, 40, 4, False)
    copy = segstore.open(target)
    assert (copy.version, copy.tail, copy.sealed) == (0, 40, True)
    assert copy.read().read_all().equals(stream.read().read_all())
    assert copy.verify().ok
    stream.append(pa.table({"id": [1]}))
    assert segstore.spark.copy(spark, url, target, "night", seal=True).repeated
    assert segstore.open(target).version == 0
    with pytest.raises(AlreadyExistsError):
        segstore.spark.copy(spark, url, target, "other")


def test_copy_refuses_gaps_and_incomplete_options(spark, url, tmp_path):
    fill(url, 4)
    target = f"file://{tmp_path}/copied"

    def write(rows, **options: object) -> None:
        rows.write.format("segstore").mode("append").options(**options).save(target)

    for given in ({"mode": "whole"}, {"transform": sorted, "mode": "segments"}):
        with pytest.raises(InvalidInputError, match="mode"):
            segstore.spark.copy(spark, url, target, "c", **given)
    rows = spark.read.format("segstore").option("metadata", "segments").load(url)
    whole = {"operation": "copy", "copyFrom": url, "copyId": "c"}
    assert "metadata=segments" in error_of(lambda: write(spark.range(3), **whole))
    assert "copyId" in error_of(lambda: write(rows, operation="copy", copyFrom=url))
    assert "operation=copy or" in error_of(lambda: write(spark.range(3), copyId="c"))
    assert "gap=" in error_of(lambda: write(rows.where("start <> 10"), **whole))
    assert not segstore.exists(target)
    write(rows.where("start >= 10 and start < 30"), **whole)
    assert segstore.open(target).read().read_all()["id"].to_pylist() == list(range(10, 30))


def test_rows_of_a_frame_are_checked_by_their_offsets(spark, url, tmp_path):
    stream = fill(url, 40)
    target = f"file://{tmp_path}/copied"
    places = {"startCut": 5, "endCut": 395, "offsetColumn": "o"}
    loaded = spark.read.format("segstore").options(minPartitions=16, **places).load(url)
    rows = loaded.selectExpr("id", "o", "spark_partition_id() AS part")

    def write(copy_id: str = "c", rows=rows, **options: object) -> None:
        writer = rows.write.format("segstore").mode("append")
        options = {"copyFrom": url, "copyMode": "events", "copyId": copy_id} | places | options
        writer.options(**{k: v for k, v in options.items() if v is not None}).save(target)

    # The rows are those of the moment they were loaded: only who says which has them recorded so.
    stream.append(pa.table({"id": [400]}))
    moving = ({"startCut": None}, {"endCut": None}, {"endCut": "tail"}, {"offsetColumn": None})
    for moves in moving:
        assert "use segstore.spark.copy" in error_of(lambda moves=moves: write(**moves))
    assert "takes no options of an append" in error_of(lambda: write(expectedTail=0))
    assert "no such column" in error_of(lambda: write(rows=rows.drop("o")))
    # They are checked against the range: other rows, and rows twice or in another order.
    other = rows.withColumn("o", rows["o"] + 390)
    turned = rows.orderBy("o", ascending=False)
    twice = rows.unionAll(rows.where("o > 300"))
    for wrong, why in ((other, "outside the copy's range"), (turned, "order"), (twice, "order")):
        assert why in error_of(lambda wrong=wrong: write("wrong", rows=wrong))
    assert not segstore.exists(target)
    segstore.drop(target, confirm=target)
    write(inlineBytes=0, seal=True)
    copy = segstore.open(target)
    table = copy.read().read_all()
    assert table["id"].to_pylist() == list(range(5, 395))
    assert len(set(table["part"].to_pylist())) > 8
    assert (copy.version, copy.sealed) == (1, True)  # 0 is the drop
    assert copy.schema.names == ["id", "part"]
    record = copy._log.root.copies["c"]
    assert (record["source"], record["mode"]) == (stream._log.root.stream_id, "events")
    assert (record["start"], record["end"]) == (5, 395)
    stream.append(pa.table({"id": [1000]}))
    write(inlineBytes=0, seal=True)
    assert copy.refresh().version == 1
    assert "another copy" in error_of(lambda: write(seal=False))
    assert "SEG_ALREADY_EXISTS" in error_of(lambda: write("other"))
    assert "leave these options out" in error_of(lambda: write(seal=True, writerId="w", batchId=1))
    assert "leave operation out" in error_of(lambda: write(operation="copy"))


def test_order_is_kept_where_spark_reads_the_parquet_itself(spark, url, tmp_path):
    """Spark would read the files of one scan by size, and what is in Arrow before or behind."""
    forms = ("parquet", "arrow")
    parquet, arrow = (segstore.Layout(segment_format=form, inline_bytes=0) for form in forms)
    stream, tail = segstore.create(url, pa.schema([("id", pa.int64())])), 0
    for rows, layout in ((10, parquet), (5_000, parquet), (7, arrow), (300, parquet), (9, arrow)):
        stream.append(pa.table({"id": range(tail, tail + rows)}), layout=layout)
        tail += rows
    target = f"file://{tmp_path}/copied"

    plans = []

    def placed(rows):
        plans.append(plan_of(rows))
        return rows.selectExpr("id", "spark_partition_id() AS part")

    segstore.spark.copy(spark, url, target, "c", placed, start=4, end=tail - 3)
    assert plans[-1].count("FileScan parquet") == 3
    table = segstore.open(target).read().read_all()
    assert table["id"].to_pylist() == list(range(4, tail - 3))
    assert len(set(table["part"].to_pylist())) >= 5


def staged_segments(folder) -> set[str]:
    return {path.name for path in folder.glob("segments/*/*.*") if path.suffix != ".json"}


def test_transformed_copy_goes_on_unless_the_transformation_changed(
    spark, url, tmp_path, monkeypatch
):
    monkeypatch.setattr("segstore_ds.spark.jobs.JOB_PIECES", 2)
    monkeypatch.setattr(copy_events, "PIECE_BYTES", 1)
    monkeypatch.setattr(copy_events, "LEAST_PIECE_ROWS", 10)
    fill(url, 8)
    target = f"file://{tmp_path}/copied"
    broken = tmp_path / "broken"
    broken.touch()

    def fail(batches):
        for batch in batches:
            if broken.exists() and batch.column("id").to_pylist()[-1] >= 45:
                raise ValueError("a disk is full")
            yield batch

    def even(rows):
        return rows.where("id % 2 = 0").mapInArrow(fail, rows.schema)

    def odd(rows):
        return rows.where("id % 2 = 1").mapInArrow(fail, rows.schema)

    def run(transform):
        return segstore.spark.copy(spark, url, target, "c", transform)

    with pytest.raises(PythonException, match="a disk is full"):
        run(even)
    before = staged_segments(tmp_path / "copied")
    assert len(before) == 2
    with pytest.raises(PythonException, match="a disk is full"):
        run(odd)
    assert len(staged_segments(tmp_path / "copied")) == 4
    broken.unlink()
    assert (done := run(even)).end == 80
    assert not done.repeated
    copy = segstore.open(target)
    assert copy.read().read_all()["id"].to_pylist() == list(range(0, 80, 2))
    listed = {entry.path.partition("/")[2] for entry in copy._log.root.entries}
    assert before < listed
    copy.maintain(grace="7d")
    assert staged_segments(tmp_path / "copied") == listed
    assert copy.verify().ok
    assert run(odd).repeated
