"""Reads and writes rows in files and pipes: Parquet, CSV, JSON lines and Arrow, by pyarrow."""

import codecs
import csv
import io
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import typer

from segstore_ds.cli.show import has_far_times, rows_of, to_json
from segstore_ds.errors import InvalidInputError
from segstore_ds.options.quantities import printable, printable_json

PIPE = "-"
_BLOCK_BYTES = 16 << 20  # of CSV and JSON, which Arrow parses block by block: no line is longer
_ELSE = "choose other columns with --columns, or export to JSON, Parquet or Arrow"
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
def open_rows(name: str, form: Format, schema: Any = None, *, new: bool = False) -> Iterator[Any]:
    """Open a file, or standard input for "-", as a `RecordBatchReader`.

    CSV and JSON have no types. Columns in `schema` get its types. Columns that are not in it, which
    `new` allows, get types that fit all rows.
    """
    import pyarrow as pa

    whole = schema is None or new
    with ExitStack() as stack:
        source: BinaryIO = sys.stdin.buffer
        if name != PIPE:
            try:
                source = stack.enter_context(Path(name).open("rb"))
            except OSError as error:
                raise typer.BadParameter(f"{name} can't be read: {error.strerror}") from None
        twice = whole and form in (Format.CSV, Format.JSON)
        if (twice or form is Format.PARQUET) and (name == PIPE or not source.seekable()):
            given, source = source, stack.enter_context(tempfile.TemporaryFile())
            shutil.copyfileobj(given, source)
            source.seek(0)
        try:
            yield _read(source, form, schema, whole=whole)
        except (pa.ArrowException, RecursionError, UnicodeError) as error:
            raise InvalidInputError(
                "file can't be read",
                remedy="correct the file, or name its format with --format",
                file=name,
                format=form.value,
                cause=_located(error, source, schema, whole=whole)
                if form is Format.CSV and source is not sys.stdin.buffer and source.seekable()
                else str(error),
            ) from error


def _read(source: BinaryIO, form: Format, schema: Any, *, whole: bool) -> Any:
    import pyarrow as pa

    match form:
        case Format.PARQUET:
            import pyarrow.parquet as pq

            file = pq.ParquetFile(source)
            return pa.RecordBatchReader.from_batches(file.schema_arrow, file.iter_batches())
        case Format.CSV:
            return _open_csv(source, schema, whole=whole)
        case Format.JSON:
            from segstore_ds.cli.json_lines import open_json

            return open_json(source, schema, whole=whole, block_bytes=_BLOCK_BYTES)
        case Format.ARROW:
            return _open_arrow(source)


def _open_csv(source: BinaryIO, schema: Any, *, whole: bool, threads: bool = True) -> Any:
    """Open CSV, in which bytes are in base64; Arrow's parser would round numbers."""
    import pyarrow as pa

    known = {} if schema is None else {f.name: f.type for f in schema if f.type != pa.null()}
    if whole:
        from segstore_ds.cli.json_lines import types_of_texts

        names = _header(source)
        texts = _parse_csv(source, dict.fromkeys(names, pa.string()), threads=threads)
        known = {field.name: field.type for field in types_of_texts(texts, names)} | known
        source.seek(0)
    from pyarrow import types as t

    given = {n: kind for n, kind in known.items() if t.is_binary(kind) or t.is_floating(kind)}
    rows = _parse_csv(source, known | dict.fromkeys(given, pa.string()), threads=threads)
    return _decoded(rows, given) if given else rows


def _header(source: BinaryIO) -> list[str]:
    names = next(csv.reader(codecs.getreader("utf-8-sig")(source, "backslashreplace")), [])
    source.seek(0)
    return names


def _located(error: Exception, source: BinaryIO, schema: Any, *, whole: bool) -> str:
    """Return Arrow's message about CSV with the row, which needs one thread, and the column."""
    import pyarrow as pa

    cause = str(error)
    source.seek(0)
    try:
        for _ in _open_csv(source, schema, whole=whole, threads=False):
            pass
    except (pa.ArrowException, UnicodeError) as again:
        cause = str(again)
    source.seek(0)
    names = {str(place): f"column {name!r}" for place, name in enumerate(_header(source))}
    return re.sub(r"column #(\d+)", lambda found: names.get(found[1], found[0]), cause)


def _parse_csv(source: BinaryIO, types: Any, *, threads: bool) -> Any:
    from pyarrow import csv as pa_csv

    # An empty text has quotes, null has none.
    options = pa_csv.ConvertOptions(
        column_types=types, strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    options.null_values = [*{*options.null_values} - _NAN]
    blocks = pa_csv.ReadOptions(block_size=_BLOCK_BYTES, use_threads=threads)
    # Or a block may end in a value; and an empty line of one column is a null.
    parsing = pa_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=len(types) != 1)
    return pa_csv.open_csv(_WholeEnds(source), blocks, parsing, options)


def _decoded(rows: Any, given: Mapping[str, Any]) -> Any:
    """Return a reader of the same rows with texts in some columns made bytes or floats."""
    import pyarrow as pa

    schema = pa.schema([(f.name, given.get(f.name, f.type)) for f in rows.schema])

    def batches() -> Iterator[Any]:
        line = 2
        for batch in rows:
            columns = [
                _decode(cells, field, line) if field.name in given else cells
                for field, cells in zip(schema, batch.columns, strict=True)
            ]
            line += len(batch)
            yield pa.record_batch(columns, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _decode(cells: Any, field: Any, line: int) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    from segstore_ds.cli.json_lines import column_of, floats_of

    if field.type == pa.binary():
        return column_of(enumerate(cells.to_pylist(), line), field.name, field.type)
    cells = pc.utf8_trim_whitespace(cells)
    try:
        return floats_of(cells, field.type)
    except pa.ArrowInvalid:
        for place in range(len(cells)):
            try:
                floats_of(cells[place : place + 1], field.type)
            except pa.ArrowInvalid as error:
                where = f"line {line + place}, field {field.name!r}"
                raise pa.ArrowInvalid(f"{where}: {error}") from error
        raise


class _WholeEnds(io.RawIOBase):
    """Reads a source in blocks that do not end between CR and LF: Arrow would drop the LF.

    In a file it has a place of its own: after an error Arrow may still read ahead, while the file
    is read again to find the row.
    """

    def __init__(self, source: BinaryIO) -> None:
        self._source, self._held = source, b""
        self._file, self._place = -1, 0
        with suppress(OSError):  # it has no number
            if source.seekable():
                self._file, self._place = source.fileno(), source.tell()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        size -= len(self._held)
        if self._file < 0:
            found = self._source.read(size)
        else:
            found = os.pread(self._file, size, self._place)
            self._place += len(found)
        data = self._held + found
        self._held = b"\r" if len(data) > 1 and data.endswith(b"\r") else b""
        return data.removesuffix(self._held)


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


def _csv_cells(rows: Any) -> Any:
    """Return a table or batch with base64 for bytes; InvalidInputError if CSV can't express it."""
    import pyarrow as pa
    from pyarrow import types as t

    nested = [field.name for field in rows.schema if t.is_nested(field.type)]
    if nested:
        raise InvalidInputError("CSV has no lists, maps and structs", remedy=_ELSE, columns=nested)
    for name, cells in zip(rows.schema.names, rows.columns, strict=True):
        if (t.is_timestamp(cells.type) or t.is_date(cells.type)) and has_far_times(cells):
            raise InvalidInputError(
                "CSV has no times beyond the years 1 to 9999", remedy=_ELSE, column=name
            )
    columns = [
        pa.array(map(to_json, cells.to_pylist()), pa.string()) if t.is_binary(cells.type) else cells
        for cells in rows.columns
    ]
    return type(rows).from_arrays(columns, names=rows.schema.names)


def _prefix_formulas(rows: Any) -> Any:
    """Return a table or batch with `'` before each name and text that a spreadsheet would run."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def prefixed(cells: Any) -> Any:
        kind = cells.type.value_type if pa.types.is_dictionary(cells.type) else cells.type
        if kind != pa.string():
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
    """Open a file, or standard output for "-", and yield a function that writes a batch to it.

    The file gets its name only when it is complete. `raw` leaves CSV cells that a spreadsheet would
    run as formulas.
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
    """Yield a function that writes a batch; after a failure, the file gets no end."""
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
    """Return functions that write a batch, and that end the file."""
    import pyarrow as pa

    match form:
        case Format.PARQUET:
            import pyarrow.parquet as pq

            parquet = pq.ParquetWriter(sink, schema, compression="zstd")
            return parquet.write_batch, parquet.close
        case Format.CSV:
            from pyarrow import csv

            def cells(rows: Any) -> Any:
                return _csv_cells(rows) if raw else _prefix_formulas(_csv_cells(rows))

            writer = csv.CSVWriter(sink, cells(schema.empty_table()).schema)
            return lambda rows: writer.write(cells(rows)), writer.close
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
