"""The output of commands: tables, text and progress bars for people, JSON lines for programs."""

import base64
import dataclasses
import datetime as dt
import decimal
import logging
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import typer

from segstore_ds.options.quantities import duration_text, printable, printable_json

_WIDE = 1 << 62  # width of an output that is no terminal: nothing is cut
_LEAST = 8  # least width of a text cell on a narrow terminal
_LEAST_INT = -(1 << 63)
_FLOAT_END = float((1 << 128) - (1 << 103))  # what a float of 32 bits makes infinite
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # of Python's years, 1 to 9999, since 1970
_COUNTS_NOTHING = re.compile(r"(^|_)(id|version|generation|epoch|year)$|[a-z]I[dD]$")
_NUMBERS = (int, float, decimal.Decimal, type(None))  # and flags
_AT_ONCE = 1000  # rows that are printed at once


def to_json(value: Any) -> Any:  # noqa: PLR0911 - a line per type
    """Return a value in JSON's types: times in ISO 8601, bytes in base64, decimals as text."""
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


def from_json(value: Any, kind: Any) -> Any:
    """Return a value of `to_json` in a form that Arrow accepts for a type.

    Raises ValueError for a wrong value, or TypeError and the like for a wrong shape.
    """
    from pyarrow import types as t

    if value is None:
        return None
    if t.is_struct(kind):
        kinds = {field.name: field.type for field in kind}
        if unknown := [*(value.keys() - kinds)]:
            raise ValueError(f"unknown fields {unknown}")
        return {name: from_json(value.get(name), inner) for name, inner in kinds.items()}
    if t.is_map(kind) and isinstance(value, list):
        return [(from_json(k, kind.key_type), from_json(v, kind.item_type)) for k, v in value]
    if t.is_list(kind) and isinstance(value, list):
        return [from_json(item, kind.value_type) for item in value]
    if isinstance(value, str):
        return value if t.is_string(kind) else _from_text(value, kind)
    fits = t.is_floating(kind) or t.is_decimal(kind)
    if isinstance(value, bool):
        fits = t.is_boolean(kind)
    elif isinstance(value, int):
        fits = fits or t.is_integer(kind) or t.is_duration(kind)
    if not fits or (t.is_float32(kind) and _FLOAT_END <= abs(value) < math.inf):
        raise ValueError(f"{value!r} is no {kind}")
    return decimal.Decimal(str(value)) if t.is_decimal(kind) else value


def _from_text(text: str, kind: Any) -> Any:
    import pyarrow as pa
    from pyarrow import types as t

    if t.is_binary(kind):
        return base64.b64decode(text, validate=True)
    if t.is_time(kind):
        clock, _, digits = text.partition(".")
        if not re.fullmatch("[0-9:]+", clock) or not re.fullmatch("[0-9]{0,9}", digits):
            raise ValueError(f"{text!r} is no {kind}")
        return pa.scalar(dt.time.fromisoformat(clock), kind).value + int(digits.ljust(9, "0"))
    if t.is_duration(kind):
        days, _, time = text.rpartition(", ")
        hours, minutes, seconds = map(decimal.Decimal, time.split(":"))
        whole = ((int(days.partition(" ")[0] or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
        if whole != round(whole, 6):
            raise ValueError(f"{text!r} is finer than microseconds")
        return dt.timedelta(microseconds=int(whole * 1_000_000))
    finite = t.is_floating(kind) and text not in ("nan", "inf", "-inf")
    if finite or t.is_integer(kind) or t.is_boolean(kind):
        raise ValueError(f"{text!r} is no {kind}")
    try:
        return pa.scalar(text).cast(kind)
    except pa.ArrowInvalid:
        if t.is_timestamp(kind) or t.is_date(kind):
            import numpy as np

            number = np.datetime64(text.removesuffix("Z"), getattr(kind, "unit", "D")).astype(int)
            if _far_text(int(number), kind) == text:
                return int(number)
        raise


def rows_of(batch: Any) -> list[dict[str, Any]]:
    """Return the rows of a batch, with texts for times that Python can't express."""
    from segstore_ds.format.schema.codec import has_nanoseconds

    with suppress(ArithmeticError, ValueError):  # a time beyond Python's years
        if not any(has_nanoseconds(kind) or _has_time(kind) for kind in batch.schema.types):
            return batch.to_pylist()  # type: ignore[no-any-return]
    return [
        {name: _exact(batch[name][n]) for name in batch.schema.names} for n in range(len(batch))
    ]


def _has_time(kind: Any) -> bool:
    from pyarrow import types as t

    return t.is_time(kind) or any(_has_time(kind.field(n).type) for n in range(kind.num_fields))


def has_far_times(times: Any) -> bool:
    """Tell whether dates or timestamps are beyond the years 1 to 9999."""
    import pyarrow as pa
    import pyarrow.compute as pc

    unit = getattr(times.type, "unit", "D")
    if unit == "ns":
        return False
    day = 1 if unit == "D" else 86_400_000_000
    found = pc.min_max(times.cast(pa.int32() if unit == "D" else pa.int64())).as_py()
    return found["min"] is not None and not (
        _FIRST_DAY * day <= found["min"] and found["max"] < (_LAST_DAY + 1) * day
    )


def _exact(value: Any) -> Any:  # noqa: PLR0911 - a line per type
    """Return an Arrow value without loss; durations in nanoseconds are numbers."""
    from pyarrow import types as t

    kind = value.type
    if not value.is_valid:
        return None
    if t.is_timestamp(kind) or t.is_date(kind):
        if getattr(kind, "unit", "") == "ns":
            return value.cast("string").as_py().replace(" ", "T")
        with suppress(ArithmeticError, ValueError):
            return value.as_py()
        return _far_text(value.value, kind)
    if t.is_time(kind):
        time, finer = value.as_py(), value.value % 1000
        return f"{time.isoformat('microseconds')}{finer:03}" if finer else time
    if t.is_duration(kind) and kind.unit == "ns":
        return value.value
    if t.is_struct(kind):
        return {field.name: _exact(value[field.name]) for field in kind}
    if t.is_map(kind) or t.is_list(kind):
        inner = [_exact(each) for each in value.values]
        return [(each["key"], each["value"]) for each in inner] if t.is_map(kind) else inner
    return value.as_py()


def _far_text(number: int, kind: Any) -> str:
    import numpy as np

    text = str(np.datetime64(max(number, _LEAST_INT + 1), getattr(kind, "unit", "D")))
    if number == _LEAST_INT:  # which NumPy takes for no time
        text = text[:-1] + "2"
    return f"{text}Z" if getattr(kind, "tz", None) else text


def expiry_text(rule: Any) -> str:
    """Return a rule of expiry as words."""
    some = f" where {rule.filters}" if rule.filters else ""
    return f"{rule.column}{some} is null after {duration_text(rule.age_s)}"


def print_json(value: Any) -> None:
    """Print one line of JSON."""
    sys.stdout.write(printable_json(to_json(value)) + "\n")


def say(*lines: str) -> None:
    """Print lines for people."""
    for line in lines:
        sys.stdout.write(printable(line) + "\n")


def print_table(
    batches: Iterable[Any], columns: Sequence[str] | None = None, *, as_json: bool = False
) -> None:
    """Print batches of rows, record batches or lists of dicts, as they come.

    A table has `columns` below one header, aligned by the first batch; JSON has all columns.
    """
    widths: dict[str, int] = {}
    for batch in batches:
        for start in range(0, len(batch), _AT_ONCE):
            part = batch[start : start + _AT_ONCE]
            rows = part if isinstance(part, list) else rows_of(part)
            if as_json:
                for row in rows:
                    print_json(row)
            else:
                _print_rows(rows, columns or [*rows[0]], widths)
            sys.stdout.flush()


def _print_rows(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], widths: dict[str, int]
) -> None:
    """Print some rows; the first call, with empty `widths`, also prints the header."""
    from rich.cells import cell_len, set_cell_size
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    heads = [] if widths else [[printable(name) for name in names]]
    lines = [*heads, *([_cell(row.get(name), name) for name in names] for row in rows)]
    numbers = [all(isinstance(row.get(name), _NUMBERS) for row in rows) for name in names]
    wanted = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    wanted = [max(widths.setdefault(*pair), pair[1]) for pair in zip(names, wanted, strict=True)]
    most = _most_text(wanted, numbers, console.width if sys.stdout.isatty() else _WIDE)

    def fitted(text: str, width: int, number: bool) -> str:
        if number:  # numbers and flags are never cut
            return " " * (width - cell_len(text)) + text
        width = min(width, most)
        return (
            set_cell_size(text, width)
            if cell_len(text) <= width
            else (set_cell_size(text, width - 1) + "…")
        )

    with console.capture() as printed:  # on a broken pipe, rich would end the process
        for place, line in enumerate(lines):
            cells = map(fitted, line, wanted, numbers)
            style = "bold" if place < len(heads) else ""
            console.print(Text("  ".join(cells).rstrip(), style), soft_wrap=True)
    sys.stdout.write(printed.get())


def _most_text(widths: Sequence[int], numbers: Sequence[bool], room: int) -> int:
    """Return the greatest width of text cells with which a row fits a terminal.

    >>> _most_text([30, 6, 12], [False, True, False], 40), _most_text([9, 60], [False, True], 40)
    (18, 8)
    """
    texts = [width for width, number in zip(widths, numbers, strict=True) if not number]
    room -= sum(widths) - sum(texts) + 2 * (len(widths) - 1)
    if sum(texts) <= room:
        return max(texts, default=0)
    fits = (most for most in range(room, _LEAST, -1) if sum(min(w, most) for w in texts) <= room)
    return next(fits, _LEAST)


def _cell(value: Any, name: str) -> str:  # noqa: PLR0911 - a line per type
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else ""
        case int():
            return str(value) if _COUNTS_NOTHING.search(name) else f"{value:,}"
        case dt.datetime():
            return value.isoformat(sep=" ").replace("+00:00", "Z")
        case str():
            return printable(value)
        case dict() | list() | bytes():
            return printable_json(to_json(value))
    return printable(str(value))


class _LogLine(logging.Formatter):
    """Formats a record as one printable line, and a traceback below it."""

    def __init__(self, spell: Callable[[str], str]) -> None:
        super().__init__()
        self._spell = spell

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - of the base class
        return f"segstore: {printable(self._spell(record.message))}"

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return "\n".join(map(printable, super().formatException(ei).split("\n")))


def log_to_terminal(spell: Callable[[str], str]) -> None:
    """Write warnings to stderr, as `spell` spells them, unless the log has handlers already."""
    handler = logging.StreamHandler()
    handler.setFormatter(_LogLine(spell))
    logging.basicConfig(handlers=[handler])


def ask(question: str, *, yes: bool) -> None:
    """Ask the user to confirm, unless `--yes` was given; raises typer.Abort without a yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.Abort(f"{question} There is no terminal to confirm at: add --yes.")
    if not typer.confirm(printable(question), err=True):
        raise typer.Abort


@contextmanager
def shown(verb: str, unit: str = "events") -> Iterator[Callable[[int, int | None], None]]:
    """Yield a callback for `progress=` that draws a bar on stderr."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich import progress as bars
    from rich.console import Console

    columns = (
        *(bars.TextColumn("{task.description}"), bars.BarColumn(), bars.MofNCompleteColumn()),
        *(bars.TextColumn(unit), bars.TaskProgressColumn(show_speed=True)),
        bars.TimeRemainingColumn(elapsed_when_finished=True),
    )
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(verb, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextmanager
def counted(rows: Any, verb: str) -> Iterator[Any]:
    """Yield a reader of the same batches that shows how many events were read."""
    if not sys.stderr.isatty():
        yield rows
        return
    import pyarrow as pa

    with shown(verb) as progress:

        def batches() -> Iterator[pa.RecordBatch]:
            done = 0
            for batch in rows:
                yield batch
                done += batch.num_rows
                progress(done, None)

        yield pa.RecordBatchReader.from_batches(rows.schema, batches())
