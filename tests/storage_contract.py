"""The contract of every storage as a test suite: one subclass per filesystem.

A subclass provides a `storage` fixture that is empty, and a view of its files outside segstore
(`raw_names`). The races use real threads and real processes. Winners and losers are counted by the
objects in the storage afterwards, not only by the results of `create`.
"""

# pytest asserts, one sentence names a test, and fixtures are methods.

import os
import pickle
import secrets
import signal
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest
from process_kit import forkserver

from segstore_ds.errors import (
    CorruptionError,
    InvalidInputError,
    MissingObjectError,
    SegstoreError,
    TruncatedObjectError,
)
from segstore_ds.storage import Storage

_NAMES = 50
_THREADS = 16
_PROCESSES = 4
_PATIENCE_S = 120

LEAVING_PATHS = (
    "",
    "/",
    "/etc/passwd",
    ".",
    "..",
    "../x",
    "a/../../x",
    "a/..",
    "a//b",
    "a/",
    "a/./b",
    "a\\b",
    "a\x00b",
    "a\nb",
    "\x7f",
)


class StorageContract:
    """The suite: subclass it as `Test...` with a `storage` fixture."""

    # False for a store that other processes can't see: its races use one process.
    shared_by_processes: ClassVar[bool] = True
    # Whether the store copies objects internally.
    copies: ClassVar[bool] = False
    # Whether the parts of an object may come in any order.
    takes_parts: ClassVar[bool] = True
    # A value of the storage options that must not appear in any text.
    secret: ClassVar[str] = ""

    @pytest.fixture
    def storage(self) -> Storage:
        """Return an empty storage."""
        raise NotImplementedError

    def raw_names(self, storage: Storage) -> list[str]:
        """Return every name under the root, temporary files included."""
        return [found.path for found in storage.list("")]

    def test_created_object_reads_back(self, storage: Storage) -> None:
        content = secrets.token_bytes(70_000)
        assert storage.create("log/1", content) is True
        assert storage.get("log/1") == content
        assert storage.get("log/1", limit_bytes=70_000) == content
        found = storage.info("log/1")
        assert (found.path, found.size) == ("log/1", 70_000)
        assert abs(found.modified_us / 1_000_000 - time.time()) < 3600

    def test_name_is_taken_until_its_object_is_deleted(self, storage: Storage) -> None:
        assert storage.create("log/1", b"first") is True
        assert storage.create("log/1", b"second") is False
        assert storage.get("log/1") == b"first"
        storage.delete("log/1")
        assert storage.create("log/1", b"second") is True
        assert storage.get("log/1") == b"second"

    def test_put_overwrites(self, storage: Storage) -> None:
        storage.put("log/_latest", b"1")
        storage.put("log/_latest", b"22")
        assert storage.get("log/_latest") == b"22"

    def test_empty_object_is_refused(self, storage: Storage) -> None:
        for write in (storage.create, storage.put):
            with pytest.raises(InvalidInputError, match="can't be empty"):
                write("log/1", b"")
        with (
            pytest.raises(InvalidInputError, match="can't be empty"),
            storage.open_staged("s/1") as writer,
        ):
            writer.commit()
        assert self.raw_names(storage) == []

    def test_object_beside_its_own_prefix_is_apart(self, storage: Storage) -> None:
        storage.create("log/1", b"a")
        storage.create("log2/1", b"b")
        assert [found.path for found in storage.list("log")] == ["log/1"]
        assert [found.path for found in storage.list("log/")] == ["log/1"]

    def test_names_with_odd_characters_read_back(self, storage: Storage) -> None:
        names = ["a b", "a%20b", "ä€😀", "a+b=c@d,e;f", "it's", "a&b", "-", "x" * 200]
        for name in names:
            assert storage.create(f"readers/{name}", name.encode()) is True
        for name in names:
            assert storage.get(f"readers/{name}") == name.encode()
        assert {found.path for found in storage.list("readers")} == {f"readers/{n}" for n in names}

    def test_range_is_exact_or_an_error(self, storage: Storage) -> None:
        """Behind the end it is truncated, and a malformed one is refused."""
        storage.create("seg/1", b"0123456789")
        for start, end in [(0, 1), (0, 10), (3, 7), (9, 10), (0, 0), (10, 10)]:
            assert storage.get_range("seg/1", start, end) == b"0123456789"[start:end]
        for start, end in [(0, 11), (9, 11), (10, 11), (11, 11), (1000, 1 << 40)]:
            with pytest.raises(TruncatedObjectError):
                storage.get_range("seg/1", start, end)
        for start, end in [(-1, 2), (3, 2)]:
            with pytest.raises(InvalidInputError):
                storage.get_range("seg/1", start, end)

    def test_missing_object_is_missing(self, storage: Storage) -> None:
        storage.create("folder/object", b"x")
        reads: list[Callable[[str], object]] = [
            storage.get,
            lambda path: storage.get(path, limit_bytes=10),
            lambda path: storage.get_range(path, 0, 1),
            lambda path: storage.get_range(path, 0, 0),
            storage.info,
        ]
        for read in reads:
            for path in ("nothing", "no/folder/either", "folder"):
                with pytest.raises(MissingObjectError):
                    read(path)
                assert storage.find(path) is None
                assert not storage.exists(path)

    def test_limit_is_kept(self, storage: Storage) -> None:
        storage.create("log/1", b"0123456789")
        before = storage.stats.bytes_read
        with pytest.raises(CorruptionError, match="larger"):
            storage.get("log/1", limit_bytes=4)
        assert storage.stats.bytes_read - before <= 5

    def test_list_is_fresh(self, storage: Storage) -> None:
        assert list(storage.list("")) == []
        assert list(storage.list("log")) == []
        storage.create("log/1", b"a")
        assert [found.path for found in storage.list("log")] == ["log/1"]
        other = pickle.loads(pickle.dumps(storage))  # noqa: S301
        other.create("log/deep/2", b"bb")
        assert {found.path: found.size for found in storage.list("")} == {
            "log/1": 1,
            "log/deep/2": 2,
        }
        other.delete("log/1")
        assert [found.path for found in storage.list("log")] == ["log/deep/2"]

    def test_info_is_fresh(self, storage: Storage) -> None:
        storage.put("hint", b"1")
        assert storage.info("hint").size == 1
        assert storage.exists("hint")
        assert storage.find("hint", limit_bytes=1) == b"1"
        list(storage.list(""))
        other = pickle.loads(pickle.dumps(storage))  # noqa: S301
        other.put("hint", b"22")
        assert storage.info("hint").size == 2
        other.delete("hint")
        with pytest.raises(MissingObjectError):
            storage.info("hint")

    def test_list_skips_temporary_names(self, storage: Storage) -> None:
        for path in (".tmp-1", "log/.tmp-1", ".folder/1", "log/1"):
            storage.put(path, b"x")
        assert [found.path for found in storage.list("")] == ["log/1"]

    def test_list_from_a_text_lists_what_begins_with_it(self, storage: Storage) -> None:
        assert list(storage.list("segments", "00")) == []
        sizes = {
            "segments/001a/1": 1,
            "segments/001a/2": 2,
            "segments/001": 3,
            "segments/001ab/1": 4,
        }
        others = ("segments/01/1", "segments/1/001", "segments/.tmp-001", "segments2/001", "001/1")
        for path, size in sizes.items():
            storage.put(path, bytes(size))
        for path in (*others, "segments/001a/.tmp-3"):
            storage.put(path, b"x")
        for start in ("001", "00", "001a"):
            named = {path for path in sizes if path.startswith(f"segments/{start}")}
            found = list(storage.list("segments", start))
            assert {info.path: info.size for info in found} == {path: sizes[path] for path in named}
            assert all(abs(info.modified_us / 1e6 - time.time()) < 3600 for info in found)
        assert list(storage.list("segments", "2")) == []
        assert [info.path for info in storage.list("segments", "01")] == ["segments/01/1"]
        assert list(storage.list("no-such", "001")) == []

    def test_list_from_a_text_is_fresh(self, storage: Storage) -> None:
        """What another handle has put or deleted is seen at once, in one request."""
        storage.stats.reset()
        assert list(storage.list("status", "7")) == []
        wanted = {f"status/7-{n}" for n in range(40)}
        for path in wanted:
            storage.put(path, b"x")
        other = pickle.loads(pickle.dumps(storage))  # noqa: S301
        assert {info.path for info in storage.list("status", "7-")} == wanted
        other.delete("status/7-0")
        other.put("status/7-40", b"x")
        wanted = wanted - {"status/7-0"} | {"status/7-40"}
        assert {info.path for info in storage.list("status", "7-")} == wanted
        assert storage.stats.requests["list"] == 3

    def test_peek_names_what_lies_directly_in_a_folder(self, storage: Storage) -> None:
        assert storage.peek("", 1) in (None, ())
        assert storage.peek("no/such", 9) is None
        for path in ("b", "a/1", "a/2", "a/deep/3", ".hidden", "a.b/1"):
            storage.put(path, b"x")
        everything = {"a/", "a.b/", "b", ".hidden"}
        assert {*(storage.peek("", 9) or ())} == everything
        assert {*(storage.peek("a", 9) or ())} == {"1", "2", "deep/"}
        few = storage.peek("", 2) or ()
        assert len(few) == 2
        assert {*few} < everything
        assert len(storage.peek("a", 1) or ()) == 1

    def test_peek_tells_a_file_from_a_folder(self, storage: Storage) -> None:
        outer = storage.outer()
        assert outer is not None
        name = storage.url.rpartition("/")[2]
        outer.put(name, b"x")
        with pytest.raises(InvalidInputError, match="a file is where a folder is needed"):
            storage.peek("", 1)
        assert name in (outer.peek("", 9) or ())

    def test_outer_folders_lead_to_the_root(self, storage: Storage) -> None:
        storage.put("log/1", b"x")
        path, outer = "log/1", storage
        while (above := outer.outer()) is not None:
            path = f"{outer.url.rpartition('/')[2]}/{path}"
            assert above.info(path).size == 1
            outer = above

    def test_folders_are_named_without_what_is_in_them(self, storage: Storage) -> None:
        assert storage.folders("") == storage.folders("no/such") == ()
        for path in ("b/1", "a/deep/2", "a/deeper/3", ".tmp/4", "top"):
            storage.put(path, b"x")
        assert storage.folders("") == ("a", "b")
        assert storage.folders("a") == ("deep", "deeper")
        assert storage.folders("b") == ()

    def test_delete_is_silent(self, storage: Storage) -> None:
        storage.create("log/1", b"a")
        for path in ("log/1", "log/1", "no/folder"):
            storage.delete(path)
        assert list(storage.list("")) == []

    @pytest.mark.parametrize("sizes", [[1], [3, 5], [100_000] * 3, [5_000_000, 1, 9_000_000]])
    def test_staged_object_is_whole_after_commit(self, storage: Storage, sizes: list[int]) -> None:
        pieces = [secrets.token_bytes(size) for size in sizes]
        with storage.open_staged("segments/t/1") as writer:
            for piece in pieces:
                writer.write(memoryview(piece))
            assert writer.commit() == writer.size == sum(sizes)
        assert storage.get("segments/t/1") == b"".join(pieces)
        assert storage.info("segments/t/1").size == sum(sizes)

    @pytest.mark.parametrize("sizes", [[1], [0, 3, 0, 5], [1] * 2500, [5_000_000, 1, 7_000_000]])
    def test_pieces_are_written_in_order(self, storage: Storage, sizes: list[int]) -> None:
        pieces = [secrets.token_bytes(size) for size in sizes]
        with storage.open_staged("segments/t/1") as writer:
            writer.write(b"first")
            writer.write_all([memoryview(piece) for piece in pieces])
            writer.write_all([memoryview(b"la"), memoryview(b"st")])
            assert writer.commit() == writer.size == sum(sizes) + 9
            with pytest.raises(InvalidInputError):
                writer.write_all([memoryview(b"more")])
        assert storage.get("segments/t/1") == b"".join([b"first", *pieces, b"last"])

    @pytest.mark.parametrize("size", [1, 20_000_000])
    def test_aborted_object_is_gone(self, storage: Storage, size: int) -> None:
        with storage.open_staged("segments/t/1") as writer:
            writer.write(bytes(size))
        writer.abort()
        del writer
        assert self.raw_names(storage) == []
        with pytest.raises(MissingObjectError):
            storage.get("segments/t/1")

    def test_closed_writer_is_refused(self, storage: Storage) -> None:
        writer = storage.open_staged("segments/t/1")
        writer.write(b"abc")
        writer.commit()
        for use in (lambda: writer.write(b"d"), writer.commit):
            with pytest.raises(InvalidInputError):
                use()
        writer.abort()
        assert storage.get("segments/t/1") == b"abc"

    def test_object_is_replaced_whole_or_not_at_all(self, storage: Storage) -> None:
        """Concurrent writers of the same bytes never remove each other's object."""
        with storage.open_staged("segments/t/1", replace=True) as first:
            first.write(b"abc")
            with storage.open_staged("segments/t/1", replace=True) as second:
                second.write(b"abc")
                second.commit()
            assert storage.get("segments/t/1") == b"abc"
            first.commit()
        with storage.open_staged("segments/t/1", replace=True) as third:
            third.write(b"a")
        assert storage.get("segments/t/1") == b"abc"
        assert self.raw_names(storage) == ["segments/t/1"]

    @pytest.mark.parametrize("size", [1, 6_000_000, 6_000_001, 14_000_000])
    def test_parts_come_in_any_order_from_any_thread(self, storage: Storage, size: int) -> None:
        """The name holds nothing, or what it held, until the commit; parts may come again."""
        part_bytes = 6_000_000
        data = secrets.token_bytes(size)
        if size == 1:
            storage.put("segments/t/1", b"before")
        before = [info.path for info in storage.list("")]
        writer = storage.open_scattered("segments/t/1", size, part_bytes)
        if not self.takes_parts:
            assert writer is None
            return
        assert writer is not None
        starts = [*range(0, size, part_bytes)]
        with writer, ThreadPoolExecutor(2) as pool:
            writer.write_at(0, [bytes(min(size, part_bytes))])

            def write(start: int) -> None:
                part = memoryview(data)[start : start + part_bytes]
                writer.write_at(start, [part[:1], part[1:]])

            for _ in pool.map(write, reversed(starts)):
                pass
            assert [info.path for info in storage.list("")] == before
            assert writer.commit() == size
        assert storage.get("segments/t/1") == data
        assert self.raw_names(storage) == ["segments/t/1"]
        for use in (lambda: writer.write_at(0, [b"x"]), writer.commit):
            with pytest.raises(InvalidInputError):
                use()
        writer.abort()

    @pytest.mark.parametrize("size", [1, 14_000_000])
    def test_aborted_parts_are_gone(self, storage: Storage, size: int) -> None:
        storage.put("segments/t/1", b"before")
        writer = storage.open_scattered("segments/t/1", size, 6_000_000)
        if writer is not None:
            with writer:
                writer.write_at(0, [bytes(min(size, 6_000_000))])
            writer.abort()
        assert storage.get("segments/t/1") == b"before"
        assert self.raw_names(storage) == ["segments/t/1"]
        with pytest.raises(InvalidInputError):
            storage.open_scattered("segments/t/2", 0, 6_000_000)

    @pytest.mark.parametrize("size", [1, 11_000_000])
    @pytest.mark.parametrize("replace", [False, True])
    def test_copy_within_the_store_is_whole(
        self, storage: Storage, size: int, replace: bool
    ) -> None:
        """Copies come from another root and from this one; an existing object is replaced."""
        data = secrets.token_bytes(size)
        other = storage.sibling(f"{storage.url}-other")
        other.create("segments/t/1", data)
        if replace:
            storage.create("segments/u/1", b"in part")
        made = storage.copy_from(other, "segments/t/1", "segments/u/1", replace=replace)
        assert made is self.copies
        if made:
            assert storage.get("segments/u/1") == data
            assert storage.copy_from(storage, "segments/u/1", "segments/u/2")
            assert storage.get("segments/u/2") == data
            assert sorted(self.raw_names(storage)) == ["segments/u/1", "segments/u/2"]
            assert storage.stats.requests["copy"] == 2
            with pytest.raises(MissingObjectError):
                storage.copy_from(other, "segments/t/2", "segments/u/3")
        other.delete("segments/t/1")

    def test_path_that_leaves_the_root_is_refused(self, storage: Storage) -> None:
        uses: list[Callable[[str], object]] = [
            lambda path: storage.copy_from(storage, path, "a"),
            lambda path: storage.copy_from(storage, "a", path),
            storage.get,
            lambda path: storage.get_range(path, 0, 1),
            storage.info,
            lambda path: storage.create(path, b"x"),
            lambda path: storage.put(path, b"x"),
            storage.open_staged,
            lambda path: storage.open_scattered(path, 1, 6_000_000),
            storage.delete,
        ]
        before = storage.stats.total
        for path in LEAVING_PATHS:
            for use in [*uses, storage.list] if path not in ("", "a/") else uses:
                with pytest.raises(InvalidInputError):
                    use(path)
        assert storage.stats.total == before

    def test_exclusive_create_is_confirmed_and_leaves_nothing(self, storage: Storage) -> None:
        storage.ensure_exclusive()
        storage.ensure_exclusive()
        assert self.raw_names(storage) == []

    def test_threads_that_race_have_one_winner_each(self, storage: Storage) -> None:
        barrier = threading.Barrier(_THREADS)

        def race(racer: int) -> list[int]:
            return _race(storage, barrier, racer)

        interval = sys.getswitchinterval()
        # Very frequent thread switches reveal a check-then-write race that would rarely show.
        sys.setswitchinterval(1e-6)
        try:
            with ThreadPoolExecutor(_THREADS) as pool:
                won = list(pool.map(race, range(_THREADS)))
        finally:
            sys.setswitchinterval(interval)
        self._check_race(storage, won)

    def test_processes_that_race_have_one_winner_each(self, storage: Storage) -> None:
        if not self.shared_by_processes:
            pytest.skip("lives in one process only")
        context = forkserver()
        barrier, results = context.Barrier(_PROCESSES), context.Queue()
        racers = [
            context.Process(target=_race_in_process, args=(storage, barrier, racer, results))
            for racer in range(_PROCESSES)
        ]
        for process in racers:
            process.start()
        won = dict(results.get(timeout=_PATIENCE_S) for _ in racers)
        for process in racers:
            process.join()
        self._check_race(storage, [won[racer] for racer in range(_PROCESSES)])

    def _check_race(self, storage: Storage, won: list[list[int]]) -> None:
        winners = Counter(name for names in won for name in names)
        assert winners == Counter(range(_NAMES))
        for racer, names in enumerate(won):
            for name in names:
                assert storage.get(f"race/{name}") == _race_content(racer, name)
        assert sorted(self.raw_names(storage)) == sorted(f"race/{name}" for name in range(_NAMES))

    def test_pickled_storage_opens_again(self, storage: Storage) -> None:
        storage.create("log/1", b"abc")
        again = pickle.loads(pickle.dumps(storage))  # noqa: S301
        assert again.url == storage.url
        assert again.get("log/1") == b"abc"
        assert again.stats.requests == {"get": 1}

    def test_storage_works_after_fork(self, storage: Storage) -> None:
        storage.create("log/1", b"abc")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            signal.alarm(_PATIENCE_S)  # kills a child that hangs, so that the test fails
            os._exit(0 if _use_in_child(storage) else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert storage.get("log/1") == b"abc"
        if self.shared_by_processes:
            assert storage.get("log/2") == b"child"

    def test_calls_and_bytes_are_counted(self, storage: Storage) -> None:
        storage.stats.reset()
        storage.create("a", b"12345")
        storage.get("a")
        storage.get_range("a", 1, 3)
        storage.info("a")
        with storage.open_staged("b") as writer:
            writer.write(b"123")
            writer.commit()
        list(storage.list(""))
        storage.put("c", b"1")
        storage.delete("c")
        verbs = ("create", "get", "get_range", "info", "stage", "list", "put", "delete")
        assert storage.stats.requests == dict.fromkeys(verbs, 1)
        assert storage.stats.total == len(verbs)
        assert (storage.stats.bytes_read, storage.stats.bytes_written) == (7, 9)

    def test_texts_hold_no_secret(self, storage: Storage) -> None:
        if not self.secret:
            pytest.skip("takes no secrets")
        texts = [repr(storage), str(storage), storage.url]
        for path in ("nothing", "../x"):
            with pytest.raises(SegstoreError) as caught:
                storage.get(path)
            texts += [str(caught.value), repr(caught.value.__cause__)]
        assert not any(self.secret in text for text in texts)


def _race_content(racer: int, name: int) -> bytes:
    return f"{racer}:{name};".encode() * 2000


def _race(storage: Storage, barrier: Any, racer: int) -> list[int]:
    won = []
    for name in range(_NAMES):
        barrier.wait(_PATIENCE_S)
        if storage.create(f"race/{name}", _race_content(racer, name)):
            won.append(name)
    return won


def _race_in_process(storage: Storage, barrier: Any, racer: int, results: Any) -> None:
    results.put((racer, _race(storage, barrier, racer)))


def _use_in_child(storage: Storage) -> bool:
    return storage.get("log/1") == b"abc" and storage.create("log/2", b"child")
