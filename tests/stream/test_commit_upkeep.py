"""What is done after a commit: whatever becomes of it, the commit before it was acknowledged."""

import logging
from collections.abc import Callable
from typing import TypeVar

import pytest
from stream_kit import STAGED, TIGHT, make_stream, numbers, values
from wrapped_storage import WrappedStorage

from segstore_ds.format.policies import RetentionPolicy
from segstore_ds.storage import Storage
from segstore_ds.stream.opening import open as open_on

T = TypeVar("T")


class Exhausted(WrappedStorage):
    """A storage where memory runs out with the first such call after a commit has landed."""

    def __init__(self, inner: Storage, call: str) -> None:
        super().__init__(inner)
        self.struck = False
        self._call = call
        self._landed = False

    def around(self, verb: str, path: str, work: Callable[[], T]) -> T:
        if self._landed and not self.struck and f"{verb} {path}".startswith(self._call):
            self.struck = True
            raise MemoryError("malloc of size 268435456 failed")
        done = work()
        self._landed = self._landed or (verb == "create" and path.startswith("log/0"))
        return done


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("create status/", "merging status parts"),
        ("get segments/", "compaction"),
        ("list readers", "retention"),
    ],
)
def test_memory_that_runs_out_in_upkeep_never_fails_the_commit(
    call: str, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A caller would repeat an append that seems to have failed, and double its events."""
    for name, value in TIGHT.items():
        monkeypatch.setattr(name, value)
    stream, storage = make_stream(0)
    compact = "auto" if said == "compaction" else "off"
    if said == "retention":
        stream.settings.update(retention=RetentionPolicy(max_bytes=1 << 30))
    struck = False
    for n in range(12):
        tight = Exhausted(storage, call)
        handle = open_on(tight, clock=stream._log.clock)
        with caplog.at_level(logging.WARNING):
            assert handle.append(numbers(n, n + 1), layout=STAGED, compact=compact).start == n
        struck = struck or tight.struck
    assert struck
    assert f"{said} failed and was skipped" in caplog.text
    assert values(stream.refresh()) == list(range(12))
    stream.verify().check()
