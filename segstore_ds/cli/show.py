"""What commands print: tables and facts for people, JSON lines for programs."""

import base64
import dataclasses
import datetime as dt
import logging
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from segstore_ds.cli.status import NOT_CONFIRMED
from segstore_ds.options.printable import printable, printable_json

if TYPE_CHECKING:
    import pyarrow as pa

_WIDE = 10_000  # of what is no terminal: nothing is cut
_CELL = 60
_AT_ONCE = 1000  # rows: what is printed while the rest is read


def to_json(value: Any) -> Any:  # noqa: PLR0911 - a line per type
    """Return a value as JSON has it: times in ISO 8601, bytes in base64, decimals as text."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case bytes():
            return base64.b64encode(value).decode()
        case dt.datetime() | dt.date() | dt.time():
            return value.isoformat().replace("+00:00", "Z")
        case range():
            return {"start": value.start, "end": value.stop}
        case Mapping():
            return {str(key): to_json(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [to_json(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    return str(value)


def print_json(value: Any) -> None:
    """Print one line of JSON."""
    sys.stdout.write(printable_json(to_json(value)) + "\n")


def say(*lines: str) -> None:
    """Print lines for people."""
    for line in lines:
        sys.stdout.write(printable(line) + "\n")


def report(done: Any, *lines: str, as_json: bool) -> None:
    """Print what a command did: its fields for programs, its lines or its text for people."""
    if as_json:
        print_json(done)
    else:
        say(*(lines or str(done).split("\n")))


class Table:
    """Prints batches of rows below one header, columns aligned as the first batch needs it.

    `columns` are those that people see; programs get all.
    """

    def __init__(self, *, as_json: bool, columns: Sequence[str] | None = None) -> None:
        self._json, self._columns = as_json, columns
        self._widths: dict[str, int] = {}

    def batches(self, batches: Iterable["pa.RecordBatch"]) -> None:
        """Print batches as they come, and nothing for none."""
        for batch in batches:
            for start in range(0, batch.num_rows, _AT_ONCE):
                self.rows(batch.slice(start, _AT_ONCE).to_pylist())

    def rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Print some rows, all with the same columns."""
        if self._json:
            for row in rows:
                print_json(row)
        elif rows:
            self._print(rows)
        sys.stdout.flush()

    def _print(self, rows: Sequence[Mapping[str, Any]]) -> None:
        from rich.console import Console
        from rich.table import Table as RichTable
        from rich.text import Text

        names = self._columns or [*rows[0]]
        cells = [[_cell(row.get(name)) for name in names] for row in rows]
        known = bool(self._widths)
        for place, name in enumerate(names):
            if not known:
                longest = max(len(row[place]) for row in cells)
                self._widths[name] = max(longest, len(name))
        table = RichTable(box=None, show_header=not known, padding=(0, 2, 0, 0), pad_edge=False)
        for name in names:
            right = all(isinstance(row.get(name), int | float | None) for row in rows)
            table.add_column(
                Text(printable(name), style="bold"),
                justify="right" if right else "left",
                min_width=min(self._widths[name], _CELL),
                no_wrap=True,
            )
        for row in cells:
            table.add_row(*map(Text, row))
        width = None if sys.stdout.isatty() else _WIDE
        console = Console(width=width, highlight=False)
        with console.capture() as printed:  # rich ends the process if nobody reads any more
            console.print(table)
        sys.stdout.write(printed.get())


def _cell(value: Any) -> str:  # noqa: PLR0911 - a line per type
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else ""
        case int():
            return f"{value:,}"
        case dt.datetime():
            return value.isoformat(sep=" ").replace("+00:00", "Z")
        case str():
            return printable(value)
        case dict() | list() | bytes():
            return printable_json(to_json(value))
    return printable(str(value))


class _LogLine(logging.Formatter):
    """Formats a record as one printable line, and a traceback below it."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - of the base class
        return f"segstore: {printable(record.message)}"

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return "\n".join(map(printable, super().formatException(ei).split("\n")))


def log_to_terminal() -> None:
    """Write warnings to stderr, unless the log has handlers already."""
    handler = logging.StreamHandler()
    handler.setFormatter(_LogLine())
    logging.basicConfig(handlers=[handler])


def ask(question: str, *, yes: bool) -> None:
    """Go on only if the user says so, or said so before by `--yes`."""
    if yes:
        return
    question = printable(question)
    if not sys.stdin.isatty():
        typer.echo(f"segstore: {question} Not without --yes, where nobody can be asked.", err=True)
        raise typer.Exit(NOT_CONFIRMED)
    if not typer.confirm(question, err=True):
        raise typer.Exit(NOT_CONFIRMED)
