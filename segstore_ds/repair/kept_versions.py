"""The kept versions of a stream: what older roots still say, for repair and salvage.

Only ancestors of the newest root count: a version that a repair left behind assigned its offsets
and numbers to other events. Files that can't be read are skipped; another version may say the same.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from segstore_ds.errors import FormatError
from segstore_ds.format.operation import Operation
from segstore_ds.format.root import Root
from segstore_ds.log.context import StreamContext
from segstore_ds.status.table import readable_parts
from segstore_ds.status.table_status import PlacedSegment

_ROOTS_KEPT = 64
MOST_ROOTS = 4096  # read to find one object, whose facts are near its own version


class KeptVersions:
    """Reads older roots on demand, since usually few are needed.

    What `status` reads stays in memory by name.
    """

    def __init__(self, context: StreamContext, root: Root) -> None:
        self.storage = context.storage
        self.status = context.status
        self.newest = root
        self._files = context.log.files
        self._roots: dict[int, Root | None] = {root.version: root}
        numbers = context.log.files.numbers()
        self._numbers = [n for n in numbers if root.log_start <= n < root.version]

    def at(self, version: int) -> Root | None:
        """Return the root of a version; None if it is not kept or can't be read."""
        if not self.newest.log_start <= version <= self.newest.version:
            return None
        if version not in self._roots:
            if len(self._roots) > _ROOTS_KEPT:
                del self._roots[next(n for n in self._roots if n != self.newest.version)]
            self._roots[version] = self._read(version)
        return self._roots[version]

    def older(self) -> Iterator[Root]:
        """Yield the ancestors of the newest root, newest first."""
        strict = self.newest.parent if self.newest.operation == Operation.REPAIR else None
        for number in self._numbers[-MOST_ROOTS:][::-1]:
            root = self.at(number)
            # A repair names the version it continues from; the versions between were left behind.
            if root is None or (strict is not None and root.transaction != strict):
                continue
            strict = root.parent if root.operation == Operation.REPAIR else None
            yield root

    def segments_of(self, root: Root, start: int, end: int) -> Iterator[PlacedSegment]:
        """Yield the segments of `[start, end)` that a root lists, as far as they can be read."""
        for part in readable_parts(self.status.table, root):
            alone = replace(root, lists=(), parts=(part,), entries=())
            with suppress(FormatError):
                yield from self.status.segments(alone, max(start, part.start), min(end, part.end))
        yield from self.status.segments(replace(root, lists=(), parts=()), start, end)

    def _read(self, version: int) -> Root | None:
        try:
            root = self._files.get(version)
        except FormatError:
            return None
        return root if root is not None and root.version == version else None
