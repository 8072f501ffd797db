"""A disk that is full, read-only or broken: what surely failed, and what may have landed."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from stream_kit import SCHEMA, numbers, values

from segstore_ds.errors import CommitUnknownError, StorageError
from segstore_ds.log.clock import Clock
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.stream import Stream

CAUSES = [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EFBIG, errno.EIO]


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    """A stream of three events on a disk, for callers that don't wait."""
    made = create_on(open_storage(tmp_path / "s"), SCHEMA, clock=Clock(sleep=lambda _: None))
    made.append(numbers(0, 3))
    return made


def _files(stream: Stream) -> list[str]:
    storage = stream._log.storage
    return sorted(info.path for info in (*storage.list(""), *storage.temporaries()))


def _fail_in_log(monkeypatch: pytest.MonkeyPatch, call: str, code: int) -> None:
    """Have a system call fail that writes a commit file."""
    real: Callable[..., object] = getattr(os, call)

    def failing(what: int | str, *rest: object) -> object:
        path = str(Path(f"/proc/self/fd/{what}").readlink()) if isinstance(what, int) else str(what)
        if "/log/.tmp-" in path:
            raise OSError(code, os.strerror(code))
        return real(what, *rest)

    monkeypatch.setattr(os, call, failing)


@pytest.mark.parametrize("call", ["open", "write", "fsync"])
@pytest.mark.parametrize("code", CAUSES)
def test_what_fails_before_the_link_is_a_plain_failure(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    """Nothing is in the log or left behind, and the same handle can append again."""
    before = _files(stream)
    with monkeypatch.context() as patched:
        _fail_in_log(patched, call, code)
        with pytest.raises(StorageError, match=os.strerror(code)):
            stream.append(numbers(3, 5), writer_id="w", batch_id=1)
        assert _files(stream) == before
    commit = stream.append(numbers(3, 5), writer_id="w", batch_id=1)
    assert not commit.repeated
    assert values(stream) == [0, 1, 2, 3, 4]
    assert stream.verify().ok


@pytest.mark.usefixtures("no_inline")
def test_failure_at_the_link_is_unknown_with_its_cause(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may have done it and failed to say so; what was staged stays."""
    before = _files(stream)
    with monkeypatch.context() as patched:
        _fail_in_log(patched, "link", errno.EIO)
        with pytest.raises(CommitUnknownError, match="Input/output error") as caught:
            stream.append(numbers(3, 5))
    assert len(_files(stream)) == len(before) + 1
    found = stream.outcome(caught.value.fields["transaction"], caught.value.fields["version"])
    assert found.state.name != "COMMITTED"


def test_appender_events_stay_readable_on_a_full_disk(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure is certain, so the caller may append the events again."""
    before = _files(stream)
    appender = stream.appender(flush_seconds=None)
    appender.append({"n": 3, "s": "s3"})
    with monkeypatch.context() as patched:
        _fail_in_log(patched, "write", errno.ENOSPC)
        with pytest.raises(StorageError, match="No space"):
            appender.flush()
    kept = appender.read().read_all()
    appender.close()
    assert _files(stream) == before
    with stream.appender(flush_seconds=None) as again:
        again.append(kept)
    assert values(stream) == [0, 1, 2, 3]
