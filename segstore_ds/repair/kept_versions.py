"""The kept versions of a stream: what older roots still say, for repair and salvage.

Only ancestors of the newest root count: a version that a repair left behind assigned its offsets
and numbers to other events. Files that can't be read are skipped; another version may say the same.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, TypeVar

import pyarrow as pa

from segstore_ds.errors import FormatError
from segstore_ds.format.operation import Operation
from segstore_ds.format.parquet.segment import ParquetIndex
from segstore_ds.format.root import PartRef, Root
from segstore_ds.format.schema.codec import fingerprint
from segstore_ds.log.context import StreamContext
from segstore_ds.read.segments import open_segment
from segstore_ds.status.epochs import epoch_schema
from segstore_ds.status.table import readable_parts
from segstore_ds.status.table_status import PlacedSegment
from segstore_ds.storage import ObjectInfo

_ROOTS_KEPT = 64
MOST_ROOTS = 4096  # read to find one object, whose facts are near its own version


class _Placed(Protocol):
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


T = TypeVar("T", bound=_Placed)


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
        self._objects: dict[str, list[ObjectInfo]] = {}

    def objects(self, folder: str) -> list[ObjectInfo]:
        """Return the objects in a folder of the stream; the folder is listed once."""
        if folder not in self._objects:
            self._objects[folder] = list(self.storage.list(folder))
        return self._objects[folder]

    def at(self, version: int) -> Root | None:
        """Return the root of a version; None if it is not kept or can't be read."""
        if version != self.newest.version and not self._is_kept(version):
            return None
        if version not in self._roots:
            if len(self._roots) > _ROOTS_KEPT:
                del self._roots[next(n for n in self._roots if n != self.newest.version)]
            self._roots[version] = self._read(version)
        return self._roots[version]

    def older(self, version: int | None = None) -> Iterator[Root]:
        """Yield the ancestors from `version` down, newest first; without it, all but the newest."""
        first = self.newest.version - 1 if version is None else version
        strict = self.newest.parent if self.newest.operation == Operation.REPAIR else None
        count = 0
        for number in reversed(self._numbers):
            # A repair names the version it continues from; the versions between were left behind.
            if number > first and strict is None:
                continue
            root = self.at(number)
            if root is None or (strict is not None and root.transaction != strict):
                continue
            strict = root.parent if root.operation == Operation.REPAIR else None
            if number <= first:
                yield root
                count += 1
            if count >= MOST_ROOTS:
                return

    def parts_of(self, root: Root) -> list[PartRef]:
        """Return the parts that a root lists, as far as they can be read."""
        return list(readable_parts(self.status.table, root))

    def segments_of(
        self, root: Root, start: int, end: int, *, beside: str = "", inline: bool = False
    ) -> Iterator[PlacedSegment]:
        """Yield the segments of `[start, end)` that a root lists, as far as they can be read.

        `beside` is the path of a part that is known to be lost; it is skipped. So are inline
        segments, which no part can list, unless `inline` asks for them.
        """
        for part in self.parts_of(root):
            alone = replace(root, lists=(), parts=(part,), entries=())
            span = max(start, part.start), min(end, part.end)
            if part.path != beside:
                with suppress(FormatError):
                    yield from self.status.segments(alone, *span)
        for placed in self.status.segments(replace(root, lists=(), parts=()), start, end):
            if inline or placed.entry.frame is None:
                yield placed

    def _is_kept(self, version: int) -> bool:
        return self.newest.log_start <= version < self.newest.version

    def _read(self, version: int) -> Root | None:
        try:
            root = self._files.get(version)
        except FormatError:
            return None
        return root if root is not None and root.version == version else None


def epochs_by_fingerprint(kept: KeptVersions, root: Root) -> dict[str, int]:
    """Return the newest epoch of each schema of a root, as far as schemas can be read."""
    found: dict[str, int] = {}
    for epoch in root.epochs:
        try:
            schema: pa.Schema | None = epoch_schema(kept.status, epoch)
        except FormatError:
            schema = find_schema(kept, epoch.number)
        if schema is not None:
            found[fingerprint(schema)] = epoch.number
    return found


def find_schema(kept: KeptVersions, number: int) -> pa.Schema | None:
    """Return an epoch's schema as one of its segments stores it; None if none can be read."""
    root = kept.newest
    for placed in kept.segments_of(root, root.listed_start, root.tail, inline=True):
        if placed.entry.epoch != number:
            continue
        try:
            segment = open_segment(kept.storage, placed.entry, whole=False)
            if isinstance(segment.index, ParquetIndex):
                schema = segment.index.schema.remove_metadata()
            else:
                with pa.ipc.open_stream(segment.stored(0)) as stream:
                    schema = stream.schema
        except (FormatError, pa.ArrowInvalid, OSError):
            continue
        if fingerprint(schema) == segment.frames[0].fingerprint:
            return schema
    return None


def uncovered(spans: Iterable[tuple[int, int]], start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges within a range that no span holds; spans may overlap. Pure.

    >>> list(uncovered([(2, 4), (3, 5), (7, 9)], 0, 10))
    [(0, 2), (5, 7), (9, 10)]
    """
    cursor = start
    for first, last in sorted(spans):
        if first > cursor:
            yield cursor, first
        cursor = max(cursor, last)
    if cursor < end:
        yield cursor, end


def tile(found: Mapping[int, T], start: int, end: int) -> list[T] | None:
    """Return the pieces that cover a range without gap or overlap, or None. Pure."""
    tiled, missing = tile_known(found, start, end)
    return None if missing else tiled


def tile_known(
    found: Mapping[int, T], start: int, end: int
) -> tuple[list[T], list[tuple[int, int]]]:
    """Return the pieces within a range that don't overlap, and the gaps between them. Pure.

    >>> tile_known({}, 0, 5), tile_known({}, 5, 5)
    (([], [(0, 5)]), ([], []))
    """
    tiled: list[T] = []
    missing: list[tuple[int, int]] = []
    cursor = start
    for place in sorted(found):
        piece = found[place]
        if place < cursor or piece.end > end:
            continue
        if place > cursor:
            missing.append((cursor, place))
        tiled.append(piece)
        cursor = piece.end
    if cursor < end:
        missing.append((cursor, end))
    return tiled, missing
