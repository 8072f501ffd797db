"""Statistics as JSON: exact, and never taken from what can't be theirs."""

import json
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from segstore_ds.errors import CorruptionError
from segstore_ds.format.bounds import Bounds, Piece
from segstore_ds.format.statistics import Stats, build_text, parse_piece

PIECE: Piece = {
    "int:i": Bounds(-(2**63), 2**63 - 1, 0),
    "float:f": Bounds(-math.inf, 0.1, 1),
    "float:g": Bounds(1.0, 1e22, 1),
    "float:z": Bounds(-0.0, math.inf, 1),
    "string:s": Bounds("", "\U0010ffff", 2),
    "binary:b": Bounds(b"\x00\xff", b"\xff", 3),
    "decimal:d": Bounds(Decimal("-1.50"), Decimal("1E+3"), 4),
    "bool:t": Bounds(False, True, 5),
    "timestamp_ns:n": Bounds(None, None, 6),
}


def test_types_and_values_are_kept_exactly() -> None:
    text = build_text(PIECE)
    stats = Stats.of_texts([text, None])
    for back in (parse_piece(text, where="w"), stats.pieces()[0], stats.as_columns().pieces()[0]):
        assert back == PIECE
        for label, bounds in back.items():
            assert [*map(type, bounds)] == [*map(type, PIECE[label])]
    assert parse_piece(None, where="w") == stats.as_columns().pieces()[1] == {}


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        *({"int:a": cell} for cell in (1, [1, 2], [1, 2, None], [1, 2, -1], [1, 2, True])),
        *({"int:a": [bound, 2, 0]} for bound in ([], "1", 2.0, True, 10**30)),
        *({"binary:a": [bound, None, 0]} for bound in ("?", 1)),
        *({"decimal:a": [bound, None, 0]} for bound in ("NaN", "x", 1)),
        *({"float:a": [bound, None, 0]} for bound in ("nan", [], 1)),
        '{"string:a": ["\\ud800", null, 0]}',
        '{"string:a": ["\ud800", null, 0]}',
    ],
    ids=str,
)
def test_what_is_no_statistics_is_corrupt_and_unknown_beside_events(value: Any) -> None:
    text = value if isinstance(value, str) else json.dumps(value)
    with pytest.raises(CorruptionError, match="statistics"):
        parse_piece(text, where="w")
    fields = [pa.field("a", each) for each in (pa.int64(), pa.binary(), pa.string(), pa.float64())]
    fields.append(pa.field("a", pa.decimal128(9, 2)))

    def ask() -> None:
        known = Stats.of_texts([text], where="w")
        for field in fields:
            list(known.bounds(field, [0]))

    with pytest.raises(CorruptionError, match="statistics"):
        ask()
    assert Stats.of_texts([text]).pieces() == [{}]


def test_columns_of_unknown_kinds_are_passed_over() -> None:
    text = '{"century:a": "any", "int:b": [1, 2, 0]}'
    assert parse_piece(text, where="w") == {"int:b": Bounds(1, 2, 0)}
    assert list(Stats.of_texts([text]).as_columns().columns or ()) == ["int:b"]


def test_an_integer_that_became_a_float_has_bounds_where_they_are_exact() -> None:
    texts = ['{"int:x": [-3, 1152921504606846977, 0]}', '{"float:x": [0.5, 1.5, 0]}', None]
    stats, field = Stats.of_texts(texts), pa.field("x", pa.float64())
    for each in (stats, stats.as_columns()):
        assert list(each.bounds(field, [2, 1, 0])) == [None, (0.5, 1.5, 0), (-3.0, None, 0)]
    column = stats.column(field)
    assert column is not None
    assert [side.to_pylist() for side in column] == [
        [-3.0, 0.5, None],
        [None, 1.5, None],
        [0, 0, None],
    ]
