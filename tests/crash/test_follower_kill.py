"""A primary's process killed between its commit and its follower's: what readers saw of it."""

import shutil

import pytest
from crash_children import SCHEMA, append_and_die
from crash_kit import quick_folder
from process_kit import messages, running

from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream

pytestmark = [pytest.mark.slow]


def test_replicated_reads_see_no_phantom_when_the_primary_is_killed() -> None:
    """A phantom is an event that was read and that the follower lacks once it is promoted."""
    phantoms = {False: 0, True: 0}
    with quick_folder() as folder:
        url, follower = folder / "stream", folder / "follower"
        create_on(open_storage(url), SCHEMA).followers.add(str(follower))
        for fatal in range(2, 200, 4):
            with running(append_and_die, str(url), fatal, fatal) as (child, pipe):
                alive = [*messages(pipe)] == ["alive"]
                child.join(300)
            if alive:
                break
            reader = open_on(open_storage(url))
            read = {only: _numbers(reader, replicated=only) for only in phantoms}
            taken = folder / f"taken-{fatal}"
            shutil.copytree(follower, taken)
            promoted = open_on(open_storage(taken))
            promoted.followers.promote()
            kept = _numbers(promoted)
            for only, events in read.items():
                phantoms[only] += len(events - kept)
    assert alive
    assert phantoms[False] > 0, "no kill came between the two commits"
    assert phantoms[True] == 0


def _numbers(stream: Stream, *, replicated: bool = False) -> set[int]:
    return set(stream.read(replicated=replicated, read_cache_bytes=0).read_all()["n"].to_pylist())
