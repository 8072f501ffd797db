"""A stream as a lazy frame of Polars.

Polars itself reads the Parquet segments that need no cut, if the folder is local and the files hold
the columns as the stream has them. The rest are sources of ours, to which Polars hands columns, a
predicate and a limit. The parts follow each other in offset order.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from segstore_ds.errors import InvalidInputError
from segstore_ds.format.schema.codec import decode_schema
from segstore_ds.read.filters import parse_filters
from segstore_ds.read.parquet_files import ParquetFile, list_parquet_files
from segstore_ds.storage.locations import resolve_location
from segstore_ds.stream.bound_read import BoundRead
from segstore_ds.stream.frames import load

_OPS = {"Eq": "==", "NotEq": "!=", "Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">="}
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def scan_events(read: BoundRead) -> Any:
    """Return the events of a read as a `polars.LazyFrame`."""
    polars = load("polars")
    reading = read.reading
    wanted = polars.from_arrow(read.schema.empty_table()).schema
    parts, at = [], reading.start
    for run in _native_runs(polars, read, wanted):
        if at < run[0].start:
            parts.append(_source(polars, read.between(at, run[0].start), wanted))
        parts.append(_files(polars, run, read.request.offset_column))
        at = run[-1].end
    if at < reading.end or not parts:
        parts.append(_source(polars, read.between(at, reading.end), wanted))
    return parts[0] if len(parts) == 1 else polars.concat(parts)


def _native_runs(polars: Any, read: BoundRead, wanted: Any) -> list[list[ParquetFile]]:
    """Return runs of adjacent files that Polars reads as the stream would."""
    reading, request, url = read.reading, read.request, read.context.storage.url
    ours = request.segment_column or request.commit_time_column or reading.filters
    if ours or not _path(url):
        return []
    schemas = {number: decode_schema(text) for number, text in reading.epochs.items()}
    bounds = (reading.start, reading.end)
    files = [
        file
        for file in list_parquet_files(
            read.context.status, read.root, bounds, url=url, partial=True
        )
        if (file.row_start, file.row_end) == (0, file.rows)
        and schemas[file.epoch].equals(reading.schema)
    ]
    if not files:
        return []
    found = _files(polars, files[:1], request.offset_column).collect_schema()
    if list(found.items()) != list(wanted.items()):
        return []
    runs = [[files[0]]]
    for before, file in pairwise(files):
        if before.end == file.start:
            runs[-1].append(file)
        else:
            runs.append([file])
    return runs


def _path(url: str) -> str:
    """Return the path of what lies on a local disk; no text for what does not."""
    location = resolve_location(url)
    return location.path if location.scheme == "file" else ""


def _files(polars: Any, run: Sequence[ParquetFile], offset_column: str | None) -> Any:
    paths = [_path(file.url) for file in run]
    frame = polars.scan_parquet(
        paths, glob=False, hive_partitioning=False, row_index_name=offset_column
    )
    if offset_column is None:
        return frame
    offset = polars.col(offset_column).cast(polars.Int64) + run[0].start
    return frame.select(polars.exclude(offset_column), offset)


def _source(polars: Any, read: BoundRead, wanted: Any) -> Any:
    plugins = load("polars.io.plugins")

    def batches(
        with_columns: list[str] | None, predicate: Any, n_rows: int | None, batch_size: int | None
    ) -> Iterator[Any]:
        del batch_size
        names = list(wanted) if with_columns is None else with_columns
        filters: list[list[Any]] = []
        needed = names
        if predicate is not None:
            needed = [*{*names, *predicate.meta.root_names()}]
            if n_rows is None:
                filters = simple_conditions(predicate, read.reading.schema)
        left = n_rows
        for batch in read.open(needed, filters):
            frame = polars.from_arrow(batch)
            if left is not None:
                frame = frame.head(left)
                left -= frame.height
            if predicate is not None:
                frame = frame.filter(predicate)
            yield frame.select(names)
            if left == 0:
                return

    return plugins.register_io_source(batches, schema=wanted, is_pure=True)


def simple_conditions(predicate: Any, schema: pa.Schema) -> list[list[Any]]:
    """Return conditions that every row satisfies for which a predicate of Polars is true.

    What is not a comparison of a column with a literal that fits it is left out: Polars applies the
    whole predicate afterwards. Its tree is read from its JSON, which another Polars may write
    otherwise: then there are no conditions, and more is read.
    """
    found = []
    for condition in _comparisons(json.loads(predicate.meta.serialize(format="json"))):
        try:
            (parsed,) = parse_filters([condition], schema).conditions
        except InvalidInputError:
            continue
        # We take texts for binaries and times as well, Polars does not.
        if t.is_string(parsed.type) or not isinstance(condition[2], str):
            found.append(condition)
    return found


def _comparisons(node: Any) -> Iterator[list[Any]]:
    binary = node.get("BinaryExpr") if isinstance(node, dict) else None
    if not isinstance(binary, dict) or not {"left", "op", "right"} <= {*binary}:
        return
    left, right = binary["left"], binary["right"]
    if binary["op"] in {"And", "LogicalAnd"}:
        yield from _comparisons(left)
        yield from _comparisons(right)
        return
    op = _OPS.get(binary["op"])
    if op is None:
        return
    if isinstance(right, dict) and isinstance(right.get("Column"), str):
        left, right, op = right, left, _TURNED.get(op, op)
    if isinstance(left, dict) and isinstance(left.get("Column"), str):
        for value in _literal(right):
            yield [left["Column"], op, value]


def _literal(node: Any) -> list[Any]:
    """Return the value of a literal in a list; none if it is something else."""
    while isinstance(node, dict) and isinstance(node.get("Alias"), list):
        node = node["Alias"][0]
    if not isinstance(node, dict) or list(node) != ["Literal"]:
        return []
    polars = load("polars")
    expression = polars.Expr.deserialize(json.dumps(node).encode(), format="json")
    value = polars.select(expression).item()
    return [] if value is None else [value]
