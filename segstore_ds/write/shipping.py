"""Shipping: every buffer of a staged segment goes to the followers while the segment is written.

A message names stream, object, place and checksum; the receiver computes the checksum anew and
takes a message only where the one before it ended, so that what it commits is the object byte for
byte, or nothing. The commit then finds its segments in the followers and reads none of them again.

Buffers are shipped in the writing thread, after the primary's storage took them: a follower that is
slow slows the writer down, and memory stays that of the buffers. One that fails, or refuses, is
given up for the rest of the object and nothing of it stays there. That is no failure of the write:
the commit ships whatever has not arrived, or says that it could not.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from segstore_ds.cache.second_copy import FlushedBuffer
from segstore_ds.commit.replicas import ShipTo
from segstore_ds.errors import CorruptionError, FormatError, InvalidInputError, StorageError
from segstore_ds.storage import StagedWriter, Storage

_LOG = logging.getLogger(__name__)
_GIVEN_UP_ON = (StorageError, FormatError, InvalidInputError)


@dataclass(frozen=True, slots=True)
class BufferMessage:
    """One buffer on its way to a follower.

    Attributes:
        stream_id: The stream that the object belongs to.
        path: The object.
        buffer: Its number, place, size, checksum and bytes.
    """

    stream_id: str
    path: str
    buffer: FlushedBuffer


class Receiver:
    """One object on its way into a follower's folder, taken message by message.

    Args:
        storage: The follower's folder.
        stream_id: The stream that the folder holds.
        path: The object.
    """

    def __init__(self, storage: Storage, stream_id: str, path: str) -> None:
        self._storage = storage
        self._stream_id = stream_id
        self._path = path
        self._writer: StagedWriter | None = None
        self._sequence = self._size = 0

    @property
    def url(self) -> str:
        """The follower's location."""
        return self._storage.url

    def receive(self, message: BufferMessage) -> None:
        """Take the next buffer.

        Raises:
            CorruptionError: It is of another stream or object, is damaged, or leaves a gap to the
                one before or overlaps it; nothing of it was taken.
            StorageError: The storage failed.
        """
        buffer = message.buffer
        actual = buffer.payload.crc32()
        expected = (self._stream_id, self._path, self._sequence, self._size)
        found = (message.stream_id, message.path, buffer.sequence, buffer.start)
        damaged = actual != buffer.checksum or buffer.payload.length != buffer.size
        if found != expected or damaged or buffer.compressor is not None:
            raise CorruptionError(
                "a follower refuses a buffer",
                follower=self.url,
                path=message.path,
                expected=(*expected, buffer.checksum),
                found=(*found, actual),
            )
        if self._writer is None:
            self._writer = self._storage.open_staged(self._path)
        self._writer.write_all(list(buffer.payload.buffers()))
        self._sequence += 1
        self._size += buffer.size

    def finish(self, size: int) -> None:
        """Make the object whole and durable.

        Args:
            size: Its size in the primary.

        Raises:
            CorruptionError: Not all of it has arrived.
            StorageError: The storage failed; it is not known to be whole.
        """
        if self._writer is None or self._size != size:
            raise CorruptionError(
                "not all of an object has arrived",
                follower=self.url,
                path=self._path,
                expected=size,
                found=self._size,
            )
        self._writer.commit()

    def abort(self) -> None:
        """Give the object up; never raises, safe to repeat."""
        if self._writer is not None:
            self._writer.abort()


class Shipment:
    """One segment object on its way to all followers. Used by one thread at a time.

    Args:
        to: The followers.
        storage: The primary's folder, with whose options followers are opened.
        path: The object.
    """

    def __init__(self, to: ShipTo, storage: Storage, path: str) -> None:
        self._to = to
        self._path = path
        self._receivers: list[Receiver] = []
        for url in to.followers:
            try:
                receiver = Receiver(storage.sibling(url), to.stream_id, path)
            except InvalidInputError as error:
                _LOG.warning("follower %s can't be opened here: %s", url, error)
                continue
            self._receivers.append(receiver)

    def send(self, buffer: FlushedBuffer) -> None:
        """Send one buffer to every follower that has taken those before it."""
        message = BufferMessage(self._to.stream_id, self._path, buffer)
        self._each(lambda receiver: receiver.receive(message))

    def finish(self, size: int) -> tuple[str, ...]:
        """Finish the object everywhere.

        Args:
            size: Its size in the primary.

        Returns:
            The followers that hold all of it.
        """
        self._each(lambda receiver: receiver.finish(size))
        there = tuple(receiver.url for receiver in self._receivers)
        self._receivers = []
        return there

    def abort(self) -> None:
        """Give the object up everywhere; never raises, safe to repeat."""
        for receiver in self._receivers:
            receiver.abort()
        self._receivers = []

    def _each(self, work: Callable[[Receiver], None]) -> None:
        for receiver in tuple(self._receivers):
            try:
                work(receiver)
            except _GIVEN_UP_ON as error:
                self._receivers.remove(receiver)
                receiver.abort()
                _LOG.warning(
                    "follower %s did not get all of %s, and the commit will ship it: %s",
                    receiver.url,
                    self._path,
                    error,
                )
