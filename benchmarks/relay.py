"""A relay before a server, in a process of its own: it holds every request back and counts them."""

import asyncio
import multiprocessing as mp
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

_PIECE_BYTES = 1 << 18
_METHODS = (b"GET ", b"HEAD", b"PUT ", b"POST", b"DELE")


@dataclass(frozen=True)
class Relay:
    """A running relay.

    Attributes:
        endpoint: What clients take for the server.
        delay_s: How long a request is held; its `value` may be set.
    """

    endpoint: str
    delay_s: Any
    _counts: Any

    def take_counts(self) -> tuple[int, int]:
        """Return how many requests came, and the bytes of the answers, since the last call."""
        with self._counts.get_lock():
            requests, answered = self._counts
            self._counts[:] = 0, 0
        return requests, answered


@contextmanager
def relay(target: str) -> Iterator[Relay]:
    """Run a relay before a server over plain HTTP."""
    context = mp.get_context("spawn")
    delay_s, counts = context.Value("d", 0.0), context.Array("q", 2)
    here, there = context.Pipe()
    place = urlsplit(target)
    arguments = (place.hostname, place.port, delay_s, counts, there)
    process = context.Process(target=_run, args=arguments, daemon=True)
    process.start()
    try:
        yield Relay(f"http://127.0.0.1:{here.recv()}", delay_s, counts)
    finally:
        process.terminate()
        process.join()


def _run(host: str, port: int, delay_s: Any, counts: Any, there: Any) -> None:
    async def serve() -> None:
        async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            answers, requests = await asyncio.open_connection(host, port, limit=_PIECE_BYTES)
            await asyncio.gather(ask(reader, requests), answer(answers, writer))

        async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(_PIECE_BYTES):
                if data.startswith(_METHODS):
                    counts[0] += 1
                    await asyncio.sleep(delay_s.value)
                writer.write(data)
            writer.close()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(_PIECE_BYTES):
                counts[1] += len(data)
                writer.write(data)
                await writer.drain()
            writer.close()

        server = await asyncio.start_server(pass_on, "127.0.0.1", 0, limit=_PIECE_BYTES)
        there.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())
