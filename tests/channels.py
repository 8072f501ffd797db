"""In-memory channels for tests, with a gate before each write and failures on demand.

Each is a channel of both kinds: its bytes come in order, or with their positions.
"""

import threading
from collections.abc import Sequence

from segstore_ds.errors import StorageError


class MemoryChannel:
    """Keeps the bytes it is given.

    Attributes:
        content: All bytes so far.
        writes: The size of each write.
        starts: The position of each write.
        committed: True after `commit`.
        aborted: The number of calls of `abort`.
    """

    def __init__(self) -> None:
        self.content = bytearray()
        self.writes: list[int] = []
        self.starts: list[int] = []
        self.committed = False
        self.aborted = 0
        self._lock = threading.Lock()

    def write_all(self, pieces: Sequence[memoryview]) -> None:
        """Append bytes."""
        self._take(len(self.content), b"".join(pieces))

    def write_at(self, start: int, pieces: Sequence[memoryview]) -> None:
        """Keep bytes at their position."""
        self._take(start, b"".join(pieces))

    def commit(self) -> int:
        """Return the size."""
        self.committed = True
        return len(self.content)

    def abort(self) -> None:
        """Count the call."""
        self.aborted += 1

    def load(self, start: int, end: int) -> bytes:
        """Return the bytes `[start, end)`."""
        return bytes(self.content[start:end])

    def _take(self, start: int, data: bytes) -> None:
        with self._lock:
            self.content.extend(bytes(max(start - len(self.content), 0)))
            self.content[start : start + len(data)] = data
            self.writes.append(len(data))
            self.starts.append(start)


class GatedChannel(MemoryChannel):
    """Blocks each write until the test allows it.

    Attributes:
        arrived: Released once by every write that reaches the gate.
    """

    def __init__(self) -> None:
        super().__init__()
        self.arrived = threading.Semaphore(0)
        self._gate = threading.Semaphore(0)
        self._refusal: BaseException | None = None

    def refuse(self, error: BaseException) -> None:
        """Let the next write fail with this error."""
        self._refusal = error
        self.allow()

    def allow(self, writes: int = 1) -> None:
        """Let this many writes pass."""
        self._gate.release(writes)

    def _take(self, start: int, data: bytes) -> None:
        self.arrived.release()
        if not self._gate.acquire(timeout=30):
            raise StorageError("nobody opened the gate")
        if self._refusal is not None:
            raise self._refusal
        super()._take(start, data)


class FailingChannel(MemoryChannel):
    """Fails at one write after taking half of it; later calls are counted in `touched_after`.

    `at` is the number of the failing write, from 0, or -1 for the commit. `error` is the exception
    it raises.
    """

    def __init__(self, at: int, error: BaseException | None = None) -> None:
        super().__init__()
        self.touched_after = 0
        self._at = at
        self._error = error or StorageError("disk is full")
        self._failed = False

    def _take(self, start: int, data: bytes) -> None:
        if self._failed:
            self.touched_after += 1
        elif len(self.writes) == self._at:
            self._failed = True
            super()._take(start, data[: len(data) // 2])
            raise self._error
        super()._take(start, data)

    def commit(self) -> int:
        """Return the size, or fail."""
        if self._failed:
            self.touched_after += 1
        if self._at < 0:
            self._failed = True
            raise self._error
        return super().commit()
