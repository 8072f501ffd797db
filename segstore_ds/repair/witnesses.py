"""Witnesses that the log had more commits than now; and the older versions that can be read.

The hint, named readers and mirrors name the commit that they have seen. The name of a staged object
has the version that its writer had seen. A witness counts only for the same stream and generation.
After the witnesses are read, the log is listed again, since it may have grown meanwhile.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from segstore_ds.errors import FormatError, InvalidInputError, StorageError
from segstore_ds.format import names
from segstore_ds.format.operation import Operation
from segstore_ds.format.root import Root
from segstore_ds.log.context import StreamContext
from segstore_ds.log.seen import Seen, abandoned_through, is_gone, is_proof, seen_by_hint
from segstore_ds.read.reader_records import newest_record
from segstore_ds.status.references import list_objects
from segstore_ds.status.table import readable_parts
from segstore_ds.status.table_status import Slice


@dataclass(frozen=True, slots=True)
class Witness:
    """Proof that a version was committed that the log lacks, or of which it has another commit."""

    version: int
    what: str


def find_witnesses(context: StreamContext, newest: Root) -> list[Witness]:
    """Return the witnesses of lost commits, newest version first; empty for a sound log.

    Witnesses that can't be read or reached are left out.
    """
    claims = [*_hint(context, newest), *_readers(context, newest), *_mirrors(context, newest)]
    claims += _names(context, newest)
    end = (context.log.files.newest_listed() or 0) if claims else 0
    # The log may have grown, or end with an unreadable file, which is another error.
    gone = [claim for claim in claims if claim.version <= newest.version or claim.version > end]
    return sorted(gone, key=lambda witness: -witness.version)


def _hint(context: StreamContext, newest: Root) -> Iterator[Witness]:
    hint = context.log.files.read_hint()
    seen = None if hint is None else seen_by_hint(hint)
    if seen is not None and (is_proof(hint, newest) or is_gone(context.log.files, seen, newest)):
        yield Witness(seen.version, names.HINT_PATH)


def _readers(context: StreamContext, newest: Root) -> Iterator[Witness]:
    for name in context.storage.folders(names.READERS_FOLDER):
        try:
            reader = newest_record(context, name)
        except (FormatError, InvalidInputError):
            continue
        seen = None if reader is None else Seen.by(reader.record)
        if seen is not None and is_gone(context.log.files, seen, newest):
            yield Witness(seen.version, f"reader {name!r}")


def _mirrors(context: StreamContext, newest: Root) -> Iterator[Witness]:
    try:
        mirrors = [*context.log.seams.sound_copies(newest)]
    except (FormatError, InvalidInputError):
        return
    for files in mirrors:
        try:
            latest = files.latest()
        except (FormatError, StorageError):
            continue
        if latest is not None and is_gone(context.log.files, Seen.of(latest[1]), newest):
            yield Witness(latest[1].version, files.storage.url)


def _names(context: StreamContext, newest: Root) -> Iterator[Witness]:
    if newest.copies:
        return  # names of a clone's objects may have versions of its origin
    known = max(newest.version, abandoned_through(newest))
    for info in list_objects(context.storage):
        version = names.staged_version(info.path)
        if version is not None and version > known:
            known = version
            yield Witness(version, info.path)


_ROOTS_CACHED = 64
MOST_ROOTS = 4096  # most older versions that are read


class KeptVersions:
    """The kept versions, for repair and salvage; older roots are read on demand.

    Only ancestors of the newest root count: in a version that a repair abandoned, the same offsets
    and segment numbers are of other events. Unreadable files are skipped.
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
            if len(self._roots) > _ROOTS_CACHED:
                del self._roots[next(n for n in self._roots if n != self.newest.version)]
            self._roots[version] = self._read(version)
        return self._roots[version]

    def older(self) -> Iterator[Root]:
        """Yield the ancestors of the newest root, newest first."""
        strict = self.newest.parent if self.newest.operation == Operation.REPAIR else None
        for number in self._numbers[-MOST_ROOTS:][::-1]:
            root = self.at(number)
            # The parent of a repair is the version that it continues; it abandoned those between.
            if root is None or (strict is not None and root.transaction != strict):
                continue
            strict = root.parent if root.operation == Operation.REPAIR else None
            yield root

    def segments_of(self, root: Root, start: int, end: int) -> Iterator[Slice]:
        """Yield the segments of `[start, end)` that a root lists, without unreadable parts."""
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
