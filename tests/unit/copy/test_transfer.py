"""Transfers: ranges in any order, every byte verified before the object has its name."""

import random
import secrets
import threading
import uuid
from collections import Counter
from contextlib import suppress

import pyarrow as pa
import pytest
from faults import Crash, Fault, FaultStorage
from stream_kit import KINDS, SCHEMA, make_stream
from wrapped_storage import WrappedStorage

import segstore_ds as segstore
from segstore_ds.cache.counters import WRITTEN_HERE
from segstore_ds.copy import transfer
from segstore_ds.copy.transfer import CopiedObject, Transfer
from segstore_ds.errors import CorruptionError, FormatError, MissingObjectError, StorageError
from segstore_ds.format import names
from segstore_ds.storage import Storage, open_storage

pytestmark = pytest.mark.usefixtures("each_format")
PARTS = 4


def _place() -> Storage:
    return open_storage(f"memory://{uuid.uuid4().hex}")


@pytest.fixture
def copied(monkeypatch) -> CopiedObject:
    """A segment of four parts, whose frames span them, and an empty folder."""
    stream, _ = make_stream(0)
    # Numbers that do not compress: the footer is a small share of the segment.
    rows = pa.table({"n": random.Random(1).sample(range(1 << 62), 6000), "s": ["x"] * 6000}, SCHEMA)
    stream.append(rows, layout=segstore.Layout(inline_bytes=0, frame_rows=1000))
    [entry] = stream._log.root.entries
    size = -(-entry.bytes // PARTS)
    monkeypatch.setattr(transfer, "PART_BYTES", size)
    name = names.segment_object(entry.path)
    return CopiedObject(stream._log.storage, name, _place(), "segments/c/1.arrow", entry)


def _with(copied: CopiedObject, **changes) -> CopiedObject:
    fields = ("source", "name", "target", "to", "entry", "size")
    return CopiedObject(**{name: getattr(copied, name) for name in fields} | changes)


def _copy(copied: CopiedObject) -> None:
    with Transfer() as transfer:
        transfer.copy(copied)


def _objects(storage: Storage) -> list[str]:
    return sorted(info.path for info in storage.list(""))


class Ordered(WrappedStorage):
    """Lets parts be written in a given order only, each after the one before has been taken."""

    def __init__(self, inner: Storage, order: tuple[int, ...], part_bytes: int) -> None:
        super().__init__(inner)
        self.starts = [part * part_bytes for part in order]
        self._turn = threading.Condition()
        self._over = False

    def around(self, verb, path, work):
        if verb != "write_at":
            return super().around(verb, path, work)
        start = int(path.rpartition("@")[2])
        with self._turn:
            assert self._turn.wait_for(lambda: self._over or self.starts[0] == start, 20)
            try:
                return super().around(verb, path, work)
            except BaseException:
                self._over = True  # those behind need not wait for a part that will not come
                raise
            finally:
                if not self._over:
                    self.starts.pop(0)
                self._turn.notify_all()


def test_every_part_is_fetched_once_and_the_bytes_are_the_same(copied):
    source = FaultStorage(copied.source)
    _copy(_with(copied, source=source))
    whole = copied.source.get(copied.name)
    assert copied.target.get(copied.to) == whole
    fetched = Counter(call.partition(" ")[0] for call in source.calls)
    assert fetched == {"get_range": PARTS + 1}  # the footer comes first, and tells the frames


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1), (1, 3, 0, 2)])
@pytest.mark.parametrize("kind", KINDS)
def test_interrupted_in_every_order_of_arrival(copied, order, kind):
    """At every call of the target: nothing has the name, and the next run makes it whole."""
    whole, at = copied.source.get(copied.name), 0
    while True:
        at += 1
        target = _place()
        faulty = FaultStorage(target, Fault(at, kind=kind, when="after" if at % 2 else "before"))
        with suppress(StorageError, Crash):
            # The footer comes first, so the last part is whole only if it holds nothing else.
            ordered = Ordered(faulty, order, transfer.PART_BYTES)
            _copy(_with(copied, target=ordered))
        made = _objects(target)
        assert made in ([], [copied.to])
        if made:
            assert target.get(copied.to) == whole
        _copy(_with(copied, target=target))
        assert target.get(copied.to) == whole
        assert _objects(target) == [copied.to]
        if not faulty.struck:
            break
    assert at == PARTS + 3  # opened, each part, committed


class Flipping(WrappedStorage):
    """Flips a bit in the ranges that hold a place, for a number of times."""

    def __init__(self, inner: Storage, place: int, times: int) -> None:
        super().__init__(inner)
        self.place, self.times = place, times

    def get_range(self, path, start, end):
        data = bytearray(super().get_range(path, start, end))
        if start <= self.place < end and self.times:
            self.times -= 1
            data[self.place - start] ^= 1
        return bytes(data)


@pytest.mark.parametrize("share", [0.2, 0.85])
def test_what_is_damaged_on_the_way_is_fetched_again(copied, share):
    place = int(copied.entry.bytes * share)
    source = Flipping(copied.source, place, 1)
    _copy(_with(copied, source=source))
    assert source.times == 0
    assert copied.target.get(copied.to) == copied.source.get(copied.name)


@pytest.mark.parametrize(("share", "listed"), [(0.2, True), (0.45, False), (0.85, True)])
def test_what_is_damaged_in_the_source_makes_no_object(copied, share, listed):
    """The error names the frame, also where only the segment itself tells its checksums."""
    place = int(copied.entry.bytes * share)
    source = Flipping(copied.source, place, 10)
    given = _with(copied, source=source, entry=copied.entry if listed else None)
    with pytest.raises(CorruptionError, match="checksum") as caught:
        _copy(given)
    start, end = caught.value.fields["where"].rpartition("[")[2].rstrip("]").split(":")
    assert int(start) <= place < int(end)
    assert _objects(copied.target) == []


@pytest.mark.parametrize("share", [0.2, 0.85])
def test_what_is_damaged_in_the_source_comes_from_elsewhere(copied, share):
    """From the first of the others whose bytes pass, whatever is wrong with those before it."""
    place, whole = int(copied.entry.bytes * share), copied.source.get(copied.name)
    empty, damaged, sound = (_place() for _ in range(3))
    damaged.create(copied.name, b"\0" * len(whole))
    source = Flipping(copied.source, place, 10)
    there = _with(copied, source=source, others=lambda: (empty, damaged))
    with pytest.raises(CorruptionError, match="checksum"):
        _copy(there)
    assert _objects(copied.target) == []
    sound.create(copied.name, whole)
    _copy(_with(there, others=lambda: (empty, damaged, sound)))
    assert copied.target.get(copied.to) == whole


def test_head_and_footer_are_verified(copied):
    for place in (2, copied.entry.bytes - 6):
        with pytest.raises(FormatError, match="segment"):
            _copy(_with(copied, source=Flipping(copied.source, place, 10)))
        assert _objects(copied.target) == []


def test_an_object_that_is_no_segment_is_copied_as_it_is(copied):
    """Left from interrupted writes, or not a segment at all; one that is there is replaced."""
    data = secrets.token_bytes(3 * transfer.PART_BYTES + 7)
    for name in ("segments/t/1.arrow", "segments/t/1.parquet", "status/1"):
        copied.source.put(name, data)
        copied.target.put("x/1", b"before")
        _copy(CopiedObject(copied.source, name, copied.target, "x/1"))
        assert copied.target.get("x/1") == data


def test_a_missing_object_is_missing(copied):
    for entry, size in ((copied.entry, None), (None, None), (None, 5 * transfer.PART_BYTES)):
        with pytest.raises(MissingObjectError):
            _copy(_with(copied, name="segments/t/2.arrow", entry=entry, size=size))
        assert _objects(copied.target) == []


class InOrder(WrappedStorage):
    """A store that takes no parts."""

    def open_scattered(self, path, size, part_bytes):
        del path, size, part_bytes


def test_a_store_that_takes_no_parts_gets_them_in_order(copied):
    target = InOrder(copied.target)
    before = WRITTEN_HERE.at(target.url)
    _copy(_with(copied, target=target))
    assert copied.target.get(copied.to) == copied.source.get(copied.name)
    counted = WRITTEN_HERE.at(target.url)
    assert counted.channel_bytes - before.channel_bytes == copied.entry.bytes
    assert counted.scattered_writes == before.scattered_writes
    copied.target.delete(copied.to)
    source = Flipping(copied.source, copied.entry.bytes // 2, 10)
    with pytest.raises(CorruptionError, match="checksum"):
        _copy(_with(copied, target=target, source=source))
    assert _objects(copied.target) == []


def test_an_interrupt_in_a_thread_reaches_the_caller(copied):
    class Interrupted(WrappedStorage):
        def get_range(self, path, start, end):
            if start == transfer.PART_BYTES:
                raise KeyboardInterrupt
            return super().get_range(path, start, end)

    with pytest.raises(KeyboardInterrupt):
        _copy(_with(copied, source=Interrupted(copied.source)))
    assert _objects(copied.target) == []
