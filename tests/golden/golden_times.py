"""A golden stream with a time column: disordered events, some of them without a time.

It was added when time columns were; `make_golden` writes it, as all others.
"""

import json
from pathlib import Path

import pyarrow as pa
from golden_reader import newest_root, read_stream

from segstore_ds.stream import Stream
from segstore_ds.write.layout import Layout

COLUMN = "n"
PARTS = [[5, 1, None, 2], [9, 3], [None], [4, 8, 7], [6]]


def times(stream: Stream) -> None:
    """A segment of each kind, whose layouts ask for no bounds; the first has none."""
    schema = stream.schema
    for place, values in enumerate(PARTS):
        words = [None if value is None else f"at {value}" for value in values]
        layout = Layout(
            inline_bytes=64 if place == len(PARTS) - 1 else 0,
            frame_rows=2,
            segment_format="parquet" if place == 1 else "arrow",
            stats_columns=(),
        )
        stream.append(pa.table([values, words], schema), layout=layout)
        stream.set_time_column(COLUMN)


TIMES = {"times": times}


def bounds(folder: Path) -> list[tuple[list[int | None], list[int | None] | None]]:
    """Return the times of each segment, and its bounds and nulls as the status has them."""
    root, (_, _, table) = newest_root(folder), read_stream(folder)
    column = json.loads(root["properties"]["time_column"])
    found, start = [], 0
    for entry in root["entries"]:
        stats = None if entry[7] is None else json.loads(entry[7])[column]
        found.append((table[column].slice(start, entry[2]).to_pylist(), stats))
        start += entry[2]
    return found
