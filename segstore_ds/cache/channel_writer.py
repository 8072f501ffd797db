"""The channel writer: writes buffers to a channel, in order, in its own thread.

After the first failure nothing more is written, because the object may end in the middle of a
buffer. The failure is kept and raised to every later caller. The thread starts only when a caller
would have to wait, so an object of one buffer never needs one.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from segstore_ds.cache.channel import Channel
from segstore_ds.cache.counters import CacheCounters
from segstore_ds.cache.first_error import FirstError
from segstore_ds.cache.record import Record
from segstore_ds.cache.second_copy import FlushedBuffer, Observer
from segstore_ds.cache.views import BufferView
from segstore_ds.cache.write_cache import WriteCache
from segstore_ds.errors import ClosedError


@dataclass(slots=True, eq=False)
class LargeRecord:
    """A record that bypasses the buffers.

    `charged` holds the buffers whose share of memory the record uses until it is written.
    """

    record: Record
    view: BufferView
    charged: list[WriteCache]


Item = WriteCache | LargeRecord


class ChannelWriter:
    """Writes items in the order they are pushed.

    The caller holds the lock of `changed`, which the service shares, except for `drain`,
    `write_next`, `commit` and `join`. `written` is called under the lock with each item that the
    channel has taken. `second_copy` gets each item while the channel takes it.
    """

    def __init__(
        self,
        channel: Channel,
        changed: threading.Condition,
        written: Callable[[Item], None],
        *,
        second_copy: Observer | None,
        counters: CacheCounters,
    ) -> None:
        self.flushed = 0  # the channel has all bytes below
        self.committed = False
        self._channel = channel
        self._changed = changed
        self._written = written
        self._second_copy = second_copy
        self._counters = counters
        self._sequence = 0
        self._dirty: deque[Item] = deque()
        self._thread: threading.Thread | None = None
        self._busy = False  # a thread is using the channel, outside the lock
        self._ending = self._aborted = False
        self.failure = FirstError()

    @property
    def idle(self) -> bool:
        """True if an item waits and no thread is writing."""
        return bool(self._dirty) and not self._busy

    def push(self, item: Item) -> None:
        """Put an item at the end of the queue."""
        self._dirty.append(item)
        self._changed.notify_all()

    def start(self) -> None:
        """Start a thread that writes the queue; safe to repeat."""
        if self._thread is None:
            # A daemon: interpreter exit must not wait for an object that will not be committed.
            self._thread = threading.Thread(
                target=self._run, name="segstore-write-cache", daemon=True
            )
            self._thread.start()

    def drain(self, target: int) -> None:
        """Return once the channel has all bytes below `target`.

        Writes the items in this thread if the writer's own thread is not running. Raises
        ClosedError if the writer was aborted meanwhile.
        """
        while True:
            with self._changed:
                self.failure.check()
                if self._aborted:
                    raise ClosedError("write cache service was closed")
                if self.flushed >= target:
                    return
                if self._busy or self._thread is not None:
                    self._changed.wait()
                    continue
            self.write_next()

    def write_next(self) -> None:
        """Write the oldest item in this thread, unless the channel is busy or the queue is empty.

        A failure is kept in `failure`. Only a BaseException that is not an Exception, such as an
        interrupt, is raised.
        """
        with self._changed:
            if self._busy or not self._dirty:
                return
            item = self._dirty[0]
            self._busy = True
        started = time.monotonic()
        try:
            size = self._send(item)
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception) and threading.current_thread() is not self._thread:
                raise
            return
        with self._changed:
            self._busy = False
            # After an abort the queue is already empty.
            if self._dirty:
                self._dirty.popleft()
            self._counters.channel_writes += 1
            self._counters.channel_bytes += size
            self._counters.write_seconds += time.monotonic() - started
            self._sequence += 1
            self.flushed += size
            self._written(item)
            self._changed.notify_all()

    def commit(self) -> int:
        """Commit the channel and return the object's size; everything must be drained before.

        Raises ClosedError if the writer was aborted meanwhile.
        """
        with self._changed:
            self.failure.check()
            if self._aborted:
                raise ClosedError("write cache service was closed")
            self._ending = self._busy = True
            self._changed.notify_all()
        try:
            size = self._channel.commit()
        except BaseException as error:
            self._fail(error)
            raise
        with self._changed:
            self.committed = True
            self._busy = False
            self._changed.notify_all()
        return size

    def abort(self) -> None:
        """Drop the queue, wait for a write in progress, and abort the channel."""
        self._aborted = True
        self._dirty.clear()
        self._changed.notify_all()
        while self._busy:
            self._changed.wait()
        if not self.committed:
            self._channel.abort()

    def join(self) -> None:
        """Wait for the thread to end, after `commit` or `abort`."""
        if self._thread not in (None, threading.current_thread()):
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._busy or not self._dirty:
                    if self._over():
                        return
                    self._changed.wait()
                if self._over():
                    return
            self.write_next()

    def _over(self) -> bool:
        return self._aborted or self.failure.error is not None or (self._ending and not self._dirty)

    def _send(self, item: Item) -> int:
        view: BufferView = item.content() if isinstance(item, WriteCache) else item.view
        if self._second_copy is None:
            self._put(item)
        else:
            sent = self._second_copy(FlushedBuffer.of(view, self._sequence, self.flushed))
            try:
                self._put(item)
            finally:
                # Whatever happened: the buffer's memory is used again.
                sent()
        return view.length

    def _put(self, item: Item) -> None:
        if isinstance(item, WriteCache):
            item.flush(self._channel)
        else:
            self._channel.write_all(list(item.view.buffers()))

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._busy = False
            self.failure.keep(error)
            self._changed.notify_all()
