"""A golden stream with a time column: disordered events, some of them without a time.

It was added when time columns were; `make_golden` writes it, as all others. So was a stream whose
segments are in parts and in a list, of which the root says the times.
"""

import json
from pathlib import Path

import pyarrow as pa
from golden_reader import newest_root, read_stream

from segstore_ds.stream.stream import Stream
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
        stream.settings.update(time_column=COLUMN)


def whole_parts(stream: Stream) -> None:
    """Parts and a list whose times are known, one whose times are not, and one without times."""
    layout = Layout(inline_bytes=0, segment_format="arrow", stats_columns=())
    stream.append(pa.table([[40, 41], ["a", "b"]], stream.schema), layout=layout)
    stream.settings.update(time_column="n")
    for n in range(1, 29):
        values = [None, None] if n in (26, 27) else [n * 10, n * 10 - 12]
        stream.append(pa.table([values, ["a", "b"]], stream.schema), layout=layout)
    assert len(stream._log.root.lists) == 3
    assert len(stream._log.root.parts) == 2


TIMES = {"times": times, "whole-parts": whole_parts}
# Levels so small that a few commits fill them; they are no part of the format.
TINY_PARTS = {"rows": 1, "hard": 2, "parts": 4, "listed": 4}


def bounds(folder: Path) -> list[tuple[list[int | None], list[int | None] | None]]:
    """Return the times of each segment, and its bounds and nulls as the status has them."""
    root, (_, _, table) = newest_root(folder), read_stream(folder)
    column = json.loads(root["properties"]["time_column"])
    found, start = [], 0
    for entry in root["entries"]:
        stats = None if entry[7] is None else json.loads(entry[7])[f"int:{column}"]
        found.append((table[column].slice(start, entry[2]).to_pylist(), stats))
        start += entry[2]
    return found


def part_bounds(folder: Path) -> list[tuple[list[int], list[int | None] | None]]:
    """Return the times in each list and part that the root names, and what its row says."""
    root, (head, _, table) = newest_root(folder), read_stream(folder)
    found = []
    for _, start, end, *_, stats in (*root["lists"], *root["parts"]):
        values = table[COLUMN].slice(start - head, end - start).drop_null().to_pylist()
        said = None if stats is None else json.loads(stats)[f"int:{COLUMN}"][:2]
        found.append((values, said))
    return found
