"""Redaction by Spark's tasks: the same as in Python, and nothing left where a job fails."""

import pyarrow as pa
import pytest
from pyspark.errors import PythonException

import segstore_ds as segstore
from segstore_ds.errors import InvalidInputError
from segstore_ds.write.layout import Layout

pytestmark = [pytest.mark.usefixtures("verified", "large_scans"), pytest.mark.slow]
LAYOUTS = [Layout(), *(Layout(inline_bytes=0, segment_format=f) for f in ("arrow", "parquet"))]


def fill(url: str) -> segstore.Stream:
    stream = segstore.create(url, pa.schema([("id", pa.int64()), ("s", pa.string())]))
    for n, layout in enumerate(LAYOUTS * 2):
        ids = list(range(10 * n, 10 * n + 10))
        stream.append(pa.table({"id": ids, "s": [f"s{i}" for i in ids]}), layout=layout)
    return stream


def test_tasks_redact_segments_of_every_kind(spark, url):
    stream = fill(url)
    wanted = [["id", "in", [3, 17, 25, 44]]]
    done = segstore.spark.open(spark, url).redact(wanted, columns=["s"], redact_id="r")
    assert (done.rows, done.segments, done.tail) == (4, 4, 60)
    assert stream.refresh().read().read_all()["s"].to_pylist() == [
        None if n in (3, 17, 25, 44) else f"s{n}" for n in range(60)
    ]
    assert segstore.spark.open(spark, url).redact(wanted, columns=["s"], redact_id="r").repeated
    forgotten = (
        segstore.spark.open(spark, url)
        .redact(wanted, columns=["s"], redact_id="r", forget=True)
        .forgotten
    )
    assert not forgotten.done
    with pytest.raises(InvalidInputError):
        segstore.spark.open(spark, url).redact([], columns=["s"])


def test_a_failed_job_changes_nothing(spark, url):
    stream = fill(url)
    version = stream.version
    path = f"segments/{stream._log.root.entries[-1].path}"
    data = stream._log.storage.get(path)
    stream._log.storage.delete(path)
    with pytest.raises(PythonException, match="SEG_MISSING_OBJECT"):
        segstore.spark.open(spark, url).redact([["id", ">=", 0]], columns=["s"], redact_id="r")
    assert stream.refresh().version == version
    stream._log.storage.put(path, data)
