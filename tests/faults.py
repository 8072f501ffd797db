"""Storages that fail or crash on purpose, around any other storage.

Every request is one numbered call: each verb, opening a staged object, each write to it and its
commit; as does an object whose parts come in any order. `FaultStorage` injects a fault at the
n-th call, before or after its effect. A sweep over n until a run succeeds tries every place where a
real storage can fail.

A failure is a StorageError of one call or of several. A crash is the end of the process: that call
and every later one raise `Crash`, which only the test catches. So no cleanup of the code under test
reaches the storage any more, and an incomplete staged object is left behind in part.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from wrapped_storage import WrappedParts, WrappedStorage, WrappedWriter

from segstore_ds.errors import InvalidInputError, StorageError
from segstore_ds.storage.base import ScatteredWriter, StagedWriter, Storage

T = TypeVar("T")


class Crash(BaseException):
    """The process has ended, from the storage's point of view."""


def die() -> None:
    """End the process, where a test has something happen before a call."""
    raise Crash("the process has ended")


@dataclass(frozen=True, slots=True)
class Fault:
    """The calls that fail, and how.

    Attributes:
        at: Number of the first call that fails, from 1.
        kind: ``fail`` raises StorageError, ``crash`` ends the process.
        when: ``before`` the effect of the call, or ``after``.
        calls: How many consecutive calls fail; a crash lasts for all later calls.
        untouched: The failure says that the call has created nothing, as a full disk does.
    """

    at: int
    kind: Literal["fail", "crash"] = "fail"
    when: Literal["before", "after"] = "before"
    calls: int = 1
    untouched: bool = False

    def __post_init__(self) -> None:
        """Raise InvalidInputError if a field has no meaning."""
        known = self.kind in ("fail", "crash") and self.when in ("before", "after")
        lies = self.untouched and (self.kind, self.when) != ("fail", "before")
        if not known or lies or min(self.at, self.calls) < 1:
            raise InvalidInputError("not a fault", fault=repr(self))


class FaultStorage(WrappedStorage):
    """Injects a fault at one call or at all calls from one on; without a fault it only counts.

    Attributes:
        calls: The calls so far, as ``verb path``; the n-th call is ``calls[n - 1]``.
        struck: Whether the fault has occurred.
    """

    def __init__(self, inner: Storage, fault: Fault | None = None) -> None:
        super().__init__(inner)
        self.fault = fault
        self.calls: list[str] = []
        self.struck = False
        self._counting = threading.Lock()

    def __reduce__(self) -> tuple[Callable[..., Storage], tuple[Any, ...]]:
        return FaultStorage, (self.inner, self.fault)

    @property
    def crashed(self) -> bool:
        """Whether the process has ended."""
        return self.struck and self.fault is not None and self.fault.kind == "crash"

    def around(self, verb: str, path: str, work: Callable[[], T]) -> T:
        if self.crashed:
            raise Crash(f"after the crash: {verb} {path}")
        with self._counting:
            self.calls.append(f"{verb} {path}".rstrip())
            number, fault = len(self.calls), self.fault
        if fault is None or not fault.at <= number < fault.at + fault.calls:
            return work()
        if fault.when == "before":
            raise self._strike(number)
        try:
            work()
        finally:
            self.struck = True
        raise self._strike(number)

    def open_staged(self, path: str, *, replace: bool = False) -> StagedWriter:
        opened: list[StagedWriter] = []

        def work() -> StagedWriter:
            opened.append(self.inner.open_staged(path, replace=replace))
            return opened[0]

        try:
            writer = self.around("open_staged", path, work)
            return FaultWriter(self, path, writer, replaces=replace)
        except BaseException:
            for writer in opened:
                writer.abort()
            raise

    def open_scattered(self, path: str, size: int, part_bytes: int) -> ScatteredWriter | None:
        opened: list[ScatteredWriter | None] = []

        def work() -> ScatteredWriter | None:
            opened.append(self.inner.open_scattered(path, size, part_bytes))
            return opened[0]

        try:
            inner = self.around("open_scattered", path, work)
        except BaseException:
            for writer in filter(None, opened):
                writer.abort()
            raise
        # Nothing has the object's name before its commit, so a crash leaves no part of it.
        return inner and FaultParts(self, path, inner)

    def _strike(self, number: int) -> BaseException:
        self.struck = True
        if self.crashed:
            return Crash(f"at call {number}: {self.calls[-1]}")
        failure = StorageError("fault was injected", call=number, request=self.calls[-1])
        failure.untouched = self.fault is not None and self.fault.untouched
        return failure


class FaultWriter(WrappedWriter):
    """A staged writer that leaves part of its object behind if the process crashes."""

    def __init__(
        self, storage: FaultStorage, path: str, inner: StagedWriter, *, replaces: bool = False
    ) -> None:
        super().__init__(storage, path, inner)
        self._faults = storage
        self._replaces = replaces
        self._content = bytearray()
        self._settled = False

    def write(self, data: Any) -> None:
        view = memoryview(data).cast("B")
        try:
            super().write(view)
        except Crash:
            self._leave(self._content + view[: view.nbytes // 2])
            raise
        self._content += view

    def commit(self) -> int:
        def work() -> int:
            size = self._inner.commit()
            self._settled = True
            return size

        try:
            return self._faults.around("commit", self._path, work)
        except Crash:
            self._leave(self._content[: max(len(self._content) - 1, 0)])
            raise

    def abort(self) -> None:
        if not self._faults.crashed:
            self._inner.abort()

    def _leave(self, content: bytearray) -> None:
        # A whole object stays whole, and the part that the crash left stays unchanged.
        if self._settled:
            return
        self._settled = True
        self._inner.abort()
        # A replacing writer replaces the object as a whole or not at all, so it leaves no part.
        if content and not self._replaces:
            self._faults.inner.put(self._path, bytes(content))


class FaultParts(WrappedParts):
    """A scattered writer whose temporary object is left behind if the process crashes."""

    def __init__(self, storage: FaultStorage, path: str, inner: ScatteredWriter) -> None:
        super().__init__(storage, path, inner)
        self._faults = storage

    def abort(self) -> None:
        if not self._faults.crashed:
            self._inner.abort()
