"""A bit that flips in a read is no other writer's commit."""

from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa
import pytest
from wrapped_storage import WrappedStorage

from segstore_ds.errors import StorageError
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on

T = TypeVar("T")


SCHEMA = pa.schema([("n", pa.int64())])


class _Flipping(WrappedStorage):
    """Loses the answer to the next put of a commit, and flips a bit in the next read of it."""

    def __init__(self, inner: Storage, place: int) -> None:
        super().__init__(inner)
        self.place = place
        self.armed = False
        self.lost = ""

    def around(self, verb: str, path: str, work: Callable[[], T]) -> T:
        answer = work()
        if verb == "create" and path.startswith("log/") and self.armed:
            self.armed, self.lost = False, path
            raise StorageError("the answer was lost", path=path)
        if verb == "get" and path == self.lost and isinstance(answer, bytes):
            self.lost, flipped = "", bytearray(answer)
            flipped[self.place] ^= 1
            return bytes(flipped)  # type: ignore[return-value]
        return answer


@pytest.mark.parametrize("place", [0, 70, 300, -100], ids=["line", "digest", "body", "frame"])
def test_a_commit_is_not_made_twice(place: int) -> None:
    storage = _Flipping(open_storage("memory://flipped"), place)
    stream = create_on(storage, SCHEMA)
    stream.append({"n": 1})
    storage.armed = True
    commit = stream.append({"n": 2})
    assert storage.lost == ""
    assert not storage.armed
    assert (commit.start, commit.end) == (1, 2)
    assert open_on("memory://flipped").read().read_all()["n"].to_pylist() == [1, 2]
