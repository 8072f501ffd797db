"""The write cache: one buffer that gathers records and is written to the channel in one write.

Append-only layout: records lie side by side, so the buffer's bytes are the object's bytes. The
checksum of each record is in the record map, not among the bytes. Records come in the order of
their offsets, which the caller ensures. Small records are copied into the buffer's own memory.
Large ones are held by reference if their owner promises not to change them: they still count
against the capacity, and the write gathers them without a copy.

Source: Blazegraph's WriteCache, append-only (WORM) mode; held references and gathering writes
replace its direct buffers.
"""

import mmap

from segstore_ds.cache.buffer import Buffer
from segstore_ds.cache.channel import Channel
from segstore_ds.cache.composite import join
from segstore_ds.cache.views import BufferView, ByteArraySegment
from segstore_ds.errors import InvalidInputError

REFERENCE_BYTES = 16 << 10  # a smaller record is cheaper to copy than to write as a separate piece


class WriteCache(Buffer[Channel]):
    """A buffer of records side by side; its memory is allocated when the first one is copied."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._memory: ByteArraySegment | None = None
        self._copied = 0
        self._piece_start: int | None = None  # start of the last piece if that is a copy
        self._pieces: list[BufferView] = []

    def _lay(self, offset: int, nbytes: int) -> int:
        due = next(iter(self._records)) + self._bytes if self._records else offset
        if offset != due:
            raise InvalidInputError(
                "record does not start where the previous one ends", offset=offset, expected=due
            )
        return nbytes

    def _hold(self, offset: int, view: BufferView, *, frozen: bool) -> BufferView:
        del offset  # it follows from the order
        if frozen and view.length >= REFERENCE_BYTES:
            self._pieces.append(view)
            self._piece_start = None
            return view
        memory = self._allocated()
        view.copy_to(memory.slice(self._copied, self._copied + view.length))
        return self._keep(memory, view.length)

    def _content(self) -> BufferView:
        return join(self._pieces)

    def _write_to(self, channel: Channel) -> None:
        channel.write_all(list(self.content().buffers()))

    def _allocated(self) -> ByteArraySegment:
        if self._memory is None:
            # Pages of an anonymous map use no memory until they are touched.
            self._memory = ByteArraySegment(mmap.mmap(-1, self._capacity), writable=True)
        return self._memory

    def _keep(self, memory: ByteArraySegment, nbytes: int) -> ByteArraySegment:
        """Return a view of the bytes just copied, added to the last piece if that is a copy."""
        start = self._copied
        self._copied += nbytes
        view = ByteArraySegment(memory.data, start, self._copied)
        if self._piece_start is None:
            self._piece_start = start
            self._pieces.append(view)
        else:
            self._pieces[-1] = ByteArraySegment(memory.data, self._piece_start, self._copied)
        return view

    def _free(self) -> None:
        self._memory = None

    def _clear(self) -> None:
        super()._clear()
        self._pieces = []
        self._copied = 0
        self._piece_start = None
