"""Restore damaged inline frames: the commit files of several versions hold the same frame.

A frame that fails its checksum is replaced by the one of another kept version that lists the same
segment, or of a follower's file of the same version. Nothing else of the file changes, so it is
byte for byte what was committed.

Only versions that may share inline events with the newest are looked at: what is inline in an older
one lies in a segment by now, and a repair should not read the whole log.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, takewhile
from operator import attrgetter

from segstore_ds.commit.context import StreamContext
from segstore_ds.errors import FormatError, StorageError
from segstore_ds.format import names
from segstore_ds.format.inline import frames_of
from segstore_ds.format.root import InlineFrame, Root, SegmentEntry
from segstore_ds.repair.kept_versions import KeptVersions
from segstore_ds.repair.status import Findings, put_back
from segstore_ds.status.inline import frame_is_sound

_Found = tuple[InlineFrame, str]  # a sound frame, and whose it is


def restore_frames(context: StreamContext, root: Root) -> Findings:
    """Restore the inline frames of `root`, and of the versions before it; safe to repeat."""
    return _FrameRepair(context, root).run()


@dataclass(slots=True)
class _FrameRepair:
    context: StreamContext
    root: Root
    findings: Findings = field(default_factory=Findings)

    def run(self) -> Findings:
        kept = KeptVersions(self.context, self.root)
        inline = takewhile(attrgetter("inline_bytes"), chain([self.root], kept.older()))
        for root in inline:
            damaged = [entry for entry in root.entries if not _is_sound(entry)]
            if damaged:
                self._restore(kept, root, damaged)
        return self.findings

    def _restore(self, kept: KeptVersions, root: Root, damaged: list[SegmentEntry]) -> None:
        path = self.context.log.files.path(root.version)
        found: dict[str, _Found] = {}
        for entry in damaged:
            copy = next(self._copies(kept, root, entry), None)
            if copy is not None:
                found[entry.path] = copy
            else:
                self.findings.damaged.append(_lost(root, entry, path))
        if not found:
            return
        data = self.context.log.files.read(root.version) or b""
        body = data[: len(data) - root.inline_bytes]
        entries = (
            replace(entry, frame=found[entry.path][0]) if entry.path in found else entry
            for entry in root.entries
        )
        put_back(self.context.storage, path, body + frames_of(replace(root, entries=(*entries,))))
        self.findings.repaired += [
            f"{path}: {names.segment_object(segment)} from {source}"
            for segment, (_, source) in found.items()
        ]

    def _copies(self, kept: KeptVersions, root: Root, entry: SegmentEntry) -> Iterator[_Found]:
        """Yield the sound copies of a frame: of versions before and after, then of followers."""
        files = self.context.log.files
        for versions in (
            range(root.version - 1, self.root.log_start - 1, -1),
            range(root.version + 1, self.root.version + 1),
        ):
            for version in versions:
                other = kept.at(version)
                if other is None:
                    continue  # a file that can't be read; the one behind it may list the segment
                listed = _same_frame(other, entry)
                if listed is None:
                    break
                if frame_is_sound(listed):
                    yield listed, files.path(version)
        for follower in self.context.log.replicas.agreed(self.root):
            try:
                theirs = follower.files.get(root.version)
            except (FormatError, StorageError):
                continue
            listed = None if theirs is None else _same_frame(theirs, entry)
            if listed is not None and frame_is_sound(listed):
                yield listed, follower.url


def _is_sound(entry: SegmentEntry) -> bool:
    return entry.frame is None or frame_is_sound(entry.frame)


def _same_frame(root: Root, entry: SegmentEntry) -> InlineFrame | None:
    """Return a root's frame of the same segment, whatever its bytes; None if it lists none."""

    def facts(other: SegmentEntry) -> tuple[object, ...]:
        frame = other.frame
        described = frame and (frame.crc, len(frame.data), frame.raw_bytes, frame.fingerprint)
        return other.segment_id, other.rows, other.stats, described

    wanted = facts(entry)
    return next((other.frame for other in root.entries if facts(other) == wanted), None)


def _lost(root: Root, entry: SegmentEntry, path: str) -> str:
    start = root.inline_start
    for other in root.entries:
        if other is entry:
            break
        start += other.rows
    events = f"[{start}, {start + entry.rows})"
    return (
        f"{path}: {names.segment_object(entry.path)}: no kept version has a sound copy of {events}"
    )
