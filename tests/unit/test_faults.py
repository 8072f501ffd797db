"""The fault-injecting storage strikes where it says, and only there."""

import pickle
import uuid
from pathlib import Path

import pytest
from faults import Crash, Fault, FaultStorage
from wrapped_storage import LatencyStorage

from segstore_ds.errors import InvalidInputError, MissingObjectError, StorageError
from segstore_ds.storage import Storage, open_storage


@pytest.fixture(params=["local", "memory"])
def inner(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """Return an empty storage."""
    local = request.param == "local"
    return open_storage(tmp_path / "s" if local else f"memory://{uuid.uuid4().hex}")


def test_calls_are_counted_and_handed_on(inner: Storage) -> None:
    """Without a fault it does what the storage does, and lists what was asked."""
    storage = FaultStorage(inner)
    storage.ensure_exclusive()
    assert storage.create("a/b", b"123")
    assert not storage.create("a/b", b"456")
    storage.put("a/c", b"7")
    with storage.open_staged("a/d") as staged:
        staged.write(b"89")
        assert staged.commit() == staged.size == 2
    assert storage.get_range("a/b", 1, 3) == b"23"
    assert {info.path: info.size for info in storage.list("a")} == {"a/b": 3, "a/c": 1, "a/d": 2}
    storage.delete("a/c")
    with pytest.raises(MissingObjectError):
        storage.info("a/c")
    assert storage.get("a/d") == b"89"
    assert storage.calls == [
        "ensure_exclusive",
        "create a/b",
        "create a/b",
        "put a/c",
        "open_staged a/d",
        "write a/d",
        "commit a/d",
        "get_range a/b",
        "list a",
        "delete a/c",
        "info a/c",
        "get a/d",
    ]
    assert (storage.url, storage.stats) == (inner.url, inner.stats)
    assert not storage.struck


@pytest.mark.parametrize(("when", "there"), [("before", False), ("after", True)])
def test_failure_is_one_call(inner: Storage, when: str, there: bool) -> None:
    """Before: no effect; after: the effect, but no answer. The next call is served."""
    storage = FaultStorage(inner, Fault(2, "fail", when))
    assert storage.create("a", b"1")
    with pytest.raises(StorageError, match="call=2"):
        storage.create("b", b"2")
    assert storage.struck
    assert storage.create("b", b"3") is not there


def test_crash_is_the_end(inner: Storage) -> None:
    """Nothing reaches the storage after a crash, not even cleanup; a part may be left."""
    storage = FaultStorage(inner, Fault(3, "crash", "before"))
    staged = storage.open_staged("a")
    staged.write(b"1234")
    with pytest.raises(Crash):
        staged.write(b"5678")
    staged.abort()
    for call in (lambda: storage.get("a"), lambda: storage.delete("a"), staged.commit):
        with pytest.raises(Crash):
            call()
    assert inner.get("a") == b"123456"


def test_crash_after_a_commit_leaves_the_whole(inner: Storage) -> None:
    """The object is whole; only the answer never came."""
    storage = FaultStorage(inner, Fault(3, "crash", "after"))
    staged = storage.open_staged("a")
    staged.write(b"1234")
    with pytest.raises(Crash):
        staged.commit()
    assert inner.get("a") == b"1234"


def test_outage_lasts_its_number_of_calls(inner: Storage) -> None:
    """Calls in a row fail, then the storage is back."""
    storage = FaultStorage(inner, Fault(1, calls=3))
    for _ in range(3):
        with pytest.raises(StorageError):
            storage.create("a", b"1")
    assert storage.create("a", b"1")


def test_wrapped_storages_pickle(inner: Storage) -> None:
    """They travel to other processes as the storages they wrap do."""
    inner.create("a", b"1")
    for storage in (FaultStorage(inner, Fault(2)), LatencyStorage(inner, 0.5)):
        twin = pickle.loads(pickle.dumps(storage))  # noqa: S301
        assert (type(twin), twin.url) == (type(storage), inner.url)
        assert twin.inner.get("a") == b"1"
    assert pickle.loads(pickle.dumps(FaultStorage(inner, Fault(2)))).fault == Fault(2)  # noqa: S301


def test_latency_is_paid_per_request(inner: Storage) -> None:
    """A small staged object costs one wait, like every other request."""
    waits: list[float] = []
    storage = LatencyStorage(inner, 0.03, sleep=waits.append)
    storage.create("a", b"1")
    storage.get("a")
    with storage.open_staged("b") as staged:
        staged.write(b"2")
        staged.write(b"3")
        staged.commit()
    assert waits == [0.03] * 3


@pytest.mark.parametrize("wrong", [{"at": 0}, {"at": 1, "kind": "x"}, {"at": 1, "calls": 0}])
def test_fault_without_a_meaning_is_refused(wrong: dict[str, object]) -> None:
    """A fault that could never strike would make a sweep pass for nothing."""
    with pytest.raises(InvalidInputError):
        Fault(**wrong)


def test_store_copies_between_wrapped_storages(tmp_path: Path) -> None:
    """A store sees its own kind on both sides, so a test of copies tests the store's own."""
    inner = open_storage(tmp_path / "s")
    target = FaultStorage(inner)
    source = LatencyStorage(FaultStorage(open_storage(tmp_path / "other")), 0.0)
    source.inner.create("a", b"12")
    assert target.copy_from(source, "a", "b")
    assert (inner.get("b"), target.calls) == (b"12", ["copy_from b"])
