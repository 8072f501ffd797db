"""A view of a storage with more objects: reads from memory, everything else as before."""

import pickle
import uuid

import pytest

from segstore_ds.errors import CorruptionError, MissingObjectError, TruncatedObjectError
from segstore_ds.storage import OverlaidStorage, Storage, open_storage


def _view() -> tuple[Storage, OverlaidStorage]:
    inner = open_storage(f"memory://{uuid.uuid4().hex}")
    inner.create("segments/a/real", b"stored")
    return inner, OverlaidStorage(inner, {"segments/inline/1": b"0123456789"}, "log/41")


def test_reads_of_its_objects_send_no_request() -> None:
    """Whole, in ranges and by size; names that it lacks are read from the store."""
    inner, view = _view()
    before = inner.stats.total
    assert view.get("segments/inline/1", limit_bytes=10) == b"0123456789"
    assert view.get_range("segments/inline/1", 2, 5) == b"234"
    assert view.info("segments/inline/1").size == 10
    assert inner.stats.total == before
    assert view.get("segments/a/real") == b"stored"
    with pytest.raises(MissingObjectError):
        view.get("segments/inline/2")


def test_limits_are_those_of_a_store() -> None:
    """A range beyond the end, and an object over the limit, are errors that name the log file."""
    _, view = _view()
    with pytest.raises(TruncatedObjectError, match="log/41"):
        view.get_range("segments/inline/1", 5, 11)
    with pytest.raises(CorruptionError, match="log/41"):
        view.get("segments/inline/1", limit_bytes=9)


def test_everything_else_goes_to_the_store() -> None:
    """Writes, lists and deletes; its own objects are never listed."""
    inner, view = _view()
    assert view.create("segments/b/new", b"x")
    with view.open_staged("segments/b/staged") as writer:
        writer.write(b"yz")
        writer.commit()
    listed = sorted(info.path for info in view.list("segments"))
    assert listed == ["segments/a/real", "segments/b/new", "segments/b/staged"]
    view.delete("segments/b/new")
    assert view.folders("segments") == inner.folders("segments")
    assert view.holder("segments/a/real") is inner
    assert view.holder("segments/inline/1") is view


def test_pickles_with_its_objects() -> None:
    """A task in another process reads them without the log."""
    _, view = _view()
    again = pickle.loads(pickle.dumps(view))  # noqa: S301 - what the test has just made
    assert again.get("segments/inline/1") == b"0123456789"
