"""Golden streams with segments of the format `parquet`, alone and beside those of `arrow`.

They were added when that format was; `make_golden` writes them, as all others.
"""

from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq

from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout

SCHEMA = pa.schema([("n", pa.int64()), ("word", pa.string())])
SETTLED = Layout(inline_bytes=0, frame_rows=40, segment_rows=100, segment_format="parquet")
HOT = Layout(inline_bytes=0, frame_rows=7, segment_rows=20, segment_format="arrow")
ENCODINGS = {"PLAIN", "RLE", "RLE_DICTIONARY", "DELTA_BINARY_PACKED"}


def events(start: int, end: int) -> pa.Table:
    """Return the events start to end."""
    words = [["", "ada", "größe", None][n % 4] for n in range(start, end)]
    return pa.table({"n": list(range(start, end)), "word": words}, SCHEMA)


def types(stream: Stream) -> None:
    """Every type that Parquet brings back, with nulls, nested and at its limits.

    The rows repeat, so that some columns get a dictionary.
    """
    from make_golden import many_types  # which imports this module

    once = many_types()
    rows = pa.concat_tables([once] * 14 + [once.slice(2)] * 3)
    ids = pa.array([f"{n * 7919 % 10_007:x}" for n in range(rows.num_rows)])
    rows = rows.append_column("id", ids).append_column("steps", pa.array(range(10**6, 10**6 + 45)))
    stream.overwrite(rows, overwrite_schema=True, layout=SETTLED)
    assert _formats(stream) == {"parquet"}
    assert _encodings(stream) >= ENCODINGS


def codecs(stream: Stream) -> None:
    """Every compression; several row groups per file and files per commit."""
    for place, compression in enumerate(("none", "lz4", "zstd")):
        layout = Layout(
            inline_bytes=0,
            frame_rows=6,
            segment_rows=15,
            segment_format="parquet",
            compression=compression,
        )
        stream.append(events(place * 40, place * 40 + 40), layout=layout)
    assert _formats(stream) == {"parquet"}


def names(stream: Stream) -> None:
    """Columns whose names look like fields of another one, or like nothing at all."""
    inner = pa.struct([("b", pa.int64()), ("list.element", pa.list_(pa.string()))])
    columns = {
        "a.b": pa.array([1, 2, None]),
        "a": pa.array([{"b": 3, "list.element": ["x"]}, None, {"b": None}], inner),
        "größe 日本": pa.array(["x", "", None]),
        " ": pa.array([0.5, None, -0.0]),
        "key": pa.array([[("k", [1])], [], None], pa.map_(pa.string(), pa.list_(pa.int32()))),
    }
    stream.overwrite(pa.table(columns), overwrite_schema=True, layout=SETTLED)
    assert _formats(stream) == {"parquet"}


def mixed(stream: Stream) -> None:
    """Hot and settled segments of four epochs, a merge of both, and a head inside a file."""
    stream.append(events(0, 50), layout=SETTLED)
    stream.append(events(50, 75), layout=HOT)
    stream.append(events(75, 79))
    more = events(79, 120).append_column(
        "price", pa.array([Decimal("1.25"), None, Decimal(0)] * 13 + [None] * 2)
    )
    stream.append(more, layout=SETTLED, merge_schema=True)
    wide = pa.array([Decimal("12345678.0001")] * 30, pa.decimal128(12, 4))
    stream.append(events(120, 150).append_column("price", wide), layout=SETTLED, merge_schema=True)
    nested = pa.array([{"x": 1, "tags": ["a", None]}, None] * 5)
    stream.append(
        pa.table({"deep": nested, "n": list(range(150, 160))}), layout=HOT, merge_schema=True
    )
    stream.compact(start=50, end=79, layout=SETTLED)
    stream.append(events(160, 170), layout=HOT, merge_schema=True)
    stream.truncate(13)
    assert len(stream._log.root.epochs) == 4
    assert _formats(stream) == {"arrow", "parquet"}


def settled(stream: Stream) -> None:
    """Small appends that a merge settled, and entries in a part of packed columns."""
    for n in range(12):
        stream.append(events(n * 5, n * 5 + 5), writer_id="etl", batch_id=n)
    stream.compact(layout=SETTLED)
    for n in range(12, 18):
        stream.append(events(n * 5, n * 5 + 5), layout=SETTLED, writer_id="etl", batch_id=n)
    assert stream._log.root.parts
    assert _formats(stream) == {"parquet"}


PARQUET = {"types": types, "codecs": codecs, "names": names, "mixed": mixed, "settled": settled}


def _formats(stream: Stream) -> set[str]:
    paths = stream.segments().read_all()["path"].to_pylist()
    return {path.rsplit(".", 1)[1] for path in paths}


def _encodings(stream: Stream) -> set[str]:
    found: set[str] = set()
    for file in stream.scan().files(partial=True):
        metadata = pq.read_metadata(file.url.removeprefix("file://"))
        for group in range(metadata.num_row_groups):
            for column in range(metadata.num_columns):
                found |= {*metadata.row_group(group).column(column).encodings}
    return found
