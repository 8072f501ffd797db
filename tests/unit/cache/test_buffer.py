"""The buffer: records, checksums, every size around its capacity, and what a receiver rebuilds."""

import random
import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore_ds.cache.buffer import LAST_OFFSET, Buffer, Record
from segstore_ds.cache.views import as_view, join
from segstore_ds.errors import ClosedError, CorruptionError, InvalidInputError

CAPACITY = 256
BORDERS = [0, 1 << 31, (1 << 31) - 32, (1 << 32) - 1, 1 << 32, LAST_OFFSET - CAPACITY]


def put(buffer: Buffer, offset: int, data: bytes) -> bool:
    """Write a record with the checksum of its bytes."""
    return buffer.write(Record(offset, len(data), zlib.crc32(data)), as_view(data))


def lay(buffer: Buffer, offset: int, data: bytes) -> bool:
    """Lay a record into the buffer's memory, with the checksum of its bytes."""
    memory = buffer.allocate(offset, len(data))
    if memory is None:
        return False
    memory[:] = data
    buffer.accept(Record(offset, len(data), zlib.crc32(data)))
    return True


def filled(*records: bytes, base: int = 0) -> Buffer:
    """Return a buffer of records side by side."""
    buffer = Buffer(CAPACITY)
    for record in records:
        assert put(buffer, base, record)
        base += len(record)
    return buffer


@pytest.mark.parametrize("base", BORDERS)
def test_buffer_bytes_are_the_objects_bytes(base):
    buffer = filled(b"one", b"three", b"x", base=base)
    assert buffer.content().copy() == b"onethreex"
    assert list(buffer.records) == [base, base + 3, base + 8]
    assert [buffer.read(base + place) for place in (0, 3, 8)] == [b"one", b"three", b"x"]
    assert [record.end - base for record in buffer.records.values()] == [3, 8, 9]
    assert (buffer.read(base + 1), buffer.end) == (None, base + 9)


@pytest.mark.parametrize("size", [0, CAPACITY + 1, CAPACITY + 4, 10 * CAPACITY])
def test_nothing_and_more_than_the_capacity_are_refused(size):
    buffer = filled(b"abc")
    with pytest.raises(InvalidInputError, match="larger than the buffer"):
        put(buffer, 3, bytes(size))
    assert buffer.content().copy() == b"abc"


@pytest.mark.parametrize("offset", [-1, LAST_OFFSET, LAST_OFFSET - 2, 1 << 64])
def test_an_offset_out_of_range_is_refused(offset):
    buffer = Buffer(CAPACITY)
    with pytest.raises(InvalidInputError, match="not inside an object"):
        put(buffer, offset, b"abc")
    assert (dict(buffer.records), buffer.content().length) == ({}, 0)


def test_closed_for_writes_it_changes_no_more():
    buffer = filled(b"abc")
    memory = buffer.allocate(3, 3)
    buffer.seal()
    buffer.seal()
    assert (buffer.room, buffer.allocate(3, 1)) == (0, None)
    assert memory is not None
    for change in (lambda: put(buffer, 3, b"x"), lambda: buffer.accept(Record(3, 1, 0))):
        with pytest.raises(ClosedError, match="closed for writes"):
            change()
    assert buffer.content().copy() == b"abc"


@pytest.mark.parametrize("memory", [True, False])
def test_reset_drops_records_and_gives_back_the_full_capacity(memory):
    buffer = filled(b"abc", b"def")
    assert lay(buffer, 6, b"ghi")
    data = buffer.read(6)
    buffer.seal()
    buffer.reset(keep_memory=memory)
    assert (buffer.read(0), dict(buffer.records), buffer._memory is not None) == (None, {}, memory)
    assert put(buffer, 1 << 40, bytes(CAPACITY))
    assert put(buffer, (1 << 40) + CAPACITY, b"x") is False
    assert data == b"ghi"


@pytest.mark.parametrize("size", [0, 1, CAPACITY - 4, CAPACITY - 3, CAPACITY - 2, 2 * CAPACITY])
def test_a_record_is_laid_into_the_memory_itself(size):
    """An exact fit is not refused; until it is accepted nothing has changed."""
    buffer = filled(b"abc")
    memory = buffer.allocate(3, size)
    assert (memory is not None) is (0 < size <= CAPACITY - 3)
    if memory is None:
        return
    memory[:] = b"x" * size
    assert (list(buffer.records), buffer.content().copy()) == ([0], b"abc")
    buffer.accept(Record(3, size, zlib.crc32(b"x" * size)))
    assert (buffer.read(3), buffer.content().copy()) == (b"x" * size, b"abc" + b"x" * size)
    assert buffer.room == CAPACITY - 3 - size


def test_runs_of_laid_records_are_one_piece():
    buffer = Buffer(CAPACITY)
    assert lay(buffer, 0, b"a")
    assert lay(buffer, 1, b"b")
    assert put(buffer, 2, b"held")
    assert lay(buffer, 6, b"c")
    assert lay(buffer, 7, b"d")
    assert [buffer.read(offset) for offset in (1, 2, 7)] == [b"b", b"held", b"d"]
    assert [bytes(piece) for piece in buffer.content().buffers()] == [b"ab", b"held", b"cd"]


def test_a_record_of_the_same_range_replaces_the_first():
    for write in (put, lay):
        buffer = Buffer(6)
        write(buffer, 10, b"abc")
        write(buffer, 13, b"def")
        assert put(buffer, 10, b"ABC")
        assert (buffer.content().copy(), buffer.room) == (b"ABCdef", 0)


def cut(data: bytes, *borders: int) -> list[Record]:
    """Return records between borders."""
    bounds = [0, *borders, len(data)]
    return [
        Record(start, end - start, zlib.crc32(data[start:end])) for start, end in pairwise(bounds)
    ]


class TestReceived:
    """The record map rebuilt from the bytes."""

    @given(st.sets(st.integers(1, 39)), st.sets(st.integers(1, 39)))
    def test_holds_every_record_however_the_bytes_arrive(self, borders, pieces):
        data = random.Random(3).randbytes(40)
        payload = join(
            as_view(data[record.offset : record.end]) for record in cut(data, *sorted(pieces))
        )
        records = cut(data, *sorted(borders))
        buffer = Buffer.received(0, records, payload)
        assert buffer.content().copy() == data
        assert list(buffer.records.values()) == records
        assert all(
            buffer.read(record.offset) == data[record.offset : record.end] for record in records
        )

    @pytest.mark.parametrize("bit", [0, 8 * 9, 8 * 20 - 1])
    def test_a_flipped_bit_in_any_record_is_noticed(self, bit):
        data = bytearray(range(20))
        records = cut(bytes(data), 9, 10)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError, match="a record fails its checksum"):
            Buffer.received(0, records, as_view(data))

    @pytest.mark.parametrize(
        "change",
        [
            lambda records: records[1:],
            lambda records: records[:-1],
            lambda records: records[::-1],
            lambda records: [*records, Record(20, 1, 0)],
            lambda records: [*records, Record(20, 0, 0)],
            lambda _: [],
            lambda records: [records[0], Record(9, -1, 0), *records[1:]],
        ],
    )
    def test_records_that_do_not_fill_the_bytes_are_refused(self, change):
        data = bytes(range(20))
        with pytest.raises(CorruptionError):
            Buffer.received(0, change(cut(data, 9, 10)), as_view(data))

    def test_bytes_of_another_position_are_refused(self):
        data = bytes(range(20))
        with pytest.raises(CorruptionError, match="do not fill it"):
            Buffer.received(4, cut(data, 9, 10), as_view(data))
