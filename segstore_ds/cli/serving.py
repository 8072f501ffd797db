"""The command that serves streams to other languages: serve."""

import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

import segstore_ds as segstore
from segstore_ds.cli.run import Run
from segstore_ds.cli.show import say
from segstore_ds.options.arguments import check_size

_LOCAL = ("127.0.0.1", "localhost", "::1")


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
) -> None:
    """Serve streams to programs in any language over Arrow Flight, until Ctrl-C."""
    from segstore_ds.serve.access import Tokens, read_tokens
    from segstore_ds.serve.server import StreamServer

    if (certificate is None) != (key is None):
        raise typer.BadParameter("give --certificate and --key, or neither")
    if tokens is None and host not in _LOCAL:
        raise typer.BadParameter(
            f"anybody could read from {host}: give --tokens, or leave --host at 127.0.0.1"
        )
    streams = _open(run, urls, writable=writable)
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
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    place = f"{scheme}://{host}:{server.port}"
    run.report(
        {"location": place, "streams": [*streams]}, f"serving {', '.join(streams)} at {place}"
    )
    over.wait()
    say("ending: scans and appends that run are finished")
    server.shutdown()


def _open(run: Run, urls: Sequence[str], *, writable: bool) -> dict[str, "segstore.Stream"]:
    streams: dict[str, segstore.Stream] = {}
    for given in urls:
        name, equals, url = given.partition("=")
        if not equals or "/" in name:
            name, url = given.rstrip("/").rpartition("/")[2], given
        if name in streams:
            raise typer.BadParameter(f"two streams have the name {name}: give NAME=URL")
        streams[name] = run.change(url) if writable else run.read(url)
    return streams


VERBS = (serve,)
