"""Upkeep after a commit: whatever fails there, the caller hears that its events are committed."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from faults import Crash
from stream_kit import HOUR, STAGED, make_stream, numbers, values, wait
from wrapped_storage import WrappedStorage

from segstore_ds.errors import StorageError
from segstore_ds.format.policies import RetentionPolicy
from segstore_ds.log.seams import best_effort
from segstore_ds.stream.opening import open as open_on


class _Defective(WrappedStorage):
    """A storage that has a bug, from the commit of the next version on."""

    def __init__(self, inner: object, version: int, error: Exception) -> None:
        super().__init__(inner)  # type: ignore[arg-type]
        self._error = error
        self.calls = 0
        self._version = version
        self._committed = False

    def around(self, verb: str, path: str, work: Callable[[], object]) -> object:
        if self._committed and path != "log/_latest":
            self.calls += 1
            raise self._error
        done = work()
        self._committed |= f"{self._version:020d}" in path and verb == "create"
        return done


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, Crash])
def test_what_ends_the_process_is_not(error: type[BaseException]) -> None:
    """Who asks the process to end is heard."""
    ending: AbstractContextManager[object] = pytest.raises(error)
    with ending, best_effort("sweeping"):
        raise error


@pytest.mark.parametrize(
    ("error", "logged"), [(RuntimeError("x"), "; this is a bug"), (MemoryError("x"), ": x")]
)
def test_a_defect_after_the_commit_is_not_the_commits(
    error: Exception, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Merging parts, compaction and retention all fail with what is no error of ours."""
    stream, storage = make_stream(8)
    stream.settings.update(retention=RetentionPolicy(max_bytes=1))
    wait(storage, HOUR)
    broken = _Defective(storage, stream.refresh().version + 1, error)
    writer = open_on(broken, clock=storage.time.clock)
    commit = writer.append(numbers(80, 90), layout=STAGED, compact="auto")
    assert (commit.start, commit.end) == (80, 90)
    assert broken.calls
    assert f"compaction failed and was skipped{logged}" in caplog.text
    fresh = open_on(storage, clock=storage.time.clock)
    assert values(fresh) == list(range(90))


@pytest.mark.parametrize(
    ("error", "logged"),
    [
        (StorageError("gone"), "skipped: SEG_STORAGE: gone"),
        (MemoryError(), "skipped: "),
        (RuntimeError("a bug"), "this is a bug"),
        (KeyError("x"), "this is a bug"),
        (None, None),
    ],
)
def test_failures_are_skipped(
    error: Exception | None, logged: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Ours with a line, defects with their traceback."""
    with caplog.at_level(logging.WARNING), best_effort("sweeping"):
        if error is not None:
            raise error
    assert [record.name.rpartition(".")[2] for record in caplog.records] == (
        ["seams"] if error else []
    )
    for record in caplog.records:
        assert "sweeping failed and was" in record.getMessage()
        assert logged in record.getMessage()
        assert (record.exc_info is not None) == ("a bug" in logged)
