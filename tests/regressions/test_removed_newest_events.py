"""Newest events that are removed while `maintain` publishes them (seed 93366 of the simulation)."""

import uuid
from collections.abc import Callable
from typing import TypeVar

import pytest
from latest_kit import KEY, SCHEMA, Faulty, Timed, rows
from virtual_time import VirtualTime

from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on

T = TypeVar("T")


class Removing(Faulty):
    """A storage at whose n-th call another program removes the table."""

    left = -1

    def around(self, verb: str, path: str, work: Callable[[], T]) -> T:
        self.left -= 1
        if not self.left:
            open_on(self.inner, clock=self.inner.time.clock).published.remove_latest()
        return super().around(verb, path, work)


@pytest.mark.parametrize("call", [25, 40, 55])
def test_maintain_passes_a_table_that_is_removed_meanwhile(call: int) -> None:
    time = VirtualTime(1)
    storage = Removing(Timed(open_storage(f"memory://{uuid.uuid4().hex}/s"), time))
    stream = create_on(storage, SCHEMA, clock=time.clock)
    stream.append(rows(("ada", 1, False)))
    stream.publish("delta", latest_by=KEY, auto=True)
    stream.append(rows(("bob", 2, False)))
    storage.left = call
    stream.maintain()
    assert not stream.refresh().published.latest
