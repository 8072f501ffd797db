"""The write cache service: writes one object to its channel, through buffers.

The placement decides where a record lies and when a buffer is full: *dense*, for records that come
in order, or *scattered*, for the parts of an object of known size. A thread writes dense buffers in
order while the producer fills the next one. It starts only when a caller would have to wait, so an
object of one buffer needs none. The producer that completes a scattered part writes it. The pool
bounds the memory: if it has no buffer left, the producer waits. A record larger than a buffer
bypasses the buffers and keeps its place in the order.

After the first failure of the channel nothing more is written, because the object may end in the
middle of a buffer. Every later write raises that failure; reads continue. Closing never commits.

Source: Blazegraph's WriteCacheService.
"""

import copy
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Self

from segstore_ds.cache.buffer import Buffer, BufferPool, Record
from segstore_ds.cache.channel import Copies, CopyChannel, Dense, FlushedBuffer, Scattered
from segstore_ds.cache.counters import CacheCounters
from segstore_ds.cache.views import BufferView, ByteArraySegment, as_view
from segstore_ds.errors import ClosedError, InternalError, InvalidInputError, SegstoreError


class FirstError:
    """Keeps the first of several errors."""

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def keep(self, error: BaseException) -> None:
        """Keep an error, unless one is kept already."""
        if self.error is None:
            self.error = error

    def check(self) -> None:
        """Raise the kept SegstoreError, or an InternalError chained to any other kept error."""
        if self.error is None:
            return
        if isinstance(self.error, SegstoreError):
            # Raise a copy: an exception raised repeatedly would accumulate tracebacks.
            raise copy.copy(self.error) from self.error
        raise InternalError(
            "an earlier call failed for a reason other than storage", cause=repr(self.error)
        ) from self.error


class WriteCacheService:
    """Writes one object through buffers of a pool. Thread-safe.

    A context manager: it closes at the end, which aborts an object that was not committed. With
    `size` the records are scattered: each lies within one part, as large as a buffer. `load` reads
    `[start, end)` of the object back, for records that no buffer holds any more.
    """

    def __init__(
        self,
        channel: Any,  # a `Channel`, or with `size` a `ScatteredChannel`; no one else uses it
        pool: BufferPool,
        *,
        size: int | None = None,
        load: Callable[[int, int], bytes] | None = None,
        copies: Sequence[CopyChannel] = (),  # they get every buffer, and the commit
        counters: CacheCounters | None = None,  # successive objects may share them
    ) -> None:
        self._channel = channel
        self._pool = pool
        self._placement: Dense | Scattered = (
            Dense(channel) if size is None else Scattered(channel, size, pool.buffer_bytes)
        )
        self._load = load
        self._copies = Copies(copies)
        self._counters = counters or CacheCounters()
        self._append = threading.Lock()  # records are added one at a time
        self._changed = threading.Condition(threading.Lock())
        self._map: dict[int, tuple[Record, Buffer]] = {}
        self._taken: set[Buffer] = set()  # taken from the pool
        self._clean: deque[Buffer] = deque()  # written, and still readable
        self._queue: deque[Buffer] = deque()
        self._pushed = 0
        self._writing: list[Buffer] = []  # buffers that the channel is writing now
        self._ending = False  # the channel is committing
        self._filling: Buffer | None = None
        self._thread: threading.Thread | None = None
        self._failure = FirstError()
        self._finished = self._committed = self._closed = False

    @property
    def counters(self) -> CacheCounters:
        """A copy of the counters."""
        with self._changed:
            return self._counters.snapshot()

    @property
    def copied_to(self) -> tuple[str, ...]:
        """The folders that have a complete copy of the committed object."""
        return self._copies.whole

    def write(
        self, data: Any, crc: int | None = None, *, at: int | None = None, frozen: bool = False
    ) -> Record:
        """Add a record of at least one byte; return its range and checksum.

        On return the bytes are copied, written, or (with `frozen`) held by reference. `crc` is
        trusted if given, and computed otherwise. With `frozen` the caller promises that the bytes
        never change: then no record is copied, and the call does not wait until a record larger
        than a buffer is written. `at` is the offset of a scattered record.

        Raises:
            StorageError: The channel failed, now or before; every later call raises it too.
            InvalidInputError: A scattered record is not within one part, overlaps another one, or
                the buffers are full of incomplete parts.
            ClosedError: The service was committed, aborted or closed, perhaps during a wait.
        """
        view = as_view(data)
        if crc is None:
            crc = view.crc32()
        placement = self._placement
        with self._append, self._changed:
            self._check_writable()
            record = Record(placement.place(at, view.length), view.length, crc)
            while any(buffer.spans(record.offset) for buffer in self._writing):
                self._changed.wait()
                self._check_writable()
            if record.length > self._pool.buffer_bytes:
                self._write_large(record, view, frozen=frozen)
                return record
            buffer = placement.buffer_for(record) or self._open_for(record)
            buffer.write(record, view if frozen else ByteArraySegment(view.copy()))
            full = self._accept(record, buffer)
            if full is not None:
                self._push(full)
        if full is not None:
            self._write_next()
        return record

    def allocate(
        self, nbytes: int, lay: Callable[[memoryview], tuple[int, int] | None]
    ) -> Record | None:
        """Let the producer encode the next record into a buffer's memory, which saves a copy.

        `lay` gets `nbytes` of memory and returns how many of them it used and their CRC-32, or None
        if they are too few. Returns None, and adds nothing, if `lay` does so or if no buffer has
        that much room now. Raises as `write` does. If `lay` raises, nothing is added.
        """
        dense = self._placement
        if not isinstance(dense, Dense) or nbytes > self._pool.buffer_bytes:
            return None
        with self._append:
            with self._changed:
                self._check_writable()
                buffer = dense.open or self._take_free()
                dense.open = buffer
                memory = None if buffer is None else buffer.allocate(dense.end, nbytes)
                if buffer is None or memory is None:
                    return None
                self._filling = buffer
            try:
                used = lay(memory)
            finally:
                with self._changed:
                    self._filling = None
            with self._changed:
                self._check_writable()
                if used is None:
                    return None
                record = Record(dense.end, *used)
                buffer.accept(record)
                self._accept(record, buffer)
                self._counters.laid_records += 1
                return record

    def has_room(self, nbytes: int) -> bool:
        """Tell whether a record fits now, without waiting and without evicting a buffer."""
        with self._changed:
            self._check_open()
            probe = Record(self._placement.end, nbytes, 0)
            fits = nbytes <= self._pool.buffer_bytes
            return fits and (bool(self._pool.free) or bool(self._placement.buffer_for(probe)))

    def flush(self) -> None:
        """Wait until the channel has the bytes that were accepted before; they are not durable yet.

        Of a scattered object these are the complete parts.
        """
        with self._append, self._changed:
            self._check_open()
            self._failure.check()
            self._push_full()
            end = self._pushed
        while True:
            with self._changed:
                self._failure.check()
                self._check_open()
                if not any(buffer.number < end for buffer in (*self._queue, *self._writing)):
                    return
                if not self._queue or self._writing or self._thread is not None:
                    self._changed.wait()
                    continue
            self._write_next()

    def commit(self) -> int:
        """Flush, make the object complete and durable, and return its size in the channel."""
        with self._append, self._changed:
            self._check_writable()
            self._placement.check_whole()
            self._push_full()
            self._finished = True
        self.flush()
        with self._changed:
            self._failure.check()
            self._check_open()
            self._ending = True
        try:
            with self._copies.committing(self._placement.end):
                size: int = self._channel.commit()
            self._committed = True
        except BaseException as error:
            self._failure.keep(error)
            raise
        finally:
            with self._changed:
                self._ending = False
                self._changed.notify_all()
        self._join()
        return size

    def read(self, record: Record) -> bytes | None:
        """Return a verified copy of a record, from a buffer or from the channel.

        Works after a failure of the channel and after `commit`. Returns None if no buffer holds the
        record any more and there is no loader.

        Raises:
            CorruptionError: The bytes fail their checksum; other records are not affected.
        """
        with self._changed:
            self._check_open()
            known, buffer = self._map.get(record.offset, (record, None))
            if known != record or not 0 <= record.offset < record.end <= self._placement.end:
                raise InvalidInputError(
                    "no such record", offset=record.offset, end=self._placement.end
                )
            # Copied under the lock: the buffer may get other records right afterwards.
            data = None if buffer is None else buffer.read(record.offset)
            self._counters.hits += data is not None
            self._counters.misses += data is None
        if data is not None:
            return record.check(data)
        if self._load is None:
            return None
        with self._changed:
            self._counters.loads += 1
        return record.check(self._load(record.offset, record.end))

    def release_buffers(self) -> None:
        """Return the pool's buffers after `commit`; later reads use the loader."""
        with self._changed:
            self._check_open()
            if not self._committed:
                raise InvalidInputError("object is not durable", remedy="commit it first")
            self._let_go()

    def abort(self) -> None:
        """Discard an object that is not committed; a committed one stays. Never raises."""
        with self._changed:
            if self._committed:
                return
        self.close()

    def close(self) -> None:
        """End the service and return the buffers; an object that is not committed is aborted.

        Threads that wait in other calls get a ClosedError. Safe to repeat, never raises.
        """
        with self._changed:
            first, self._closed = not self._closed, True
            self._queue.clear()
            self._changed.notify_all()
            if first:
                while self._writing or self._ending:  # never abort a channel during a write
                    self._changed.wait()
                if not self._committed:
                    self._channel.abort()
                    self._copies.abort()
                self._let_go()
        self._join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The lock is held from here on.
    def _open_for(self, record: Record) -> Buffer:
        """Return an empty buffer for a record, after queueing the full one."""
        if self._push_full():
            self._start()
        buffer = self._wait_for_buffer()
        self._placement.opened(buffer, record)
        return buffer

    def _write_large(self, record: Record, view: BufferView, *, frozen: bool) -> None:
        """Queue a record that no buffer can hold; unless it is frozen, wait until it is written."""
        share = -(-record.length // self._pool.buffer_bytes)
        held_on_to = frozen and share <= self._pool.buffers
        large = Buffer(record.length)
        if self._push_full():
            self._start()
        while held_on_to and len(large.charged) < share:
            buffer = self._wait_for_buffer()
            buffer.reset(keep_memory=False)
            large.charged.append(buffer)
        large.write(record, view)
        self._counters.large_records += 1
        self._accept(record, large)
        self._push(large)
        self._start()
        while not held_on_to and large in (*self._queue, *self._writing):
            self._changed.wait()
            self._check_open()
            self._failure.check()

    def _accept(self, record: Record, buffer: Buffer) -> Buffer | None:
        self._map[record.offset] = record, buffer
        self._counters.accepted_records += 1
        self._counters.accepted_bytes += record.length
        return self._placement.added(record)

    def _push_full(self) -> bool:
        # Before a free buffer is taken: with a single buffer, this one must become free.
        full = self._placement.take_full()
        if full is not None:
            self._push(full)
        return full is not None

    def _push(self, buffer: Buffer) -> None:
        buffer.seal()
        buffer.number = self._pushed
        self._pushed += 1
        self._queue.append(buffer)
        self._changed.notify_all()

    def _wait_for_buffer(self) -> Buffer:
        waited = False
        while (buffer := self._take_free() or self._recycle()) is None:
            if not self._queue and not self._writing:
                # Waiting would not help: no write is under way, and the buffers can be written
                # only after more records, or freed when another service ends.
                raise InvalidInputError(
                    "the buffers are full of incomplete parts",
                    remedy="write records nearer each other, or take a larger pool",
                    part_bytes=self._pool.buffer_bytes,
                )
            self._counters.waits += not waited
            waited, started = True, time.monotonic()
            self._changed.wait()
            self._counters.wait_seconds += time.monotonic() - started
            self._check_writable()
        return buffer

    def _take_free(self) -> Buffer | None:
        buffer = self._pool.take()
        if buffer is not None:
            self._taken.add(buffer)
        return buffer

    def _recycle(self) -> Buffer | None:
        if not self._clean:
            return None
        buffer = self._clean.popleft()
        self._forget(buffer)
        buffer.reset()
        return buffer

    def _forget(self, buffer: Buffer) -> None:
        self._counters.buffers_evicted += 1
        self._counters.records_evicted += len(buffer.records)
        for offset in buffer.records:
            self._map.pop(offset, None)

    def _let_go(self) -> None:
        self._map.clear()
        self._clean.clear()
        while self._taken:
            self._give_back(self._taken.pop())

    def _give_back(self, buffer: Buffer) -> None:
        self._taken.discard(buffer)
        # A producer may still be encoding a record into the memory of this buffer.
        self._pool.give(buffer, keep_memory=buffer is not self._filling)

    # The lock is not held from here on.
    def _write_next(self) -> None:
        """Write the oldest buffer of the queue in this thread, if the channel can take it now."""
        with self._changed:
            self._failure.check()
            if not self._queue or (self._writing and self._placement.in_order):
                return
            buffer = self._queue.popleft()
            self._writing.append(buffer)
        started = time.monotonic()
        try:
            self._send(buffer)
        except BaseException as error:
            with self._changed:
                self._failure.keep(error)
                self._writing.remove(buffer)
                self._changed.notify_all()
            raise
        with self._changed:
            self._writing.remove(buffer)
            self._changed.notify_all()
            counters = self._counters
            counters.channel_writes += 1
            counters.channel_bytes += buffer.filled
            counters.write_seconds += time.monotonic() - started
            counters.scattered_writes += not self._placement.in_order
            if buffer not in self._taken:  # a large record
                for offset in buffer.records:
                    self._map.pop(offset, None)
                for charged in buffer.charged:
                    self._give_back(charged)
            elif self._placement.in_order:
                self._clean.append(buffer)
            else:
                self._forget(buffer)
                self._give_back(buffer)

    def _send(self, buffer: Buffer) -> None:
        def message() -> FlushedBuffer:
            records = tuple(buffer.records.values())
            return FlushedBuffer(buffer.number, buffer.base or 0, records, buffer.content())

        with self._copies.receiving(message):
            self._placement.send(buffer)

    def _start(self) -> None:
        """Start the thread that writes the queue; safe to repeat."""
        if self._thread is None:
            # A daemon: interpreter exit must not wait for an object that will not be committed.
            self._thread = threading.Thread(
                target=self._run, name="segstore-write-cache", daemon=True
            )
            self._thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                while (not self._queue or self._writing) and not self._is_over():
                    self._changed.wait()
                if self._is_over():
                    return
            with suppress(BaseException):  # `_failure` keeps it for all callers
                self._write_next()

    def _is_over(self) -> bool:
        ended = self._closed or self._failure.error is not None
        return ended or (self._finished and not self._queue)

    def _join(self) -> None:
        if self._thread not in (None, threading.current_thread()):
            self._thread.join()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("write cache service was closed") from self._failure.error

    def _check_writable(self) -> None:
        self._check_open()
        self._failure.check()
        if self._finished:
            raise ClosedError("object was committed, or is being committed")
