"""Rows from and to files and pipes: Parquet, CSV, JSON lines and Arrow, by pyarrow."""

import base64
import binascii
import codecs
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO

import typer

from segstore_ds.cli.show import to_json
from segstore_ds.errors import InvalidInputError
from segstore_ds.options.printable import printable, printable_json

PIPE = "-"
# Texts that a spreadsheet runs, also when typed in full width, and those that are only numbers.
_FORMULA = "(?s)^(?:[-=+@\t\r\n]|\uff1d|\uff0b|\uff0d|\uff20)."
_NUMBER = r"^[+-]?[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?$"
_ENDINGS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}


class Format(StrEnum):
    """The formats that files and pipes may have."""

    PARQUET = "parquet"
    CSV = "csv"
    JSON = "json"
    ARROW = "arrow"


def find_format(name: str, given: Format | None) -> Format:
    """Return the format that was given, or that of a file's ending."""
    if given is not None:
        return given
    found = _ENDINGS.get(Path(name).suffix.lower())
    if found is None:
        known = ", ".join(Format)
        raise typer.BadParameter(f"the format of {name} is not known: give --format ({known})")
    return Format(found)


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
        except (pa.ArrowException, binascii.Error) as error:
            raise InvalidInputError(
                "file can't be read",
                remedy="correct it, or name the format that it has with --format",
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
            return csv.open_csv(source, convert_options=options)
        case Format.JSON:
            return _open_json(source, schema)
        case Format.ARROW:
            return _open_arrow(source)


def _open_json(source: BinaryIO, schema: Any) -> Any:
    import pyarrow as pa
    from pyarrow import json as pa_json

    binary = [field.name for field in schema or () if pa.types.is_binary(field.type)]
    given = schema
    for name in binary:
        given = given.set(given.get_field_index(name), pa.field(name, pa.string()))
    found = pa_json.open_json(source, parse_options=pa_json.ParseOptions(explicit_schema=given))
    return _from_base64(found, binary) if binary else found


def _from_base64(reader: Any, names: list[str]) -> Any:
    """Return a reader whose columns of texts in base64 are bytes, as `JsonWriter` writes them."""
    import pyarrow as pa

    schema = reader.schema
    for name in names:
        schema = schema.set(schema.get_field_index(name), pa.field(name, pa.binary()))

    def decoded(batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        for name in names:
            texts = columns[name].to_pylist()
            values = [None if text is None else base64.b64decode(text) for text in texts]
            columns[name] = pa.array(values, pa.binary())
        return pa.RecordBatch.from_arrays([*columns.values()], schema=schema)

    return pa.RecordBatchReader.from_batches(schema, (decoded(batch) for batch in reader))


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


class JsonWriter:
    """Writes batches as JSON lines; bytes in base64, times in ISO 8601."""

    def __init__(self, sink: BinaryIO) -> None:
        self._sink = sink

    def write_batch(self, batch: Any) -> None:
        """Write the rows of a batch."""
        for row in batch.to_pylist():
            self._sink.write(printable_json(to_json(row)).encode() + b"\n")

    def close(self) -> None:
        """Do nothing: every line is written."""


class CsvWriter:
    """Writes batches as CSV; unless `raw`, no cell is a formula to a spreadsheet."""

    def __init__(self, sink: BinaryIO, schema: Any, *, raw: bool) -> None:
        from pyarrow import csv

        self._raw = raw
        names = schema if raw else _prefix_formulas(schema.empty_table()).schema
        self._writer = csv.CSVWriter(sink, names)

    def write_batch(self, batch: Any) -> None:
        """Write the rows of a batch."""
        self._writer.write(batch if self._raw else _prefix_formulas(batch))

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


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
) -> Iterator[Any]:
    """Open a writer of batches to a file, or to standard output for "-".

    The file has its name only when all of it is written. `raw` leaves cells of CSV that a
    spreadsheet would run.
    """
    if name == PIPE:
        writer = _writer(_standard_output(form), form, schema, raw=raw)
        yield writer
        writer.close()
        sys.stdout.buffer.flush()
        return
    path = Path(name)
    if path.exists() and not force:
        raise typer.BadParameter(f"{name} exists: give --force to replace it")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as sink:
            writer = _writer(sink, form, schema, raw=raw)
            yield writer
            writer.close()
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


class _Terminal(io.RawIOBase):
    """Shows text on the terminal, printable but for line ends."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        text = self._decoder.decode(bytes(data))
        sys.stdout.write("\n".join(map(printable, text.split("\n"))))
        return len(data)


def _standard_output(form: Format) -> Any:
    if not sys.stdout.isatty():
        return sys.stdout.buffer
    if form in (Format.PARQUET, Format.ARROW):
        raise typer.BadParameter(f"{form} is not for a terminal: name a file, or use a pipe")
    return _Terminal()


def _writer(sink: Any, form: Format, schema: Any, *, raw: bool) -> Any:
    import pyarrow as pa

    match form:
        case Format.PARQUET:
            import pyarrow.parquet as pq

            return pq.ParquetWriter(sink, schema, compression="zstd")
        case Format.CSV:
            return CsvWriter(sink, schema, raw=raw)
        case Format.JSON:
            return JsonWriter(sink)
        case Format.ARROW:
            return pa.ipc.new_stream(sink, schema)
