"""Upkeep: history, purge, vacuum, compaction, copies, pins and verification of a stream."""

import os
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from segstore_ds import options
from segstore_ds.compact.commit import Compaction
from segstore_ds.compact.run import run_compact
from segstore_ds.copy.clone import run_clone, run_materialize
from segstore_ds.copy.events import run_copy_events
from segstore_ds.copy.pins import run_unpin
from segstore_ds.copy.segments import Copied, CopyRequest, run_copy
from segstore_ds.errors import InvalidInputError
from segstore_ds.format.clones import Pin
from segstore_ds.format.parts.history import HISTORY_SCHEMA
from segstore_ds.format.root import Root
from segstore_ds.log.operations import GRACE_S
from segstore_ds.log.origins import pins_of
from segstore_ds.options.arguments import check_seconds, check_whole
from segstore_ds.options.compaction import CompactRules
from segstore_ds.read.cuts import CutLike, check_range, parse_cut, resolve_cut
from segstore_ds.repair.verify import Report, run_verify
from segstore_ds.retention.purge import run_purge
from segstore_ds.retention.vacuum import VacuumReport, run_vacuum
from segstore_ds.storage import open_storage
from segstore_ds.stream.handle import Handle
from segstore_ds.write.layout import as_layout
from segstore_ds.write.task_writer import Layout


class Upkeep(Handle):
    """The part of a stream that keeps it in order."""

    def history(self, start: int = 0, end: int | None = None) -> pa.RecordBatchReader:
        """Read what every commit did, oldest first; streams through any number of commits.

        Rows outlive purge. A row holds version, time, operation, head and tail after the commit,
        counts of what was added, writer and batch, client and application, attempts, races lost,
        requests and bytes.

        Args:
            start: First version.
            end: The version after the last; None for all.

        Raises:
            InvalidInputError: Not numbers of versions.
            FormatError: The history can't be read.
            StorageError: The storage failed.
        """
        start = check_whole("start", start)
        end = check_whole("end", end, optional=True)
        root = self._log.refresh()
        batches = self._log.history.batches(root, start, root.version + 1 if end is None else end)
        return pa.RecordBatchReader.from_batches(HISTORY_SCHEMA, batches)

    def purge(self, *, older_than_s: float = 30 * 86400.0, keep_versions: int = 1) -> int:
        """Forget versions that were superseded longer ago than that (an hour at least).

        Their events and their rows of the history stay; only reading *as of* those versions ends.
        Safe to repeat.

        Args:
            older_than_s: Least number of seconds since they were superseded.
            keep_versions: How many of the newest versions stay, however old they are.

        Returns:
            The oldest version kept.

        Raises:
            InvalidInputError: Fewer than one version would stay, or the age is not finite.
            ConflictError: Other writers came first every time; nothing was deleted.
            CommitUnknownError: It is unknown whether the purge was committed; nothing was deleted.
            FormatError: A commit file can't be read; nothing was deleted.
            StorageError: The storage failed.
        """
        check_seconds("older_than_s", older_than_s)
        return run_purge(self._context, older_than_s=older_than_s, keep_versions=keep_versions)

    def vacuum(
        self, *, dry_run: bool = True, grace_s: float = GRACE_S, short_grace: bool = False
    ) -> VacuumReport:
        """Delete what no version, pin or commit in flight can need; by default only report it.

        It deletes objects that were dropped before the oldest version kept (see `purge`) and longer
        ago than the grace, and objects that were staged on a version older than the grace and never
        committed. Safe to repeat, and to run beside writers, readers and other vacuums.

        Args:
            dry_run: Change nothing, and report what would be deleted and why.
            grace_s: How many seconds dropped objects stay for readers of older versions, and how
                long a writing job may take.
            short_grace: Allow a grace of less than a day: you promise that nobody needs it.

        Returns:
            What was deleted, or would be, and what stays for now.

        Raises:
            InvalidInputError: A grace of less than a day without `short_grace`, or not finite.
            ConflictError: Every race was lost; nothing was deleted.
            CommitUnknownError: It is unknown whether the floor was raised; nothing was deleted.
            FormatError: Metadata can't be read; nothing was deleted.
            StorageError: The storage failed; what was deleted stays deleted.
        """
        check_seconds("grace_s", grace_s)
        return run_vacuum(
            self._context,
            dry_run=dry_run,
            grace_s=grace_s,
            short_grace=short_grace,
        )

    def compact(
        self,
        start: CutLike | None = None,
        end: CutLike = "tail",
        *,
        mode: str = options.default("compactMode"),
        target_rows: int = options.default("compactRows"),
        target_bytes: int = options.default("compactBytes"),
        minor: tuple[int, int] | None = None,
        budget_bytes: int | None = None,
        layout: Layout | None = None,
    ) -> Compaction:
        """Replace runs of neighbouring segments by a few large ones, or a large one by several.

        Events, offsets and order do not change. Each commit replaces whole runs; `vacuum` deletes
        the replaced segments after its grace. Safe to repeat, to kill at any point, and to run
        beside readers, writers and other compactions: a group that another commit changed is
        skipped and planned again. A second call finds nothing to do.

        Args:
            start: Where to begin; None for the oldest segment.
            end: Where to end; segments that hold events in between count.
            mode: ``merge`` decodes and writes large frames, ``stitch`` joins frames of Arrow
                unchanged and leaves Parquet segments alone, ``split`` cuts segments that exceed a
                target into pieces of nearly equal size.
            target_rows: Most events of a segment.
            target_bytes: Most encoded bytes of a segment.
            minor: Only runs that are worth it, of at least ``(small, medium)`` segments: a quick
                pass after every few commits, such as ``(4, 3)``. None takes every run.
            budget_bytes: Most encoded bytes to rewrite, the newest first; None for no limit.
            layout: Compression and frames of what is written.

        Returns:
            What was done; `commits` is 0 if there was nothing to do.

        Raises:
            InvalidInputError: A target, a mode or a cut is not valid.
            TruncatedError: A cut is below the head.
            PositionError: A cut beyond the tail, or of another stream or generation.
            NotFoundError: There is no such version, tag or reader.
            ConflictError: Others changed the segments every time, or every race was lost.
            CommitUnknownError: The last commit may or may not be in the log.
            SnapshotExpiredError: A segment was deleted while it was read, or a version was purged.
            FormatError: Metadata or a segment can't be read; what was committed before stays.
            StorageError: The storage failed; what was committed before stays.
        """
        rules = CompactRules(mode, target_rows, target_bytes, minor, budget_bytes)
        root = self._log.refresh()
        first = root.head if start is None else resolve_cut(self._context, root, parse_cut(start))
        last = resolve_cut(self._context, root, parse_cut(end))
        first, last = check_range(
            root, first, last, fail_on_data_loss=True, remedy="start at 'head', or give no start"
        )
        return run_compact(
            self._context,
            rules,
            as_layout(layout),
            bounds=(first, last),
        )

    def copy_to(
        self,
        url: str | os.PathLike[str],
        *,
        copy_id: str,
        mode: str = "segments",
        start: CutLike = "head",
        end: CutLike = "tail",
        seal: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Copied:
        """Make a new stream of this one's segments, or of its events.

        By segments, ids, epochs and offsets stay, and the destination becomes a stream only when
        all of it is there. By events, they are written again in the newest schema, with offsets
        from 0, a bounded step per commit. Until the last step, every read of the destination raises
        IncompleteStreamError, and every commit except the copy's is refused.

        An interrupted copy continues where it stopped when it runs again; a finished one does
        nothing. Both ends are bound once. Events that are appended meanwhile are not copied, nor
        are writers, readers, tags and properties.

        A clone copies nothing and shares this stream's segments, in three commits for any length.
        Each stream then changes on its own. `vacuum` here keeps what the clone needs until the
        clone is dropped or materialized, or `unpin` removes the pin that has the copy id as its
        name.

        Args:
            url: Where; a folder of its own, on any filesystem.
            copy_id: Letters, digits and dashes: the same id again is the same copy.
            mode: ``segments`` copies the objects, ``events`` writes events again, ``clone`` shares.
            start: First event; a segment that it divides is rewritten.
            end: The event after the last, likewise.
            seal: Seal the copy after its last event: nothing can be appended to it.
            storage_options: For the destination's filesystem; a clone takes this stream's.

        Returns:
            What was copied; `repeated` if it had been done before.

        Raises:
            AlreadyExistsError: There is another stream at the destination.
            InvalidInputError: A cut, the mode or the id is not valid, the id belongs to another
                copy, or the destination is the stream itself. For clones also: a range is given,
                the stream is a clone itself, or the destination is on another filesystem.
            ConflictError: For clones: every race was lost, or the pin was removed meanwhile. For
                events: every race was lost, or a step took longer than vacuum's grace: copy again.
            TruncatedError: The start, or events that are still to be copied, are below the head.
            PositionError: A cut beyond the tail, or of another stream or generation.
            IncompleteStreamError: Another copy into the destination is not done.
            NotFoundError: There is no such version, tag or reader.
            SnapshotExpiredError: A segment was deleted while it was copied: copy again.
            FormatError: Metadata or a segment can't be read.
            CommitUnknownError: The storage never said whether the destination was created.
            UnsafeFilesystemError: The destination can't create exclusively.
            StorageError: A storage failed.
        """
        request = CopyRequest(copy_id, str(start), str(end), seal, mode)
        if mode == "clone":
            return self._clone_to(url, request, storage_options)
        if mode not in ("segments", "events"):
            raise InvalidInputError(
                "unknown copy mode", remedy="use segments, events or clone", mode=mode
            )
        target = open_storage(url, storage_options)
        cuts = (parse_cut(start), parse_cut(end))

        def bind(root: Root) -> tuple[int, int]:
            first, last = (resolve_cut(self._context, root, cut) for cut in cuts)
            return check_range(
                root, first, last, fail_on_data_loss=True, remedy="start the copy at 'head'"
            )

        if mode == "events":
            return run_copy_events(self._context, target, request, bind)
        self._log.refresh()
        return run_copy(self._context, target, request, bind)

    def _clone_to(
        self,
        url: str | os.PathLike[str],
        request: CopyRequest,
        storage_options: Mapping[str, Any] | None,
    ) -> Copied:
        whole = (request.start, request.end) == ("head", "tail")
        if not whole or storage_options is not None:
            raise InvalidInputError(
                "a clone takes no range and no storage options",
                remedy='truncate the clone, or copy with mode="segments"',
                start=request.start,
                end=request.end,
            )
        target = self._log.storage.sibling(open_storage(url).url)
        return run_clone(self._context, target, request)

    def materialize(self) -> int:
        """Copy the objects that this clone shares with its origin, and release the pin.

        If it is interrupted, the next call continues where it stopped; a stream that shares nothing
        does not change. After it, the origin may be vacuumed, moved and dropped.

        Returns:
            How many objects were copied.

        Raises:
            MissingObjectError: The origin is gone, or was vacuumed after its pin was removed.
            ConflictError: Every race was lost.
            CommitUnknownError: It may or may not be in the log: run it again.
            FormatError: Metadata can't be read.
            StorageError: A storage failed: run it again.
        """
        return run_materialize(self._context)

    @property
    def pins(self) -> dict[str, Pin]:
        """The versions that clones need, by copy id, as of the newest version seen.

        Raises:
            CorruptionError: A pin can't be read.
        """
        return pins_of(self._log.root)

    def unpin(self, name: str) -> None:
        """Remove a clone's pin: `vacuum` may then delete what the clone reads.

        Use it for clones that are gone; drop or materialize other clones instead.

        Raises:
            NotFoundError: There is no such pin.
            ConflictError: Every race was lost.
            CommitUnknownError: It may or may not be in the log.
            FormatError: Metadata can't be read.
            StorageError: The storage failed.
        """
        run_unpin(self._context, name)

    def verify(self) -> Report:
        """Read the whole stream and report everything that is wrong; changes nothing.

        Raises:
            NotFoundError: The stream is gone.
            StorageError: The storage failed, so nothing can be said about the stream.
        """
        return run_verify(self._context)
