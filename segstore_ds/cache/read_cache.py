"""The read cache: verified buffers, kept for later reads within a bound of bytes.

Its caller loads and verifies all that it holds. The least recently used buffer is evicted first. A
key must name the same bytes forever, so no entry becomes stale. Threads that ask for one key at the
same time share one load.

Source: Blazegraph's read cache behind a memoizer (`WriteCacheService.read`).
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Generic, Self, TypeAlias, TypeVar

import pyarrow as pa

from segstore_ds.errors import FormatError

K = TypeVar("K", bound=Hashable)

ENTRY_BYTES = 512  # memory of an entry beside its bytes: key, buffer object, place in the table
_SHARE = 8  # pieces are copied if their fetch is larger than the bound divided by this


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Verified bytes; `holder` is the fetched buffer that they lie in and keep in memory."""

    data: pa.Buffer
    holder: pa.Buffer


# The piece of a key, or the error of this key alone.
Loaded: TypeAlias = Piece | FormatError


@dataclass(slots=True)
class ReadCounters:
    """What a read cache did and holds; all but the last two only grow.

    Attributes:
        hits: Pieces returned without a load of their own: held, or being loaded by a thread.
        hit_bytes: Their bytes.
        misses: Pieces that were loaded.
        miss_bytes: Their bytes.
        evicted: Pieces dropped to stay within the bound.
        entries: Pieces held now.
        held_bytes: Memory that they take now: their holders, and `ENTRY_BYTES` for each piece.
    """

    hits: int = 0
    hit_bytes: int = 0
    misses: int = 0
    miss_bytes: int = 0
    evicted: int = 0
    entries: int = 0
    held_bytes: int = 0

    def snapshot(self) -> Self:
        """Return a copy that later events do not change."""
        return replace(self)


class _InterruptedError(Exception):
    """The thread that loaded for others was interrupted."""


class _Held(Generic[K]):
    """A fetched buffer, and the keys of its held pieces, which are evicted together."""

    __slots__ = ("keys", "size")

    def __init__(self, size: int) -> None:
        self.keys: list[K] = []
        self.size = size


class ReadCache(Generic[K]):
    """Pieces of fetched buffers by key; threads may share it.

    Pieces of one fetch are not copied, and each keeps the whole buffer in memory. So the whole
    buffer counts, and its pieces are evicted together. Only if a fetch is large compared to the
    bound, each of its pieces is copied and counts by itself.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Drop everything, and the lock: in a forked child it may be held forever."""
        self._lock = threading.Lock()
        self._pieces: dict[K, Piece] = {}
        self._holders: OrderedDict[int, _Held[K]] = OrderedDict()  # by the identity of the buffer
        self._flights: dict[K, Future[Loaded]] = {}
        self._counters = ReadCounters()

    @property
    def counters(self) -> ReadCounters:
        """A copy of the counters."""
        with self._lock:
            return self._counters.snapshot()

    def fetch(
        self,
        keys: Sequence[K],
        load: Callable[[Sequence[K]], Sequence[Loaded]],
        *,
        limit_bytes: int,
    ) -> list[Loaded]:
        """Return the piece or the error of each key; keep new pieces, up to `limit_bytes` in total.

        `load` gets the keys that are neither held nor being loaded by another thread, and returns
        a verified piece or an error for each; errors are not kept. It runs in this thread, without
        a lock. If it raises, every thread that waits for one of its keys gets that error. If its
        thread is interrupted, the waiting threads load the keys themselves.
        """
        own: dict[K, Future[Loaded]] = {}
        flights: dict[K, Future[Loaded]] = {}
        found: dict[K, Loaded] = {}
        with self._lock:
            for key in keys:
                if (piece := self._pieces.get(key)) is not None:
                    self._holders.move_to_end(id(piece.holder))
                    self._hit(piece)
                    found[key] = piece
                elif (flight := self._flights.get(key)) is not None:
                    flights[key] = flight
                else:
                    own[key] = self._flights[key] = Future()
        if own:
            found.update(self._load(own, load, limit_bytes))
        # Load first and wait afterwards: two threads can't wait for each other.
        for key, flight in flights.items():
            try:
                found[key] = result = flight.result()
            except _InterruptedError:
                (found[key],) = self.fetch([key], load, limit_bytes=limit_bytes)
                continue
            with self._lock:
                self._hit(result)
        return [found[key] for key in keys]

    def _load(
        self,
        own: Mapping[K, Future[Loaded]],
        load: Callable[[Sequence[K]], Sequence[Loaded]],
        limit_bytes: int,
    ) -> dict[K, Loaded]:
        try:
            loaded = dict(zip(own, load([*own]), strict=True))
            pieces = {
                key: _own(result, limit_bytes)
                for key, result in loaded.items()
                if isinstance(result, Piece)
            }
        except BaseException as error:
            self._land(own)
            shared = error if isinstance(error, Exception) else _InterruptedError()
            for flight in own.values():
                flight.set_exception(shared)
            raise
        with self._lock:
            self._keep(pieces, limit_bytes)
        self._land(own)
        for key, flight in own.items():
            flight.set_result(loaded[key])
        return loaded

    def _land(self, own: Mapping[K, Future[Loaded]]) -> None:
        with self._lock:
            for key in own:
                self._flights.pop(key, None)

    def _keep(self, pieces: Mapping[K, Piece], limit_bytes: int) -> None:
        counters = self._counters
        for key, piece in pieces.items():
            counters.misses += 1
            counters.miss_bytes += piece.data.size
            if piece.holder.size + ENTRY_BYTES > limit_bytes:
                continue  # it would evict everything, and still not fit
            held = self._holders.get(id(piece.holder))
            if held is None:
                held = self._holders[id(piece.holder)] = _Held(piece.holder.size)
                counters.held_bytes += held.size
            self._pieces[key] = piece
            held.keys.append(key)
            counters.held_bytes += ENTRY_BYTES
        while counters.held_bytes > limit_bytes:
            _, held = self._holders.popitem(last=False)
            for key in held.keys:
                del self._pieces[key]
            counters.held_bytes -= held.size + ENTRY_BYTES * len(held.keys)
            counters.evicted += len(held.keys)
        counters.entries = len(self._pieces)

    def _hit(self, result: Loaded) -> None:
        if isinstance(result, Piece):
            self._counters.hits += 1
            self._counters.hit_bytes += result.data.size


def _own(piece: Piece, limit_bytes: int) -> Piece:
    """Return a piece to hold: a copy if its holder is large compared to the bound."""
    if piece.data.size == piece.holder.size or piece.holder.size * _SHARE <= limit_bytes:
        return piece
    data = pa.py_buffer(piece.data.to_pybytes())
    return Piece(data, data)
