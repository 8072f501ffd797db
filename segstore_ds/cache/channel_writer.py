"""The channel writer: puts buffers on a channel, in order, in a thread of its own.

The first failure is the last: it is kept, raised to whoever comes later, and nothing is written
behind it, since the object may end in the middle of a buffer. The thread is started only when
somebody would have to wait, so an object of one buffer never costs one.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from segstore_ds.cache.channel import Channel
from segstore_ds.cache.counters import CacheCounters
from segstore_ds.cache.first_error import FirstError
from segstore_ds.cache.record import Record
from segstore_ds.cache.second_copy import SecondCopy
from segstore_ds.cache.views import BufferView
from segstore_ds.cache.write_cache import WriteCache
from segstore_ds.errors import ClosedError


@dataclass(slots=True, eq=False)
class LargeRecord:
    """A record on its way past the buffers.

    Attributes:
        record: Its place.
        view: Its bytes.
        charged: The buffers whose share of memory it takes while it is on its way.
    """

    record: Record
    view: BufferView
    charged: list[WriteCache]


Item = WriteCache | LargeRecord


class ChannelWriter:
    """Writes items in the order they are pushed.

    Methods are called with the lock of `changed` held, but for `drain`, `write_next`, `commit` and
    `join`.

    Args:
        channel: Takes the bytes.
        changed: Lock and signal, shared with the service.
        written: Called under the lock with each item that the channel has taken.
        second_copy: Gets each item after the channel.
        counters: Where to count.
        start: Place of the first byte.
        now: A clock in seconds.
    """

    def __init__(
        self,
        channel: Channel,
        changed: threading.Condition,
        written: Callable[[Item], None],
        *,
        second_copy: SecondCopy | None,
        counters: CacheCounters,
        start: int,
        now: Callable[[], float],
    ) -> None:
        self.flushed = start  # the channel has all below
        self.committed = False
        self._channel = channel
        self._changed = changed
        self._written = written
        self._second_copy = second_copy
        self._counters = counters
        self._now = now
        self._sequence = 0
        self._dirty: deque[Item] = deque()
        self._thread: threading.Thread | None = None
        self._busy = False  # somebody is using the channel, outside the lock
        self._ending = self._aborted = False
        self.failure = FirstError()

    @property
    def idle(self) -> bool:
        """True when an item waits and nobody is writing."""
        return bool(self._dirty) and not self._busy

    def push(self, item: Item) -> None:
        """Put an item at the end of the queue."""
        self._dirty.append(item)
        self._changed.notify_all()

    def start(self) -> None:
        """Have a thread write the queue; safe to repeat."""
        if self._thread is None:
            # A daemon: an interpreter that ends must not wait for an object nobody will commit.
            self._thread = threading.Thread(
                target=self._run, name="segstore-write-cache", daemon=True
            )
            self._thread.start()

    def drain(self, target: int, timeout_s: float | None = None) -> bool:
        """Return once the channel has all bytes below a place; write them here if no thread does.

        Returns:
            False when the time was over first.

        Raises:
            StorageError: The channel failed, now or before.
            ClosedError: The writer was aborted meanwhile.
        """
        deadline = None if timeout_s is None else self._now() + timeout_s
        while True:
            with self._changed:
                self.failure.check()
                if self._aborted:
                    raise ClosedError("write cache service was closed")
                if self.flushed >= target:
                    return True
                left = None if deadline is None else deadline - self._now()
                if left is not None and left <= 0:
                    return False
                if left is not None:
                    self.start()
                if self._busy or self._thread is not None:
                    self._changed.wait(left)
                    continue
            self.write_next()

    def write_next(self) -> None:
        """Write the oldest item here, unless the channel is in use or nothing waits.

        A failure is kept in `failure`; only what is no error, such as an interrupt, is raised.
        """
        with self._changed:
            if self._busy or not self._dirty:
                return
            item = self._dirty[0]
            self._busy = True
        started = self._now()
        try:
            size = self._send(item)
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception) and threading.current_thread() is not self._thread:
                raise
            return
        with self._changed:
            self._busy = False
            # Not there any more after an abort.
            if self._dirty:
                self._dirty.popleft()
            self._counters.channel_writes += 1
            self._counters.channel_bytes += size
            self._counters.write_seconds += self._now() - started
            self._sequence += 1
            self.flushed += size
            self._written(item)
            self._changed.notify_all()

    def commit(self) -> int:
        """Commit the channel, once everything is drained and nothing more will come.

        Raises:
            StorageError: The channel failed, now or before.
            ClosedError: The writer was aborted meanwhile.
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
        """Forget what is not written, wait for a write under way, and abort the channel."""
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
        if isinstance(item, WriteCache):
            item.flush(self._channel)
            view: BufferView = item.content()
        else:
            view = item.view
            self._channel.write_all(list(view.buffers()))
        if self._second_copy is not None:
            self._second_copy.send(view, sequence=self._sequence, start=self.flushed)
        return view.length

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._busy = False
            self.failure.keep(error)
            self._changed.notify_all()
