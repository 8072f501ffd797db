"""A relay before a server, in a process of its own: it holds every request back and counts them."""

import asyncio
import math
import multiprocessing as mp
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

_PIECE_BYTES = 1 << 18
KINDS = {b"GET ": "get", b"HEAD": "get", b"PUT ": "put", b"POST": "put", b"DELE": "delete"}
COUNTED = ("get", "put", "list", "delete")
_P99 = 2.326  # standard deviations
# Milliseconds of small requests at p50 and p99 within a region, as gathered from benchmarks of 2025
# in cdouglas/endive, UNCONDITIONAL.md. It has none of lists and deletes, which are held as puts.
S3_STANDARD = {"get": (27, 114), "put": (60, 118), "list": (60, 118), "delete": (60, 118)}


@dataclass(frozen=True)
class Counts:
    """Requests by kind, and the bytes of all answers."""

    get: int
    put: int
    list: int
    delete: int
    answered: int

    @property
    def total(self) -> int:
        """All requests."""
        return self.get + self.put + self.list + self.delete


@dataclass(frozen=True)
class Relay:
    """A running relay.

    Attributes:
        endpoint: What clients take for the server.
        delay_s: How long a request is held in any case; its `value` may be set.
    """

    endpoint: str
    delay_s: Any
    _counts: Any

    def take_counts(self) -> Counts:
        """Return what has been counted since the last call."""
        with self._counts.get_lock():
            found = Counts(*self._counts)
            self._counts[:] = (0,) * len(self._counts)
        return found


@contextmanager
def relay(
    target: str, latencies: Mapping[str, tuple[float, float]] | None = None
) -> Iterator[Relay]:
    """Run a relay before a server over plain HTTP.

    `latencies` are milliseconds by kind of request, at p50 and p99 of a log-normal distribution.
    """
    context = mp.get_context("spawn")
    delay_s, counts = context.Value("d", 0.0), context.Array("q", len(COUNTED) + 1)
    here, there = context.Pipe()
    place = urlsplit(target)
    arguments = (place.hostname, place.port, delay_s, latencies or {}, counts, there)
    process = context.Process(target=_run, args=arguments, daemon=True)
    process.start()
    try:
        yield Relay(f"http://127.0.0.1:{here.recv()}", delay_s, counts)
    finally:
        process.terminate()
        process.join()


def _kind(data: bytes) -> str:
    kind = KINDS.get(data[:4], "")
    is_list = kind == "get" and b"list-type=" in data.partition(b"\r\n")[0]
    return "list" if is_list else kind


def _drawn_s(latency: tuple[float, float] | None) -> float:
    if latency is None:
        return 0.0
    half, slowest = latency
    return random.lognormvariate(math.log(half), math.log(slowest / half) / _P99) / 1e3


def _run(  # noqa: PLR0917 - the arguments of a process
    host: str, port: int, delay_s: Any, latencies: Any, counts: Any, there: Any
) -> None:
    async def serve() -> None:
        async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            answers, requests = await asyncio.open_connection(host, port, limit=_PIECE_BYTES)
            await asyncio.gather(ask(reader, requests), answer(answers, writer))

        async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(_PIECE_BYTES):
                if kind := _kind(data):
                    counts[COUNTED.index(kind)] += 1
                    await asyncio.sleep(delay_s.value + _drawn_s(latencies.get(kind)))
                writer.write(data)
            writer.close()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(_PIECE_BYTES):
                counts[-1] += len(data)
                writer.write(data)
                await writer.drain()
            writer.close()

        server = await asyncio.start_server(pass_on, "127.0.0.1", 0, limit=_PIECE_BYTES)
        there.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())
