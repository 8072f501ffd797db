"""The scattered cache: a buffer of records that have positions of their own and come in any order.

A record of the same range replaces the first until the buffer is sealed. A flush sorts by position,
joins neighbours, and makes one write per run. `move` packs records of sparse buffers into another
one. Records are held by reference if their owner promises not to change them, and copied otherwise,
so packing and joining copy nothing.

Source: Blazegraph's WriteCache, scattered (RW) mode, and its compaction of buffers; a sorted join
replaces its prefixes, and dropping a reference replaces its deleted records.
"""

from bisect import bisect_left, insort

from segstore_ds.cache.buffer import Buffer
from segstore_ds.cache.channel import ScatteredChannel
from segstore_ds.cache.composite import join
from segstore_ds.cache.views import BufferView, ByteArraySegment
from segstore_ds.errors import InvalidInputError


class ScatteredCache(Buffer[ScatteredChannel]):
    """A buffer of records at any positions, none over another."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._offsets: list[int] = []  # sorted

    def runs(self) -> list[tuple[int, BufferView]]:
        """Return the neighbouring records joined, each with its position, in order."""
        with self._changed:
            self._check_open()
            found: list[tuple[int, list[BufferView]]] = []
            end = None
            for offset in self._offsets:
                if offset != end:
                    found.append((offset, []))
                found[-1][1].append(self._views[offset])
                end = self._records[offset].end
            return [(start, join(views)) for start, views in found]

    def move(self, target: "ScatteredCache", start: int, end: int) -> int:
        """Move the records that begin in `[start, end)` to another buffer; return their number.

        Nothing is copied and no checksum computed again. Reads in progress keep what they read.
        Nothing moves, and InvalidInputError is raised, if the target has no room for all of them.
        """
        with self._changed:
            self._check_open()
            low, high = (bisect_left(self._offsets, bound) for bound in (start, end))
            moved = [self._records[offset] for offset in self._offsets[low:high]]
            size = sum(record.length for record in moved)
            if self._sealed or size > target.room:
                raise InvalidInputError(
                    "records do not fit into the other buffer", bytes=size, room=target.room
                )
            for record in moved:
                target.write(record.offset, self._views[record.offset], record.crc, frozen=True)
                del self._records[record.offset], self._views[record.offset]
            del self._offsets[low:high]
            self._bytes -= size
            return len(moved)

    def _lay(self, offset: int, nbytes: int) -> int:
        known = self._records.get(offset)
        if known is not None and known.length == nbytes:
            return 0
        place = bisect_left(self._offsets, offset)
        behind = self._offsets[place] if place < len(self._offsets) else offset + nbytes
        before = self._records[self._offsets[place - 1]].end if place else offset
        if known is not None or behind < offset + nbytes or before > offset:
            raise InvalidInputError(
                "record lies over another one of a different range", offset=offset, bytes=nbytes
            )
        return nbytes

    def _hold(self, offset: int, view: BufferView, *, frozen: bool) -> BufferView:
        if offset not in self._records:
            insort(self._offsets, offset)
        return view if frozen else ByteArraySegment(view.copy())

    def _content(self) -> BufferView:
        return join(self._views[offset] for offset in self._offsets)

    def _write_to(self, channel: ScatteredChannel) -> None:
        for start, view in self.runs():
            channel.write_at(start, list(view.buffers()))

    def _clear(self) -> None:
        super()._clear()
        self._offsets = []
