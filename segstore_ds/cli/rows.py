"""Commands for rows: create, append, cat, export, serve."""

import os
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

import segstore_ds as segstore
from segstore_ds.cli.arguments import Run, Url
from segstore_ds.cli.files import PIPE, Format, find_format, open_rows, open_sink
from segstore_ds.cli.show import counted, say
from segstore_ds.errors import MAYBE_COMMITTED, NotFoundError, SegstoreError
from segstore_ds.options.arguments import check_duration, check_size

_ENDED = bytes(1)  # differs from all signal numbers
_LOCAL = ("127.0.0.1", "localhost", "::1")
File = Annotated[str, typer.Argument(metavar="FILE", help="A file, or - for the pipe.")]
Form = Annotated[
    Format | None, typer.Option("--format", help="Needed if the file's name does not say it.")
]


def create(
    run: Run,
    url: Url,
    *,
    column: Annotated[
        list[str] | None, "NAME:TYPE: A column, such as n:int64; repeat it for each, in order."
    ] = None,
    like: Annotated[str | None, "FILE: Columns as in this file."] = None,
    form: Form = None,
    time_column: Annotated[str | None, "NAME: The column with each event's time."] = None,
) -> None:
    """Create an empty stream."""
    if (like is None) == (not column):
        raise typer.BadParameter("give either --like FILE, or --column for every column")
    if like is not None:
        with open_rows(like, find_format(like, form)) as found:
            schema = found.schema
    else:
        schema = _parse_columns(column or [])
    stream = segstore.create(url, schema, time_column=time_column, **run.how())
    made = {"url": stream.url, "version": stream.version, "stream_id": stream.info()["stream_id"]}
    run.report(made, f"created {stream.url}")


def _parse_columns(columns: list[str]) -> Any:
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


def append(
    run: Run,
    url: Url,
    file: File = PIPE,
    *,
    form: Form = None,
    create: Annotated[bool, "Create the stream if there is none."] = False,
    writer_id: Annotated[
        str | None, typer.Option("--writer", help="Name of an idempotent writer; needs --batch.")
    ] = None,
    batch_id: Annotated[
        int | None,
        typer.Option("--batch", help="Number of its batch: the same one again changes nothing."),
    ] = None,
    takeover: Annotated[bool, "Take the writer over, or set it back to this batch."] = False,
    merge_schema: Annotated[bool, "Allow new columns and wider types."] = False,
) -> None:
    """Append the rows of a file or a pipe, in one commit."""
    found, stream = find_format(file, form), None
    if not create or segstore.exists(url, storage_options=run.options()):
        stream = run.change(url)
    known = stream.schema if stream else None
    with ExitStack() as stack:
        rows = stack.enter_context(open_rows(file, found, known, new=merge_schema))
        if stream is None:
            stream = segstore.create(url, rows.schema, **run.how())
            stack.enter_context(_dropped_if_empty(run, stream))
        with counted(rows, "appended") as data:
            commit = stream.append(
                data,
                writer_id=writer_id,
                batch_id=batch_id,
                takeover=takeover,
                merge_schema=merge_schema,
            )
    again = ", committed before" if commit.repeated else ""
    text = f"offsets [{commit.start}, {commit.end}) in version {commit.version}{again}"
    run.report(commit, text)


@contextmanager
def _dropped_if_empty(run: Run, stream: "segstore.Stream") -> Iterator[None]:
    """Drop a new stream after a failure, unless something was committed to it."""
    made = stream.version
    try:
        yield
    except MAYBE_COMMITTED:
        raise
    except BaseException:
        with suppress(SegstoreError):  # another writer may have committed to it
            url = stream.url
            segstore.drop(url, confirm=url, expected_version=made, **run.how())
        raise


def cat(
    run: Run,
    url: Url,
    chosen: dict[str, Any],
    *,
    rows: Annotated[
        int | None, typer.Option("--rows", "-n", help="The first N events; the last N if below 0.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with new events as they are appended.")
    ] = False,
    reader: Annotated[
        str | None, "Follow as this named reader: publish, and continue where it stopped."
    ] = None,
    owner: Annotated[str, "Who owns the reader."] = "",
    takeover: Annotated[bool, "Take the reader over from its owner, at its position."] = False,
    every: Annotated[float, "SECONDS: Most seconds between two polls of -f."] = 0.05,
) -> None:
    """Print events between two cuts, and with -f new ones."""
    if takeover and reader is None:
        raise typer.BadParameter("--takeover needs --reader")
    stream = run.read(url)
    if not follow:
        if reader is not None:
            raise typer.BadParameter("--reader needs -f")
        run.table(_read(stream, chosen, rows))
        return
    if (rows or 0) > 0 or chosen["end"] != "tail" or chosen["as_of"] is not None:
        raise typer.BadParameter("-f has no end: leave out --end, --as-of and an -n above 0")
    end, before = stream.tail, iter(())
    how = {key: chosen[key] for key in ("columns", "filters", "event_time", "offset_column")}
    start: Any = end
    if reader is None:
        before = _read(stream, {**chosen, "end": end}, rows)
    else:
        start = _from_the_end(stream, chosen, rows)
        with suppress(NotFoundError):
            stream.position(f"reader:{reader}")
            start = None  # it continues
        if takeover:
            stream.readers.register(reader, owner=owner, start=start, takeover=True)
    run.table(chain(before, stream.follow(reader, owner=owner, start=start, poll_s=every, **how)))


def _read(stream: "segstore.Stream", chosen: dict[str, Any], rows: int | None) -> Iterator[Any]:
    """Yield batches of the chosen events, or of the first or last `rows` of them."""
    if rows is None or rows >= 0:
        yield from stream.read(**chosen, limit=rows)
        return
    if not any(chosen[key] is not None for key in ("filters", "event_time", "as_of")):
        chosen = {**chosen, "start": _from_the_end(stream, chosen, rows)}
    yield from _last(stream.read(**chosen), -rows)


def _from_the_end(stream: "segstore.Stream", chosen: dict[str, Any], rows: int | None) -> Any:
    """Return the chosen start, or a later one that leaves only so many events before the end."""
    if rows is None:
        return chosen["start"]
    start, end = (stream.position(chosen[key]).offset for key in ("start", "end"))
    return max(start, end - abs(rows))


def _last(batches: Iterable[Any], count: int) -> Iterator[Any]:
    """Yield the last rows of all batches, and keep little more than these in memory."""
    kept, rows = deque[Any](), 0
    for batch in batches:
        kept.append(batch)
        rows += batch.num_rows
        while kept and rows - kept[0].num_rows >= count:
            rows -= kept.popleft().num_rows
    for batch in kept:
        yield batch.slice(max(rows - count, 0))
        rows = 0


def export(
    run: Run,
    url: Url,
    chosen: dict[str, Any],
    file: File = PIPE,
    *,
    form: Form = None,
    force: Annotated[bool, "Replace the file."] = False,
    raw: Annotated[bool, "Leave CSV cells that a spreadsheet would run."] = False,
) -> None:
    """Write the events between two cuts to a file or a pipe."""
    rows = run.read(url).read(**chosen)
    written = 0
    with (
        open_sink(file, find_format(file, form), rows.schema, force=force, raw=raw) as write,
        counted(rows, "exported") as batches,
    ):
        for batch in batches:
            write(batch)
            written += batch.num_rows
    if file != PIPE:
        run.report({"file": file, "events": written}, f"wrote {written:,} events to {file}")


def serve(
    run: Run,
    urls: Annotated[list[str], typer.Argument(metavar="URL...", help="Streams: URL, or NAME=URL.")],
    *,
    host: Annotated[str, "HOST: The address to listen on."] = "127.0.0.1",
    port: Annotated[int, "PORT: 0 takes a free one."] = 8815,
    writable: Annotated[bool, "Take appends, too."] = False,
    tokens: Annotated[
        Path | None, "FILE: Lines 'read TOKEN' or 'write TOKEN': who may call."
    ] = None,
    certificate: Annotated[Path | None, "FILE: Serve by TLS with this certificate (PEM)."] = None,
    key: Annotated[Path | None, "FILE: The certificate's key (PEM)."] = None,
    most_calls: Annotated[
        int, typer.Option(min=1, help="Scans, follows and appends at a time.")
    ] = 16,
    append_bytes: Annotated[str, "SIZE: The largest append, before compression."] = "1g",
    stop_timeout: Annotated[str, "DURATION: How long it waits for calls when it ends."] = "30s",
) -> None:
    """Serve streams to programs in any language over Arrow Flight, until Ctrl-C."""
    from segstore_ds.serve.requests import Tokens, read_tokens
    from segstore_ds.serve.server import StreamServer

    if (certificate is None) != (key is None):
        raise typer.BadParameter("give --certificate and --key, or neither")
    if tokens is None and host not in _LOCAL:
        raise typer.BadParameter(
            f"anybody could read from {host}: give --tokens, or leave --host at 127.0.0.1"
        )
    patience_s = check_duration("stop_timeout", stop_timeout)
    streams = _open_all(run, urls, writable=writable)
    scheme, pair = "grpc", None
    if certificate is not None and key is not None:
        scheme, pair = "grpc+tls", (certificate.read_bytes(), key.read_bytes())
    server = StreamServer(
        streams,
        f"{scheme}://{host}:{port}",
        tokens=Tokens(read_tokens(tokens) if tokens else ()),
        writable=writable,
        most_calls=most_calls,
        append_bytes=check_size("append_bytes", append_bytes) or 0,
        certificate=pair,
    )
    # A socket, because a signal in another thread would not wake this one from a lock.
    over, tell = socket.socketpair()
    tell.setblocking(False)
    signal.set_wakeup_fd(tell.fileno())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    place = f"{scheme}://{host}:{server.port}"
    run.report(
        {"location": place, "streams": [*streams]}, f"serving {', '.join(streams)} at {place}"
    )
    over.recv(1)
    say(f"ending: scans and appends that run have {stop_timeout} to finish")

    def end() -> None:
        server.shutdown()
        tell.send(_ENDED)

    threading.Thread(target=end, daemon=True).start()
    over.settimeout(patience_s)
    try:
        heard = over.recv(1)
    except TimeoutError:
        heard = b""
    if heard != _ENDED:  # Flight can't end a call that waits for its client
        say("ended before all scans and appends were finished")
        sys.stderr.flush()
        os._exit(1)


def _open_all(run: Run, urls: Sequence[str], *, writable: bool) -> dict[str, "segstore.Stream"]:
    streams: dict[str, segstore.Stream] = {}
    for given in urls:
        name, equals, url = given.partition("=")
        if not equals or "/" in name:
            name, url = given.rstrip("/").rpartition("/")[2], given
        if name in streams:
            raise typer.BadParameter(f"two streams have the name {name}: give NAME=URL")
        streams[name] = run.change(url) if writable else run.read(url)
    return streams


VERBS = (create, append, cat, export, serve)
