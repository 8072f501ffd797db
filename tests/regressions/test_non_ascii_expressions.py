"""Expressions with long texts outside ASCII, which pyarrow cuts within a character to print."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import segstore_ds as segstore
from segstore_ds.errors import InvalidInputError

TEXTS = ["a" + "é" * 200, "中" * 199, "x"]


@pytest.fixture
def stream(tmp_path):
    """Return a stream of some texts."""
    stream = segstore.create(tmp_path / "s", pa.schema([("word", pa.string())]), upkeep=None)
    stream.append(pa.table({"word": TEXTS}))
    return stream


def test_long_texts_outside_ascii_are_found(stream):
    """The expression is bound without printing it."""
    for text in TEXTS:
        expression = pc.field("word").isin([text])
        assert stream.read(filters=expression).read_all()["word"].to_pylist() == [text]
        assert stream.scan().to_dataset().count_rows(filter=expression) == 1


def test_duckdb_looks_long_texts_up(stream):
    """DuckDB hands its `IN` to the dataset as an expression."""
    duckdb = pytest.importorskip("duckdb")
    events = stream.scan().to_dataset()
    with duckdb.connect() as connection:
        connection.register("events", events)
        found = connection.execute(
            "SELECT count(*) FROM events WHERE word IN ($1, $2)", [TEXTS[0], TEXTS[2]]
        )
        assert found.fetchall() == [(2,)]


def test_errors_of_such_expressions_are_ours(stream):
    """An expression that can't be printed is still refused with a typed error."""
    for wrong in (pc.field("wrod").isin(TEXTS), (pc.field(0) == "x") | pc.field(0).isin(TEXTS)):
        with pytest.raises(InvalidInputError):
            stream.read(filters=wrong)
