"""Random streams through every reader of Python: each gives what was written.

`SEGSTORE_COMPARISONS=5000 pytest -m slow tests/property/test_readers_agree.py` tries more seeds,
and ``700-800`` some of them.
"""

from typing import Any

import pyarrow as pa
import pytest
from comparison_kit import AT, OPS, Look, Twin, plain, reopened, rows_of, seeds, shown, steps
from pyarrow import types as t

from segstore_ds.status.table import SEGMENTS
from segstore_ds.stream.stream import Stream

duckdb = pytest.importorskip("duckdb")
pl = pytest.importorskip("polars")

pytestmark = pytest.mark.slow
# Levels so small that a few commits fill them.
TINY_STATUS = {"rows": 2, "hard": 4, "fan_in": 2, "parts": 2}


@pytest.mark.parametrize("seed", seeds(60))
def test_every_reader_gives_what_was_written(tmp_path, monkeypatch, seed):
    """Through all verbs, cuts, columns, filters and versions."""
    if seed % 3 == 0:
        for name, value in TINY_STATUS.items():
            monkeypatch.setattr(SEGMENTS, name, value)
    twin = Twin(seed, str(tmp_path / "s"))
    with duckdb.connect() as connection:
        for look in steps(twin):
            stream = reopened(twin)
            for check in (_read, _read_by_expression, _scan_arrow, _scan_polars):
                check(twin, stream, look)
            _query_duckdb(twin, stream, look, connection)
    twin.stream.verify().check()


def _bounds(look: Look) -> dict[str, Any]:
    return {"start": look.start, "end": look.end, "as_of": look.version.number}


def _same(twin: Twin, look: Look, what: str, found: list[str], wanted: list[str]) -> None:
    if found != wanted:
        lost = [row for row in wanted if row not in found]
        more = [row for row in found if row not in wanted]
        pytest.fail(f"{what}: {look}\nlost: {lost}\nmore: {more}\n" + "\n".join(twin.steps))


def _read(twin: Twin, stream: Stream, look: Look) -> None:
    """Reads, counts and limits, with conditions and with an interval of event time."""
    how = {**_bounds(look), "offset_column": "o", "columns": look.columns}
    names = look.names()
    wanted = rows_of(look.filtered(), names)
    cached = twin.random.choice([0, 1 << 24])
    found = stream.read(filters=look.conditions, read_cache_bytes=cached, **how).read_all()
    assert found.column_names == names
    expected = [look.version.schema.field(name).type for name in names[:-1]]
    assert found.schema.types == [*expected, pa.int64()]
    _same(twin, look, "read", rows_of(found, names), wanted)
    assert stream.scan(filters=look.conditions, **_bounds(look)).count() == len(wanted)
    first = stream.read(filters=look.conditions, limit=4, **how).read_all()
    _same(twin, look, "limit", rows_of(first, names), wanted[:4])
    scan = stream.scan(filters=look.conditions, **how)
    for frame in (scan.to_polars().collect(), scan.to_pandas()):
        assert len(frame) == len(wanted)
    if look.event_time is not None:
        timed = stream.read(event_time=look.event_time, **how).read_all()
        _same(twin, look, "event time", rows_of(timed, names), rows_of(look.in_time(), names))
        if look.version == twin.versions[-1]:
            _cut_by_time(twin, stream, look)


def _cut_by_time(twin: Twin, stream: Stream, look: Look) -> None:
    """A cut is before the first event that is as late; as an end, behind the last earlier one."""
    low, high = look.event_time or (None, None)
    times = [event.get(AT) for event in twin.events]
    shown = [(n, times[n]) for n in range(stream.head, stream.tail) if times[n] is not None]
    first = min((n for n, time in shown if time >= low), default=stream.tail)
    last = max((n + 1 for n, time in shown if time < high), default=stream.head)
    cuts = [f"eventtime:{time.isoformat()}" for time in (low, high)]
    found = stream.read(*cuts, columns=[], offset_column="o").read_all()
    assert found["o"].to_pylist() == [*range(first, last)], twin.steps


def _read_by_expression(twin: Twin, stream: Stream, look: Look) -> None:
    """An expression means what it means on a table."""
    how = {**_bounds(look), "offset_column": "o", "columns": look.columns}
    for expression in look.expressions:
        wanted = rows_of(look.table().filter(expression), look.names())
        found = stream.read(filters=expression, **how).read_all()
        _same(twin, look, shown(expression), rows_of(found, look.names()), wanted)


def _scan_arrow(twin: Twin, stream: Stream, look: Look) -> None:
    """A dataset: filters and columns of a scanner, filters of its own, counts."""
    events, names = stream.scan(**_bounds(look), offset_column="o").to_dataset(), look.names()
    expression = look.expressions[0]
    wanted = look.table().filter(expression)
    found = events.to_table(columns=names, filter=expression)
    _same(twin, look, "dataset", rows_of(found, names), rows_of(wanted, names))
    found = events.filter(expression).to_table(columns=names)
    _same(twin, look, "dataset filter", rows_of(found, names), rows_of(wanted, names))
    assert events.count_rows(filter=expression) == len(wanted)
    whole = rows_of(events.to_table(), [*look.version.schema.names, "o"])
    _same(twin, look, "dataset", whole, rows_of(look.table(), [*look.version.schema.names, "o"]))


def _scan_polars(twin: Twin, stream: Stream, look: Look) -> None:
    """A lazy frame gives what a frame of the same events gives."""
    lazy = stream.scan(**_bounds(look), offset_column="o").to_polars()
    frame = pl.from_arrow(look.table())
    predicate = _draw_predicate(twin, look)
    names = look.names()
    queries = [
        lambda events: events.select(names),
        lambda events: events.filter(predicate).select(names),
        lambda events: events.head(5).filter(predicate).select(names),
        lambda events: events.filter(predicate).head(5).select(names),
    ]
    for query in queries:
        wanted, found = query(frame), query(lazy).collect()
        texts = [[repr(plain(row)) for row in each.to_dicts()] for each in (found, wanted)]
        _same(twin, look, f"polars {predicate}", *texts)


def _draw_predicate(twin: Twin, look: Look) -> Any:
    columns = twin.scalars(look.version.schema)
    if not columns:
        return pl.col("o") % 2 == 0
    found = []
    for _ in range(2):
        column = twin.random.choice(columns)
        values, kind = pl.col(column.name), column.type
        literal = pl.lit(twin.literal(kind))
        leaf = twin.random.choice([values.is_null(), *(OPS[op](values, literal) for op in OPS)])
        found.append(~leaf if twin.random.random() < 0.3 else leaf)
    return twin.random.choice([found[0] & found[1], found[0] | found[1], found[0]])


def _query_duckdb(twin: Twin, stream: Stream, look: Look, connection: Any) -> None:
    """DuckDB gives of a dataset what it gives of a table with the same events."""
    predicate = _draw_sql(twin, look)
    chosen = ", ".join(f'"{name}"' for name in look.names())
    names = look.names()
    texts = []
    for events in (stream.scan(**_bounds(look), offset_column="o").to_dataset(), look.table()):
        connection.register("events", events)
        query = f"SELECT {chosen} FROM events WHERE {predicate} ORDER BY o"  # noqa: S608 - our own
        texts.append(rows_of(connection.sql(query).to_arrow_table(), names))
    _same(twin, look, f"DuckDB {predicate}", *texts)
    relation = stream.scan(**_bounds(look), offset_column="o").to_duckdb(connection)
    every = [*look.version.schema.names, "o"]
    connection.register("events", look.table())
    wanted = rows_of(connection.sql("SELECT * FROM events ORDER BY o").to_arrow_table(), every)
    _same(twin, look, "to_duckdb", rows_of(relation.to_arrow_table(), every), wanted)


def _draw_sql(twin: Twin, look: Look) -> str:
    columns = [
        each
        for each in twin.scalars(look.version.schema)
        if t.is_integer(each.type) or t.is_floating(each.type) or t.is_string(each.type)
    ]
    if not columns:
        return "o % 2 = 0"
    found = []
    for _ in range(2):
        column = twin.random.choice(columns)
        several = [_sql_literal(twin.literal(column.type)) for _ in range(3)]
        op = twin.random.choice(["=", "<>", "<", "<=", ">", ">=", "IN", "IS NULL"])
        operand = {"IN": f"({', '.join(several)})", "IS NULL": ""}.get(op, several[0])
        negated = "NOT " if twin.random.random() < 0.3 else ""
        found.append(f'{negated}("{column.name}" {op} {operand})')
    return twin.random.choice([" AND ", " OR "]).join(found)


def _sql_literal(value: Any) -> str:
    if isinstance(value, float):
        return f"'{value}'::DOUBLE"
    return "'" + value + "'" if isinstance(value, str) else str(value)
