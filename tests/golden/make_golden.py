"""Write golden streams: small streams of today's format, to be read by every later version.

::

    PYTHONPATH=.:tests .venv/bin/python tests/golden/make_golden.py v1  # or another of `SETS`

When: once per version of the format, or feature of it, in the commit that begins it. Streams of a
version that was released are never written again, whatever the code does today: they are what users
have on their disks. So this refuses a folder that is not empty. Until a format is released, delete
its folder and run the command again whenever the format changes.

Ids and times are fixed, so that two runs with the same libraries write the same bytes. Beside each
stream lies what has to be read from it, `<name>.json`.
"""

import datetime as dt
import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import golden_keys
import golden_levels
import golden_parquet
import pyarrow as pa
from virtual_time import TimedStorage, VirtualTime

from segstore_ds.cli.show import rows_of
from segstore_ds.compact import run
from segstore_ds.log.newest import ROOT_CODEC
from segstore_ds.status import table, table_status
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write import append
from segstore_ds.write.layout import Layout

SCHEMA = pa.schema([("n", pa.int64()), ("word", pa.string())])
WORDS = ["", "ada", "größe", "日本", None]
UTC = dt.UTC


def events(start: int, end: int) -> pa.Table:
    """Return the events start to end."""
    words = [WORDS[n % len(WORDS)] for n in range(start, end)]
    return pa.table({"n": list(range(start, end)), "word": words}, SCHEMA)


def plain(stream: Stream) -> None:
    """Three commits of one segment each."""
    for start in (0, 5, 7):
        stream.append(events(start, start + 5))


def codecs(stream: Stream) -> None:
    """Every compression, several frames per segment and segments per commit."""
    for place, compression in enumerate(("none", "lz4", "zstd")):
        sizes = {"frame_rows": 3, "segment_rows": 6, "inline_bytes": 0}
        layout = Layout(compression=compression, segment_format="arrow", **sizes)
        stream.append(events(place * 20, place * 20 + 20), layout=layout)


def inline(stream: Stream) -> None:
    """Inline segments of two epochs around a segment, after some that became a segment."""
    for start in range(3):
        stream.append(events(start, start + 1))
    stream.append(events(3, 6), layout=Layout(inline_bytes=0))
    stream.append(events(6, 9))
    wider = pa.table({"n": pa.array([9], pa.int64()), "word": ["x"], "more": [1.5]})
    stream.append(wider, merge_schema=True)
    framed = [entry.frame is not None for entry in stream._log.root.entries]
    assert framed == [False, False, True, True]


def epochs(stream: Stream) -> None:
    """A second epoch that widens and extends the first, and bytes of both."""
    stream.append(events(0, 4))
    wider = pa.table({"more": [1.5, None], "n": pa.array([4, 5], pa.int64()), "word": ["x", "y"]})
    stream.append(wider, merge_schema=True)


def widened(stream: Stream) -> None:
    """Types that were widened in each family."""
    names = ["i", "f", "d"]
    narrow = [pa.int8(), pa.float32(), pa.decimal128(5, 2)]
    wide = [pa.int64(), pa.float64(), pa.decimal128(12, 4)]
    rows = [{"i": 1, "f": 0.5, "d": Decimal("1.25")}, {"i": -128, "f": None, "d": None}]
    first = pa.Table.from_pylist(rows, pa.schema(zip(names, narrow, strict=True)))
    stream.overwrite(first, overwrite_schema=True)
    rows = [{"i": 2**40, "f": 1e300, "d": Decimal("12345678.0001")}]
    second = pa.Table.from_pylist(rows, pa.schema(zip(names, wide, strict=True)))
    stream.append(second, merge_schema=True)


def doubles(stream: Stream) -> None:
    """Integers that became doubles, nested ones too, in every kind of segment."""
    kinds = (pa.int8(), pa.int32(), pa.float64(), pa.int16())
    for place, kind in enumerate(kinds):
        types = {"x": kind, "deep": pa.list_(kind), "pairs": pa.map_(kind, kind)}
        value = place - 0.5 if kind == pa.float64() else place - 2
        rows = [{"x": value, "deep": [value, None], "pairs": [(value, None)]}, {"x": None}]
        table = pa.Table.from_pylist(rows, pa.schema(types))
        if place == 0:
            stream.overwrite(table, overwrite_schema=True)
            stream.settings.update(time_column="x")
            continue
        for form, size in (("arrow", 0), ("parquet", 0), ("arrow", 10_000)):
            layout = Layout(inline_bytes=size, segment_format=form)
            stream.append(table, merge_schema=True, layout=layout)


def nanoseconds(stream: Stream) -> None:
    """Times of each kind in nanoseconds, nested and at their limits, in every kind of segment."""
    kinds = {
        "instant": pa.timestamp("ns", "UTC"),
        "local": pa.timestamp("ns"),
        "span": pa.duration("ns"),
    }
    kinds |= {"deep": pa.struct([(name, pa.list_(kind)) for name, kind in kinds.items()])}
    for number in (-(2**63), -1, 1_767_225_600_123_456_789, 2**63 - 1):
        values = dict.fromkeys(("instant", "local", "span"), number)
        rows = [values | {"deep": {name: [number, None] for name in values}}, {}]
        table = pa.Table.from_pylist(rows, pa.schema(kinds))
        if number == -(2**63):
            stream.overwrite(table, overwrite_schema=True)
            stream.settings.update(time_column="instant", key_columns=["local"])
        for form, size in (("arrow", 0), ("parquet", 0), ("arrow", 10_000)):
            stream.append(table, layout=Layout(inline_bytes=size, segment_format=form))


def column_names(stream: Stream) -> None:
    """Columns that swapped names, one that was dropped, and another of its name.

    In every kind of segment, with settings that follow a column, and an event in flight: in the
    stored stream it came after the drop, which is refused since, as its column's name is another's.
    """

    def write(first: int, **columns: Any) -> None:
        table = pa.table({name: [value, None] for name, value in columns.items()})
        for place, (form, size) in enumerate((("arrow", 0), ("parquet", 0), ("arrow", 10_000))):
            layout = Layout(inline_bytes=size, segment_format=form)
            numbered = table.append_column("n", pa.array([first + 2 * place, None], pa.int64()))
            stream.append(numbered, merge_schema=True, layout=layout)

    write(0, word="ada", other="bob")
    stream.settings.update(key_columns=["word"])
    planned = stream.plan_write(stream.schema)
    task = planned.open_task(0, attempt="0")
    task.append(pa.RecordBatch.from_pylist([{"n": 6, "word": "late"}], stream.schema))
    late = task.finish()
    stream.change_schema(rename={"word": "other", "other": "word"})
    write(10, word="eve", other="größe")
    stream.commit(planned, [late])
    stream.change_schema(drop=["word"])
    write(20, word="another column", other="日本")


TIMED = [[5, 1, None, 2], [9, 3], [None], [4, 8, 7], [6]]


def times(stream: Stream) -> None:
    """A segment of each kind, whose layouts ask for no bounds; the first has none."""
    schema = stream.schema
    for place, values in enumerate(TIMED):
        words = [None if value is None else f"at {value}" for value in values]
        layout = Layout(
            inline_bytes=64 if place == len(TIMED) - 1 else 0,
            frame_rows=2,
            segment_format="parquet" if place == 1 else "arrow",
            stats_columns=(),
        )
        stream.append(pa.table([values, words], schema), layout=layout)
        stream.settings.update(time_column="n")


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


def parts(stream: Stream) -> None:
    """Entries that spilled to parts, parts that were merged, and entries behind them."""
    for batch in range(11):
        stream.append(events(batch, batch + 1))


def writers(stream: Stream) -> None:
    """Writers in the root and in a part, one of which repeated its batch."""
    for batch in range(6):
        stream.append(events(batch, batch + 1), writer_id=f"writer {batch}", batch_id=batch)
    stream.append(events(0, 1), writer_id="writer 0", batch_id=0)
    stream.append(events(6, 7), writer_id="writer 0", batch_id=9)


def overwritten(stream: Stream) -> None:
    """A head above 0, retired segments, an overwrite with a writer."""
    stream.append(events(0, 4))
    stream.overwrite(events(10, 13), writer_id="w", batch_id=1)
    stream.append(events(20, 22))


def types(stream: Stream) -> None:
    """Every type that is stored, with nulls, nested and at its limits."""
    stream.overwrite(many_types(), overwrite_schema=True)


def many_types() -> pa.Table:
    """Return one column of each type."""
    moment = dt.datetime(2013, 1, 5, 12, 30, 1, 234567, tzinfo=UTC)
    point = pa.struct([("x", pa.float64()), ("tags", pa.list_(pa.string()))])
    columns: dict[str, tuple[pa.DataType, list[Any]]] = {
        "bool": (pa.bool_(), [True, False, None]),
        "int8": (pa.int8(), [-128, 127, None]),
        "int16": (pa.int16(), [-(2**15), 2**15 - 1, None]),
        "int32": (pa.int32(), [-(2**31), 2**31 - 1, None]),
        "int64": (pa.int64(), [-(2**63), 2**63 - 1, None]),
        "float": (pa.float32(), [0.5, float("-inf"), None]),
        "double": (pa.float64(), [-0.0, float("nan"), None]),
        "string": (pa.string(), ["", "größe 日本 \U0010ffff", None]),
        "binary": (pa.binary(), [b"", b"\x00\xff", None]),
        "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
        "instant": (pa.timestamp("us", "UTC"), [moment, moment.replace(year=9999), None]),
        "local": (pa.timestamp("us"), [moment.replace(tzinfo=None, year=1900)] * 2 + [None]),
        "time": (pa.time64("ns"), [dt.time(0), dt.time(23, 59, 59, 999999), None]),
        "span": (pa.duration("us"), [dt.timedelta(days=-1), dt.timedelta(microseconds=1), None]),
        "decimal": (pa.decimal128(38, 6), [Decimal("-1.000001"), Decimal(10) ** 31, None]),
        "void": (pa.null(), [None] * 3),
        "list": (pa.list_(pa.int64()), [[], [1, None], None]),
        "struct": (point, [{"x": 1.5, "tags": ["a", None]}, {"x": None, "tags": None}, None]),
        "map": (pa.map_(pa.string(), pa.int64()), [[], [("a", 1), ("b", None)], None]),
    }
    return pa.table({name: pa.array(values, kind) for name, (kind, values) in columns.items()})


def purged(stream: Stream) -> None:
    """Old versions that were forgotten."""
    for start in range(4):
        stream._log.clock.sleep(7200)
        stream.append(events(start, start + 1))
    stream.maintain(keep=3600)


def big_schema(stream: Stream) -> None:
    """A schema that is too big for the root."""
    columns = {f"a_column_with_a_long_name_{n}": pa.array([n, None]) for n in range(120)}
    stream.overwrite(pa.table(columns), overwrite_schema=True)


def feature(**changes: Any) -> Callable[[Stream], None]:
    """Return what writes a stream whose newest root was changed as a newer version would."""

    def make(stream: Stream) -> None:
        stream.append(events(0, 3))
        root = stream._log.root
        version = root.version + 1
        added = {
            name: (*getattr(root, name), *value) if name.endswith("_features") else value
            for name, value in changes.items()
        }
        row = replace(root.history[-1], version=version, operation="from-the-future", rows=0)
        changed = replace(
            root,
            version=version,
            parent=root.transaction,
            transaction="f" * 32,
            operation="from-the-future",
            history=(*root.history, row),
            **added,
        )
        path = f"log/{changed.version:020d}"
        stream._log.storage.create(path, ROOT_CODEC.encode_file(changed))

    return make


LATER = {"a_later_field": {"nested": [1, None, "x"], "größe": 1.5}, "z": [], "empty": None}
STREAMS: dict[str, Callable[[Stream], None]] = {
    "empty": lambda _: None,
    "plain": plain,
    "codecs": codecs,
    "types": types,
    "inline": inline,
    "epochs": epochs,
    "widened": widened,
    "big-schema": big_schema,
    "parts": parts,
    "writers": writers,
    "overwritten": overwritten,
    "purged": purged,
    "unknown-reader-feature": feature(reader_features=("a-later-feature",)),
    "unknown-writer-feature": feature(writer_features=("a-later-feature",)),
    "unknown-fields": feature(extra=LATER),
}
# Levels so small that a few commits fill them; they are no part of the format.
NO_INLINE = (append, {"FRAME_MOST_BYTES": 0})
TINY = (table.SEGMENTS, {"rows": 2, "fan_in": 2})
PARTS = [TINY, (table.WRITERS, {"rows": 4}), NO_INLINE]
# Of a set of streams, or of one alone.
LIMITS: dict[str, list[tuple[Any, dict[str, Any]]]] = {
    "v1-levels": [
        *((getattr(table, name), to) for name, to in golden_levels.TINY_TABLES.items()),
        NO_INLINE,
    ],
    "v1-segment-filters": [(table.SEGMENTS, golden_keys.SPILL), (run, golden_keys.LOOK)],
    **{f"v1-{name}": [TINY] for name in ("doubles", "nanoseconds", "column-names", "parquet")},
    **dict.fromkeys(("parts", "writers"), PARTS),
    "whole-parts": [(table.SEGMENTS, {"rows": 1, "hard": 2, "parts": 4, "listed": 4})],
    "inline": [(table_status, {"SHARE_BYTES": 1300, "JOINED_SHARE": 0})],
}
SETS: dict[str, dict[str, Callable[[Stream], None]]] = {
    "v1": STREAMS,
    "v1-levels": golden_levels.LEVELS,
    "v1-parquet": golden_parquet.PARQUET,
    "v1-keys": golden_keys.KEYS,
    "v1-times": {"times": times, "whole-parts": whole_parts},
    "v1-doubles": {"doubles": doubles},
    "v1-segment-filters": golden_keys.SEGMENTS,
    "v1-nanoseconds": {"nanoseconds": nanoseconds},
    "v1-column-names": {"column-names": column_names},
}


def write_stream(storage: Storage, name: str, version: str = "v1") -> None:
    """Write one golden stream into an empty folder."""
    time = VirtualTime(sorted(SETS[version]).index(name))
    timed = TimedStorage(storage, time)
    with ExitStack() as stack:
        for place, limits in LIMITS.get(version, LIMITS.get(name, [])):
            stack.enter_context(patch.multiple(place, **limits))
        if version == "v1-levels" and name in golden_levels.STARTS:
            stream = golden_levels.STARTS[name](timed, time)
        else:
            stream = create_on(timed, SCHEMA, upkeep=None, clock=time.clock)
        SETS[version][name](stream)


def expected(storage: Storage, version: str = "v1") -> dict[str, Any]:
    """Return what has to be read from a stream, as JSON."""
    stream = open_on(storage)
    fields = {field.name: str(field.type) for field in stream.schema}
    return {
        **(golden_levels.described(stream) if version == "v1-levels" else {}),
        "head": stream.head,
        "tail": stream.tail,
        "version": stream.version,
        "schema": fields,
        "rows": rows_as_json(stream.read().read_all()),
    }


def rows_as_json(table: pa.Table) -> list[dict[str, Any]]:
    """Return events as JSON can hold them, exactly."""
    return [as_json(row) for row in rows_of(table)]


def as_json(value: Any) -> Any:
    """Return a value of an event as JSON can hold it, exactly."""
    match value:
        case None | bool() | int() | str():
            return value
        case dict():
            return {name: as_json(child) for name, child in value.items()}
        case list() | tuple():
            return [as_json(child) for child in value]
    return f"{type(value).__name__}: {value.hex() if isinstance(value, bytes) else value!r}"


def main(folder: Path) -> None:
    """Write all golden streams of a version, and what has to be read from them."""
    if folder.exists() and any(folder.iterdir()):
        sys.exit(f"{folder} is not empty: golden streams of a format are written once")
    version = folder.name
    for name in SETS[version]:
        storage = open_storage(folder / name)
        write_stream(storage, name, version)
        if name == "unknown-reader-feature":
            continue
        text = json.dumps(expected(storage, version), indent=1, ensure_ascii=False)
        (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(__file__).parent / sys.argv[1])
