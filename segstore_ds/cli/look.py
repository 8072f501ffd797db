"""Commands that look: ls, info, history, segments, readers, tags, metrics, show."""

import enum
import sys
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

import segstore_ds as segstore
from segstore_ds.cli import settings
from segstore_ds.cli.arguments import Json, Options, Rows, Url
from segstore_ds.cli.show import Table, print_json, report, say
from segstore_ds.cli.status import DAMAGED
from segstore_ds.options.quantities import with_unit
from segstore_ds.options.table_formats import TABLE_FORMATS
from segstore_ds.version import requirement

SHOWN_WRITERS = 20


class Shape(enum.StrEnum):
    """What `metrics` prints."""

    TABLE = "table"
    JSON = "json"
    PROMETHEUS = "prometheus"


def ls(
    url: Url,
    *,
    depth: Annotated[int, typer.Option(min=0, help="How many folders deep to look.")] = 3,
    storage_options: Options = None,
    as_json: Json = False,
) -> None:
    """List the streams in a folder; status 1 if one can't be read."""
    options = settings.storage_options(storage_options)
    found = segstore.streams(url, storage_options=options, depth=depth)
    failed = any(found["code"].to_pylist())
    columns = ["path", "events", "head", "tail", "version", "time", "sealed"]
    table = Table(as_json=as_json, columns=[*columns, "error"] if failed else columns)
    table.batches(found.to_batches())
    if failed:
        raise typer.Exit(DAMAGED)


def info(url: Url, *, storage_options: Options = None, as_json: Json = False) -> None:
    """Say what a stream holds."""
    stream = settings.open_to_read(url, storage_options)
    known = stream.info()
    columns = {column.name: str(column.type) for column in stream.schema}
    tables = dict(_tables(stream))
    if as_json:
        print_json({"url": stream.url, **known, "published": tables, "columns": columns})
        return
    writers = stream.metadata("writers").read_all().to_pylist() if stream.tail else []
    named = [
        f"{writer['writer_id']} (batch {writer['batch_id']})" for writer in writers[:SHOWN_WRITERS]
    ]
    if len(writers) > len(named):
        named.append(f"and {len(writers) - len(named):,} more")
    facts = {
        "stream": stream.url,
        "id": stream.stream_id,
        "version": f"{stream.version} ({stream.root.operation})",
        "events": f"{stream.tail - stream.head:,}, offsets [{stream.head}, {stream.tail})",
        "segments": f"{known['segments']:,}, {with_unit(known['bytes'])}",
        "writers": ", ".join(named),
        "followers": ", ".join(stream.followers),
        "sealed": "yes" if stream.sealed else "",
        **tables,
    }
    for name, fact in facts.items():
        if fact:
            say(f"{name:9} {fact}")
    for name, kind in columns.items():
        say(f"{'column':9} {name}: {kind}")


def _tables(stream: "segstore.Stream") -> Iterator[tuple[str, str]]:
    """Yield the published tables by format, each with what it shows."""
    for name in TABLE_FORMATS:
        try:
            table = stream.published(name)
        except segstore.SegstoreError as error:
            yield name, f"can't be read: {error}"
            continue
        if table is not None:
            auto = ", published after commits" if name in stream.auto_publish else ""
            shown = f"offsets [{table.head}, {table.tail}), {table.lag:,} events behind{auto}"
            yield name, f"{shown}: {table.reason}" if table.lag else shown


def history(
    url: Url, *, rows: Rows = 50, storage_options: Options = None, as_json: Json = False
) -> None:
    """List the newest commits, oldest first; -n 0 lists all."""
    stream = settings.open_to_read(url, storage_options)
    columns = ["version", "time", "operation", "head", "tail", "rows", "writer_id", "batch_id"]
    start = max(0, stream.version + 1 - rows) if rows else 0
    found = stream.history(start)
    known = [name for name in columns if name in found.schema.names]
    Table(as_json=as_json, columns=known).batches(found)


def segments(url: Url, *, storage_options: Options = None, as_json: Json = False) -> None:
    """List the segments, in offset order."""
    stream = settings.open_to_read(url, storage_options)
    columns = ["segment_id", "start", "end", "rows", "bytes", "format", "path"]
    Table(as_json=as_json, columns=columns).batches(stream.segments())


def readers(url: Url, *, storage_options: Options = None, as_json: Json = False) -> None:
    """List the named readers, and how many events each is behind."""
    stream = settings.open_to_read(url, storage_options)
    columns = [
        "name",
        "owner",
        "offset",
        "behind",
        "lost",
        "renewed",
        "live",
        "released",
        "damaged",
    ]
    Table(as_json=as_json, columns=columns).batches(stream.metadata("readers"))


def tags(url: Url, *, storage_options: Options = None, as_json: Json = False) -> None:
    """List the named cuts."""
    stream = settings.open_to_read(url, storage_options)
    Table(as_json=as_json).batches(stream.metadata("tags"))


def metrics(
    url: Url,
    *,
    form: Annotated[
        Shape, typer.Option("--format", help="prometheus is what it scrapes.")
    ] = Shape.TABLE,
    storage: Annotated[
        bool, typer.Option("--storage", help="Also what holds storage; lists the whole stream.")
    ] = False,
    storage_options: Options = None,
    as_json: Json = False,
) -> None:
    """Measure a stream: sizes, segments to join, lag of readers, followers and tables."""
    found = settings.open_to_read(url, storage_options).metrics(storage=storage)
    if as_json or form is Shape.JSON:
        print_json(found)
        return
    from segstore_ds.observe.series import stream_samples

    if form is Shape.PROMETHEUS:
        try:
            from segstore_ds.observe.export import prometheus_text
        except ImportError as error:
            raise typer.BadParameter(
                f"--format prometheus needs pip install '{requirement('prometheus')}': {error}"
            ) from None
        say(*prometheus_text(stream_samples(found)).splitlines())
        return
    rows = [
        {
            "metric": sample.series.name.removeprefix("segstore."),
            "of": sample.labels[-1] if len(sample.labels) > 1 else "",
            "value": int(sample.value) if sample.value.is_integer() else round(sample.value, 3),
            "unit": sample.series.unit_word,
        }
        for sample in stream_samples(found)
    ]
    Table(as_json=False).rows(rows)
    for text in found.damaged:
        say(f"DAMAGED {text}")


def show(
    url: Url,
    *,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="- for a pipe; otherwise NAME.segstore.html here.",
        ),
    ] = None,
    storage: Annotated[
        bool, typer.Option("--storage/--no-storage", help="Also what holds storage; lists it all.")
    ] = True,
    open_it: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    storage_options: Options = None,
    as_json: Json = False,
) -> None:
    """Write a picture of a stream, its history and readers as one HTML page."""
    stream = settings.open_to_read(url, storage_options)
    page = stream.to_html(storage=storage)
    if output == "-":
        if as_json or open_it:
            raise typer.BadParameter("-o - prints the page alone: name a file for --json or --open")
        sys.stdout.write(page)
        return
    name = stream.url.rstrip("/").rpartition("/")[2] or "stream"
    path = Path(output or f"{name}.segstore.html").absolute()
    path.write_text(page, encoding="utf-8")
    done = {"url": stream.url, "file": str(path), "bytes": path.stat().st_size}
    report(done, f"{path}: {with_unit(path.stat().st_size)}", as_json=as_json)
    if open_it and not webbrowser.open(path.as_uri()):
        raise typer.BadParameter(f"--open found no browser: open {path}")


VERBS = (ls, info, history, segments, readers, tags, metrics, show)
