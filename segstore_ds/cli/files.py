"""Rows from and to files and pipes: Parquet, CSV, JSON lines and Arrow, by pyarrow."""

import codecs
import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from enum import StrEnum
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import typer

from segstore_ds.cli.show import from_json, rows_of, to_json
from segstore_ds.errors import InvalidInputError
from segstore_ds.options.printable import printable, printable_json

PIPE = "-"
_BLOCK_BYTES = 16 << 20  # of CSV and JSON, which Arrow parses block by block: no line is longer
_NAN = {"nan", "NaN", "-nan", "-NaN"}  # numbers, not nulls
# Texts that a spreadsheet runs, also when typed in full width, and those that are only numbers.
_FORMULA = "(?s)^(?:[-=+@\t\r\n]|\uff1d|\uff0b|\uff0d|\uff20)."
_NUMBER = r"^[+-]?[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?$"


class Format(StrEnum):
    """The formats that files and pipes may have."""

    PARQUET = "parquet"
    CSV = "csv"
    JSON = "json"
    ARROW = "arrow"


_ENDINGS = {
    Format.PARQUET: (".parquet", ".pq"),
    Format.CSV: (".csv",),
    Format.JSON: (".jsonl", ".ndjson", ".json"),
    Format.ARROW: (".arrow", ".arrows", ".feather", ".ipc"),
}


def find_format(name: str, given: Format | None) -> Format:
    """Return the format that was given, or that of a file's ending."""
    for form, endings in _ENDINGS.items():
        if form is given or (given is None and Path(name).suffix.lower() in endings):
            return form
    known = ", ".join(Format)
    raise typer.BadParameter(f"the format of {name} is not known: give --format ({known})")


@contextmanager
def open_rows(name: str, form: Format, schema: Any = None) -> Iterator[Any]:
    """Open a file, or standard input for "-", as a `RecordBatchReader`.

    CSV and JSON have no types of their own: columns of `schema` get those that it has there.
    """
    import pyarrow as pa

    with ExitStack() as stack:
        if name == PIPE:
            source: BinaryIO = sys.stdin.buffer
            if form is Format.PARQUET:  # read from its end
                source = stack.enter_context(tempfile.TemporaryFile())
                shutil.copyfileobj(sys.stdin.buffer, source)
                source.seek(0)
        else:
            try:
                source = stack.enter_context(Path(name).open("rb"))
            except OSError as error:
                raise typer.BadParameter(f"{name} can't be read: {error.strerror}") from None
        try:
            yield _read(source, form, schema)
        except pa.ArrowException as error:
            raise InvalidInputError(
                "file can't be read",
                remedy="correct the file, or name its format with --format",
                file=name,
                format=form.value,
                cause=str(error),
            ) from error


def _read(source: BinaryIO, form: Format, schema: Any) -> Any:
    import pyarrow as pa

    match form:
        case Format.PARQUET:
            import pyarrow.parquet as pq

            file = pq.ParquetFile(source)
            return pa.RecordBatchReader.from_batches(file.schema_arrow, file.iter_batches())
        case Format.CSV:
            from pyarrow import csv

            types = {} if schema is None else {field.name: field.type for field in schema}
            # An empty text has quotes, null has none.
            options = csv.ConvertOptions(
                column_types=types, strings_can_be_null=True, quoted_strings_can_be_null=False
            )
            options.null_values = [*{*options.null_values} - _NAN]
            blocks = csv.ReadOptions(block_size=_BLOCK_BYTES)
            # Or a block may end in a value; and an empty line of one column is a null.
            parsing = csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=len(types) != 1)
            return csv.open_csv(_WholeEnds(source), blocks, parsing, options)
        case Format.JSON:
            return _open_json(source, schema)
        case Format.ARROW:
            return _open_arrow(source)


class _WholeEnds(io.RawIOBase):
    """Reads a source without ending between CR and LF: Arrow would drop that LF from a value."""

    def __init__(self, source: BinaryIO) -> None:
        self._source, self._held = source, b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._held + self._source.read(size - len(self._held))
        self._held = b"\r" if len(data) > 1 and data.endswith(b"\r") else b""
        return data.removesuffix(self._held)


def _open_json(source: BinaryIO, schema: Any) -> Any:
    """Open JSON lines; columns of the schema take back what `to_json` makes of their types."""
    import pyarrow as pa
    from pyarrow import json as pa_json

    if schema is None:
        return pa_json.open_json(source, pa_json.ReadOptions(block_size=_BLOCK_BYTES))
    blocks = _whole_lines(source)
    first = _parse_lines(next(blocks, b""), schema)

    def batches() -> Iterator[Any]:
        for table in chain([first], (_parse_lines(block, first.schema) for block in blocks)):
            if table.schema != first.schema:
                late = {*table.column_names} - {*first.column_names}
                raise pa.ArrowInvalid(f"the first rows lack columns of later ones: {sorted(late)}")
            yield from table.to_batches()

    return pa.RecordBatchReader.from_batches(first.schema, batches())


def _whole_lines(source: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file, some at a time."""
    rest = b""
    while data := source.read(_BLOCK_BYTES):
        lines, _, rest = (rest + data).rpartition(b"\n")
        if lines.strip():
            yield lines
    if rest.strip():
        yield rest


def _parse_lines(lines: bytes, schema: Any) -> Any:
    """Return lines of JSON as a table; those that Arrow's parser refuses are parsed here."""
    import pyarrow as pa
    from pyarrow import json as pa_json

    if not any(_has_bytes(field.type) for field in schema):  # Arrow takes base64 for the bytes
        with suppress(pa.ArrowException):
            read, parse = pa_json.ReadOptions(), pa_json.ParseOptions(explicit_schema=schema)
            read.block_size = _BLOCK_BYTES
            found = pa_json.read_json(io.BytesIO(lines), read, parse)
            return pa.table(found.columns, names=found.column_names)
    try:
        rows = _objects(lines)
        kinds = {field.name: field.type for field in schema}
        names = [*dict.fromkeys(chain(kinds, *rows))]
        columns = [
            pa.array([from_json(row.get(name), kinds[name]) for row in rows], kinds[name])
            if name in kinds
            else pa.array([row.get(name) for row in rows])
            for name in names
        ]
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise pa.ArrowInvalid(f"not lines of JSON: {error}") from error
    return pa.table(columns, names=names)


def _objects(lines: bytes) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in lines.splitlines() if line.strip()]
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise ValueError("each line has to be an object")
    return rows


def _has_bytes(kind: Any) -> bool:
    import pyarrow as pa

    inner = (kind.field(place).type for place in range(kind.num_fields))
    return bool(kind == pa.binary() or any(map(_has_bytes, inner)))


def _open_arrow(source: BinaryIO) -> Any:
    import pyarrow as pa

    if source.seekable():
        magic = source.read(6)
        source.seek(0)
        if magic == b"ARROW1":
            file = pa.ipc.open_file(source)
            batches = (file.get_batch(n) for n in range(file.num_record_batches))
            return pa.RecordBatchReader.from_batches(file.schema, batches)
    return pa.ipc.open_stream(source)


def _prefix_formulas(rows: Any) -> Any:
    """Return a table or batch with `'` before each name and text that a spreadsheet would run.

    Texts that are numbers stay: they mean the same to it.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    def prefixed(cells: Any) -> Any:
        kind = cells.type.value_type if pa.types.is_dictionary(cells.type) else cells.type
        plain = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
        kind = plain.get(kind, kind)
        if kind not in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
            return cells
        cells = cells.cast(kind)
        is_formula = pc.match_substring_regex(cells, _FORMULA)
        runs = pc.and_not(is_formula, pc.match_substring_regex(cells, _NUMBER))
        quote, none = (pa.scalar(text).cast(kind) for text in ("'", ""))
        return pc.binary_join_element_wise(pc.if_else(runs, quote, none), cells, none)

    names = prefixed(pa.array(rows.schema.names, pa.string())).to_pylist()
    return type(rows).from_arrays([prefixed(column) for column in rows.columns], names=names)


@contextmanager
def open_sink(
    name: str, form: Format, schema: Any, *, force: bool = False, raw: bool = False
) -> Iterator[Callable[[Any], object]]:
    """Open a file, or standard output for "-", and yield what writes a batch to it.

    The file has its name only when all of it is written. `raw` leaves cells of CSV that a
    spreadsheet would run.
    """
    if name == PIPE:
        shown = sys.stdout.isatty()
        if shown and form in (Format.PARQUET, Format.ARROW):
            raise typer.BadParameter(f"{form} is not for a terminal: name a file, or use a pipe")
        with _ended(_Terminal() if shown else sys.stdout.buffer, form, schema, raw=raw) as write:
            yield write
        sys.stdout.buffer.flush()
        return
    path = Path(name)
    if path.exists() and not force:
        raise typer.BadParameter(f"{name} exists: give --force to replace it")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        opened = part.open("wb")
    except OSError as error:
        raise typer.BadParameter(f"{name} can't be written: {error.strerror}") from None
    try:
        with opened as sink, _ended(sink, form, schema, raw=raw) as write:
            yield write
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _ended(sink: Any, form: Format, schema: Any, *, raw: bool) -> Iterator[Callable[[Any], object]]:
    """Yield what writes a batch; a failure leaves out the end, so that no part passes for all."""
    held = _Sink(sink)
    write, close = _writer(held, form, schema, raw=raw)
    try:
        yield write
    except BaseException:
        held.failed = True  # Parquet's writer writes the end when it is collected
        raise
    close()


def _writer(
    sink: Any, form: Format, schema: Any, *, raw: bool
) -> tuple[Callable[[Any], object], Callable[[], object]]:
    """Return what writes a batch, and what ends the file."""
    import pyarrow as pa

    match form:
        case Format.PARQUET:
            import pyarrow.parquet as pq

            parquet = pq.ParquetWriter(sink, schema, compression="zstd")
            return parquet.write_batch, parquet.close
        case Format.CSV:
            from pyarrow import csv

            names = schema if raw else _prefix_formulas(schema.empty_table()).schema
            writer = csv.CSVWriter(sink, names)
            return lambda rows: writer.write(rows if raw else _prefix_formulas(rows)), writer.close
        case Format.JSON:
            return partial(_write_json, sink), lambda: None
        case Format.ARROW:
            arrow = pa.ipc.new_stream(sink, schema)
            return arrow.write_batch, arrow.close


def _write_json(sink: Any, batch: Any) -> None:
    """Write rows as lines of JSON; bytes in base64, times in ISO 8601."""
    for row in rows_of(batch):
        sink.write(printable_json(to_json(row)).encode() + b"\n")


class _Sink(io.RawIOBase):
    """Writes to a sink until something has failed."""

    failed = False

    def __init__(self, sink: Any) -> None:
        self._sink = sink

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if not self.failed:
            self._sink.write(data)
        return len(data)


class _Terminal:
    """Shows text on the terminal, printable but for line ends."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def write(self, data: Any) -> None:
        """Show bytes that are text in UTF-8."""
        text = self._decoder.decode(bytes(data))
        sys.stdout.write("\n".join(map(printable, text.split("\n"))))
