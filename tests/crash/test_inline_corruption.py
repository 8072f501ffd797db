"""Every byte of a commit file with inline segments flipped, and the file cut at every length.

Damage to a frame is an error of its own events: everything else is read, and verify names it.
Damage to anything else is an error of the file.
"""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from crash_kit import content_on, discard, events, fresh_storage
from virtual_time import TimedStorage, VirtualTime

from segstore_ds.errors import CorruptionError, FormatError, TruncatedObjectError
from segstore_ds.storage import Storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.write.layout import Layout

pytestmark = pytest.mark.slow

NEWEST = "log/00000000000000000004"


@pytest.fixture
def storage() -> Iterator[Storage]:
    """Return a storage with a stream of a segment between three inline ones of two events."""
    storage = fresh_storage("memory", Path())
    time = VirtualTime(5)
    stream = create_on(TimedStorage(storage, time), events(0, 0).schema, clock=time.clock)
    for start in (0, 2, 4, 6):
        layout = Layout(inline_bytes=0) if start == 4 else Layout(compression="none")
        stream.append(events(start, start + 2), layout=layout)
    inline = [entry.frame is not None for entry in stream._log.root.entries]
    assert inline == [True, True, False, True]
    yield storage
    discard(storage)


def _read(storage: Storage, *cuts: int) -> pa.Table:
    return open_on(storage).read(*cuts).read_all()


def test_every_flipped_byte_hurts_its_own_frame_alone(storage: Storage) -> None:
    """A byte of a frame hides the events of that frame, any other byte the version."""
    data = storage.get(NEWEST)
    right = _read(storage)
    root = open_on(storage)._log.root
    behind = len(data) - root.inline_bytes
    starts, cursor, offset = [], behind, 0
    for entry in root.entries:
        if entry.frame:
            starts.append((cursor, offset, entry.path))
            cursor += len(entry.frame.data)
        offset += entry.rows
    for place in range(0, len(data), 3):
        changed = bytes([data[place] ^ (1 << place % 8)])
        storage.put(NEWEST, data[:place] + changed + data[place + 1 :])
        if place < behind:
            with pytest.raises(FormatError, match=NEWEST):
                open_on(storage)
            continue
        _, first, path = max(start for start in starts if start[0] <= place)
        assert _read(storage, 0, first).equals(right.slice(0, first)), place
        assert _read(storage, first + 2).equals(right.slice(first + 2)), place
        with pytest.raises(CorruptionError, match=f"{NEWEST}: segments/{path}"):
            _read(storage, first, first + 1)
        if place % 7 == 0:
            (problem,) = open_on(storage).verify().problems
            assert problem.where.startswith(f"{NEWEST}: segments/{path}[0:")
    storage.put(NEWEST, data)
    assert _read(storage).equals(right)


def test_every_cut_is_truncated_and_every_extra_byte_corrupt(storage: Storage) -> None:
    """A file that ends early is never an older or a shorter stream."""
    data, right = storage.get(NEWEST), content_on(storage)
    for size in range(1, len(data)):
        storage.put(NEWEST, data[:size])
        with pytest.raises(TruncatedObjectError, match=NEWEST):
            open_on(storage)
    for extra in (b"\0", bytes(64), data[-640:], data):
        storage.put(NEWEST, data + extra)
        with pytest.raises(CorruptionError, match=NEWEST):
            open_on(storage)
    storage.put(NEWEST, data)
    assert content_on(storage) == right


def test_damage_in_an_older_version_is_named(storage: Storage) -> None:
    """Verify checks the frames of every version that is kept."""
    older = "log/00000000000000000003"
    data = storage.get(older)
    storage.put(older, data[:-30] + bytes([data[-30] ^ 4]) + data[-29:])
    assert content_on(storage)
    (problem,) = open_on(storage).verify().problems
    assert problem.where.startswith(f"{older}: segments/inline/")
