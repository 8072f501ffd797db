"""Shipping: followers receive every buffer of a staged segment while the segment is written.

A message carries stream, object, position and records. The receiver rebuilds the record map from
the bytes, checks every record, and accepts a message only at the position where the previous one
ended, so it commits the object byte for byte, or nothing. The commit then finds its segments in the
followers and does not read them again.

A buffer goes to the primary and to every follower at the same time, and so does the end of the
object. The next buffer waits for all of them: a slow follower slows the writer down, and memory is
bounded by the buffers. A follower that fails or refuses is skipped for the rest of the object, and
its partial object is discarded. The write does not fail: the commit ships what is missing, or
reports that it could not.

A follower may therefore hold a whole object that the primary failed to write. No commit names it,
and vacuum deletes it.
"""

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from segstore_ds.cache.buffer import Buffer
from segstore_ds.cache.channel import FlushedBuffer
from segstore_ds.errors import CorruptionError, FormatError, InvalidInputError, StorageError
from segstore_ds.log.clock import SYSTEM_CLOCK
from segstore_ds.replication.follower import Follower, agreed
from segstore_ds.storage import StagedWriter, Storage

_LOG = logging.getLogger(__name__)
_GIVEN_UP_ON = (StorageError, FormatError, InvalidInputError)


@dataclass(frozen=True, slots=True)
class FollowerMirrors:
    """Followers that receive what is staged, or that are read if it is damaged here; picklable."""

    stream_id: str
    version: int
    urls: tuple[str, ...]

    def open(self, storage: Storage, path: str) -> "Shipment":
        """Begin an object that is staged in the stream's folder."""
        return Shipment(self, storage, path)

    def folders(self, storage: Storage) -> Iterator[Storage]:
        """Yield the folders of those that say themselves that they follow the stream's."""
        found = (Follower(storage.sibling(url), SYSTEM_CLOCK, of=storage.url) for url in self.urls)
        return (one.storage for one in agreed(found, self.stream_id, self.version))


@dataclass(frozen=True, slots=True)
class BufferMessage:
    """One buffer of an object (number, position, records, bytes), sent to a follower."""

    stream_id: str
    path: str
    buffer: FlushedBuffer


class Receiver:
    """Receives one object into a follower's folder, message by message."""

    def __init__(self, storage: Storage, stream_id: str, path: str) -> None:
        self._storage = storage
        self.url = storage.url
        self._stream_id = stream_id
        self._path = path
        self._writer: StagedWriter | None = None
        self._sequence = self._size = 0

    def receive(self, message: BufferMessage) -> None:
        """Write the next buffer.

        Raises:
            CorruptionError: The buffer is of another stream or object, does not start where the
                previous one ended, or holds a damaged record. Nothing was written.
        """
        buffer = message.buffer
        expected = (self._stream_id, self._path, self._sequence, self._size)
        found = (message.stream_id, message.path, buffer.sequence, buffer.start)
        if found != expected:
            raise CorruptionError(
                "a follower refuses a buffer", follower=self.url, expected=expected, found=found
            )
        received = Buffer.received(buffer.start, buffer.records, buffer.payload)
        if self._writer is None:
            self._writer = self._storage.open_staged(self._path)
        self._writer.write_all(list(buffer.payload.buffers()))
        self._sequence += 1
        self._size += received.filled

    def finish(self, size: int) -> None:
        """Make the object durable, or raise CorruptionError if its size is not the primary's."""
        if self._writer is None or self._size != size:
            raise CorruptionError(
                "an object has not arrived completely",
                follower=self.url,
                path=self._path,
                expected=size,
                found=self._size,
            )
        self._writer.commit()

    def abort(self) -> None:
        """Discard the object; never raises, safe to repeat."""
        if self._writer is not None:
            self._writer.abort()


class Shipment:
    """Sends one segment object to all followers at once. Used by one thread at a time.

    Followers are opened with the options of `storage`, the primary's folder.
    """

    def __init__(self, to: FollowerMirrors, storage: Storage, path: str) -> None:
        self._to = to
        self._path = path
        self._receivers: list[Receiver] = []
        for url in to.urls:
            try:
                receiver = Receiver(storage.sibling(url), to.stream_id, path)
            except InvalidInputError as error:
                _LOG.warning("follower %s can't be opened here: %s", url, error)
                continue
            self._receivers.append(receiver)
        self._threads = ThreadPoolExecutor(max(len(self._receivers), 1), "segstore-ship")

    def send(self, buffer: FlushedBuffer) -> Callable[[], None]:
        """Begin to send one buffer to every follower that accepted all earlier ones.

        Returns what waits until it is sent, which has to be called before anything else is.
        """
        message = BufferMessage(self._to.stream_id, self._path, buffer)
        return self._begin(lambda receiver: receiver.receive(message))

    def finish(self, size: int) -> Callable[[], tuple[str, ...]]:
        """Begin to finish the object of `size` bytes.

        Returns what waits for that and returns the followers that acknowledged the whole object.
        """
        wait = self._begin(lambda receiver: receiver.finish(size))

        def acknowledged() -> tuple[str, ...]:
            wait()
            there = tuple(receiver.url for receiver in self._receivers)
            self._end()
            return there

        return acknowledged

    def abort(self) -> None:
        """Discard the object in every follower; never raises, safe to repeat."""
        for receiver in self._receivers:
            receiver.abort()
        self._end()

    def _end(self) -> None:
        self._receivers = []
        self._threads.shutdown()

    def _begin(self, work: Callable[[Receiver], None]) -> Callable[[], None]:
        begun = [(each, self._threads.submit(work, each)) for each in self._receivers]

        def wait() -> None:
            for receiver, future in begun:
                try:
                    future.result()
                except _GIVEN_UP_ON as error:
                    self._receivers.remove(receiver)
                    receiver.abort()
                    _LOG.warning(
                        "follower %s did not get all of %s, and the commit will ship it: %s",
                        receiver.url,
                        self._path,
                        error,
                    )

        return wait
