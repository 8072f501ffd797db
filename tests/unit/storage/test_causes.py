"""Which failures of a filesystem may go away by themselves, and what to do about the others."""

import errno
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from stream_kit import SCHEMA, numbers

import segstore_ds as segstore
from segstore_ds.errors import CommitUnknownError, StorageError
from segstore_ds.storage import Storage, open_storage
from segstore_ds.storage.gathered import SingleWriterStorage
from segstore_ds.storage.locations import resolve_location

NOBODY = 65534
KEYS = {"key": "k", "secret": "s"}


@contextmanager
def as_nobody() -> Iterator[None]:
    """Act without root's rights; what belongs to others is theirs alone then."""
    if os.geteuid():
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def failing(call: str, code: int) -> Callable[..., Any]:
    """Return a system call that fails on temporary files of a log."""
    real = getattr(os, call)

    def work(what: int | str, *rest: object) -> object:
        path = str(Path(f"/proc/self/fd/{what}").readlink()) if isinstance(what, int) else str(what)
        if "/log/.tmp-" in path:
            raise OSError(code, os.strerror(code))
        return real(what, *rest)

    return work


@contextmanager
def answering(status: int, code: str) -> Iterator[str]:
    """Serve one refusal over HTTP, whatever is asked."""
    body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()

    class Handler(BaseHTTPRequestHandler):
        """Answers every request alike."""

        protocol_version = "HTTP/1.1"  # which says "continue" to those who wait for it

        def answer(self) -> None:
            """Read what was sent, and refuse it."""
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.ENOSPC, "free space"),
        (errno.EDQUOT, "quota"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "permissions"),
        (errno.EPERM, "permissions"),
        (errno.ENAMETOOLONG, "shorter"),
        (errno.EFBIG, "largest size"),
    ],
)
def test_what_stays_is_not_retryable_and_has_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, remedy: str
) -> None:
    """One try of the commit is enough then; nothing is in doubt."""
    stream = segstore.create(tmp_path / "s", SCHEMA)
    tries: list[str] = []
    write = failing("write", code)

    def counted(what: int, *rest: object) -> object:
        try:
            return write(what, *rest)
        except OSError:
            tries.append("failed")
            raise

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", counted)
        with pytest.raises(StorageError, match=remedy) as caught:
            stream.append(numbers(0, 3))
    assert not caught.value.retryable
    assert not pickle.loads(pickle.dumps(caught.value)).retryable  # noqa: S301
    assert len(tries) == 1
    assert stream.append(numbers(0, 3)).rows == 3


def test_an_error_of_the_disk_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be one bad moment of a network's disk."""
    stream = segstore.create(tmp_path / "s", SCHEMA)
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", failing("write", errno.EIO))
        patched.setattr(time, "sleep", lambda _: None)
        with pytest.raises(StorageError) as caught:
            stream.append(numbers(0, 3))
    assert caught.value.retryable


def test_a_link_without_permission_stays_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may have made it before it refused the request's repetition."""
    stream = segstore.create(tmp_path / "s", SCHEMA)
    with monkeypatch.context() as patched:
        patched.setattr(os, "link", failing("link", errno.EACCES))
        with pytest.raises(CommitUnknownError, match="permissions"):
            stream.append(numbers(0, 3))


def test_folders_of_others_name_the_permissions(tmp_path: Path) -> None:
    """Creating, appending and opening; nothing of it is retryable."""
    tmp_path.chmod(0o755)
    for folder in tmp_path.parents:
        if folder.stat().st_mode & 0o001 == 0:
            folder.chmod(folder.stat().st_mode | 0o011)
    stream = segstore.create(tmp_path / "s", SCHEMA)
    for folder in (tmp_path, tmp_path / "s", tmp_path / "s" / "log"):
        folder.chmod(0o555)
    calls: list[Callable[[], object]] = [
        lambda: segstore.create(tmp_path / "x", SCHEMA),
        lambda: stream.append(numbers(0, 3)),
    ]
    try:
        for call in calls:
            with as_nobody(), pytest.raises(StorageError, match="check the permissions") as caught:
                call()
            assert not caught.value.retryable
    finally:
        for folder in (tmp_path, tmp_path / "s", tmp_path / "s" / "log"):
            folder.chmod(0o755)


def s3(endpoint: str, **options: object) -> Storage:
    """Return a folder at an endpoint that refuses everything, without its own retries."""
    config = {"config_kwargs": {"retries": {"max_attempts": 0}}}
    return open_storage("s3://bucket/s", {"endpoint_url": endpoint, **config, **options})


@pytest.mark.parametrize(
    ("status", "code", "remedy"),
    [
        (403, "AccessDenied", "refuses these credentials"),
        (403, "InvalidAccessKeyId", "refuses these credentials"),
        (403, "SomethingNew", "refuses these credentials"),
        (404, "NoSuchBucket", "create it first"),
        (400, "ExpiredToken", "refuses these credentials"),
        (501, "NotImplemented", "request_checksum_calculation"),
        (501, "", "request_checksum_calculation"),
        (503, "SlowDown", ""),
        (500, "InternalError", ""),
    ],
)
def test_refusals_of_a_store_are_final_and_failures_may_pass(
    status: int, code: str, remedy: str
) -> None:
    """Reads, writes and listings say the same."""
    pytest.importorskip("s3fs")
    with answering(status, code) as endpoint:
        storage = s3(endpoint, **KEYS)
        storage.fs.retries = 1  # type: ignore[attr-defined]
        calls: list[Callable[[], object]] = [
            lambda: storage.get("log/1"),
            lambda: storage.put("log/1", b"x"),
            lambda: storage.create("log/1", b"x"),
            lambda: list(storage.list("log")),
        ]
        for call in calls:
            with pytest.raises(StorageError) as caught:
                call()
            assert caught.value.retryable == (not remedy)
            told = caught.value.remedy
            assert remedy in told or "check the location" in told
            assert remedy or not told


def test_what_a_filesystem_does_not_implement_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many filesystems of fsspec only read."""

    def refuse(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", refuse)
    storage = SingleWriterStorage(resolve_location("memory://x"), single_writer=True)
    with pytest.raises(StorageError, match="choose another") as caught:
        storage.put("log/1", b"x")
    assert not caught.value.retryable


@pytest.mark.parametrize(
    ("cause", "denied"),
    [
        (PermissionError(errno.EACCES, "no"), True),
        (OSError("Forbidden: https://example.org/b/o\nno access"), True),  # of gcsfs
        (OSError("Forbidden: https://example.org/b/o\nRate limit exceeded"), False),
        (OSError("PermissionError, as a text alone"), False),
        (ValueError("Forbidden: as a text alone"), False),
        (OSError(errno.EIO, "no"), False),
    ],
    ids=repr,
)
def test_denied_is_what_a_store_refuses_for_good(
    monkeypatch: pytest.MonkeyPatch, cause: Exception, denied: bool
) -> None:
    """Also when the cause shows a secret, so that an error holds a stand-in for it."""
    storage = open_storage("memory://x", {"key": "no"})
    monkeypatch.setattr(storage, "_foreign", lambda: (OSError, ValueError))

    def refuse(*_: object) -> None:
        raise cause

    with pytest.raises(StorageError) as caught:
        storage.run("list", "log", refuse)  # type: ignore[attr-defined]
    assert caught.value.denied is denied
    assert not pickle.loads(pickle.dumps(caught.value)).denied  # noqa: S301


def test_missing_credentials_say_where_to_give_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In the names that the storage options have."""
    pytest.importorskip("s3fs")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with answering(500, "InternalError") as endpoint:
        with pytest.raises(StorageError, match=r"storage_options \(key, secret") as caught:
            s3(endpoint, use_listings_cache=False, skip_instance_cache=True).get("log/1")
        assert not caught.value.retryable
