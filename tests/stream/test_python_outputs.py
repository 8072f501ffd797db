"""What Python callers get: frames of other libraries, handles that pickle, a notebook's table."""

import pickle
import sys
import uuid

import duckdb
import pandas as pd
import pyarrow as pa
import pytest

import segstore_ds as segstore
from segstore_ds.errors import FormatError, InvalidInputError

ROWS = [{"n": 1, "<b>": "a"}, {"n": 2, "<b>": None}, {"n": 3, "<b>": "c"}]


@pytest.fixture
def stream(tmp_path):
    schema = pa.schema([("n", pa.int64()), ("<b>", pa.string())])
    made = segstore.create(tmp_path / "s", schema, upkeep=None)
    made.append(ROWS)
    return made


def test_events_come_as_frames_of_other_libraries(stream):
    assert stream.scan(1, columns=["n"]).to_pandas()["n"].tolist() == [2, 3]
    assert stream.scan(filters=[["n", ">", 2]]).to_polars().collect().to_dicts() == ROWS[2:]
    assert stream.scan(0, 2).to_duckdb().fetchall() == [(1, "a"), (2, None)]
    with duckdb.connect() as connection:
        relation = stream.scan(limit=2).to_duckdb(connection)
        # A relation may be asked again.
        assert [relation.sum("n").fetchall()[0][0] for _ in range(2)] == [3, 3]


@pytest.mark.parametrize("name", ["pandas", "polars", "duckdb"])
def test_a_library_that_is_missing_is_named(stream, name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InvalidInputError, match=f"{name} is not installed.*pip install {name}"):
        getattr(stream.scan(), f"to_{name}")()


def test_a_handle_pickles_and_sees_what_came_since(stream):
    data = pickle.dumps(stream)
    stream.append({"n": 4})
    copied = pickle.loads(data)  # noqa: S301 - of this test
    assert (copied.url, copied.version) == (stream.url, 1)
    assert copied.refresh().tail == 4
    assert copied.append({"n": 5}).start == 4
    again = pickle.loads(pickle.dumps(copied))  # noqa: S301 - of this test
    assert again.read().read_all().num_rows == 5


def test_times_that_pandas_lacks_are_an_error_of_ours():
    events = pa.table({"t": pa.array([1], pa.time64("ns")), "n": [1]})
    stream = segstore.create(f"memory://{uuid.uuid4().hex}", events.schema)
    stream.append(events)
    with pytest.raises(InvalidInputError, match=r"pandas can't hold.*types_mapper"):
        stream.scan().to_pandas()
    found = stream.scan().to_pandas(types_mapper=pd.ArrowDtype)
    assert pa.array(found["t"]).equals(events["t"].combine_chunks())


def test_damage_of_a_scan_that_is_appended_has_its_type(tmp_path):
    """Arrow's C stream would make an `ArrowInvalid` of it."""
    stream = segstore.create(tmp_path / "s", pa.schema([("n", pa.int64())]))
    stream.append(pa.table({"n": range(100)}), layout=segstore.Layout(inline_bytes=0))
    [segment] = (tmp_path / "s" / "segments").glob("*/*")
    data = bytearray(segment.read_bytes())
    data[200] ^= 1
    segment.write_bytes(data)
    stream = segstore.open(tmp_path / "s")
    other = segstore.create(tmp_path / "o", stream.schema)
    appender = other.appender()
    for take in (other.append, other.overwrite, appender.append):
        for given in (stream, stream.scan(read_cache_bytes=0)):
            with pytest.raises(FormatError, match="checksum"):
                take(given)
    with pytest.raises(pa.ArrowInvalid, match=r"SEG_CORRUPTION.*checksum"):
        pa.table(stream)
    appender.close()
    assert other.tail == 0
