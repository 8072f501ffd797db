"""The read cache: bounded by bytes, least recently used out first, one load for all who ask."""

import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore_ds.cache.read_cache import ENTRY_BYTES, Loaded, Piece, ReadCache
from segstore_ds.errors import CorruptionError, StorageError
from segstore_ds.read.segments import PROCESS_CACHE

ANY = 1 << 30


def content(key: int) -> Piece:
    """Return the bytes that belong to a key, as many as it says, in a buffer of their own."""
    data = pa.py_buffer(bytes([key % 256]) * key)
    return Piece(data, data)


def texts(found: Sequence[Loaded]) -> list[bytes]:
    return [bytes(piece.data) for piece in found]


def wanted(*keys: int) -> list[bytes]:
    return [bytes([key % 256]) * key for key in keys]


class Loads:
    """Counts what is loaded."""

    def __init__(self) -> None:
        self.keys: list[int] = []

    def __call__(self, keys: Sequence[int]) -> list[Loaded]:
        self.keys += keys
        return [content(key) for key in keys]


def test_second_fetch_loads_nothing():
    cache, loads = ReadCache[int](), Loads()
    for _ in range(2):
        found = cache.fetch([3, 1, 2], loads, limit_bytes=ANY)
        assert texts(found) == wanted(3, 1, 2)
    assert loads.keys == [3, 1, 2]
    cache.fetch([4, 3], loads, limit_bytes=ANY)
    assert loads.keys == [3, 1, 2, 4]
    counters = cache.counters
    assert (counters.misses, counters.miss_bytes) == (4, 10)
    assert (counters.hits, counters.hit_bytes) == (4, 9)
    assert (counters.entries, counters.held_bytes) == (4, 10 + 4 * ENTRY_BYTES)
    assert counters.evicted == 0


def test_least_recently_used_leaves_first():
    cache, loads = ReadCache[int](), Loads()
    limit = 3 * (10 + ENTRY_BYTES) + 3
    for key in (10, 11, 12):
        cache.fetch([key], loads, limit_bytes=limit)
    cache.fetch([10], loads, limit_bytes=limit)
    cache.fetch([9], loads, limit_bytes=limit)  # 11 was used least recently
    loads.keys.clear()
    cache.fetch([12, 10, 9], loads, limit_bytes=limit)
    assert loads.keys == []
    cache.fetch([11], loads, limit_bytes=limit)
    assert loads.keys == [11]
    assert cache.counters.evicted == 2


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(0, 5_000)), max_size=60))
def test_never_holds_more_than_the_limit(steps):
    """The limit is that of the fetch: a smaller one than the last makes room for itself."""
    cache, held = ReadCache[int](), 0
    for key, limit in steps:
        assert texts(cache.fetch([key], Loads(), limit_bytes=limit)) == wanted(key)
        counters = cache.counters
        assert counters.held_bytes <= max(limit, held)
        held = counters.held_bytes
        sizes = [piece.holder.size for piece in cache._pieces.values()]
        assert held == sum(sizes) + ENTRY_BYTES * len(sizes)
        assert counters.entries == len(sizes)


def pieces_of_one(keys: Sequence[int]) -> list[Loaded]:
    """Return the bytes of all keys as slices of one buffer, with a byte between each two."""
    holder = pa.py_buffer(b"-".join(wanted(*keys)))
    borders = [0, *accumulate(key + 1 for key in keys)]
    return [Piece(holder[at : at + key], holder) for at, key in zip(borders, keys, strict=False)]


def test_pieces_of_one_fetch_count_as_the_fetch_and_leave_together():
    """A slice keeps the whole buffer in memory, so that is what counts."""
    cache = ReadCache[int]()
    assert texts(cache.fetch([5, 6], pieces_of_one, limit_bytes=ANY)) == wanted(5, 6)
    assert cache.counters.held_bytes == 12 + 2 * ENTRY_BYTES
    cache.fetch([7], Loads(), limit_bytes=ANY)
    limit = cache.counters.held_bytes + 1
    cache.fetch([6], Loads(), limit_bytes=limit)
    cache.fetch([8], Loads(), limit_bytes=limit)  # 7 was used least recently
    assert set(cache._pieces) == {5, 6, 8}
    cache.fetch([9], Loads(), limit_bytes=limit)
    assert set(cache._pieces) == {8, 9}
    counters = cache.counters
    assert (counters.evicted, counters.held_bytes) == (3, 17 + 2 * ENTRY_BYTES)


def test_pieces_of_a_large_fetch_are_copied():
    """Beside a small bound, whole fetches would be too coarse, or never fit."""
    cache, limit = ReadCache[int](), 3_000
    for _ in range(2):
        assert texts(cache.fetch([300, 301], pieces_of_one, limit_bytes=limit)) == wanted(300, 301)
    assert {piece.holder.size for piece in cache._pieces.values()} == {300, 301}
    assert cache.counters.held_bytes == 601 + 2 * ENTRY_BYTES
    assert cache.counters.hits == 2


def test_errors_are_returned_and_not_kept():
    """One damaged frame does not hide its neighbours, and may be repaired by the next read."""
    cache, loads = ReadCache[int](), Loads()

    def damaged(keys: Sequence[int]) -> list[Loaded]:
        return [CorruptionError("x") if key == 2 else content(key) for key in keys]

    first, second, third = cache.fetch([1, 2, 3], damaged, limit_bytes=ANY)
    assert isinstance(second, CorruptionError)
    assert texts([first, third]) == wanted(1, 3)
    cache.fetch([1, 2, 3], loads, limit_bytes=ANY)
    assert loads.keys == [2]


def in_flight(cache: ReadCache[int], asked: list[list[int]], load: Callable[..., object]):
    """Start a load of the first keys; let others ask meanwhile; then end it."""
    begun, end = threading.Event(), threading.Event()

    def held(keys: Sequence[int]) -> object:
        begun.set()
        assert end.wait(300)
        return load(keys)

    with ThreadPoolExecutor(len(asked)) as pool:
        first = pool.submit(cache.fetch, asked[0], held, limit_bytes=ANY)
        assert begun.wait(300)
        others = [pool.submit(cache.fetch, keys, load, limit_bytes=ANY) for keys in asked[1:]]
        # Those who share every key can't end before the load does.
        end.set()
        return [future.exception(60) or future.result() for future in [first, *others]]


def test_threads_share_one_load():
    cache, loads = ReadCache[int](), Loads()
    found = in_flight(cache, [[1, 2, 3], [3, 2], [1], [2, 4]], loads)
    assert [texts(one) for one in found] == [wanted(1, 2, 3), wanted(3, 2), wanted(1), wanted(2, 4)]
    assert sorted(loads.keys) == [1, 2, 3, 4]
    counters = cache.counters
    assert (counters.misses, counters.hits) == (4, 4)


def test_threads_share_the_error_of_a_load():
    """Who comes too late to share it loads for himself."""
    cache, failed = ReadCache[int](), StorageError("x")

    def failing(_keys: Sequence[int]) -> list[Loaded]:
        raise failed

    assert in_flight(cache, [[1, 2], [2], [1]], failing) == [failed] * 3
    assert cache.counters.entries == 0


def test_an_interrupt_of_one_thread_ends_no_other():
    cache, interrupts = ReadCache[int](), [KeyboardInterrupt()]

    def load(keys: Sequence[int]) -> list[Loaded]:
        if interrupts:
            raise interrupts.pop()
        return [content(key) for key in keys]

    first, second, third = in_flight(cache, [[1, 2], [2], [2, 1]], load)
    assert isinstance(first, KeyboardInterrupt)
    assert (texts(second), texts(third)) == (wanted(2), wanted(2, 1))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_child_starts_empty():
    """A lock or a load of a thread that the child lacks would make it wait forever."""
    keys = [((("stream", "rights"), "path", 1), (0, 1))]

    def load(_: object) -> list[Loaded]:
        with PROCESS_CACHE._lock:
            child = os.fork()
        if not child:
            signal.alarm(60)
            size = 0
            try:
                (found,) = PROCESS_CACHE.fetch(keys, lambda _: [content(2)], limit_bytes=ANY)
                size = found.data.size
            finally:
                os._exit(size)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
        return [content(1)]

    (found,) = PROCESS_CACHE.fetch(keys, load, limit_bytes=ANY)
    assert found.data.size == 1
