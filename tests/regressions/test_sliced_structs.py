"""Batches that are cut within a frame: DuckDB 1.5 reads other rows of structs within structs."""

import pyarrow as pa
import pytest

import segstore_ds as segstore

WHO = pa.struct([("at", pa.struct([("n", pa.int64())]))])
SCHEMA = pa.schema([("n", pa.int64()), ("who", WHO)])
EVENTS = [{"n": n, "who": {"at": {"n": n}}} for n in range(100)]


@pytest.fixture(params=["arrow", "parquet"])
def stream(tmp_path, request):
    """Return a stream whose head lies within its only frame."""
    stream = segstore.create(tmp_path / "s", SCHEMA, upkeep=None)
    layout = segstore.Layout(segment_format=request.param, inline_bytes=0)
    stream.append(pa.Table.from_pylist(EVENTS, SCHEMA), layout=layout)
    stream.truncate(30)
    return stream


def test_structs_are_handed_over_without_offsets(stream):
    """Reads and datasets give arrays that begin where their memory begins."""
    batches = [*stream.read(start=40, end=70), *stream.scan().to_dataset().to_batches()]
    assert [row for batch in batches for row in batch.to_pylist()] == EVENTS[40:70] + EVENTS[30:]
    assert {batch["who"].offset for batch in batches} == {0}


def test_duckdb_reads_the_same_events(stream):
    """DuckDB, of whatever version, gives the events of the range."""
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        connection.register("events", stream.scan().to_dataset())
        found = [stream.scan().to_duckdb(connection).fetchall()]
        found.append(connection.execute("SELECT * FROM events").fetchall())
    for rows in found:
        assert rows == [(event["n"], event["who"]) for event in EVENTS[30:]]


def test_an_appender_reads_its_own_structs_without_offsets(tmp_path):
    """So do ranges of what an appender holds, staged or not."""
    stream = segstore.create(tmp_path / "s", SCHEMA, upkeep=None)
    with stream.appender() as appender:
        for event in EVENTS:
            appender.append(event)
        batches = [*appender.read(start=20, end=60)]
    assert [row for batch in batches for row in batch.to_pylist()] == EVENTS[20:60]
    assert {batch["who"].offset for batch in batches} == {0}
