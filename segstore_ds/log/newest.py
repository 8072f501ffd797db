"""Roots as the log stores them, and the searches for the newest one; keeps no state.

These rules prevent that leftover files count as the log, and that lost ones go unnoticed:

- An open lists the names from the hint on. Leftovers of suspended writers are below the newest
  version, so the last name listed is the newest. The hint only says where to begin.
- A handle follows the names after its base for `CONFIRM_S`, and then lists them again.
- A version that is missing between the first listed name and the newest is an error. So is a root
  that does not include what this handle or the hint has seen.

A search returns None if the log has changed meanwhile, so that it can't tell.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from segstore_ds.errors import CorruptionError, FormatError, MissingObjectError
from segstore_ds.format.inline import attach_to, frame_is_sound, join_frames
from segstore_ds.format.names import Hint
from segstore_ds.format.record import Encoded, encode_after
from segstore_ds.format.root import (
    ROOT_FORMAT,
    ROOT_RAW_LIMIT_BYTES,
    Root,
    decode_root,
    encode_root,
)
from segstore_ds.format.statistics import parse_piece
from segstore_ds.log.metadata_log import MARK_BYTES, Codec, MetadataLog, find_gaps
from segstore_ds.log.place import no_stream
from segstore_ds.log.seen import (
    Seen,
    abandoned_through,
    lost_commits,
    missing_versions,
    replaced_stream,
)
from segstore_ds.log.transition import broken_invariants

LOG_GRACE_S = 3600.0
CONFIRM_S = 60.0
FOLLOWED = 8  # versions after a base that are read one by one before names are listed


def _encode_after(root: Root, known: Encoded | None, where: str) -> tuple[bytes, Encoded]:
    encoded, news = encode_after(root, known, where=where, format=ROOT_FORMAT)
    given, read = news.given.get("entries", ()), news.read.get("entries", ())
    attach_to(read, join_frames(given), where=where)
    if read != given:
        raise CorruptionError("entries can't be read back as they were written", where=where)
    for entry in read:
        parse_piece(entry.stats, where=where)
    root.check_stored(where)
    return encoded.body, encoded


def _attach(root: Root, frames: bytes, where: str) -> Root:
    attach_to(root.entries, frames, where=where)
    return root


ROOT_CODEC: Codec[Root] = Codec(
    encode_root,
    decode_root,
    ROOT_RAW_LIMIT_BYTES,
    _encode_after,
    lambda root: join_frames(root.entries),
    _attach,
    lambda root: all(frame_is_sound(entry.frame) for entry in root.entries if entry.frame),
)


@dataclass(frozen=True, slots=True)
class Base:
    """A root that was the newest at `confirmed_s`.

    `seen_s` is when its file was seen in the log, and `mark` are the file's first bytes.
    """

    root: Root
    confirmed_s: float
    seen_s: float
    mark: bytes

    @classmethod
    def found(cls, root: Root, data: bytes) -> Self:
        """Return a base, not confirmed yet, for a root that a search has read."""
        return cls(root, 0.0, 0.0, data[:MARK_BYTES])

    def is_newer(self, other: "Base") -> bool:
        """Tell whether this base is certainly newer than another thread's."""
        new, old = self.root, other.root
        if (new.stream_id, new.generation) != (old.stream_id, old.generation):
            return False
        return (new.version, self.confirmed_s) > (old.version, other.confirmed_s)


ReadRoot = Callable[[int, bytes], Root]  # decodes and checks the file of a version


class LostError(Exception):
    """A search found that commits are gone; a second search has to confirm it."""

    def __init__(self, found: MissingObjectError) -> None:
        super().__init__(str(found))
        self.found = found


def check_root(files: MetadataLog[Root], root: Root, version: int) -> None:
    """Raise CorruptionError if a root contradicts the name of its file or itself."""
    if root.version != version:
        raise CorruptionError(
            "commit file holds a different version than its name says",
            url=files.storage.url,
            path=files.path(version),
            version=root.version,
        )
    broken = list(broken_invariants(root))
    if broken:
        raise CorruptionError(
            "commit file contradicts itself",
            url=files.storage.url,
            path=files.path(version),
            broken=broken,
        )


def readable(files: MetadataLog[Root], version: int, data: bytes | None) -> Root | None:
    """Return the root of a commit file; None if it is missing or can't be read."""
    try:
        return None if data is None else files.decode(version, data)
    except FormatError:
        return None


def stands(files: MetadataLog[Root], base: Base) -> bool:
    """Tell whether the file of a base is still in the log, with the content that was seen."""
    data = files.read(base.root.version)
    return data is not None and data[:MARK_BYTES] == base.mark


def find_listed(
    files: MetadataLog[Root], read: ReadRoot, start: int, *, damaged: bool
) -> Base | None:
    """Return the newest root by listing the names from a version on.

    Every listed name existed at some moment of the listing, and a purge never deletes the newest.
    """
    if not files.storage.profile.is_far:
        start = 0  # a local listing reads the whole folder anyway, so check it for gaps
    numbers = files.numbers(start)
    if not numbers and start:
        numbers, start = files.numbers(), 0
    if not numbers:
        raise no_stream(files.storage)
    data = files.read(numbers[-1])
    if data is None:
        return None
    root = read(numbers[-1], data)
    kept = max(root.log_start, abandoned_through(root) + 1)
    missing = find_gaps(numbers, max(start, kept), root.version)
    if missing and not damaged:
        if files.exists(root.version + 1):
            return None  # no longer the newest, so the missing names may have been purged
        raise LostError(missing_versions(files.storage.url, missing, newest=root.version))
    return Base.found(root, data)


def climb(
    files: MetadataLog[Root], read: ReadRoot, base: Base, data: bytes | None = None
) -> Base | None:
    """Follow the names after a base; None if only a listing can find the newest.

    `data` is the file of the version after the base, if it was just read.
    """
    version = base.root.version + (data is not None)
    for _ in range(FOLLOWED):
        following = files.read(version + 1)
        if following is None:
            if data is None:
                return base if stands(files, base) else None
            if not files.exists(version):
                return None
            # Decode only the newest.
            return Base.found(read(version, data), data)
        version, data = version + 1, following
    return None


def not_before(
    files: MetadataLog[Root], read: ReadRoot, found: Base, seen: Seen, witness: Hint | None = None
) -> Base | None:
    """Return `found`, or the newest root after `seen` if a stale listing did not show that.

    `witness` is the hint that proves the commit `seen`; None if this handle has seen it. Raises
    LostError if it is gone from the log.
    """
    if _includes(files, found.root, seen, witness):
        return found
    data = files.read(seen.version)
    return None if data is None else climb(files, read, Base.found(read(seen.version, data), data))


def _includes(files: MetadataLog[Root], found: Root, seen: Seen, witness: Hint | None) -> bool:
    """Tell whether a root includes what was seen before.

    False means that the root is older although the log still holds what was seen: the listing was
    stale.
    """
    url = files.storage.url
    if found.stream_id != seen.stream_id or found.generation > seen.generation:
        if witness is None and found.stream_id != seen.stream_id:
            raise replaced_stream(url, seen.stream_id, found)
        return True
    included = seen.is_in(found) if found.generation == seen.generation else False
    if included is not None and (included or found.version >= seen.version):
        stale = False
    elif found.version > seen.version and seen.version < found.log_start:
        return True  # the seen version was purged; a file of its name would be a leftover
    elif witness is not None and found.version > seen.version:
        return True  # a hint this old is not worth another request
    else:
        root = readable(files, seen.version, files.read(seen.version))
        stale = found.version < seen.version
        # If that commit can't be read, a newer root is assumed to include it.
        included = not stale if root is None else root.transaction == seen.transaction
    if not included:
        raise LostError(
            lost_commits(
                url,
                version=seen.version,
                newest=found.version,
                witness="this handle" if witness is None else files.hint_path,
            )
        )
    return not stale
