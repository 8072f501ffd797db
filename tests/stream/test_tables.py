"""Tables of metadata: read once by any library, and shown by a notebook without being read."""

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from stream_kit import make_stream

from segstore_ds.errors import InvalidInputError
from segstore_ds.format.parts.kinds import HISTORY_SCHEMA


@pytest.fixture
def stream():
    made, _ = make_stream(3)
    return made


def test_rows_are_read_in_order(stream):
    rows = stream.history()
    assert rows.schema.names == [*HISTORY_SCHEMA.names, "start", "end", "changed", "reason"]
    assert [batch.num_rows for batch in rows] == [4]
    assert rows.read_all().num_rows == 4
    assert stream.segments().read_pandas()["rows"].tolist() == [10, 10, 10]


def test_other_libraries_take_rows_as_they_are(stream):
    assert pl.DataFrame(stream.history())["version"].to_list() == [0, 1, 2, 3]
    assert pa.table(stream.history()).num_rows == 4
    assert pa.RecordBatchReader.from_stream(stream.segments()).read_all().num_rows == 3
    with duckdb.connect() as connection:
        segments = stream.segments()
        found = connection.execute("select sum(rows) from segments").fetchall()
        assert (found, segments.read_all().num_rows) == ([(30,)], 3)


def test_showing_rows_takes_none_from_who_reads(stream):
    rows = stream.history(1)
    stream.append({"n": 1, "s": "<b>"}, writer_id="<script>", batch_id=1)
    shown = rows._repr_html_()
    assert shown.count("<tr>") == 4
    assert "append" in shown
    assert rows.read_all().num_rows == 3
    assert "&lt;script&gt;" in stream.metadata("writers")._repr_html_()
    assert "<script>" not in stream.history()._repr_html_()


def test_long_tables_are_cut(stream):
    for place in range(60):
        stream.tags.set(f"t{place}", 0)
    shown = stream.metadata("tags")._repr_html_()
    assert shown.count("<tr>") == 51
    assert shown.endswith("<p>...</p>")
    assert "version" in repr(stream.history())


def test_readers_are_a_list_and_a_table(stream):
    stream.readers.register("billing", start=5, owner="<i>")
    (found,) = stream.readers
    assert (found.name, found.record.offset) == ("billing", 5)
    assert list(stream.readers) == [found]
    shown = stream.readers._repr_html_()
    assert "billing" in shown
    assert "&lt;i&gt;" in shown


def test_an_unknown_table_is_refused_at_once(stream):
    with pytest.raises(InvalidInputError, match="no such metadata table"):
        stream.metadata("nothing")
    assert not hasattr(stream.history(), "_nothing")
