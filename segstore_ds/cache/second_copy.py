"""The hook for a second copy: every flushed buffer as a message with its payload."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from segstore_ds.cache.views import BufferView, ByteArraySegment


class Compressor(Protocol):
    """Compresses the second copy; the object's own bytes stay unchanged."""

    name: str

    def compress(self, data: BufferView) -> bytes:
        """Return the compressed bytes in one piece."""


@dataclass(frozen=True, slots=True)
class FlushedBuffer:
    """A buffer or large record that the channel has just taken.

    Attributes:
        sequence: Its number, dense from 0; empty buffers take none.
        start: Position of its first byte in the object.
        size: Bytes in the object.
        checksum: CRC-32 of `payload`, compressed or not.
        compressor: Name of the compressor; None if `payload` is plain.
        payload: Its bytes, not copied; valid only during the call.
    """

    sequence: int
    start: int
    size: int
    checksum: int
    compressor: str | None
    payload: BufferView


Observer = Callable[[FlushedBuffer], None]


class SecondCopy:
    """Passes flushed buffers to an observer, compressed if there is a compressor.

    The observer is called in the writing thread, in order. Its exceptions count as failures of the
    channel.
    """

    def __init__(self, observer: Observer, compressor: Compressor | None = None) -> None:
        self._observer = observer
        self._compressor = compressor

    def send(self, view: BufferView, *, sequence: int, start: int) -> None:
        """Pass one buffer to the observer."""
        payload, name = view, None
        if self._compressor is not None:
            payload = ByteArraySegment(self._compressor.compress(view))
            name = self._compressor.name
        checksum = payload.crc32()
        self._observer(FlushedBuffer(sequence, start, view.length, checksum, name, payload))
