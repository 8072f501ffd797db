"""Names and texts that are not UTF-8, on which Polars panics: never handed to it."""

import zlib

import polars as pl
import pyarrow as pa
import pytest

import segstore_ds as segstore
from segstore_ds.errors import InvalidInputError
from segstore_ds.format.arrow.frame import decode_frame, encode_frame

BAD = pa.array([b"fine", b"\xff\xfe"], pa.binary()).view(pa.string())


def test_names_in_frames_are_those_of_the_stream():
    """A crafted frame may name the children of lists and maps as it likes."""
    schema = pa.schema(
        [
            ("tags", pa.list_(pa.field("elem", pa.string()))),
            ("n", pa.map_(pa.string(), pa.list_(pa.field("elem", pa.int8())))),
        ]
    )
    rows = [{"tags": ["a"], "n": [("k", [1])]}]
    batch = pa.RecordBatch.from_pylist(rows, schema)
    frame = encode_frame(batch, compression="none", compression_level=None, stats_columns=[])
    data = bytes(frame.data).replace(b"elem", b"\xff\xfe\xff\xfe").replace(b"value", b"\xffalue")
    assert zlib.crc32(data) != frame.crc
    found = decode_frame(data, rows=1, schema=schema, columns=None, where="w")
    assert str(found.column("tags").type) == "list<elem: string>"
    assert [column.type for column in found.columns] == schema.types
    assert found.equals(batch, check_metadata=True)
    assert pl.from_arrow(found)["tags"].to_list() == [["a"]]


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_texts_of_other_writers_are_refused_for_polars(tmp_path, form):
    """Spark may write such texts; Arrow gives them back, and Polars gets an error before it."""
    table = pa.table({"n": [1, 2], "c": pa.StructArray.from_arrays([BAD], ["word"])})
    stream = segstore.create(tmp_path / "s", table.schema, upkeep=None)
    layout = segstore.Layout(segment_format=form, inline_bytes=0)
    job = stream.plan_write(table.schema, layout=layout)
    stream.commit(job, [job.stage(0, "0", table.to_batches())])  # as Spark's tasks do
    assert stream.read(columns=["n"]).read_all()["n"].to_pylist() == [1, 2]
    for extra in ({}, {"commit_time_column": "at"}):
        with pytest.raises((InvalidInputError, pl.exceptions.ComputeError), match=r"UTF-8|utf-?8"):
            stream.scan(**extra).to_polars().collect()
    assert stream.scan(columns=["n"]).to_polars().collect()["n"].to_list() == [1, 2]
