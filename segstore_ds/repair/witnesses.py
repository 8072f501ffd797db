"""Witnesses: what outside the log proves that the log held more commits than it does now.

The hint, named readers and mirrors say which commit they have seen. The name of a staged object
says which version its writer had seen. A witness counts only for the same stream and generation.
After the witnesses are read, the log is listed again, since it may have grown meanwhile.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from segstore_ds.errors import FormatError, InvalidInputError, StorageError
from segstore_ds.format import names
from segstore_ds.format.root import Root
from segstore_ds.log.context import StreamContext
from segstore_ds.log.seen import Seen, abandoned_through, is_gone, is_proof, seen_by_hint
from segstore_ds.read.reader_records import newest_record
from segstore_ds.status.references import list_objects


@dataclass(frozen=True, slots=True)
class Witness:
    """What proves that a version was committed that the log lacks, or holds as another commit."""

    version: int
    what: str


def find_witnesses(context: StreamContext, newest: Root) -> list[Witness]:
    """Return what proves that commits are gone, newest version first; empty for a sound log.

    What can't be read or reached proves nothing.
    """
    found = [*_hint(context, newest), *_readers(context, newest), *_mirrors(context, newest)]
    found += _names(context, newest)
    end = (context.log.files.newest_listed() or 0) if found else 0
    # The log may have grown, or end with an unreadable file, which is another error.
    gone = [claim for claim in found if claim.version <= newest.version or claim.version > end]
    return sorted(gone, key=lambda witness: -witness.version)


def _hint(context: StreamContext, newest: Root) -> Iterator[Witness]:
    hint = context.log.files.read_hint()
    seen = None if hint is None else seen_by_hint(hint)
    if seen is not None and (is_proof(hint, newest) or is_gone(context.log.files, seen, newest)):
        yield Witness(seen.version, names.HINT_PATH)


def _readers(context: StreamContext, newest: Root) -> Iterator[Witness]:
    for name in context.storage.folders(names.READERS_FOLDER):
        try:
            found = newest_record(context, name)
        except (FormatError, InvalidInputError):
            continue
        seen = None if found is None else Seen.by(found.record)
        if seen is not None and is_gone(context.log.files, seen, newest):
            yield Witness(seen.version, f"reader {name!r}")


def _mirrors(context: StreamContext, newest: Root) -> Iterator[Witness]:
    try:
        mirrors = [*context.log.seams.sound_copies(newest)]
    except (FormatError, InvalidInputError):
        return
    for files in mirrors:
        try:
            found = files.latest()
        except (FormatError, StorageError):
            continue
        if found is not None and is_gone(context.log.files, Seen.of(found[1]), newest):
            yield Witness(found[1].version, files.storage.url)


def _names(context: StreamContext, newest: Root) -> Iterator[Witness]:
    if newest.copies:
        return  # a clone's objects carry versions of its origin
    known = max(newest.version, abandoned_through(newest))
    for info in list_objects(context.storage):
        version = names.staged_version(info.path)
        if version is not None and version > known:
            known = version
            yield Witness(version, info.path)
