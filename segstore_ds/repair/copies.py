"""Restores lost or damaged files from identical copies: a twin, a mirror, or another commit file.

A damaged status object is copied from its twin, and a twin from its object.

Commits are restored from mirrors first, in order, as long as each is the child of the previous one;
then the objects that the newest commit needs. Nothing is taken from a promoted mirror: its later
commits are not part of this folder's history.

Commit files of several versions have the same inline frame. A frame that fails its checksum is
replaced by the frame of another kept version that lists the same segment, or of a mirror's file of
the same version. The rest of the file does not change, so it has its committed bytes again. Only
versions that may share inline events with the newest one are searched: the events of older ones are
in segments by now, and a repair should not read the whole log.
"""

import logging
import re
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from itertools import chain, takewhile
from operator import attrgetter

from segstore_ds.copy.transfer import CopiedObject, copy_objects
from segstore_ds.errors import FormatError, InvalidInputError, NotFoundError, StorageError
from segstore_ds.format import names
from segstore_ds.format.inline import frame_is_sound, join_frames, same_frame
from segstore_ds.format.root import InlineFrame, Root, SegmentEntry
from segstore_ds.log.context import StreamContext
from segstore_ds.log.metadata_log import MetadataLog, find_gaps
from segstore_ds.log.newest import readable
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.repair.verify import damaged_status, run_verify
from segstore_ds.repair.witnesses import KeptVersions
from segstore_ds.status.references import OBJECT_FOLDERS
from segstore_ds.status.store import read_sound
from segstore_ds.storage import Storage

_LOG = logging.getLogger(__name__)
_FOLDERS = tuple(f"{folder}/" for folder in (*OBJECT_FOLDERS, names.LOG_FOLDER))
_PASSES = 3  # each restored level shows what is missing in the next: part lists, parts, segments


@dataclass(slots=True)
class Findings:
    """What was restored, and what could not be."""

    repaired: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)


_Copy = tuple[InlineFrame, str]  # a sound frame, and where it was found


def restore_log(context: StreamContext, replica: str) -> list[str]:
    """Copy the commits of a mirror that this log lacks or can't read; return what and from where.

    This is for a log without a readable root that names the mirror. Nothing is copied from a folder
    that does not say that it mirrors this one, or has another commit of some version.
    """
    ours, theirs = context.log.files, context.log.files.at(context.storage.sibling(replica))
    latest = theirs.latest()
    shared = set(ours.numbers()) & set(theirs.numbers())
    held = {n for n in shared if readable(ours, n, ours.read(n)) is not None}
    if (
        latest is None
        or not context.log.seams.of(latest[1]).is_mirrored(latest[1])
        or any(_differ(ours, theirs, number) for number in held)
    ):
        raise InvalidInputError(
            "the folder is no replica of this one, was promoted, or has other commits",
            remedy="name a replica; if one was promoted, that one is the stream now",
            url=context.storage.url,
            replica=theirs.storage.url,
        )
    restored: list[str] = []
    for number in theirs.numbers():
        if number not in held:
            context.storage.put(ours.path(number), theirs.read_sound(number)[1])
            restored.append(f"{ours.path(number)} from {theirs.storage.url}")
    return restored


def _differ(ours: MetadataLog[Root], theirs: MetadataLog[Root], number: int) -> bool:
    both = [readable(files, number, files.read(number)) for files in (ours, theirs)]
    return len({root.transaction for root in both if root is not None}) > 1


def restore_commits(context: StreamContext, base: Root) -> list[str]:
    """Copy commits newer than `base` from mirrors that have them; return what and from where."""
    restored: list[str] = []
    newest = base
    for files in context.log.seams.sound_copies(base):
        try:
            while _next(files, newest) is not None:
                newest, data = files.read_sound(newest.version + 1)
                path = files.path(newest.version)
                context.storage.put(path, data)
                restored.append(f"{path} from {files.storage.url}")
        except (FormatError, StorageError) as error:
            _LOG.warning("commits can't be restored from %s: %s", files.storage.url, error)
    return restored


def restore_objects(context: StreamContext, root: Root) -> list[str]:
    """Copy missing or damaged objects back from their twins, or a mirror whose copy is sound.

    With mirrors it reads all objects here and, if something is damaged, all objects of the mirrors.
    Safe to repeat. Returns what was restored, and from where.
    """
    restored: list[str] = []
    mirrors = [files.storage for files in context.log.seams.sound_copies(root)]
    for _ in range(_PASSES if mirrors else 1):
        wrong = _damaged(context) if mirrors else damaged_status(context)
        before = len(restored)
        for path in sorted(filter(names.is_status, wrong)):
            with suppress(FormatError):  # both are damaged
                put_back(context.storage, path, read_sound(context.storage, names.twin_of(path)))
                restored.append(f"{path} from {names.twin_of(path)}")
                wrong.discard(path)
        for mirror in mirrors if wrong else ():
            try:
                theirs = StreamLog(mirror, clock=context.clock)
                ours = theirs.open().stream_id == root.stream_id
                sound = wrong - _damaged(StreamContext.of(theirs)) if ours else set()
                copies = (
                    CopiedObject(mirror, path, context.storage, path) for path in sorted(sound)
                )
                # Extended one by one, so that a failure does not hide what was restored before.
                restored.extend(f"{path} from {mirror.url}" for path in copy_objects(copies))
                wrong -= sound
            except (FormatError, NotFoundError, StorageError) as error:
                _LOG.warning("not all objects can be restored from %s: %s", mirror.url, error)
        if len(restored) == before:
            break
    return restored


def put_back(storage: Storage, path: str, data: bytes) -> None:
    """Replace an object in one step: after a failure, it has the old or the new bytes."""
    with storage.open_staged(path, replace=True) as writer:
        writer.write(data)
        writer.commit()


def _next(files: MetadataLog[Root], base: Root) -> Root | None:
    root = files.get(base.version + 1)
    if root is None or root.parent != base.transaction:
        return None
    same = (root.stream_id, root.generation) == (base.stream_id, base.generation)
    return root if same else None


def _damaged(context: StreamContext) -> set[str]:
    problems = run_verify(context).problems
    # A problem of an inline frame is `<commit file>: <segment>`, one of a frame ends with a range.
    paths = {re.split(r": |\[", problem.where)[0] for problem in problems}
    paths = {path for path in paths if path.startswith(_FOLDERS) and path != names.HINT_PATH}
    files, root = context.log.files, context.log.root
    gaps = find_gaps(files.numbers(), root.log_start, root.version)
    return paths | {files.path(number) for gap in gaps for number in gap}


@dataclass(slots=True)
class FrameRepair:
    """Restores the inline frames of `root`, and of the versions before it; safe to repeat."""

    context: StreamContext
    root: Root
    findings: Findings = field(default_factory=Findings)

    def run(self) -> Findings:
        """Restore the frames; return what was restored, and what could not be."""
        kept = KeptVersions(self.context, self.root)
        inline = takewhile(attrgetter("inline_bytes"), chain([self.root], kept.older()))
        for root in inline:
            damaged = [entry for entry in root.entries if not _is_sound(entry)]
            if damaged:
                self._restore(kept, root, damaged)
        return self.findings

    def _restore(self, kept: KeptVersions, root: Root, damaged: list[SegmentEntry]) -> None:
        path = self.context.log.files.path(root.version)
        copies: dict[str, _Copy] = {}
        for entry in damaged:
            copy = next(self._copies(kept, root, entry), None)
            if copy is not None:
                copies[entry.path] = copy
            else:
                self.findings.damaged.append(_describe_lost(root, entry, path))
        if not copies:
            return
        body = self._read_body(root)
        entries = (
            replace(entry, frame=copies[entry.path][0]) if entry.path in copies else entry
            for entry in root.entries
        )
        put_back(self.context.storage, path, body + join_frames(entries))
        self.findings.repaired += [
            f"{path}: {names.segment_object(segment)} from {source}"
            for segment, (_, source) in copies.items()
        ]

    def _read_body(self, root: Root) -> bytes:
        """Return what a commit file has before its frames; it is checked, since it is put again."""
        files = self.context.log.files
        for last in (False, True):
            data = files.read(root.version) or b""
            with nullcontext() if last else suppress(FormatError):
                files.decode(root.version, data)
                break
        return data[: len(data) - root.inline_bytes]

    def _copies(self, kept: KeptVersions, root: Root, entry: SegmentEntry) -> Iterator[_Copy]:
        """Yield the sound copies of a frame: of earlier and later versions, then of mirrors."""
        files = self.context.log.files
        for versions in (
            range(root.version - 1, self.root.log_start - 1, -1),
            range(root.version + 1, self.root.version + 1),
        ):
            for version in versions:
                other = kept.at(version)
                if other is None:
                    continue  # an unreadable file; the next version may list the segment
                listed = same_frame(other, entry)
                if listed is None:
                    break
                if frame_is_sound(listed):
                    yield listed, files.path(version)
        for mirror in self.context.log.seams.sound_copies(self.root):
            try:
                theirs = mirror.get(root.version)
            except (FormatError, StorageError):
                continue
            listed = None if theirs is None else same_frame(theirs, entry)
            if listed is not None and frame_is_sound(listed):
                yield listed, mirror.storage.url


def _is_sound(entry: SegmentEntry) -> bool:
    return entry.frame is None or frame_is_sound(entry.frame)


def _describe_lost(root: Root, entry: SegmentEntry, path: str) -> str:
    before = takewhile(lambda other: other is not entry, root.entries)
    start = root.inline_start + sum(other.rows for other in before)
    events = f"[{start}, {start + entry.rows})"
    return (
        f"{path}: {names.segment_object(entry.path)}: no kept version has a sound copy of {events}"
    )
