"""Random streams through both reads of Spark: each gives what was written.

`SEGSTORE_COMPARISONS=500 pytest -m slow tests/spark/test_spark_readers_agree.py` tries more seeds.
"""

import base64
import json
from functools import reduce

import pytest
from comparison_kit import OPS, Look, Twin, ordered, plain, rows_of, seeds, steps
from pyarrow import types as t
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

import segstore_ds as segstore

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", seeds(12))
def test_spark_gives_what_was_written(spark, tmp_path, seed):
    """The source and the hybrid scan, with options, predicates, distinct and counts."""
    url = f"file://{tmp_path}/s"
    twin = Twin(seed, url, without=["clock", "took"])
    (look,) = [*steps(twin)][-1:]
    options = {
        "startCut": look.start,
        "endCut": look.end,
        "versionAsOf": look.version.number,
        "offsetColumn": "o",
    }
    filters = {"filters": look.conditions} if look.conditions else {}
    if look.columns is not None:
        options["columns"] = look.columns
    for read in (_read_source, segstore.spark.read):
        found = read(spark, url, **options, **filters).orderBy("o").toArrow()
        wanted = rows_of(look.filtered(), look.names())
        assert rows_of(found, look.names()) == wanted, (read, look, twin.steps)
        events = read(spark, url, **options)
        assert events.count() == look.end - look.start
        _check_where(twin, look, events)
        _check_distinct(look, events)


def _read_source(spark, url, **options):
    for name in ("filters", "columns"):
        if name in options:
            options[name] = json.dumps(options[name], default=_as_text)
    return spark.read.format("segstore").options(**options).load(url)


def _as_text(value):
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _check_where(twin: Twin, look: Look, events):
    """A predicate of Spark's own, which the hybrid scan pushes down to the files."""
    names = look.names()
    columns = [
        each
        for each in twin.scalars(look.version.schema)
        if each.name in names
        and (t.is_integer(each.type) or t.is_floating(each.type) or t.is_string(each.type))
    ]
    if not columns:
        return
    chosen = [twin.random.choice(columns) for _ in range(2)]
    tests = [(each.name, twin.random.choice(list(OPS)), twin.literal(each.type)) for each in chosen]
    predicate = reduce(
        lambda left, right: left | right,
        (OPS[op](F.col(name), F.lit(literal)) for name, op, literal in tests),
    )
    found = events.where(predicate).orderBy("o").toArrow()
    rows = [
        row
        for row in look.events
        if any(
            row[name] is not None and OPS[op](ordered(row[name]), ordered(literal))
            for name, op, literal in tests
        )
    ]
    assert rows_of(found, names) == rows_of(look.table(rows), names), (tests, look, twin.steps)


def _check_distinct(look: Look, events):
    """Distinct values of each column that can be compared, also of lists."""
    for name in look.names()[:-1]:
        if "map<" in str(look.version.schema.field(name).type):
            continue
        distinct = {repr(_without_signs(plain(row[name]))) for row in look.table().to_pylist()}
        assert events.select(name).distinct().count() == len(distinct), (name, look)


def _without_signs(value):
    """Return a value with the zero that Spark takes for both."""
    if isinstance(value, dict):
        return {key: _without_signs(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_signs(each) for each in value]
    return 0.0 if isinstance(value, float) and value == 0 else value
