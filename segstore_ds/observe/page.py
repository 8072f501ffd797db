"""The picture of a stream as HTML: a page, and the output of a notebook's cell.

Neither needs a script, a server or the network, and both follow the light or dark mode. Every text
from a stream is escaped.
"""

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from segstore_ds.errors import SegstoreError
from segstore_ds.observe.description import COMMITS_READ, Description
from segstore_ds.observe.drawing import STYLE, draw_history, draw_stream, moment, with_duration
from segstore_ds.observe.figures import Metrics
from segstore_ds.options.quantities import printable_html as escape
from segstore_ds.options.quantities import with_unit

_NOTEBOOK = 760  # px
_COMMIT_COLUMNS = ("version", "time", "operation", "head", "tail", "rows", "bytes", "writer_id")
_SEGMENT_COLUMNS = ("segment_id", "start", "end", "rows", "bytes", "format", "path")
_DAMAGE_ROWS, _CELL = 10, 80
_STYLE = (
    f"{STYLE}body{{margin:0;background:var(--ground);color:var(--ink)}}"
    "body,table{font:14px/1.45 system-ui,-apple-system,'Segoe UI','Open Sans',sans-serif}"
    "main{max-width:960px;margin:0 auto;padding:24px 20px 48px}"
    "h1{font-size:20px;margin:0 0 4px;overflow-wrap:anywhere}"
    "h2{font-size:15px;margin:36px 0 10px}"
    "p{margin:0;color:var(--muted)}"
    "dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(150px,1fr));"
    "gap:12px 20px;margin:20px 0 24px}"
    "dt{color:var(--muted);font-size:12px}dd{margin:0;font-variant-numeric:tabular-nums}"
    ".scroll{overflow-x:auto}"
    "table{border-collapse:collapse;width:100%;font-size:13px}"
    "th,td{padding:5px 14px 5px 0;text-align:left;border-bottom:1px solid var(--line);"
    "white-space:nowrap;font-variant-numeric:tabular-nums}"
    "th{color:var(--muted);font-weight:500}.n{text-align:right}"
)
_PAGE = """\
<!doctype html>
<html lang="en" class="segstore">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""
SHOWN_ROWS = 50


def build_page(found: Description) -> str:
    """Return a page of a stream: the picture, its history, tables, and what takes storage."""
    figures = found.figures
    body = [
        f"<h1>{escape(figures.url)}</h1>",
        f"<p>version {figures.version:,}, as of {moment(figures.measured)}</p>",
        _damage(figures.damaged),
        _facts(found),
        draw_stream(found),
        _section("History", draw_history(found) + _history_note(found)),
        _section("What holds storage", _storage(figures)),
        _section(*_newest("commits", found.commits, _COMMIT_COLUMNS, figures.version + 1)),
        _section(*_newest("segments", found.segments, _SEGMENT_COLUMNS, figures.segments)),
        _section(
            "Columns", build_table([{"name": n, "type": t} for n, t in found.columns.items()])
        ),
    ]
    title = f"{figures.url} · segstore"
    return _PAGE.format(title=escape(title), style=_STYLE, body="\n".join(filter(None, body)))


def build_cell(url: str, describe: Callable[[], Description]) -> str:
    """Return a stream's picture for a notebook; if it can't be read, the error."""
    try:
        found = describe()
    except SegstoreError as error:
        return f"<p><strong>{escape(url)}</strong><br>{escape(str(error))}</p>"
    damage = _damage(found.figures.damaged)
    kinds = ", ".join(f"{name}: {kind}" for name, kind in found.columns.items())
    said = (
        f"{found.figures.events:,} events in {found.figures.segments:,} segments, "
        f"{with_unit(found.figures.bytes)}, version {found.figures.version:,}"
    )
    return (
        f'<div class="segstore" style="max-width:{_NOTEBOOK}px"><style>{STYLE}</style>'
        f"<strong>{escape(url)}</strong><br>{escape(said)}"
        f"{damage}{draw_stream(found)}<small>{escape(kinds)}</small></div>"
    )


def build_table(rows: Sequence[Mapping[str, Any]], columns: Iterable[str] | None = None) -> str:
    """Return rows as an HTML table; numbers have separators, and long texts are cut."""
    if not rows:
        return "<p>none</p>"
    names = [*(rows[0] if columns is None else columns)]
    numeric = {
        name
        for name in names
        if all(isinstance(row[name], int) and not isinstance(row[name], bool) for row in rows)
    }
    mark = {name: ' class="n"' if name in numeric else "" for name in names}
    head = "".join(f'<th scope="col"{mark[name]}>{escape(name)}</th>' for name in names)
    lines = (
        "".join(f"<td{mark[name]}>{escape(_cell(row[name]))}</td>" for name in names)
        for row in rows
    )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case dt.datetime():
            return moment(value)
    text = str(value)
    return text if len(text) <= _CELL else f"{text[: _CELL - 1]}…"


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body else ""


def _facts(found: Description) -> str:
    figures = found.figures
    facts = {
        "events": f"{figures.events:,}",
        "offsets": f"{figures.head:,} to {figures.tail:,}",
        "segments": f"{figures.segments:,}, {with_unit(figures.bytes)}",
        "worth compacting": f"{figures.small_segments:,}, {with_unit(figures.small_bytes)}",
        "last append": f"{with_duration(figures.idle_s)} ago",
        "versions kept": f"{figures.versions:,}",
        "objects to delete": f"{figures.retired:,}",
        "sealed": "yes" if figures.sealed else "no",
    }
    items = (f"<div><dt>{name}</dt><dd>{escape(fact)}</dd></div>" for name, fact in facts.items())
    return f"<dl>{''.join(items)}</dl>"


def _damage(damaged: Sequence[str]) -> str:
    """Return a paragraph about metadata that could not be read."""
    if not damaged:
        return ""
    lines = [escape(text) for text in damaged[:_DAMAGE_ROWS]]
    more = len(damaged) - len(lines)
    lines += [f"and {more:,} more"] if more else []
    return (
        "<p><strong>Some metadata can't be read and is left out; segstore verify names all "
        f"damage:</strong><br>{'<br>'.join(lines)}</p>"
    )


def _history_note(found: Description) -> str:
    if found.steps[0].first == 0:
        return ""
    return f"<p>The newest {COMMITS_READ:,} of {found.figures.version + 1:,} commits.</p>"


def _storage(figures: Metrics) -> str:
    return build_table([asdict(each) for each in figures.storage]) if figures.storage else ""


def _newest(
    name: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str], count: int
) -> tuple[str, str]:
    title = name.capitalize() if count <= len(rows) else f"Newest {len(rows)} of {count:,} {name}"
    return title, build_table(rows, columns)


class Rows:
    """A metadata table: like a RecordBatchReader of pyarrow, but it can be read again.

    It has `__arrow_c_stream__`, and iteration yields record batches. Each read begins at the first
    row.
    """

    def __init__(self, schema: pa.Schema, read: Callable[[], pa.RecordBatchReader]) -> None:
        self.schema = schema
        self._read = read

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "read_next")):
            raise AttributeError(name)
        return getattr(self._read(), name)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self._read())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._read().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return f"<Rows {', '.join(self.schema.names)}>"

    def _repr_html_(self) -> str:
        batches = (batch.slice(0, SHOWN_ROWS + 1).to_pylist() for batch in self._read())
        return show_rows(row for rows in batches for row in rows)


def show_rows(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the first rows of a table as HTML."""
    first = list(islice(rows, SHOWN_ROWS + 1))
    return build_table(first[:SHOWN_ROWS]) + ("<p>...</p>" if len(first) > SHOWN_ROWS else "")


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of a stream at one moment, made by `Stream.picture`; a notebook shows it."""

    found: Description

    def to_html(self) -> str:
        """Return an HTML page, which needs no server and no network.

        It has the picture that a notebook shows, the history, tables of the newest commits and
        segments, and what takes storage.
        """
        return build_page(self.found)

    def _repr_html_(self) -> str:
        return build_cell(self.found.figures.url, lambda: self.found)
