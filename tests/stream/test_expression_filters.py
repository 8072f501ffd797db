"""Reads with expressions and alternatives: exact in every kind of segment, and skipping others."""

import pickle

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from stream_kit import snapshot

import segstore_ds as segstore
from segstore_ds.errors import InvalidInputError
from segstore_ds.format.schema.codec import encode_schema
from segstore_ds.redact.plan import RedactRequest, plan_wanted
from segstore_ds.write.layout import Layout

FORMATS = (
    Layout(inline_bytes=0, segment_format="parquet"),
    Layout(inline_bytes=0, segment_format="arrow", frame_rows=10),
    None,
)


@pytest.fixture
def stream(tmp_path):
    """Of 0 to 89, 30 in each format; the second has a wider type, and nulls in a new column."""
    narrow = pa.schema([("n", pa.int32()), ("word", pa.string())])
    made = segstore.create(tmp_path / "s", narrow, upkeep=None)
    for place, layout in enumerate(FORMATS):
        rows = [{"n": n, "word": f"w{n:02}"} for n in range(30 * place, 30 * place + 30)]
        schema = narrow if place == 0 else pa.schema([("n", pa.int64()), ("word", pa.string())])
        made.append(pa.Table.from_pylist(rows, schema), merge_schema=True, layout=layout)
    made.append(pa.table({"n": [90], "late": [None]}), merge_schema=True)
    return made


def numbers(stream, filters, **how):
    return stream.read(filters=filters, **how).read_all().column("n").to_pylist()


def test_an_expression_is_exact_over_all_segments(stream):
    n, word = pc.field("n"), pc.field("word")
    assert numbers(stream, (n == 3) | (n > 87)) == [3, 88, 89, 90]
    assert numbers(stream, n.isin([1, 31, 61, 700])) == [1, 31, 61]
    assert numbers(stream, pc.ends_with(word, "7") & ~(n < 50)) == [57, 67, 77, 87]
    assert numbers(stream, word.is_null()) == [90]
    assert numbers(stream, n > 5, limit=2) == [6, 7]
    assert numbers(stream, word > "w5", start=40, end=55, columns=["n"]) == [50, 51, 52, 53, 54]
    assert stream.scan(filters=(n == 3) | word.is_null()).count() == 2
    assert stream.read(filters=n == 31).read_all()["word"].to_pylist() == ["w31"]


def test_an_alternative_is_exact_over_all_segments(stream):
    either = [[["n", "<", 2]], [["n", ">", 58], ["word", "<", "w61"]], [["word", "is null"]]]
    assert numbers(stream, either) == [0, 1, 59, 60, 90]
    assert stream.scan(filters=either).count() == 5


@pytest.mark.parametrize(
    "filters",
    [pc.field("n") == 31, pl.col("n") == 31, [[["n", "==", 31]], [["n", "==", 700]]]],
    ids=str,
)
def test_segments_that_hold_no_match_are_not_read(stream, filters):
    reading = snapshot(stream).plan(filters=filters)
    (only,) = [piece for task in snapshot(stream).tasks(reading) for piece in task.slices]
    assert only.start == 30


def test_a_follower_of_matches_gets_their_offsets(stream):
    follow = stream.follow(start=0, filters=pc.field("n") >= 89, offset_column="at")
    assert next(follow).column("at").to_pylist() == [89]


EITHER = (
    [[["n", "==", 3]], [["word", "==", "w61"]]],
    (pc.field("n") == 3) | (pc.field("word") == "w61"),
    (pl.col("n") == 3) | (pl.col("word") == "w61"),
)


@pytest.mark.parametrize("filters", EITHER, ids=("lists", "arrow", "polars"))
def test_a_redaction_takes_alternatives_and_expressions(stream, filters):
    done = stream.redact(filters, columns=["word"])
    assert done.rows == 2
    assert numbers(stream, [["word", "is null"]]) == [3, 61, 90]


@pytest.mark.parametrize("filters", [pc.field("n") == "3", pl.col("n") == "3"], ids=str)
def test_a_redaction_takes_every_event_that_an_expression_can_t_judge(filters):
    """An older epoch has integers where the expression compares texts."""
    types = (pa.int32(), pa.string())
    epochs = {n: encode_schema(pa.schema([("n", each)])) for n, each in enumerate(types)}
    request = RedactRequest(filters, ["n"], "", "r")
    older, newer = plan_wanted(epochs, request).values()
    assert newer.filters
    assert not older.filters


def test_an_expression_of_polars_looks_at_one_event(stream):
    n = pl.col("n")
    for filters, reason in (
        (n > n.mean(), "needs more than one event"),
        ((n > 3) & (n.cum_sum() > 3), "needs more than one event"),
        (n + 1, "does not fit the stream"),
        (pl.col("nn") == 1, "does not fit the stream"),
        (n == "a", "does not fit the stream"),
    ):
        with pytest.raises(InvalidInputError, match=reason):
            stream.scan(filters=filters)
    scan = stream.scan(filters=pl.lit(value=True))
    assert scan.count() == 91
    assert stream.scan(filters=pl.lit(value=False)).count() == 0


def test_expressions_of_both_libraries_hold_together(stream):
    several = [pl.col("n") > 3, pc.field("n") < 8, ["n", "!=", 5]]
    assert numbers(stream, several) == [4, 6, 7]
    scan = stream.scan(filters=(pl.col("n") > 3) & pl.col("word").str.ends_with("4"), limit=5)
    assert pickle.loads(pickle.dumps(scan)).to_arrow() == scan.to_arrow()  # noqa: S301 - our own
    events = stream.scan(filters=pl.col("n") >= 40).to_dataset()
    found = events.to_table(["n"], filter=pc.field("n") < 42)
    assert found["n"].to_pylist() == [40, 41]
    follow = stream.follow(start=0, filters=pl.col("n") == 64, offset_column="at")
    assert next(follow).column("at").to_pylist() == [64]
