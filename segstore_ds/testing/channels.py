"""In-memory channels for tests, with a gate before each write and failures on demand."""

import threading
from collections.abc import Sequence

from segstore_ds.errors import StorageError


class MemoryChannel:
    """Keeps the bytes it is given.

    Attributes:
        content: All bytes so far.
        writes: The size of each write.
        committed: True after `commit`.
        aborted: The number of calls of `abort`.
    """

    def __init__(self) -> None:
        self.content = bytearray()
        self.writes: list[int] = []
        self.committed = False
        self.aborted = 0

    def write_all(self, pieces: Sequence[memoryview]) -> None:
        """Append bytes."""
        data = b"".join(pieces)
        self.content += data
        self.writes.append(len(data))

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

    def write_all(self, pieces: Sequence[memoryview]) -> None:
        """Wait at the gate, then append."""
        self.arrived.release()
        if not self._gate.acquire(timeout=30):
            raise StorageError("nobody opened the gate")
        if self._refusal is not None:
            raise self._refusal
        super().write_all(pieces)


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

    def write_all(self, pieces: Sequence[memoryview]) -> None:
        """Append, or fail."""
        if self._failed:
            self.touched_after += 1
        elif len(self.writes) == self._at:
            self._failed = True
            data = b"".join(pieces)
            super().write_all([memoryview(data)[: len(data) // 2]])
            raise self._error
        super().write_all(pieces)

    def commit(self) -> int:
        """Return the size, or fail."""
        if self._failed:
            self.touched_after += 1
        if self._at < 0:
            self._failed = True
            raise self._error
        return super().commit()
