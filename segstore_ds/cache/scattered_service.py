"""The scattered cache service: carries an object whose records come in any order to its channel.

The object is cut into parts of one size. Records gather in buffers in the order in which they come.
The thread whose record makes a part whole packs the part's records from the sparse buffers into
one and writes that; other threads go on meanwhile. So every write to the channel is one whole part,
which is what uploads ask for. Memory is bounded by the pool, which the services of several objects
share.

A record that was written before is replaced by one of the same range, for example from a second
attempt to fetch it. If the channel has the part already, the part is gathered and written again.

The object is committed only if every part was written, so it has no holes.

Source: Blazegraph's WriteCacheService, scattered (RW) mode; its thread, dirty list and reserved
buffer for compaction are the threads that bring the records.
"""

import time
from typing import Any

from segstore_ds.cache.channel import ScatteredChannel
from segstore_ds.cache.counters import CacheCounters
from segstore_ds.cache.first_error import FirstError
from segstore_ds.cache.object_cache import ObjectCache
from segstore_ds.cache.pool import SharedPool
from segstore_ds.cache.record import Record
from segstore_ds.cache.scattered_cache import ScatteredCache
from segstore_ds.cache.views import BufferView, as_view
from segstore_ds.errors import InvalidInputError

_MOST_NAMED = 4


class ScatteredCacheService(ObjectCache[ScatteredCache]):
    """Writes one object of `size` bytes in parts as large as the pool's buffers."""

    def __init__(
        self,
        channel: ScatteredChannel,
        pool: SharedPool,
        size: int,
        *,
        counters: CacheCounters | None = None,
    ) -> None:
        if size < 1:
            raise InvalidInputError("an object needs at least one byte", size=size)
        super().__init__(counters)
        self._channel, self._pool, self._size = channel, pool, size
        self._parts = -(-size // pool.buffer_bytes)
        self._gathered: dict[int, dict[int, int]] = {}  # part -> offset -> length
        self._buffers: list[ScatteredCache] = []
        self._busy: dict[int, ScatteredCache] = {}  # parts that the channel is taking
        self._done: set[int] = set()
        self._first = FirstError()
        self._committed = False

    def write(
        self, offset: int, data: Any, crc: int | None = None, *, frozen: bool = False
    ) -> Record:
        """Take a record of a part; write the part if it is whole now.

        On return the bytes are copied, written, or (with `frozen`) held by reference. `crc` is
        trusted if given, and computed otherwise.

        Raises:
            StorageError: The channel failed, now or before; every later call raises it too.
            InvalidInputError: The record is not inside a part, lies over another one, or the
                buffers are full of parts that are not whole.
            ClosedError: The service was committed or closed.
        """
        view = as_view(data)
        if crc is None:
            crc = view.crc32()
        record = Record(offset, view.length, crc)
        with self._changed:
            self._check_writable()
            part = self._part_of(record)
            while part in self._busy:
                self._changed.wait()
                self._check_writable()
            self._place(part, record, view, frozen=frozen)
            self._counters.accepted_records += 1
            self._counters.accepted_bytes += record.length
            if sum(self._gathered[part].values()) < self._bounds(part)[1] - self._bounds(part)[0]:
                return record
            buffer = self._pack(part)
        self._send(part, buffer)
        return record

    def flush(self) -> None:
        """Wait until the channel has all parts that were whole before this call."""
        with self._changed:
            self._check_open()
            while self._busy:
                self._changed.wait()
                self._check_open()
            self._first.check()

    def commit(self) -> int:
        """Make the object whole and durable, and return its size; nothing is written afterwards.

        Raises:
            StorageError: The channel failed, now or before.
            InvalidInputError: Not every part was written; the missing ones may still be.
            ClosedError: The service was committed or closed before.
        """
        self.flush()
        with self._changed:
            self._check_writable()
            holes = [self._bounds(part) for part in range(self._parts) if part not in self._done]
            if holes:
                raise InvalidInputError(
                    "an object has holes", missing=holes[:_MOST_NAMED], parts=len(holes)
                )
            self._finished = True
        try:
            size = self._channel.commit()
        except BaseException as error:
            with self._changed:
                self._first.keep(error)
            raise
        with self._changed:
            self._committed = True
        return size

    # --- inside, with the lock held ------------------------------------------------------------

    def _part_of(self, record: Record) -> int:
        part = record.offset // self._pool.buffer_bytes
        if not 0 <= record.offset < record.end <= self._size or record.end > self._bounds(part)[1]:
            raise InvalidInputError(
                "record is empty or not inside one part of the object",
                offset=record.offset,
                bytes=record.length,
                part_bytes=self._pool.buffer_bytes,
                size=self._size,
            )
        return part

    def _bounds(self, part: int) -> tuple[int, int]:
        start = part * self._pool.buffer_bytes
        return start, min(start + self._pool.buffer_bytes, self._size)

    def _place(self, part: int, record: Record, view: BufferView, *, frozen: bool) -> None:
        known = self._gathered.get(part, {})
        for offset, length in known.items():
            same = (offset, length) == (record.offset, record.length)
            if not same and offset < record.end and record.offset < offset + length:
                raise InvalidInputError(
                    "record lies over another one of a different range", offset=record.offset
                )
        if record.offset in known:
            buffer = self._map[record.offset][1]
        else:
            buffer = self._buffer_with(record.length)
        buffer.write(record.offset, view, record.crc, frozen=frozen)
        self._map[record.offset] = record, buffer
        self._gathered.setdefault(part, {})[record.offset] = record.length
        self._done.discard(part)

    def _buffer_with(self, room: int) -> ScatteredCache:
        for buffer in self._buffers:
            if buffer.room >= room:
                return buffer
        buffer = self._pool.take()
        self._buffers.append(buffer)
        return buffer

    def _pack(self, part: int) -> ScatteredCache:
        """Return a buffer that holds a part and nothing else; the part is busy from now on."""
        offsets = self._gathered[part]
        sources = {id(buffer): buffer for buffer in (self._map[at][1] for at in offsets)}
        packed = next(iter(sources.values()))
        if len(sources) == 1 and len(packed.records) == len(offsets):
            self._buffers.remove(packed)
            sources = {}
        else:
            packed = self._pool.take()
        del self._gathered[part]
        self._busy[part] = packed
        for buffer in sources.values():
            buffer.move(packed, *self._bounds(part))
        for offset in offsets:
            self._map[offset] = self._map[offset][0], packed
        for buffer in sources.values():
            if not buffer.records:
                self._buffers.remove(buffer)
                self._give_back(buffer)
        return packed

    def _send(self, part: int, buffer: ScatteredCache) -> None:
        """Write a part, without the lock."""
        started = time.monotonic()
        try:
            buffer.flush(self._channel)
        except BaseException as error:
            with self._changed:
                self._first.keep(error)
                self._buffers.append(self._busy.pop(part))
                self._changed.notify_all()
            raise
        with self._changed:
            start, end = self._bounds(part)
            self._counters.channel_writes += 1
            self._counters.channel_bytes += end - start
            self._counters.write_seconds += time.monotonic() - started
            self._counters.buffers_evicted += 1
            self._counters.records_evicted += len(buffer.records)
            for offset in buffer.records:
                del self._map[offset]
            self._give_back(buffer)
            del self._busy[part]
            self._done.add(part)
            self._changed.notify_all()

    def _give_back(self, buffer: ScatteredCache) -> None:
        while buffer.references:
            self._changed.wait()
        self._pool.give(buffer)

    def _failure(self) -> FirstError:
        return self._first

    def _is_committed(self) -> bool:
        return self._committed

    def _written_to(self) -> int:
        return self._size

    def _end(self) -> None:
        while self._busy:
            self._changed.wait()
        if not self._committed:
            self._channel.abort()
        self._map.clear()
        while self._buffers:
            self._give_back(self._buffers.pop())
