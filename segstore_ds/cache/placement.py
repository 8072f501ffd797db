"""The placements: where the next record of an object lies, and which buffer is full by it.

Pure bookkeeping, under the lock of the service.

Source: the two modes of Blazegraph's WriteCacheService, append-only (WORM) and scattered (RW).
"""

from segstore_ds.cache.buffer import LAST_OFFSET, Buffer, Record
from segstore_ds.cache.channel import Channel, ScatteredChannel
from segstore_ds.errors import InvalidInputError

_MOST_NAMED = 4


class Dense:
    """Records lie side by side in the order in which they come, and are written in that order."""

    in_order = True

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.end = 0  # the offset of the next record
        self.open: Buffer | None = None

    def place(self, at: int | None, length: int) -> int:
        """Return the offset of a new record."""
        if at is not None or not 0 < length <= LAST_OFFSET - self.end:
            raise InvalidInputError(
                "record is empty, ends after the last offset, or has an offset of its own",
                bytes=length,
                offset=self.end if at is None else at,
            )
        return self.end

    def buffer_for(self, record: Record) -> Buffer | None:
        """Return the buffer that takes the record; None if it needs another one."""
        return self.open if self.open is not None and self.open.room >= record.length else None

    def take_full(self) -> Buffer | None:
        """Return the buffer that has to be written before another one is opened."""
        if self.open is None or not self.open.filled:
            return None
        full, self.open = self.open, None
        return full

    def opened(self, buffer: Buffer, record: Record) -> None:
        """Note an empty buffer for this and later records."""
        del record
        self.open = buffer

    def added(self, record: Record) -> Buffer | None:
        """Note a record; no buffer is known to be full before the next one comes."""
        self.end = record.end
        return None

    def check_whole(self) -> None:
        """Raise InvalidInputError if bytes of the object are missing."""

    def send(self, buffer: Buffer) -> None:
        """Write a buffer to the channel, without the lock."""
        self._channel.write_all(list(buffer.content().buffers()))


class Scattered:
    """Records come in any order; each lies in one of the parts that the object is cut into.

    A part is as large as a buffer, and is written once it is whole. A record of the same range
    replaces an earlier one; if its part was written, the part has to become whole again. An object
    with a hole can't be committed.
    """

    in_order = False

    def __init__(self, channel: ScatteredChannel, size: int, part_bytes: int) -> None:
        if size < 1:
            raise InvalidInputError("an object needs at least one byte", size=size)
        self._channel = channel
        self.end = size
        self._part_bytes = part_bytes
        self._open: dict[int, Buffer] = {}
        self._missing = set(range(-(-size // part_bytes)))  # parts that are not whole

    def place(self, at: int | None, length: int) -> int:
        """Return the offset of a new record, which lies inside one part."""
        start = 0 if at is None else at
        part = start // self._part_bytes
        if at is None or not 0 <= at < at + length <= min(self._end_of(part), self.end):
            raise InvalidInputError(
                "record is empty or not inside one part of the object",
                offset=at,
                bytes=length,
                part_bytes=self._part_bytes,
                size=self.end,
            )
        return start

    def buffer_for(self, record: Record) -> Buffer | None:
        """Return the buffer of the record's part, or None; refuse a record over another one."""
        buffer = self._open.get(record.offset // self._part_bytes)
        for other in buffer.records.values() if buffer else ():
            same = (other.offset, other.length) == (record.offset, record.length)
            if not same and other.offset < record.end and record.offset < other.end:
                raise InvalidInputError(
                    "record lies over another one of a different range", offset=record.offset
                )
        return buffer

    def take_full(self) -> Buffer | None:
        """Return None: a part is written when it is whole, and not before."""
        return None

    def opened(self, buffer: Buffer, record: Record) -> None:
        """Note an empty buffer for the record's part."""
        part = record.offset // self._part_bytes
        buffer.base = part * self._part_bytes
        self._open[part] = buffer
        self._missing.add(part)

    def added(self, record: Record) -> Buffer | None:
        """Note a record; return the buffer of its part if that is whole now."""
        part = record.offset // self._part_bytes
        buffer = self._open[part]
        if buffer.end < min(self._end_of(part), self.end):
            return None
        del self._open[part]
        self._missing.discard(part)
        return buffer

    def check_whole(self) -> None:
        """Raise InvalidInputError if parts are missing."""
        if self._missing:
            first = sorted(self._missing)[:_MOST_NAMED]
            raise InvalidInputError(
                "an object has holes",
                missing=[
                    (part * self._part_bytes, min(self._end_of(part), self.end)) for part in first
                ],
                parts=len(self._missing),
            )

    def send(self, buffer: Buffer) -> None:
        """Write a part to the channel, without the lock."""
        self._channel.write_at(buffer.base or 0, list(buffer.content().buffers()))

    def _end_of(self, part: int) -> int:
        return (part + 1) * self._part_bytes
