"""A part that a crash cut was committed by the next run, which found its name taken.

On a filesystem for a single writer an object may be there before it is whole. Its name says its
bytes, so the next run plans the same name.
"""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pytest
from faults import Crash
from stream_kit import values
from wrapped_storage import WrappedStorage

from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on

T = TypeVar("T")
WIDE = pa.schema([("n", pa.int64()), *((f"column {n:03}", pa.string()) for n in range(400))])
TABLE = pa.Table.from_pylist([{"n": n} for n in range(3)], WIDE)


class CutShort(WrappedStorage):
    """A storage whose process ends while it creates the first object under a prefix."""

    def __init__(self, inner: Storage, prefix: str, kept: int) -> None:
        super().__init__(inner)
        self.prefix = prefix
        self.kept = kept

    def create(self, path: str, data: bytes) -> bool:
        """Write a part of the object, and end."""
        if path.startswith(self.prefix):
            self.inner.put(path, data[: self.kept])
            raise Crash
        return self.inner.create(path, data)


@pytest.fixture
def storage() -> Storage:
    """An empty folder."""
    return open_storage(f"memory://{uuid.uuid4().hex}")


def end_within(storage: Storage, prefix: str, kept: int, run: Callable[[Storage], T]) -> None:
    """Let a process end while it creates an object."""
    with pytest.raises(Crash):
        run(CutShort(storage, prefix, kept))


@pytest.mark.parametrize("kept", [1, 100])
def test_stream_is_created_after_its_schema_was_cut(storage: Storage, kept: int) -> None:
    """The schema of a wide table is an object, and the same one in each attempt."""
    end_within(storage, "status/", kept, lambda cut: create_on(cut, WIDE))
    create_on(storage, WIDE).append(TABLE)
    assert values(open_on(storage)) == [0, 1, 2]
    open_on(storage).verify().check()


def test_append_after_what_it_moved_out_of_the_root_was_cut(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inline segments become one object, which has the same name again."""
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.rows", 2)
    table = pa.table({"n": [0, 1, 2]})
    stream = create_on(storage, table.schema, upkeep=None)
    for _ in range(2):
        stream.append(table)
    end_within(storage, "segments/", 100, lambda cut: open_on(cut).append(table))
    assert open_on(storage).version == stream.version
    open_on(storage).append(table)
    assert list(storage.list("segments/"))
    assert values(open_on(storage)) == [0, 1, 2] * 3
    open_on(storage).verify().check()


def test_follower_gets_a_part_that_was_cut_there(tmp_path: Path) -> None:
    """The next run ships the same part under the same name."""
    stream = create_on(open_storage(tmp_path / "a"), WIDE, upkeep=None)
    stream.append(TABLE)
    (schema,) = stream._log.storage.list("status/")
    copy = open_storage(tmp_path / "b")
    copy.put(schema.path, stream._log.storage.get(schema.path)[:100])
    stream.followers.add(copy.url)
    assert values(open_on(copy)) == [0, 1, 2]
