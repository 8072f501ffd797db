"""Commands for rows: head, cat, tail, create, import, export."""

from contextlib import suppress
from typing import Annotated, Any

import typer

import segstore_ds as segstore
from segstore_ds.cli import settings
from segstore_ds.cli.arguments import (
    AsOf,
    Columns,
    End,
    EventTimes,
    Json,
    Offsets,
    Options,
    Rows,
    Start,
    Url,
    Where,
    parse_conditions,
    parse_event_time,
)
from segstore_ds.cli.files import PIPE, Format, find_format, open_rows, open_sink
from segstore_ds.cli.progress import counted
from segstore_ds.cli.show import Table, report
from segstore_ds.errors import NotFoundError

File = Annotated[str, typer.Argument(metavar="FILE", help="A file, or - for the pipe.")]
Form = Annotated[
    Format | None, typer.Option("--format", help="If the file's name does not say it.")
]


def _chosen(
    columns: str | None, where: list[str] | None, event_time: str | None, *, offsets: bool
) -> dict[str, Any]:
    """Return the arguments of `Stream.read` for flags that several commands have."""
    filters = parse_conditions(where)
    chosen: dict[str, Any] = {"columns": columns.split(",") if columns else None}
    chosen["event_time"] = parse_event_time(event_time)
    chosen |= {"filters": filters, "offset_column": "offset" if offsets else None}
    return chosen


def head(
    url: Url,
    *,
    rows: Rows = 10,
    start: Start = "head",
    columns: Columns = None,
    where: Where = None,
    event_time: EventTimes = None,
    offsets: Offsets = False,
    storage_options: Options = None,
    as_json: Json = False,
) -> None:
    """Print the first events."""
    stream = settings.open_to_read(url, storage_options)
    chosen = _chosen(columns, where, event_time, offsets=offsets)
    Table(as_json=as_json).batches(stream.read(start, limit=rows, **chosen))


def cat(
    url: Url,
    *,
    start: Start = "head",
    end: End = "tail",
    columns: Columns = None,
    where: Where = None,
    event_time: EventTimes = None,
    offsets: Offsets = False,
    version_as_of: AsOf = None,
    storage_options: Options = None,
    as_json: Json = False,
) -> None:
    """Print the events between two cuts."""
    stream = settings.open_to_read(url, storage_options)
    chosen = _chosen(columns, where, event_time, offsets=offsets)
    found = stream.read(start, end, as_of=version_as_of, **chosen)
    Table(as_json=as_json).batches(found)


def tail(
    url: Url,
    *,
    rows: Rows = 10,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what is appended.")
    ] = False,
    reader: Annotated[
        str | None,
        typer.Option(help="Follow as this named reader: publish, and continue where it stopped."),
    ] = None,
    owner: Annotated[str, typer.Option(help="Who owns the reader.")] = "",
    every: Annotated[
        float, typer.Option(metavar="SECONDS", help="Most seconds between two polls of -f.")
    ] = 0.05,
    columns: Columns = None,
    where: Where = None,
    event_time: EventTimes = None,
    offsets: Offsets = False,
    storage_options: Options = None,
    as_json: Json = False,
) -> None:
    """Print the last events; with -f also what is appended from then on."""
    stream = settings.open_to_read(url, storage_options)
    chosen = _chosen(columns, where, event_time, offsets=offsets)
    table, end = Table(as_json=as_json), stream.tail
    first = max(stream.head, end - rows)
    start: int | None = end
    if reader is None:
        table.batches(stream.read(first, end, **chosen))
    elif not follow:
        raise typer.BadParameter("--reader needs -f")
    else:
        start = first  # a new reader begins with the last events
        with suppress(NotFoundError):
            stream.position(f"reader:{reader}")
            start = None
    if follow:
        table.batches(stream.follow(reader, owner=owner, start=start, poll_s=every, **chosen))


def create(
    url: Url,
    *,
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:TYPE", help="A column, such as n:int64; several, in order."),
    ] = None,
    like: Annotated[
        str | None, typer.Option(metavar="FILE", help="Columns as in this file.")
    ] = None,
    form: Form = None,
    time_column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The column with each event's time."),
    ] = None,
    storage_options: Options = None,
    as_json: Json = False,
) -> None:
    """Create an empty stream."""
    if (like is None) == (not column):
        raise typer.BadParameter("give either --like FILE, or --column for every column")
    if like is not None:
        with open_rows(like, find_format(like, form)) as found:
            schema = found.schema
    else:
        schema = _schema(column or [])
    options = settings.storage_options(storage_options)
    stream = segstore.create(url, schema, time_column=time_column, storage_options=options)
    made = {"url": stream.url, "version": stream.version, "stream_id": stream.stream_id}
    report(made, f"created {stream.url}", as_json=as_json)


def _schema(columns: list[str]) -> Any:
    import pyarrow as pa

    fields = []
    for column in columns:
        name, _, kind = column.rpartition(":")
        try:
            found = pa.timestamp("us", "UTC") if kind == "timestamp" else pa.type_for_alias(kind)
        except ValueError:
            raise typer.BadParameter(
                f"no type {kind!r} in --column {column}: give one such as string, int64, double, "
                "bool, date32, timestamp, binary; or --like FILE for any other"
            ) from None
        fields.append((name, found))
    return pa.schema(fields)


def import_(
    url: Url,
    file: File = PIPE,
    *,
    form: Form = None,
    create: Annotated[
        bool, typer.Option("--create", help="Create the stream if there is none.")
    ] = False,
    writer: Annotated[
        str | None, typer.Option(help="Name of an idempotent writer; needs --batch.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="Its batch: the same one again changes nothing.")
    ] = None,
    merge_schema: Annotated[
        bool, typer.Option("--merge-schema", help="Allow new columns and wider types.")
    ] = False,
    storage_options: Options = None,
    as_json: Json = False,
) -> None:
    """Append the rows of a file or a pipe, in one commit."""
    options = settings.storage_options(storage_options)
    found, stream = find_format(file, form), None
    if not create or segstore.exists(url, storage_options=options):
        stream = segstore.open(url, storage_options=options)
    with open_rows(file, found, stream.schema if stream else None) as rows:
        if stream is None:
            stream = segstore.create(url, rows.schema, storage_options=options)
        with counted(rows, "imported") as data:
            commit = stream.append(
                data, writer_id=writer, batch_id=batch, merge_schema=merge_schema
            )
    again = ", as it was before" if commit.repeated else ""
    text = f"offsets [{commit.start}, {commit.end}) in version {commit.version}{again}"
    report(commit, text, as_json=as_json)


def export(
    url: Url,
    file: File = PIPE,
    *,
    form: Form = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Leave CSV cells that a spreadsheet would run.")
    ] = False,
    start: Start = "head",
    end: End = "tail",
    columns: Columns = None,
    where: Where = None,
    event_time: EventTimes = None,
    offsets: Offsets = False,
    version_as_of: AsOf = None,
    storage_options: Options = None,
    as_json: Json = False,
) -> None:
    """Write the events between two cuts to a file or a pipe."""
    stream = settings.open_to_read(url, storage_options)
    chosen = _chosen(columns, where, event_time, offsets=offsets)
    rows = stream.read(start, end, as_of=version_as_of, **chosen)
    written = 0
    with (
        open_sink(file, find_format(file, form), rows.schema, force=force, raw=raw) as sink,
        counted(rows, "exported") as batches,
    ):
        for batch in batches:
            sink.write_batch(batch)
            written += batch.num_rows
    if file != PIPE:
        done = {"file": file, "events": written}
        report(done, f"wrote {written:,} events to {file}", as_json=as_json)


VERBS = (head, cat, tail, create, import_, export)
