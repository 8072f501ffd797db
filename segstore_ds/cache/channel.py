"""The channels of a write cache: one object, and its copies that are written at the same time."""

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from segstore_ds.cache.buffer import Record
from segstore_ds.cache.views import BufferView
from segstore_ds.errors import FormatError, InvalidInputError, StorageError

_LOG = logging.getLogger(__name__)
_GIVEN_UP_ON = (StorageError, FormatError, InvalidInputError)


class Channel(Protocol):
    """Takes the bytes of one object, in order.

    After a failure only `abort` may be called: the object may end in the middle of a buffer.
    """

    def write_all(self, pieces: Sequence[memoryview]) -> None:
        """Append pieces as one write; their memory may be reused once it returns."""

    def commit(self) -> int:
        """Make the object whole and durable, and return its size.

        After a StorageError the object may be incomplete.
        """

    def abort(self) -> None:
        """Discard the object; never raises, safe to repeat."""


class ScatteredChannel(Protocol):
    """Takes the parts of one object in any order, from several threads."""

    def write_at(self, start: int, pieces: Sequence[memoryview]) -> None:
        """Write pieces side by side as one write; what lay there before is replaced."""

    def commit(self) -> int:
        """Make the object whole and durable, and return its size."""

    def abort(self) -> None:
        """Discard the object; never raises, safe to repeat."""


@dataclass(frozen=True, slots=True)
class FlushedBuffer:
    """A buffer on its way to the channel, as the channels of copies get it."""

    sequence: int  # its number, dense from 0; empty buffers take none
    start: int  # position of its first byte in the object
    # The records that it consists of, side by side, each with its checksum.
    records: tuple[Record, ...]
    payload: BufferView  # its bytes, not copied; valid until the channel has returned


class CopyChannel(Protocol):
    """Takes a copy of the object, buffer by buffer, each from its own thread."""

    url: str  # where the copy is

    def receive(self, buffer: FlushedBuffer) -> None:
        """Write the next buffer."""

    def commit(self, size: int) -> None:
        """Make the copy whole and durable; an error if it has another size."""

    def abort(self) -> None:
        """Discard the copy; never raises, safe to repeat."""


class Copies:
    """The channels of an object's copies, which take each buffer while its own channel does.

    The next buffer waits for all of them: a slow copy slows the writer down, and memory is bounded
    by the buffers. A channel that fails or refuses is left out from then on, and its copy is
    discarded; the object does not fail.
    """

    def __init__(self, channels: Sequence[CopyChannel]) -> None:
        self._channels = list(channels)
        self._threads = ThreadPoolExecutor(len(channels), "segstore-copies") if channels else None
        self.whole: tuple[str, ...] = ()  # the folders that have all of a committed object

    @contextmanager
    def receiving(self, message: Callable[[], FlushedBuffer]) -> Iterator[None]:
        """Send a buffer to all channels during the block; leaving it waits for them."""
        if not self._channels:
            yield
            return
        buffer = message()
        with self._each(lambda channel: channel.receive(buffer)):
            yield

    @contextmanager
    def committing(self, size: int) -> Iterator[None]:
        """Commit all copies during the block; leaving it waits, and ends the threads."""
        try:
            with self._each(lambda channel: channel.commit(size)):
                yield
        finally:
            self.whole = tuple(channel.url for channel in self._channels)
            self._end()

    def abort(self) -> None:
        """Discard the copies that are not committed; never raises, safe to repeat."""
        for channel in self._channels:
            channel.abort()
        self._end()

    def _end(self) -> None:
        self._channels = []
        if self._threads is not None:
            self._threads.shutdown()

    @contextmanager
    def _each(self, work: Callable[[CopyChannel], None]) -> Iterator[None]:
        begun = [(each, self._begin(work, each)) for each in self._channels]
        try:
            yield
        finally:
            # Whatever happened: the buffer's memory is used again.
            for channel, end in begun:
                try:
                    end()
                except _GIVEN_UP_ON as error:
                    self._channels.remove(channel)
                    channel.abort()
                    _LOG.warning("%s did not get all of an object: %s", channel.url, error)

    def _begin(
        self, work: Callable[[CopyChannel], None], channel: CopyChannel
    ) -> Callable[[], None]:
        """Begin work in a thread, and return what ends it: all of it where no thread can start."""
        if self._threads is not None:
            with suppress(RuntimeError):  # the process ends
                return self._threads.submit(work, channel).result
        return partial(work, channel)
