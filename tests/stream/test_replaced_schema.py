"""Replacing a schema: what Arrow does not tell apart, Spark may."""

import json

import pyarrow as pa
import pytest
from stream_kit import make_stream, snapshot

from segstore_ds.errors import SchemaMismatchError
from segstore_ds.stream.stream import Stream

TEXTS = pa.schema([("t", pa.string())])


def spark_json(collation: str | None) -> str:
    metadata = {"__COLLATIONS": {"t": f"icu.{collation}"}} if collation else {}
    field = {"name": "t", "type": "string", "nullable": True, "metadata": metadata}
    return json.dumps({"type": "struct", "fields": [field]})


def overwrite(stream: Stream, spark_schema: str | None, *, replace_schema: bool = True) -> None:
    job = stream.plan_write(
        TEXTS, overwrite=True, replace_schema=replace_schema, spark_schema=spark_schema
    )
    task = job.open_task(0, "x")
    task.append(pa.record_batch({"t": ["abc"]}))
    stream.commit(job, [task.finish()])


@pytest.mark.parametrize(("before", "after"), [(None, "UTF8_LCASE"), ("UTF8_LCASE", None)])
def test_a_collation_is_replaced_though_arrow_has_none(before: str | None, after: str | None):
    stream, _ = make_stream(0)
    overwrite(stream, spark_json(before))
    overwrite(stream, spark_json(after))
    assert json.loads(snapshot(stream).spark_schema) == json.loads(spark_json(after))
    epochs = len(stream._log.root.epochs)
    overwrite(stream, spark_json(after))
    overwrite(stream, None)  # who is not Spark knows nothing of it
    overwrite(stream, spark_json(before), replace_schema=False)
    assert len(stream._log.root.epochs) == epochs
    assert stream.read().read_all().to_pylist() == [{"t": "abc"}]


def test_fields_that_differ_in_case_only_are_not_merged():
    """At any depth, because Spark could resolve neither name."""
    stream, _ = make_stream(0)
    schema = pa.schema([("deep", pa.list_(pa.struct([("a", pa.int64())])))])
    twin = pa.schema([("deep", pa.list_(pa.struct([("A", pa.int64())])))])
    stream.append(pa.Table.from_pylist([{"deep": [{"a": 1}]}], schema), merge_schema=True)
    with pytest.raises(SchemaMismatchError, match=r"only in case.*'deep\.element\.A'"):
        stream.append(pa.Table.from_pylist([{"deep": [{"A": 1}]}], twin), merge_schema=True)
