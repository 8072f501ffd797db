"""One folder under two names, and folders within one another, are told from two places."""

import uuid
from pathlib import Path

import pytest
from faults import Crash, Fault, FaultStorage
from wrapped_storage import WrappedStorage

from segstore_ds.errors import StorageError
from segstore_ds.storage import Overlap, Storage, compare_names, find_overlap, open_storage
from segstore_ds.storage.base import PROBE


class _Alias(WrappedStorage):
    """A root under another name, as a mount or an access point gives it."""

    def __init__(self, inner: Storage, url: str) -> None:
        super().__init__(inner)
        self.url = url


def _place() -> Storage:
    return open_storage(f"memory://{uuid.uuid4().hex}")


@pytest.mark.parametrize(
    ("folder", "other", "overlap"),
    [
        ("", "memory://elsewhere/x", Overlap.SAME),
        ("/a/b", "memory://elsewhere/x/a/b", Overlap.INSIDE),
    ],
)
def test_other_names_are_seen_through(folder: str, other: str, overlap: Overlap) -> None:
    """An access point, a second mount: names that show nothing, in either direction."""
    stream = _place()
    inner = open_storage(f"{stream.url}{folder}")
    alias = _Alias(inner, other)
    assert compare_names(alias, stream) is None
    assert find_overlap(alias, stream) is overlap
    turned = Overlap.AROUND if overlap is Overlap.INSIDE else overlap
    assert find_overlap(stream, alias) is turned
    assert not list(stream.temporaries())
    assert not list(inner.temporaries())


def test_a_storage_that_fails_proves_nothing() -> None:
    """A failing delete afterwards does not change the answer."""
    first, second = _place(), _place()
    counted = FaultStorage(first)
    assert find_overlap(counted, second) is None
    for at, call in enumerate(counted.calls, 1):
        struck = FaultStorage(first, Fault(at))
        if call.startswith("delete"):
            assert find_overlap(struck, second) is None
        else:
            with pytest.raises(StorageError):
                find_overlap(struck, second)


@pytest.mark.parametrize("make", ["memory", "file"])
def test_what_a_crash_leaves_is_known_as_temporary(make: str, tmp_path: Path) -> None:
    inner = _place() if make == "memory" else open_storage(tmp_path / "a")
    with pytest.raises(Crash):
        find_overlap(FaultStorage(inner, Fault(1, "crash", "after")), _place())
    (left,) = inner.temporaries()
    assert left.path.startswith(PROBE)
    assert not list(inner.list(""))
