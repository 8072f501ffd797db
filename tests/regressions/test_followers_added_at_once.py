"""Two operators add one folder as a follower at the same time: both succeed.

The actors of seed 2 of the simulation (``hurt-append``, ``hurt-write``, ``hurt-mend``) did, and one
was told that the folder held the last commits of a dropped stream.
"""

import uuid
from collections.abc import Callable
from typing import TypeVar

import pytest
from stream_kit import HOUR, SCHEMA, make_stream, numbers, wait
from wrapped_storage import WrappedStorage

from segstore_ds.errors import AlreadyExistsError
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create
from segstore_ds.stream.opening import open as open_on

T = TypeVar("T")


class Interrupted(WrappedStorage):
    """Storage before whose n-th request something else happens."""

    then: Callable[[], None] = staticmethod(lambda: None)
    left = 0

    def around(self, verb: str, path: str, work: Callable[[], T]) -> T:
        self.left -= 1
        if not self.left:
            self.then()
        return super().around(verb, path, work)

    def sibling(self, url: str) -> "Interrupted":
        self.follower.inner = self.inner.sibling(url)
        self.follower.url = url
        return self.follower


@pytest.mark.parametrize("request_number", range(1, 8))
def test_two_operators_add_one_folder_at_once(request_number: int) -> None:
    """The second one does all of it before one of the first one's first requests to the folder."""
    place = f"memory://{uuid.uuid4().hex}"
    create(f"{place}/stream", SCHEMA)
    storage = Interrupted(open_storage(f"{place}/stream"))
    other = open_storage(f"{place}/copy")
    storage.follower = Interrupted(other)
    storage.follower.left = request_number
    storage.follower.then = lambda: open_on(f"{place}/stream").followers.add(other.url)
    stream = open_on(storage)
    stream.followers.add(other.url)
    assert stream.refresh().followers == (other.url,)
    assert open_on(other.url).version == stream.version


def test_copy_that_lacks_forgotten_versions_becomes_no_follower():
    """Seed 20270118001: who added it slept, and left a commit; each further try said: repair it."""
    stream, storage = make_stream(3)
    old = f"{stream.url}-follower"
    stream.back_up(old)
    path = f"log/{stream.version:020d}"
    left = storage.get(path)
    for n in range(4):
        wait(storage, 2 * HOUR)
        stream.append(numbers(n, n + 1))
    stream.maintain(keep="1h")
    assert storage.create(path, left)
    with pytest.raises(AlreadyExistsError, match="give an empty folder"):
        stream.followers.add(old)
    assert stream.followers == ()
    stream.followers.add(f"{old}-2")
    assert stream.append(numbers(0, 1)).end == stream.tail
