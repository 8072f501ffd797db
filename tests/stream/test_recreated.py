"""A stream that is dropped and created again under those who read it: an error at once."""

import shutil
import uuid
from pathlib import Path

import pyarrow as pa
import pytest

import segstore_ds as segstore
from segstore_ds.errors import NotFoundError, PositionError
from segstore_ds.read.cuts import Position
from segstore_ds.storage import open_storage
from segstore_ds.stream.connector.queries import MicroBatches
from segstore_ds.write.layout import Layout

SCHEMA = pa.schema([("n", pa.int64())])
STAGED = Layout(inline_bytes=0)


def make(commits: int, folder: Path | None = None) -> segstore.Stream:
    """Return a stream of so many commits of one event."""
    stream = segstore.create(folder or f"memory://{uuid.uuid4().hex}", SCHEMA, upkeep=None)
    for n in range(commits):
        stream.append(pa.table({"n": [n]}), layout=STAGED)
    return stream


def make_again(stream: segstore.Stream, commits: int, folder: Path | None = None) -> None:
    """Drop a stream, or delete its folder, and create another one in its place."""
    if folder is None:
        segstore.drop(stream.url, confirm=stream.url)
    else:
        shutil.rmtree(folder)
    fresh = segstore.create(stream.url, SCHEMA, upkeep=None)
    for n in range(commits):
        fresh.append(pa.table({"n": [-n]}), layout=STAGED)


def queried(stream: segstore.Stream) -> MicroBatches:
    """Return the batches of a query that has begun."""
    batches = MicroBatches(open_storage(stream.url), "head", "tail", fail_on_data_loss=True)
    batches.follow()
    return batches


# Fewer commits than the old stream had, as many, and more.
@pytest.mark.parametrize("commits", [0, 3, 9])
@pytest.mark.parametrize("deleted", [False, True])
def test_followers_and_queries_end_at_once(tmp_path: Path, commits: int, *, deleted: bool) -> None:
    """Neither waits until the new stream has more commits than the old one had."""
    folder = tmp_path / "stream" if deleted else None
    stream = make(3, folder)
    query, follow = queried(stream), stream.follow("head", poll_s=0.001)
    follow.reader = None
    assert next(follow).num_rows == 1
    idle = stream.follow(start="tail")
    position = Position.of(query.stream._log.root, 3)
    make_again(stream, commits, folder)
    for ask in (query.follow, idle._take, stream.refresh):
        with pytest.raises(NotFoundError, match=r"another one was created.*checkpoint"):
            ask()
    restarted = queried(stream)
    with pytest.raises(PositionError, match=r"another stream.*checkpoint"):
        restarted.check(position, logged=True)


def test_read_of_a_recreated_stream_says_so() -> None:
    """A task has no handle; what it was to read is gone with the old stream."""
    stream = make(3)
    reader = stream.read()
    make_again(stream, 3)
    with pytest.raises(NotFoundError, match=r"another one was created.*checkpoint"):
        reader.read_all()
    again = make(2)
    reader = again.read()
    segstore.drop(again.url, confirm=again.url)
    with pytest.raises(NotFoundError):
        reader.read_all()
