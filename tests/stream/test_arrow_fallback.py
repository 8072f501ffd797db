"""Rows that Parquet can't hold are stored as Arrow; no event is refused for that."""

from dataclasses import replace

import pyarrow as pa
import pytest
from stream_kit import fresh_url

from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout

VARIANT = [
    pa.field("value", pa.binary(), nullable=False),
    pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"}),
]
PARQUET = Layout(inline_bytes=0, frame_rows=100, segment_format="parquet")
both_ways = pytest.mark.parametrize("wanted", ["parquet", "auto"])


def make(schema: pa.Schema) -> Stream:
    return create_on(open_storage(fresh_url()), schema)


def formats(stream: Stream) -> list[str]:
    return [entry.format for entry in stream._log.root.entries]


@both_ways
def test_values_that_pyarrow_refuses_are_stored_in_arrow(wanted: str) -> None:
    """Spark's variant, whose children may not be null, of which one is."""
    variant = pa.struct(VARIANT)
    schema = pa.schema([("n", pa.int64()), ("v", variant)])

    def rows(*values: bytes | None) -> pa.Table:
        children = [pa.array(values, pa.binary()), pa.array([b"m"] * len(values), pa.binary())]
        column = pa.StructArray.from_arrays(children, fields=VARIANT)
        return pa.table([pa.array(range(len(values))), column], schema=schema)

    stream = make(schema)
    layout = replace(PARQUET, frame_rows=2, segment_format=wanted)
    stream.append(rows(None, b"a", b"b", b"c", b"d"), layout=layout)
    assert formats(stream) == ["arrow", "parquet"]
    stream.compact(layout=layout)
    assert formats(stream) == ["arrow"]
    assert stream.compact(layout=layout).commits == 0
    assert stream.read().read_all().column("v").to_pylist()[1]["value"] == b"a"
