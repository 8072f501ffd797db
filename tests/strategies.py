"""Hypothesis strategies for streams: events, batches, filters. Needs the extra ``test``."""

import datetime as dt
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from model import Event

from segstore_ds.write.layout import Layout

COLUMNS: dict[str, pa.DataType] = {
    "n": pa.int64(),
    "word": pa.string(),
    "ratio": pa.float64(),
    "seen": pa.timestamp("us", "UTC"),
    "tags": pa.list_(pa.string()),
}
FIRST_COLUMNS = ("n", "word")
_WORDS = st.sampled_from(["", "a", "ada", "b", "größe", "\U0010ffff", "x" * 40])
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "n": st.integers(-5, 20) | st.sampled_from([-(2**63), 2**63 - 1]),
    "word": _WORDS,
    "ratio": st.sampled_from([0.0, 0.5, -1.5, 1e300]),
    "seen": st.datetimes(timezones=st.just(dt.UTC)),
    "tags": st.lists(st.none() | _WORDS, max_size=3),
}


def events(columns: tuple[str, ...], *, max_size: int = 12) -> st.SearchStrategy[list[Event]]:
    """Draw events with these columns; values may be null."""
    fields = {name: st.none() | _VALUES[name] for name in columns}
    return st.lists(st.fixed_dictionaries(fields), max_size=max_size)


def to_table(rows: list[Event], columns: tuple[str, ...]) -> pa.Table:
    """Return events as Arrow data with exactly these columns, in this order."""
    schema = pa.schema([(name, COLUMNS[name]) for name in columns])
    return pa.Table.from_pylist(rows, schema)


layouts: st.SearchStrategy[Layout] = st.builds(
    Layout,
    compression=st.sampled_from(["zstd", "lz4", "none"]),
    frame_rows=st.sampled_from([1, 2, 5, 1000]),
    segment_rows=st.sampled_from([None, 2, 5]),
    inline_bytes=st.sampled_from([0, 1 << 16]),
)


@st.composite
def filters(
    draw: st.DrawFn, columns: tuple[str, ...]
) -> tuple[list[list[Any]], Callable[[Event], bool]]:
    """Draw filters of up to two conditions, and a predicate with their meaning, nulls as in SQL."""
    conditions = draw(st.lists(_condition(columns), max_size=2))
    meanings = [meaning for _, meaning in conditions]
    return [text for text, _ in conditions], lambda event: all(keep(event) for keep in meanings)


def _condition(
    columns: tuple[str, ...],
) -> st.SearchStrategy[tuple[list[Any], Callable[[Event], bool]]]:
    simple = [name for name in columns if name in ("n", "word", "seen")]
    return st.sampled_from(simple).flatmap(
        lambda name: st.tuples(st.sampled_from([*_COMPARE, "is null"]), _VALUES[name]).map(
            lambda drawn: _meaning(name, *drawn)
        )
    )


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda value, literal: bool(value == literal),
    "!=": lambda value, literal: bool(value != literal),
    "<": lambda value, literal: bool(value < literal),
    "<=": lambda value, literal: bool(value <= literal),
    ">": lambda value, literal: bool(value > literal),
    ">=": lambda value, literal: bool(value >= literal),
}


def _meaning(name: str, op: str, literal: Any) -> tuple[list[Any], Callable[[Event], bool]]:
    if op == "is null":
        return [name, op], lambda event: event[name] is None
    # Strings are ordered by their UTF-8 bytes, which is the order of their code points.
    compare = _COMPARE[op]
    return [
        name,
        op,
        literal,
    ], lambda event: event[name] is not None and compare(event[name], literal)
