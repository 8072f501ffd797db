"""The write cache service: carries one object's bytes to its channel.

Records are placed side by side in buffers. A separate thread writes full buffers in order, while
the producer fills the next one. If no buffer is free, the producer waits: memory is bounded by the
pool's buffers and one record. A record larger than a buffer bypasses the buffers and keeps its
place in the order. Several threads may append; appends are serialized, so offsets are dense and
follow the order of the bytes.

A record that no buffer holds any more is read through the loader, with one load for all concurrent
readers.

After a failure of the channel nothing more is written, and reads continue. Closing never commits.

Source: Blazegraph's WriteCacheService, append-only (WORM) mode.
"""

import threading
import time
from collections import deque
from typing import Any

from segstore_ds.cache.channel import Channel
from segstore_ds.cache.channel_writer import ChannelWriter, Item, LargeRecord
from segstore_ds.cache.counters import CacheCounters
from segstore_ds.cache.first_error import FirstError
from segstore_ds.cache.object_cache import ObjectCache
from segstore_ds.cache.pool import BufferPool
from segstore_ds.cache.read_through import Loader, ReadThrough
from segstore_ds.cache.record import LAST_OFFSET, Record
from segstore_ds.cache.second_copy import Observer
from segstore_ds.cache.views import BufferView, as_view
from segstore_ds.cache.write_cache import WriteCache
from segstore_ds.errors import InvalidInputError


class WriteCacheService(ObjectCache[Item]):
    """Writes one object through the buffers of a pool. Safe to use from several threads.

    Only this service writes to `channel`, and it holds the pool's buffers until `close` or
    `release_buffers`.
    `load` reads `[start, end)` of the object back, for records that no buffer holds any more.
    `second_copy` gets every buffer while the channel takes it.
    """

    def __init__(
        self,
        channel: Channel,
        pool: BufferPool,
        *,
        load: Loader | None = None,
        second_copy: Observer | None = None,
        counters: CacheCounters | None = None,
    ) -> None:
        super().__init__(counters)
        self._pool = pool
        self._append = threading.Lock()
        self._through = load and ReadThrough(load, self._count_load)
        self._next = 0  # the offset of the next record
        self._current: WriteCache | None = None
        self._clean: deque[WriteCache] = deque()
        self._writer = ChannelWriter(
            channel,
            self._changed,
            self._written,
            second_copy=second_copy,
            counters=self._counters,
        )
        self._lent: list[WriteCache] = pool.lend()
        self._free = list(self._lent)

    # --- writing -----------------------------------------------------------------------------

    def write(self, data: Any, crc: int | None = None, *, frozen: bool = False) -> Record:
        """Append a record of at least one byte; return its place and checksum.

        On return the bytes are copied, written, or (with `frozen`) held by reference. `crc` is
        trusted if given, and computed otherwise. With `frozen` the caller promises that the bytes
        never change: a large record is then not copied, and a record larger than a buffer is not
        waited for.

        Raises:
            StorageError: The channel failed, now or before; every later call raises it too.
            ClosedError: The service was committed, aborted or closed, perhaps during a wait.
        """
        view = as_view(data)
        length = view.length
        if crc is None:
            crc = view.crc32()
        with self._append, self._changed:
            self._check_writable()
            if not 0 < length <= LAST_OFFSET - self._next:
                raise InvalidInputError(
                    "record is empty or ends after the last offset",
                    bytes=length,
                    offset=self._next,
                )
            record = Record(self._next, length, crc)
            if length > self._pool.buffer_bytes:
                self._write_large(record, view, frozen=frozen)
            else:
                self._write_small(record, view, frozen=frozen)
            self._counters.accepted_records += 1
            self._counters.accepted_bytes += length
            return record

    def has_room(self, nbytes: int) -> bool:
        """Tell if a record fits now without waiting or evicting anything from the buffers."""
        with self._changed:
            self._check_open()
            if nbytes > self._pool.buffer_bytes:
                return False
            return bool(self._free) or (self._current is not None and self._current.room >= nbytes)

    def flush(self) -> None:
        """Wait until the channel has all bytes accepted before this call; they are not durable yet.

        Raises:
            StorageError: The channel failed, now or before.
            ClosedError: The service was closed, perhaps during the wait.
        """
        with self._changed:
            self._check_open()
            self._writer.failure.check()
            self._push_current()
            target = self._next
        self._writer.drain(target)

    def commit(self) -> int:
        """Flush, make the object whole and durable, and return the channel's size of it.

        Nothing can be written afterwards.

        Raises:
            StorageError: The channel failed, now or before: the object may be incomplete.
            ClosedError: The service was committed or closed before.
        """
        with self._changed:
            self._check_writable()
            self._finished = True
            self._changed.notify_all()
        self.flush()
        size = self._writer.commit()
        self._writer.join()
        return size

    # --- the end -----------------------------------------------------------------------------

    def release_buffers(self) -> None:
        """Return the pool's buffers after `commit`; later reads use the loader."""
        with self._changed:
            self._check_committed()
            self._let_go()

    # --- inside, with the lock held ------------------------------------------------------------

    def _write_small(self, record: Record, view: BufferView, *, frozen: bool) -> None:
        waits = 0
        while True:
            if self._current is not None:
                if self._current.write(record.offset, view, record.crc, frozen=frozen):
                    self._accept(record, self._current)
                    return
                # Push before taking a free buffer: with a single buffer, this one must become free.
                self._push_current()
                self._writer.start()
            self._current = self._take_buffer()
            if self._current is None:
                self._wait(waits)
                waits += 1

    def _write_large(self, record: Record, view: BufferView, *, frozen: bool) -> None:
        share = -(-record.length // self._pool.buffer_bytes)
        held_on_to = frozen and share <= self._pool.buffers
        charged: list[WriteCache] = []
        self._push_current()
        self._writer.start()
        try:
            waits = 0
            while held_on_to and len(charged) < share:
                cache = self._take_buffer()
                if cache is None:
                    self._wait(waits)
                    waits += 1
                else:
                    cache.reset(keep_memory=False)
                    charged.append(cache)
        except BaseException:
            self._free.extend(charged)
            raise
        self._counters.large_records += 1
        large = LargeRecord(record, view, charged)
        self._accept(record, large)
        self._writer.push(large)
        while not held_on_to and self._writer.flushed < record.end:
            self._changed.wait()
            self._check_open()
            self._writer.failure.check()

    def _accept(self, record: Record, holder: Item) -> None:
        self._map[record.offset] = record, holder
        self._next = record.end

    def _push_current(self) -> None:
        if self._current is not None:
            self._current.close_for_writes()
            self._writer.push(self._current)
            self._current = None

    def _written(self, item: Item) -> None:
        if isinstance(item, WriteCache):
            self._clean.append(item)
        else:
            self._map.pop(item.record.offset, None)
            self._free.extend(item.charged)

    def _take_buffer(self) -> WriteCache | None:
        if self._free:
            return self._free.pop()
        cache = next((cache for cache in self._clean if not cache.references), None)
        if cache is not None:
            self._clean.remove(cache)
            for offset in cache.records:
                self._map.pop(offset, None)
            self._counters.buffers_evicted += 1
            self._counters.records_evicted += cache.reset()
        return cache

    def _wait(self, waits: int) -> None:
        self._counters.waits += waits == 0
        started = time.monotonic()
        if self._writer.idle:
            # A thread that has to wait for a write does the write itself.
            self._changed.release()
            try:
                self._writer.write_next()
            finally:
                self._changed.acquire()
        else:
            self._changed.wait()
        self._counters.wait_seconds += time.monotonic() - started
        self._check_writable()

    def _let_go(self) -> None:
        while any(cache.references for cache in self._lent):
            self._changed.wait()
        if self._lent:
            self._map.clear()
            self._clean.clear()
            self._current = None
            self._free, self._lent = [], []
            self._pool.give_back()

    def _count_load(self) -> None:
        with self._changed:
            self._counters.loads += 1

    def _failure(self) -> FirstError:
        return self._writer.failure

    def _is_committed(self) -> bool:
        return self._writer.committed

    def _written_to(self) -> int:
        return self._next

    def _end(self) -> None:
        self._writer.abort()
        self._let_go()

    def _join(self) -> None:
        self._writer.join()

    def _load_back(self, record: Record) -> bytes | None:
        return self._through.get(record) if self._through else None

    def _check_committed(self) -> None:
        self._check_open()
        if not self._writer.committed:
            raise InvalidInputError("object is not durable", remedy="commit it first")
