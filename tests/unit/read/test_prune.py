"""Which segments may hold a row that passes a filter: as told from each one's statistics."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore_ds.format.parts.columns import from_entries
from segstore_ds.format.root import SegmentEntry
from segstore_ds.format.statistics import Stats
from segstore_ds.read.filters.given import parse_filters
from segstore_ds.read.prune import segments_to_read
from segstore_ds.status.table_status import Run

SCHEMA = pa.schema([("t", pa.int64()), ("n", pa.float64()), ("s", pa.string())])
OLDER = SCHEMA.remove(0)  # of an epoch before the column appeared
OTHER = SCHEMA.set(0, pa.field("t", pa.timestamp("us")))  # of bounds that mean something else
ROWS = 9
NUMBERS, WORDS = st.integers(-9, 9), st.sampled_from("abcd")
PAIRS = {
    "int:t": st.tuples(NUMBERS, NUMBERS).map(sorted),
    "float:n": st.tuples(NUMBERS, NUMBERS).map(lambda pair: [float(each) for each in sorted(pair)]),
    "string:s": st.tuples(WORDS, WORDS).map(sorted),
}
CELLS = {
    name: st.none()
    | st.just([None, None, ROWS])
    | st.just([None, None, 1])
    | st.tuples(pairs, st.integers(0, ROWS - 1)).map(lambda cell: [*cell[0], cell[1]])
    for name, pairs in PAIRS.items()
}
STATS = st.fixed_dictionaries(CELLS).map(
    lambda found: {name: cell for name, cell in found.items() if cell is not None}
)
CONDITIONS = st.one_of(
    st.tuples(st.just("t"), st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), NUMBERS),
    st.tuples(st.just("n"), st.sampled_from(["==", "<", ">="]), NUMBERS),
    st.tuples(st.just("n"), st.sampled_from(["==", "<=", ">"]), st.just("NaN")),
    st.tuples(st.just("s"), st.sampled_from(["==", "<", "starts with"]), WORDS),
    st.tuples(st.just("t"), st.just("in"), st.lists(NUMBERS, min_size=1, max_size=3)),
    st.tuples(st.sampled_from("tns"), st.sampled_from(["is null", "is not null"])),
)
FILTERS = st.lists(CONDITIONS, max_size=3) | st.lists(
    st.lists(CONDITIONS, min_size=1, max_size=2), min_size=2, max_size=3
)


def run_of(texts: list[str | None], *, packed: bool = True) -> Run:
    entries = [SegmentEntry(n, f"t/{n}", ROWS, 99, 9, 7) for n in range(len(texts))]
    stats = Stats.of_texts(texts)
    return Run(0, from_entries(entries), stats.as_columns if packed else lambda: stats)


def kept(run: Run, filters: Any, schemas: dict[int, pa.Schema] | None = None) -> list[int]:
    parsed = parse_filters(filters, SCHEMA)
    schemas = schemas or {0: SCHEMA}
    return segments_to_read(run, parsed, SCHEMA, schemas, looks_up=False).tolist()


@given(st.lists(STATS, min_size=1, max_size=12), FILTERS)
def test_columns_of_statistics_rule_out_what_each_segment_alone_does(
    stats: list[Any], filters: Any
) -> None:
    texts = [json.dumps(each) if each else None for each in stats]
    parsed = parse_filters([list(each) for each in filters], SCHEMA)
    expected = [row for row, text in enumerate(texts) if kept(run_of([text], packed=False), parsed)]
    assert kept(run_of(texts), parsed) == expected
    assert kept(run_of(texts, packed=False), parsed) == expected


@pytest.mark.parametrize(
    ("op", "value", "rows"),
    [
        ("==", 2, [0, 1, 3]),
        ("==", 4, [1, 2, 3]),
        ("<", 2, [0, 3]),
        ("<=", 2, [0, 1, 3]),
        (">", 4, [2, 3]),
        (">=", 4, [1, 2, 3]),
        ("<", 1, [3]),
        (">", 6, [3]),
    ],
)
def test_bounds_include_their_ends(op: str, value: int, rows: list[int]) -> None:
    texts = [
        '{"int:t":[1,2,0]}',
        '{"int:t":[2,4,0]}',
        '{"int:t":[4,6,0]}',
        '{"float:n":[0.0,0.0,0]}',
    ]
    texts.append(f'{{"int:t":[null,null,{ROWS}]}}')
    assert kept(run_of(texts), [["t", op, value]]) == rows
    floats = [f'{{"float:n":[{low}.0,{high}.0,0]}}' for low, high in ((1, 2), (2, 4), (4, 6))]
    assert kept(run_of(floats), [["n", op, value]]) == [row for row in rows if row < 3]


@pytest.mark.parametrize("op", [">", ">=", "<", "<=", "=="])
@pytest.mark.parametrize("value", ["Infinity", "-Infinity", 0])
def test_unknown_bounds_rule_nothing_out(op: str, value: Any) -> None:
    """NaN is above infinity, and a segment with one has no bounds."""
    run = run_of(
        [None, '{"float:n":[null,null,0]}', '{"float:n":[null,1.0,0]}', '{"string:s":["a","b",0]}']
    )
    assert kept(run, [["n", op, value]]) == [0, 1, 2, 3]


def test_columns_that_appeared_later_are_null() -> None:
    run = run_of([None, '{"float:n":[1.0,2.0,0]}'])
    schemas = {0: OLDER, 1: SCHEMA}
    assert kept(run, [["t", ">=", 3]], schemas) == []
    assert kept(run, [["t", "!=", 3]], schemas) == []
    assert kept(run, [["t", "is null"]], schemas) == [0, 1]
    assert kept(run, [[["t", ">=", 3]], [["n", ">", 1]]], schemas) == [0, 1]


def test_bounds_of_another_kind_rule_nothing_out() -> None:
    run = run_of(['{"timestamp_ntz:t":[1,2,0]}'])
    assert kept(run, [["t", ">=", 3]], {0: OTHER}) == [0]


@pytest.mark.parametrize("text", ["{", "[]", "7", '{"int:t":[1,2]}', '{"int:t":["x","y",0]}', ""])
def test_statistics_that_can_not_be_read_rule_nothing_out(text: str) -> None:
    assert kept(run_of(['{"int:t":[1,2,0]}', text]), [["t", ">=", 3]]) == [1]
