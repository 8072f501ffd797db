"""Values within lists and structs: events that pyarrow can't make, batches that DuckDB misreads."""

import pyarrow as pa
import pytest

import segstore_ds as segstore

VALUES = {
    "lists": (pa.list_(pa.list_(pa.int32())), [[1], None, []]),
    "maps": (pa.list_(pa.map_(pa.string(), pa.int8())), [None, [("a", 1)]]),
    "values": (pa.map_(pa.string(), pa.list_(pa.int8())), [("a", None), ("b", [1])]),
    "deep": (pa.struct([("l", pa.list_(pa.list_(pa.int8())))]), {"l": [None, [2]]}),
}


@pytest.mark.parametrize("name", VALUES)
def test_null_lists_within_lists_of_single_events_are_written(tmp_path, name):
    """They were taken, and then neither read nor written: pyarrow can't make such an array."""
    kind, value = VALUES[name]
    events = [{"c": value}, {"c": None}, {}, {"c": pa.array([value], kind)[0]}]
    stored = [value, None, None, value]
    stream = segstore.create(tmp_path / "s", pa.schema([("c", kind)]), upkeep=None)
    with stream.appender() as appender:
        for event in events:
            appender.append(event)
        assert appender.read().read_all()["c"].to_pylist() == stored
    stream.append(events)
    assert stream.refresh().read().read_all()["c"].to_pylist() == stored * 2


WHO = pa.struct([("at", pa.struct([("n", pa.int64())]))])
EVENTS = [{"n": n, "who": {"at": {"n": n}}} for n in range(100)]


@pytest.fixture
def stream(tmp_path):
    """Return a stream of structs within structs."""
    schema = pa.schema([("n", pa.int64()), ("who", WHO)])
    return segstore.create(tmp_path / "s", schema, upkeep=None)


def check(batches, events):
    """Check events, and that arrays begin where their memory begins."""
    assert [row for batch in batches for row in batch.to_pylist()] == events
    assert {batch["who"].offset for batch in batches} == {0}


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_structs_are_handed_over_without_offsets(stream, form):
    """DuckDB 1.5 reads other rows of structs within structs of a batch that is cut in a frame."""
    layout = segstore.Layout(segment_format=form, inline_bytes=0)
    stream.append(pa.Table.from_pylist(EVENTS, stream.schema), layout=layout)
    stream.truncate(30)  # the head lies within the only frame
    check([*stream.read(start=40, end=70)], EVENTS[40:70])
    check([*stream.scan().to_dataset().to_batches()], EVENTS[30:])
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        connection.register("events", stream.scan().to_dataset())
        found = [stream.scan().to_duckdb(connection).fetchall()]
        found.append(connection.execute("SELECT * FROM events").fetchall())
    for rows in found:
        assert rows == [(event["n"], event["who"]) for event in EVENTS[30:]]


def test_an_appender_reads_its_own_structs_without_offsets(stream):
    """So do ranges of what an appender holds, staged or not."""
    with stream.appender() as appender:
        for event in EVENTS:
            appender.append(event)
        check([*appender.read(start=20, end=60)], EVENTS[20:60])
