"""Times in nanoseconds: from Arrow, Polars and single events to every reader, exactly."""

import datetime as dt
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from publish_kit import iceberg_entries
from pyiceberg.table import StaticTable

import segstore_ds as segstore
from segstore_ds.errors import InvalidInputError, SchemaMismatchError, UnsupportedVersionError
from segstore_ds.format import root as roots
from segstore_ds.format.schema.column_names import column_id
from segstore_ds.read.filters.given import parse_filters
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout

NTZ, UTC, SPAN = pa.timestamp("ns"), pa.timestamp("ns", "UTC"), pa.duration("ns")
KINDS = (NTZ, UTC, SPAN)
LEAST, MOST = -(1 << 63), (1 << 63) - 1
NUMBERS = [LEAST, -1, 0, 1_767_225_600_123_456_789, MOST, None]
# The same moment as all literals that a filter takes.
NOON = 1_767_225_600_000_000_001
NOON_TEXT = "2026-01-01T00:00:00.000000001"
LAYOUTS = {
    "inline": Layout(),
    "arrow": Layout(inline_bytes=0, segment_format="arrow"),
    "parquet": Layout(inline_bytes=0, segment_format="parquet"),
}


def every_kind() -> pa.Table:
    """Return times of each kind, plain and in every nested type, at their limits."""
    columns: dict[str, pa.Array] = {}
    for place, kind in enumerate(KINDS):
        plain = pa.array(NUMBERS, kind)
        columns[f"plain{place}"] = plain
        lists = [[n, None] if n else None for n in NUMBERS]
        columns[f"list{place}"] = pa.array(lists, pa.list_(pa.field("element", kind)))
        columns[f"struct{place}"] = pa.StructArray.from_arrays([plain], ["x"])
        pairs = [[(n, n)] if n is not None else [(0, None)] for n in NUMBERS]
        columns[f"map{place}"] = pa.array(pairs, pa.map_(kind, kind))
    return pa.table(columns)


def create(folder: Path, *columns: tuple[str, pa.DataType], **how: Any) -> Stream:
    """Return a stream without upkeep."""
    return segstore.create(folder / "s", pa.schema(list(columns)), upkeep=None, **how)


def moments(numbers: Sequence[int | None], kind: pa.DataType = UTC, name: str = "ts") -> pa.Table:
    """Return a column of times, and their places."""
    return pa.table({name: pa.array(numbers, kind), "n": pa.array(range(len(numbers)), pa.int64())})


def numbers_of(stream: Stream, name: str = "ts", **how: Any) -> list[int | None]:
    """Return a column's times as numbers."""
    return stream.read(**how).read_all()[name].cast(pa.int64()).to_pylist()


@pytest.mark.parametrize("form", LAYOUTS)
def test_every_kind_comes_back_exactly(tmp_path: Path, form: str) -> None:
    """Also at the limits; the feature is there from the first commit."""
    table = every_kind()
    stream = segstore.create(tmp_path / "s", table.schema, upkeep=None)
    assert stream._log.root.reader_features == ("nanoseconds",)
    stream.append(table, layout=LAYOUTS[form])
    assert stream.schema.types == table.schema.types
    assert stream.read().read_all().equals(table)
    assert stream.verify().check().rows == len(table)


def test_the_feature_comes_with_the_first_column_that_needs_it(tmp_path: Path) -> None:
    """Streams without one stay as older versions wrote them; those refuse the others."""
    stream = create(tmp_path, ("n", pa.int64()), ("ts", pa.timestamp("us", "UTC")))
    stream.append(moments([5000]))
    assert stream._log.root.reader_features == ()
    new = moments([NOON], name="finer")
    stream.append(new, merge_schema=True)
    assert stream._log.root.reader_features == ("nanoseconds",)
    stream.overwrite(moments([0]).select(["n"]), overwrite_schema=True)
    assert stream._log.root.reader_features == ("nanoseconds",)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(roots, "READER_FEATURES", frozenset())
        with pytest.raises(UnsupportedVersionError, match="nanoseconds"):
            segstore.open(tmp_path / "s")


def test_copies_clones_and_restores_keep_the_feature(tmp_path: Path) -> None:
    """Each first root says it, and the version after it was restored."""
    stream = create(tmp_path, ("ts", SPAN))
    stream.append(moments([1, 2], SPAN).select(["ts"]))
    version = stream.version
    for name in ("events", "segments", "clone"):
        stream.copy_to(tmp_path / name, copy_id=name, mode=name)
        made = segstore.open(tmp_path / name)
        assert made._log.root.reader_features == ("nanoseconds",), name
        assert numbers_of(made) == [1, 2], name
    stream.overwrite(pa.table({"n": [1]}), overwrite_schema=True)
    stream.restore(version)
    assert numbers_of(stream) == [1, 2]
    assert stream._log.root.reader_features == ("nanoseconds",)


def test_a_column_keeps_its_unit(tmp_path: Path) -> None:
    """Coarser times are widened to it, finer ones are taken if nothing is lost, at every depth."""
    fine, coarse = pa.list_(UTC), pa.list_(pa.timestamp("us", "UTC"))
    stream = create(tmp_path, ("ts", UTC), ("deep", fine), ("us", pa.timestamp("us")))
    schema = pa.schema([("ts", pa.timestamp("s", "UTC")), ("deep", coarse), ("us", NTZ)])
    for merge in (False, True):
        stream.append(pa.table([[1], [[2]], [3000]], schema), merge_schema=merge)
    assert stream.schema.types == [UTC, *stream.schema.types[1:2], pa.timestamp("us")]
    assert stream.schema.field("deep").type.value_type == UTC
    got = stream.read().read_all()
    assert got["ts"].cast(pa.int64()).to_pylist() == [10**9] * 2
    assert got["deep"].combine_chunks().flatten().cast(pa.int64()).to_pylist() == [2000] * 2
    assert got["us"].cast(pa.int64()).to_pylist() == [3] * 2
    with stream.appender() as appender:
        appender.append(pa.table([[4], [[5]], [6000]], schema))
    assert numbers_of(stream)[-1] == 4 * 10**9
    for bad in ([2**61], [[2]], [3000]), ([1], [[2**61]], [3000]), ([1], [[2]], [3001]):
        with pytest.raises(SchemaMismatchError, match="do not fit"):
            stream.append(pa.table(list(bad), schema))
    assert stream.tail == 3


def test_a_new_unit_is_another_column(tmp_path: Path) -> None:
    """Its bounds, its id and what writers staged before are not mixed with those of the old one."""
    stream = create(tmp_path, ("ts", pa.timestamp("us", "UTC")), time_column="ts")
    stream.append(moments([5_000_000]).select(["ts"]))
    old = moments([7], pa.timestamp("us", "UTC")).select(["ts"])
    job = stream.plan_write(old.schema)
    task = job.open_task(0, "a")
    for batch in old.to_batches():
        task.append(batch)
    staged = task.finish()
    stream.overwrite(moments([6_000]).select(["ts"]), overwrite_schema=True)
    assert numbers_of(stream, event_time=("1970-01-01T00:00:00.000006Z", None)) == [6000]
    assert numbers_of(stream, event_time=(None, "1970-01-01T00:00:00.000006Z")) == []
    ids = {column_id(("ts",), kind) for kind in (UTC, pa.timestamp("us", "UTC"), NTZ, SPAN)}
    assert len(ids) == 4
    with pytest.raises(SchemaMismatchError, match="different type"):
        stream.commit(job, [staged])
    assert numbers_of(stream) == [6000]


LITERALS = {
    "text": f"{NOON_TEXT}Z",
    "another zone": "2026-01-01T01:00:00.000000001+01:00",
    "pandas": pd.Timestamp(f"{NOON_TEXT}Z"),
    "arrow": pa.scalar(NOON, UTC),
}


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_filters_tell_neighbouring_nanoseconds_apart(tmp_path: Path, form: str) -> None:
    """By statistics of segments and frames, by rows, and by the filters of key columns."""
    stream = create(tmp_path, ("ts", UTC), ("n", pa.int64()), key_columns=["ts"])
    numbers = [NOON - 1, NOON, NOON + 1]
    for number in (*numbers, None):
        stream.append(moments([number]), layout=LAYOUTS[form])
    stream.append(moments(numbers), layout=replace(LAYOUTS[form], frame_rows=1))
    tests = {
        "==": lambda n: n == NOON,
        "!=": lambda n: n != NOON,
        "<": lambda n: n < NOON,
        "<=": lambda n: n <= NOON,
        ">": lambda n: n > NOON,
        ">=": lambda n: n >= NOON,
    }
    for op, test in tests.items():
        wanted = [n for n in numbers * 2 if test(n)]
        for name, literal in LITERALS.items():
            assert numbers_of(stream, filters=[["ts", op, literal]]) == wanted, (op, name)
        assert numbers_of(stream, filters=f"ts {op} '{NOON_TEXT}Z'") == wanted, op
    field, literal = pc.field("ts"), pa.scalar(NOON, UTC)
    assert numbers_of(stream, filters=field == literal) == [NOON] * 2
    assert numbers_of(stream, filters=field > literal) == [NOON + 1] * 2
    moment = pl.lit(NOON).cast(pl.Datetime("ns", "UTC"))
    assert numbers_of(stream, filters=pl.col("ts") <= moment) == [NOON - 1, NOON] * 2
    assert len(stream.scan(filters=[["ts", "==", literal]]).tasks()) < 5


@pytest.mark.parametrize(
    ("kind", "literal", "number"),
    [
        (NTZ, NOON_TEXT, NOON),
        (NTZ, np.datetime64(NOON, "ns"), NOON),
        (NTZ, dt.datetime(2026, 1, 1), NOON - 1),  # noqa: DTZ001
        (NTZ, "1677-09-21T00:12:43.145224192", LEAST),
        (NTZ, "2262-04-11T23:47:16.854775807", MOST),
        (SPAN, np.timedelta64(1, "ns"), 1),
        (SPAN, pd.Timedelta(1501, "ns"), 1501),
        (SPAN, dt.timedelta(microseconds=-1), -1000),
        (SPAN, 2, 2000),
        (SPAN, 1.501, 1501),
        (SPAN, "0.001", None),
    ],
)
def test_literals_of_every_library(kind: pa.DataType, literal: Any, number: int | None) -> None:
    """A number is one of microseconds, whatever the unit of the column, so a text fits both."""
    schema = pa.schema([("c", kind)])
    if number is None:
        with pytest.raises(InvalidInputError, match="microseconds or a timedelta"):
            parse_filters([["c", "==", literal]], schema)
        return
    (condition,) = parse_filters([["c", "==", literal]], schema).conditions
    assert condition.literal == number


@pytest.mark.parametrize(
    ("kind", "literal"),
    [
        (NTZ, f"{NOON_TEXT}Z"),
        (NTZ, "2026-01-01T00:00:00.0000000001"),
        (NTZ, "2263-01-01"),
        (NTZ, "1677-09-21T00:12:43.145224191"),
        (NTZ, dt.datetime(1, 1, 1)),  # noqa: DTZ001
        (NTZ, np.datetime64(1 << 62, "h")),
        (NTZ, pd.NaT),
        (NTZ, NOON),
        (NTZ, pa.scalar(NOON, UTC)),
        (UTC, np.datetime64(NOON, "ns")),
        (SPAN, 1.5012),
        (SPAN, np.timedelta64(1, "M")),
        (SPAN, dt.timedelta.max),
        (SPAN, 1 << 62),
        (pa.timestamp("us"), np.datetime64(NOON, "ns")),
        (pa.duration("us"), pd.Timedelta(1, "ns")),
    ],
)
def test_literals_that_a_column_can_not_hold(kind: pa.DataType, literal: Any) -> None:
    """They never become another comparison."""
    with pytest.raises(InvalidInputError, match="does not fit its column"):
        parse_filters([["c", "==", literal]], pa.schema([("c", kind)]))


def test_events_are_found_by_their_time(tmp_path: Path) -> None:
    """Cuts, intervals, the times of segments and retention take nanoseconds of the time column."""
    stream = create(tmp_path, ("ts", UTC), ("n", pa.int64()), time_column="ts")
    for number in (NOON, NOON + 1, NOON + 2):
        stream.append(moments([number]), layout=LAYOUTS["arrow"])
    second = f"{NOON_TEXT[:-1]}2Z"
    assert numbers_of(stream, start=f"eventtime:{second}") == [NOON + 1, NOON + 2]
    assert numbers_of(stream, event_time=(second, pa.scalar(NOON + 2, UTC))) == [NOON + 1]
    times = stream.segments().read_all()["time_min"].to_pylist()
    assert times[0] == "2026-01-01 00:00:00.000000001Z"
    # Before the year 1677, which the column can't hold, there is no event.
    assert stream.retain(max_event_age="100000w", dry_run=True).head == 0
    assert stream.retain(max_event_age="1s", dry_run=True).head in (0, 3)


EVENTS = [
    (NTZ, np.datetime64(NOON, "ns"), NOON),
    (NTZ, pd.Timestamp(NOON_TEXT), NOON),
    (NTZ, dt.datetime(2026, 1, 1), NOON - 1),  # noqa: DTZ001
    (UTC, pa.scalar(NOON, UTC), NOON),
    (UTC, pd.Timestamp(f"{NOON_TEXT}Z"), NOON),
    (UTC, pa.scalar(None, UTC), None),
    (
        UTC,
        dt.datetime(2026, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1))),
        NOON - 1 - 3600 * 10**9,
    ),
    (SPAN, np.timedelta64(1, "ns"), 1),
    (SPAN, dt.timedelta(microseconds=1), 1000),
    (SPAN, pd.Timedelta(-1, "ns"), -1),
]


def test_single_events_hold_nanoseconds(tmp_path: Path) -> None:
    """Of NumPy, pandas and Arrow, by `append` and by an appender."""
    stream = create(tmp_path, *((str(place), kind) for place, (kind, *_) in enumerate(EVENTS)))
    event = {str(place): value for place, (_, value, _) in enumerate(EVENTS)}
    stream.append([event])
    with stream.appender() as appender:
        appender.append(event)
    for place, (_, _, number) in enumerate(EVENTS):
        assert numbers_of(stream, str(place)) == [number] * 2, EVENTS[place]
    for place, bad in {
        0: NOON,
        4: np.datetime64(NOON, "ns"),
        8: 5,
        2: dt.datetime(9999, 1, 1),  # noqa: DTZ001
        1: "2026",
    }.items():
        with pytest.raises(SchemaMismatchError, match="does not fit"):
            stream.append([{str(place): bad}])


@pytest.mark.parametrize("form", LAYOUTS)
def test_polars_and_duckdb_keep_nanoseconds(tmp_path: Path, form: str) -> None:
    """From a frame into a stream and back, lazily as well."""
    frame = pl.DataFrame({
        "a": pl.Series([NOON, None], dtype=pl.Datetime("ns")),
        "b": pl.Series([NOON, None], dtype=pl.Datetime("ns", "UTC")),
        "c": pl.Series([1, None], dtype=pl.Duration("ns")),
    })  # fmt: skip
    stream = segstore.create(tmp_path / "s", like=frame)
    stream.append(frame, layout=LAYOUTS[form])
    assert stream.scan().to_polars().collect().equals(frame)
    lazily = stream.scan().to_polars().filter(pl.col("a") == pl.lit(NOON).cast(pl.Datetime("ns")))
    assert lazily.collect().equals(frame[:1])
    found = stream.scan().to_duckdb().filter(f"a = TIMESTAMP_NS '{NOON_TEXT}'")
    assert found.aggregate("count(*)").fetchall() == [(1,)]


def test_iceberg_has_nanoseconds_and_delta_leaves_them_out(tmp_path: Path) -> None:
    """Delta has no such type; durations are in neither."""
    stream = create(tmp_path, ("a", NTZ), ("b", UTC), ("deep", pa.list_(UTC)), ("n", pa.int64()))
    schema = stream.schema
    for number in (NOON, LEAST, MOST):
        rows = pa.table([[number], [number], [[number]], [1]], schema)
        stream.append(rows, layout=LAYOUTS["parquet"])
    left_out = {"a": "timestamp[ns]", "b": "timestamp[ns, tz=UTC]", "deep": "timestamp[ns, tz=UTC]"}
    assert stream.publish("delta").left_out == left_out
    assert deltalake.DeltaTable(tmp_path / "s").to_pyarrow_table()["n"].to_pylist() == [1] * 3
    with pytest.raises(InvalidInputError, match=r"timestamp\[ns"):
        stream.publish("delta", strict=True)
    assert stream.publish("iceberg", strict=True).left_out == {}
    table = StaticTable.from_metadata(str(tmp_path / "s"))
    kinds = [str(field.field_type) for field in table.schema().fields]
    assert kinds[:2] == ["timestamp_ns", "timestamptz_ns"]
    by_number = [("a", "ascending")]
    got = table.scan().to_arrow().sort_by(by_number)
    assert got["a"].type == NTZ
    wanted = stream.read().read_all().sort_by(by_number)
    for name in ("a", "b"):
        assert got[name].cast(pa.int64()).equals(wanted[name].cast(pa.int64()))
    for entry in iceberg_entries(stream._log.storage):
        for bounds in (entry.stats["lower_bounds"], entry.stats["upper_bounds"]):
            found = [int.from_bytes(each["value"], "little", signed=True) for each in bounds]
            assert found[0] == found[1]
            assert found[0] in (NOON, LEAST, MOST)
