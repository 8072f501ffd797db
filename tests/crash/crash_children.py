"""What the child processes of the crash tests run."""

import itertools
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa

from segstore_ds.errors import AlreadyExistsError
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create, open  # noqa: A004 - as the package has it
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout

SCHEMA = pa.schema([("writer", pa.int64()), ("n", pa.int64()), ("text", pa.string())])
BATCH_ROWS = 3
# Whatever changes a file, whoever calls it.
SYSTEM_CALLS = (
    "open",
    "write",
    "writev",
    "copy_file_range",
    "fsync",
    "link",
    "unlink",
    "mkdir",
    "replace",
    "close",
)


@contextmanager
def deadly(number: int) -> Iterator[set[str]]:
    """Kill this process at its n-th call; give the names of those that it has made."""
    calls, lock = itertools.count(1), threading.Lock()
    kept = {name: getattr(os, name) for name in SYSTEM_CALLS}
    made: set[str] = set()

    def watch(name: str) -> Any:
        def run(*arguments: Any, **options: Any) -> Any:
            with lock:
                fatal = next(calls) == number
                made.add(name)
            if fatal:
                _do_half(name, kept, arguments, options)
                os.kill(os.getpid(), signal.SIGKILL)
            return kept[name](*arguments, **options)

        return run

    for name in kept:
        setattr(os, name, watch(name))
    try:
        yield made
    finally:
        for name, call in kept.items():
            setattr(os, name, call)


def _do_half(name: str, kept: dict[str, Any], arguments: Any, options: Any) -> None:
    if name in ("write", "writev"):
        data = b"".join(arguments[1]) if name == "writev" else arguments[1]
        kept["write"](arguments[0], data[: len(data) // 2])
    elif name == "copy_file_range":
        source, target, most = arguments
        kept[name](source, target, most // 2, **options)


def numbered(writer: int, batch: int) -> pa.Table:
    """Return the events of a batch: they say who wrote them and in which order."""
    numbers = list(range(batch * BATCH_ROWS, (batch + 1) * BATCH_ROWS))
    texts = [f"event {n}" for n in numbers]
    return pa.table({"writer": [writer] * BATCH_ROWS, "n": numbers, "text": texts}, SCHEMA)


def append_keyed(reply: Connection, url: str, writer: int, first: int) -> None:
    """Append batches for ever under a writer id, from one that may be committed already."""
    stream = open(url)
    for batch in itertools.count(first):
        stream.append(numbered(writer, batch), writer_id=f"writer-{writer}", batch_id=batch)
        reply.send(batch)


def append_plain(reply: Connection, url: str, writer: int, _: int) -> None:
    """Append batches for ever without a writer id, from where the stream itself says."""
    stream = open(url)
    mine = stream.read(columns=["n"], filters=[["writer", "==", writer]]).read_all()
    for batch in itertools.count(mine.num_rows // BATCH_ROWS):
        stream.append(numbered(writer, batch))
        reply.send(batch)


def append_some(
    reply: Connection,
    url: str,
    writer: int,
    batches: int,
    options: dict[str, Any] | None = None,
) -> None:
    """Append some batches once told to, with and without a writer id by turns."""
    stream = open(url, storage_options=options)
    reply.send("ready")
    reply.recv()
    for batch in range(batches):
        _append(stream, writer, batch)
        reply.send(batch)


def _append(stream: Stream, writer: int, batch: int) -> None:
    if writer % 2:
        stream.append(numbered(writer, batch))
    else:
        stream.append(numbered(writer, batch), writer_id=f"writer-{writer}", batch_id=batch)


def append_shared(reply: Connection, url: str, threads: int) -> None:
    """Append single events from several threads of one appender; report each that is durable."""
    appender, sending = open(url).appender(flush_seconds=None), threading.Lock()

    def work(writer: int) -> None:
        for n in itertools.count():
            place = appender.append({"writer": writer, "n": n})
            offset = appender.wait(place)
            with sending:
                reply.send((offset, writer, n))

    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work, writer) for writer in range(threads)]:
            done.result()


def create_many(reply: Connection, urls: list[str], options: dict[str, Any] | None = None) -> None:
    """Create streams, each once told to, and say whether that was won."""
    for url in urls:
        reply.send("ready")
        reply.recv()
        try:
            reply.send(create(url, SCHEMA, storage_options=options)._log.root.stream_id)
        except AlreadyExistsError:
            reply.send(None)


def die_at_system_call(reply: Connection, url: str, number: int) -> None:
    """Append a batch and be killed at the n-th system call that changes a file, half done."""
    stream = open(url)
    layout = Layout(inline_bytes=0)
    with deadly(number) as made:
        stream.append(numbered(0, 1), writer_id="writer-0", batch_id=1, layout=layout)
    reply.send(made)


def append_and_die(reply: Connection, url: str, batch: int, fatal: int) -> None:
    """Append a batch and be killed at the n-th system call that changes a file."""
    stream = open(url)
    with deadly(fatal):
        stream.append(numbered(0, batch))
    reply.send("alive")


def leave_in_part(pipe: Connection, url: str, path: str) -> None:
    """Write a large part of what is to replace an object, say so, and wait to be killed."""
    writer = open_storage(url).open_staged(path, replace=True)
    writer.write(bytes(1 << 20))
    pipe.send("written")
    pipe.recv()
