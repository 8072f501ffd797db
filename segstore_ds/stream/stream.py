"""`Stream`: everything that can be done with one stream; methods call the verbs of the rooms."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from segstore_ds.compact.commit import Compaction
from segstore_ds.compact.run import bind_range, run_compact
from segstore_ds.copy.backup import BackedUp, run_backup
from segstore_ds.copy.clone import run_clone, run_materialize
from segstore_ds.copy.destination import Copied, CopyRequest
from segstore_ds.copy.events import run_copy_events
from segstore_ds.copy.segments import run_copy
from segstore_ds.errors import InvalidInputError
from segstore_ds.format.policies import RetentionPolicy, as_policy
from segstore_ds.log.context import StreamContext
from segstore_ds.options.arguments import (
    CompactRules,
    Progress,
    check_duration,
    check_whole,
    unheard,
)
from segstore_ds.options.quantities import Duration, Size
from segstore_ds.options.table import MERGE, TARGET_BYTES, TARGET_ROWS, TableFormat
from segstore_ds.publish.auto import run_auto_publish, run_set_auto_publish
from segstore_ds.publish.life import clean_tables, run_publish
from segstore_ds.publish.snapshot import Published
from segstore_ds.read.cuts import CutLike, cut_text, parse_cut
from segstore_ds.read.filters.given import FilterLike
from segstore_ds.redact.expire import count_expired, refuse_filtered, run_expiry
from segstore_ds.redact.forget import redact_and_forget
from segstore_ds.redact.plan import Redacted, RedactRequest
from segstore_ds.retention.deletion import run_maintain
from segstore_ds.retention.report import Maintenance, Retained
from segstore_ds.retention.retain import run_retain
from segstore_ds.retention.truncate import run_restore, run_seal, run_truncate
from segstore_ds.status.writers import Commit
from segstore_ds.storage import Storage, UrlLike, open_storage, resolve_location
from segstore_ds.stream.latest_table import forget_published, maintain_latest, publish_latest
from segstore_ds.stream.namespaces import Followers, Pins, PublishedTables, Readers, Settings, Tags
from segstore_ds.stream.writes import Writes
from segstore_ds.write.create import run_change_schema
from segstore_ds.write.layout import Layout, as_layout


class Stream(Writes):
    """A handle on one stream, made by `create` and `open`.

    `head`, `tail`, `sealed`, `schema` and `version` are those of the newest version this handle has
    seen; `refresh()` looks for newer ones. Threads may share a handle: their commits take turns,
    and reads wait for none of them.

    Raises:
        StorageError: Any method: the storage failed. What was acknowledged before stays.
        FormatError: Any method: stored bytes can't be read.
        InvalidInputError: Any method: an argument is not valid.
        ConflictError: Methods that commit: every race was lost, and nothing was committed.
        CommitUnknownError: Methods that commit: it may or may not be in the log; `outcome` tells.
        UnderReplicatedError: Methods that commit: it is committed, but a follower lacks it: don't
            do it again.
        FencedError: Methods that commit: this folder is not the primary, or another was promoted.
        PositionError: Methods that take a cut: it is beyond the tail, or of another stream or
            generation.
        TruncatedError: Methods that take a cut: it is below the head.
        NotFoundError: Methods that take a cut or a version: there is no such version, tag or
            reader.
        SnapshotExpiredError: Methods that take a cut or a version: that version was forgotten.

    What a method raises beside these is listed there.
    """

    # What belongs to the stream by name.

    @property
    def tags(self) -> Tags:
        """The named cuts, by name; `set` and `delete` change them."""
        return Tags(self._context)

    @property
    def readers(self) -> Readers:
        """The named readers; `register` and `release` change them."""
        return Readers(self._context)

    @property
    def followers(self) -> Followers:
        """The folders that follow this stream; `add` and `remove` change them."""
        return Followers.of(self._context)

    @property
    def pins(self) -> Pins:
        """The versions that clones need, by copy id; `release` removes one."""
        return Pins(self._context)

    @property
    def published(self) -> PublishedTables:
        """The published tables, by format; `remove` deletes one."""
        return PublishedTables(self._context)

    @property
    def settings(self) -> Settings:
        """Key columns, time column, retention, upkeep, publishing; `update` changes them."""
        return Settings(self._context)

    # Its events and its past.

    def truncate(self, cut: CutLike) -> int:
        """Forget the events before a cut: the head moves there, no offset changes.

        The segment that holds the new head stays; segments below it are deleted by upkeep after
        its grace. Allowed on sealed streams. Unlike `retain`, it ignores readers and tags. Safe to
        repeat: a cut at the head changes nothing.

        Returns:
            The head.

        Examples:
            >>> stream.truncate(2)
            2
            >>> len(stream)
            1
        """
        return run_truncate(self._context, parse_cut(cut)).root.head

    def seal(self) -> int:
        """End the stream: every later append is refused with SealedError. Safe to repeat.

        An append in flight either commits before the seal or is refused whole. Reads, truncation
        and repeated batches work as before.

        Returns:
            The tail, which no longer moves.

        Examples:
            >>> stream.seal()
            3
        """
        return run_seal(self._context).root.tail

    def restore(self, version: int, *, allow_redacted: bool = False) -> Commit:
        """Restore the events of an earlier version, in one commit that copies no event.

        The restored events get new offsets from the tail on, and the columns of that version are
        restored as well. The events that were there until now end up below the head. Restoring the
        version before undoes it.

        Args:
            version: Its number.
            allow_redacted: Allow a version from before a redaction: its values come back.

        Raises:
            SealedError: The stream has ended.
            InvalidInputError: Values of that version were redacted since.

        Examples:
            >>> before = stream.version
            >>> _ = stream.overwrite([{"user": "ada", "n": 9}])
            >>> _ = stream.restore(before)
            >>> stream.read().read_all()["n"].to_pylist()
            [1, 2, 3]
        """
        version = check_whole("version", version)
        return run_restore(self._context, version, allow_redacted=allow_redacted)

    def change_schema(
        self, *, rename: Mapping[str, str] | None = None, drop: Sequence[str] = ()
    ) -> None:
        """Rename and drop columns, in one commit that rewrites no event.

        Older versions keep the old columns. Writers that still send an old name get
        SchemaMismatchError; with `merge_schema` they add a column of that name, which is a new one:
        values of a column that was renamed or dropped never show up in it. Data that was staged
        before and is committed later keeps its values, except those of a dropped column. A dropped
        column stays in old segments until a compaction leaves it out; `redact` still finds its
        values by its last name. Settings follow a renamed column.

        Published Iceberg tables follow by field ids, Delta tables by column mapping, from the first
        commit at which a file has another name for a column than the table.

        Args:
            rename: New names by the old ones; columns may swap names.
            drop: Columns to drop.

        Raises:
            InvalidInputError: A column is unknown, a name is taken, or a setting needs a column
                that would be dropped: change the setting first.

        Examples:
            >>> stream.change_schema(rename={"n": "count"})
            >>> stream.read().read_all()["count"].to_pylist()
            [1, 2, 3]
        """
        run_change_schema(self._context, rename or {}, drop, refuse_filtered)

    def retain(
        self,
        policy: RetentionPolicy | Mapping[str, Any] | None = None,
        *,
        max_bytes: Size | None = None,
        max_age: Duration | None = None,
        min_bytes: Size | None = None,
        min_age: Duration | None = None,
        respect_readers: bool = True,
        max_event_age: Duration | None = None,
        dry_run: bool = False,
    ) -> Retained:
        """Forget what exceeds a maximum, once; a minimum wins. Safe to repeat.

        Without a maximum, it forgets the events that every live reader is done with. Ages count
        from the commit that appended an event, by the store's clock; events that no kept version
        can date stay. It fails if a reader's record can't be read.

        Sizes are bytes or texts such as ``"10g"`` (k, m, g, t: powers of 1024); ages are seconds, a
        timedelta, or texts such as ``"7d"`` (s, m, h, d, w).

        Args:
            policy: The bounds as one value, instead of the others: a policy, or a dict of them.
            max_bytes: Drop the oldest segments while the rest is larger (encoded bytes).
            max_age: Drop events that were committed longer ago.
            min_bytes: Keep at least this many encoded bytes.
            min_age: Keep events that were committed within this time.
            respect_readers: Keep what a tag or a live reader needs.
            max_event_age: Drop the events before the first one whose event time, in the time
                column, is within this time: those that a start at 'eventtime:T' leaves out.
            dry_run: Drop nothing, and return what would be done.

        Returns:
            The head, how many events were dropped, and what kept more from being dropped.

        Examples:
            >>> done = stream.retain(max_age="30d")
            >>> done.head, done.dropped, done.blocked_by[0].kind
            (0, 0, 'max_age')
        """
        bounds = (max_bytes, max_age, min_bytes, min_age, respect_readers)
        if policy is None:
            asked = RetentionPolicy(*bounds, max_event_age=max_event_age)
            return run_retain(self._context, asked, dry_run=dry_run)
        if (*bounds, max_event_age) != (None, None, None, None, True, None):
            raise InvalidInputError("bounds are given twice", remedy="give them only in the policy")
        return run_retain(self._context, as_policy(policy), dry_run=dry_run)

    # Upkeep.

    def maintain(
        self,
        *,
        keep: Duration | None = None,
        min_versions: int = 1,
        grace: Duration | None = None,
        short_grace: bool = False,
        free_now: bool = False,
        dry_run: bool = False,
        progress: Progress = unheard,
    ) -> Maintenance:
        """Forget old versions and delete what nothing needs: all that upkeep does, in one call.

        It applies the upkeep policy, or the default one if upkeep is off. It also merges the parts
        of the status and of the history, sets expired values to null, publishes as
        `publish(auto=True)` says, and does all of it for a table of newest events. With `keep` it
        only forgets versions, with `grace` it only deletes objects, and with both it does these
        two.

        The events of forgotten versions and their rows in the history stay; only reading *as of*
        them ends. An object is deleted if no kept version and no clone needs it and it was dropped
        longer ago than the grace; or if it was staged on a version older than the grace and never
        committed, which takes a listing of the whole stream. If metadata can't be read, no object
        is deleted. Safe to repeat, and to run beside everything else.

        Args:
            keep: Forget versions that were superseded longer ago (an hour at least).
            min_versions: So many of the newest versions stay, however old they are.
            grace: Delete objects that were dropped longer ago. Readers of older versions and
                writing jobs must not take longer.
            short_grace: Allow a grace of less than a day. You promise that no reader of an older
                version and no writing job needs more.
            free_now: For a disk that is full: forget versions that were superseded five minutes
                ago, and delete what was dropped that long ago. You promise that none of these is
                needed: reads and jobs that began before fail (SnapshotExpiredError,
                StagedExpiredError), as do `as_of`, `restore` and copies of such versions, and
                other engines' reads of a published table until it is published again. Clones keep
                theirs, and the log's files stay for an hour.
            dry_run: Change nothing, and report what would be done.
            progress: Gets how many objects are done, and how many there are, after each step.

        Returns:
            What was deleted, or would be, and what stays for now, each with its reason, and until
            when.

        Examples:
            >>> done = stream.maintain(keep="7d", dry_run=True)
            >>> done.versions, done.deleted
            (0, ())
        """
        done = run_maintain(
            self._context,
            keep_s=check_duration("keep", keep),
            min_versions=check_whole("min_versions", min_versions, least=1),
            grace_s=check_duration("grace", grace),
            short_grace=short_grace,
            free_now=free_now,
            dry_run=dry_run,
            progress=progress,
        )
        if keep is None and grace is None and not free_now:
            try:
                expired = (count_expired if dry_run else run_expiry)(self._context)
            finally:
                if not dry_run:
                    run_auto_publish(self._context, at_once=True)
                    clean_tables(self._context)
                    maintain_latest(self._context)
            done = replace(done, expired=expired, version=self._context.log.root.version)
        return done

    def compact(
        self,
        start: CutLike | None = None,
        end: CutLike = "tail",
        *,
        mode: str = MERGE,
        target_rows: int = TARGET_ROWS,
        target_bytes: int = TARGET_BYTES,
        minor: tuple[int, int] | None = None,
        budget_bytes: int | None = None,
        layout: Layout | None = None,
        progress: Progress = unheard,
    ) -> Compaction:
        """Replace runs of neighbouring segments by a few large ones, or a large one by several.

        Events, offsets and order do not change. Each commit replaces whole runs; upkeep deletes
        the replaced segments after its grace. Safe to repeat, to kill at any point, and to run
        beside readers, writers and other compactions: a group that another commit changed is
        skipped and planned again. If it fails, what was committed before stays. A second call finds
        nothing to do.

        Args:
            start: Where to begin; None for the oldest segment.
            end: Where to end; segments that hold events in between count.
            mode: ``merge`` decodes and writes large frames, ``stitch`` joins frames of Arrow
                unchanged and leaves Parquet segments alone, ``split`` cuts segments that exceed a
                target into pieces of nearly equal size, and frames that exceed the layout's within
                their segment.
            target_rows: Most events of a segment.
            target_bytes: Most encoded bytes of a segment.
            minor: Only runs that are worth it, of at least ``(small, medium)`` segments: a quick
                pass after every few commits, such as ``(4, 3)``. None takes every run.
            budget_bytes: Most encoded bytes to rewrite, the newest first; None for no limit.
            layout: Compression and frames of what is written.
            progress: Gets how many events are done, and how many there are, after each step.

        Returns:
            What was done; `commits` is 0 if there was nothing to do.

        Examples:
            >>> _ = stream.append({"user": "ada", "n": 4})
            >>> done = stream.compact()
            >>> done.segments_before, done.segments_after
            (2, 1)
        """
        rules = CompactRules(mode, target_rows, target_bytes, minor, budget_bytes)
        bounds = bind_range(self._context, start, end)
        done = run_compact(
            self._context, rules, as_layout(layout), bounds=bounds, progress=progress
        )
        self._commits.keep_up()
        return done

    def redact(
        self,
        filters: FilterLike,
        *,
        columns: Sequence[str],
        reason: str = "",
        redact_id: str | None = None,
        forget: bool = False,
        short_grace: bool = False,
    ) -> Redacted:
        """Set columns of matching events to null for good, and change nothing else.

        Offsets, order, counts, cuts, readers and checkpoints stay as they are. It covers every
        event that is stored below the tail of its first call, also those that the head or a
        truncation hides; it ends only when none of them matches. Safe to repeat, to kill at any
        point, and to run beside readers, writers and compactions. An interrupted call continues
        when it runs again with the same id, and a finished one does nothing.

        Restoring or cloning a version from before it is refused from then on. Such versions can
        still be read until they are forgotten, and their objects stay for the grace of upkeep.
        With `forget` the call also forgets those versions and deletes what may be deleted by now,
        in followers and in published tables too. It reports what is left, and when the same call
        can finish.

        Args:
            filters: Conditions that the events satisfy, as in `scan`; at least one.
            columns: The columns to set to null.
            reason: A text of at most 200 characters that the stream keeps: a request's number,
                never the person.
            redact_id: Letters, digits, dots, dashes and underscores: the same id again is the same
                redaction. None makes a random one.
            forget: Delete what still holds the values.
            short_grace: With `forget`: don't keep the replaced objects for the grace of the
                stream's upkeep. You promise that nobody reads an older version, and no job writes.

        Returns:
            What was redacted, the id and the bound tail; `forgotten` is the report of `forget`.

        Examples:
            >>> stream.redact("user == 'ada'", columns=["user"], reason="request 17").rows
            1
            >>> stream.read().read_all()["user"].to_pylist()
            [None, 'bob', 'eve']
        """
        redact_id = self._context.clock.new_id() if redact_id is None else redact_id
        request = RedactRequest(filters, columns, reason, redact_id)
        done = redact_and_forget(
            self._context, request, forget=forget, short_grace=short_grace, tables=forget_published
        )
        self._commits.keep_up()
        return done

    # Copies.

    def copy_to(
        self,
        url: UrlLike,
        *,
        copy_id: str,
        mode: str = "segments",
        start: CutLike = "head",
        end: CutLike = "tail",
        version: int | None = None,
        seal: bool = False,
        allow_redacted: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        progress: Progress = unheard,
    ) -> Copied:
        """Make a new stream of this one's segments, or of its events.

        By segments, ids, epochs and offsets stay. By events, they are written again in the newest
        schema, with offsets from 0. Either way the destination becomes a stream by one commit, when
        all of it is there.

        An interrupted copy continues where it stopped when it runs again; a finished one does
        nothing. By events, both ends are bound by the first run. Events that are appended meanwhile
        are not copied, nor are writers, readers, tags and settings but key and time columns.

        A clone copies nothing and shares this stream's segments, in three commits for any length.
        It may start from an older version, or end at a cut: a fork of the past.
        Each stream then changes on its own. Upkeep here keeps what the clone needs until the
        clone is dropped or materialized, or `pins.release` removes the pin with the copy id.

        Args:
            url: Where; a folder of its own, on any filesystem.
            copy_id: Letters, digits and dashes: the same id again is the same copy.
            mode: ``segments`` copies the objects, ``events`` writes events again, ``clone`` shares.
            start: First event; a segment that it divides is rewritten.
            end: The event after the last, in the same forms.
            version: The kept version that a clone starts from; None for the newest one.
            seal: Seal the copy after its last event: nothing can be appended to it.
            allow_redacted: Allow a clone of a version from before a redaction, with the values.
            storage_options: For the destination's filesystem; a clone takes this stream's.
            progress: Gets how many events are done, and how many there are, after each step.

        Returns:
            What was copied; `repeated` if it had been done before.

        Raises:
            AlreadyExistsError: There is another stream at the destination.
            InvalidInputError: The id belongs to another copy, or the destination is the stream
                itself. For clones also: a start is given, the stream is a clone itself, or the
                destination is on another filesystem.
            ConflictError: A stream was made and dropped at the destination meanwhile; or a clone's
                pin was removed.
            SnapshotExpiredError: A segment was deleted while it was copied: copy again.
            UnsafeFilesystemError: The destination can't create exclusively.

        Examples:
            >>> stream.copy_to("copy", copy_id="monday").end
            3
            >>> stream.copy_to("copy", copy_id="monday").repeated
            True
        """
        check_whole("version", version, optional=True)
        first, last = map(cut_text, (start, end))
        request = CopyRequest(copy_id, first, last, seal, mode, version, allow_redacted)
        if mode == "clone":
            if storage_options is not None:
                raise InvalidInputError(
                    "a clone takes no storage options", remedy="leave them out: it has the stream's"
                )
            place = url.url if isinstance(url, Storage) else resolve_location(url).url
            target = self._context.storage.sibling(place)
            return run_clone(self._context, target, request)
        run = {"segments": run_copy, "events": run_copy_events}.get(mode)
        if run is None:
            raise InvalidInputError(
                "unknown copy mode", remedy="use segments, events or clone", mode=mode
            )
        return run(self._context, open_storage(url, storage_options), request, progress=progress)

    def back_up(
        self,
        url: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, Any] | None = None,
        progress: Progress = unheard,
    ) -> BackedUp:
        """Make a backup of the whole stream, or bring one up to date.

        The backup is this folder byte for byte: versions, offsets, writers, readers, tags and
        settings. It is a stream that can be read at once, and backed up into an empty folder to
        restore it. Only what it lacks is copied, each object checked by its checksums. Writers go
        on meanwhile. Published tables are not part of it. If a call is interrupted, call it again.

        Args:
            url: Where; a folder of its own, on any filesystem. Don't write to it.
            storage_options: For that filesystem.
            progress: Gets how many objects are done, and how many there are, after each step.

        Returns:
            The version that the backup is of, and what was copied.

        Raises:
            InvalidInputError: The folder holds something else, or a backup that was written to; or
                this is a clone.
            ConflictError: Versions were forgotten during the call: call it again.
            MissingObjectError: An object is gone, or was deleted during the call: call it again.

        Examples:
            >>> stream.back_up("backup").tail
            3
            >>> stream.back_up("backup").objects
            0
        """
        return run_backup(self._context, open_storage(url, storage_options), progress=progress)

    def materialize(self) -> int:
        """Copy the objects that this clone shares with its origin, and release the pin.

        If it is interrupted, the next call continues where it stopped; a stream that shares nothing
        does not change. After it, the origin may be maintained, moved and dropped.

        Returns:
            How many objects were copied.

        Raises:
            MissingObjectError: The origin is gone, or deleted them after the pin was removed.

        Examples:
            >>> _ = stream.copy_to("clone", copy_id="test", mode="clone")
            >>> segstore.open("clone").materialize()
            0
        """
        return run_materialize(self._context)

    # Tables of other engines.

    def publish(
        self,
        format: TableFormat,  # noqa: A002 - the word of all other engines
        *,
        latest_by: Sequence[str] | None = None,
        tombstone: str | None = None,
        settle: bool = False,
        strict: bool = False,
        auto: bool | None = None,
    ) -> Published:
        """Publish the stream as a table over its own Parquet files, or bring that up to date.

        The stream's location is the table's. Nothing is copied but segments that other engines
        can't read as they are: one that the head divides, decimals whose scale has grown since, and
        integers that became doubles. Events that are in no Parquet file yet are not in the table,
        unless it showed them before: `lag` and `reason` of the answer say so. Row ids are offsets.

        Only segstore can write a Delta table: its protocol says so. Iceberg has no way to refuse
        foreign writers; and a program that ignores Delta's protocol could delete the stream's
        files. So give other programs credentials that only read. An Iceberg table needs the extra
        `[iceberg]`, and names files by absolute URLs: after a stream was moved, publish it again.

        Safe to repeat, to kill at any point, and to run beside everything else, other publishers
        included. Publish more often than the grace of upkeep, or readers miss files.

        Args:
            format: The table's format; both may be published.
            latest_by: Publish a small table of the newest event of each key instead, at the
                location of the answer, beside this one: what `latest` returns as of the version
                that it shows, with offsets in the column ``_offset``. It is brought up to date from
                the events since the last time, and replaced in one commit. Values that the stream
                no longer has, after a truncation or a redaction, leave it too.
            tombstone: With `latest_by`: as in `latest`.
            settle: First merge what is in no Parquet file, and publish all events.
            strict: Refuse to publish if a column has a type that the format lacks; otherwise such
                columns are left out.
            auto: True: from now on also after commits, in the background, about once a minute for
                all writers of the stream. It is best effort: a failure is logged, no commit waits
                for it or fails, and a later commit publishes what is missing. If writing stops,
                `maintain` publishes the last minute. False ends it; None leaves it as it is.

        Returns:
            What the table shows now.

        Raises:
            InvalidInputError: The stream can't be published, or its folder holds another table.
            CorruptionError: Another program committed to the table.

        Examples:
            >>> table = stream.publish("delta", settle=True)
            >>> table.tail, table.lag
            (3, 0)
            >>> stream.publish("delta", latest_by=["user"]).lag
            0
        """
        if latest_by is not None:
            return publish_latest(
                self._context, format, latest_by, tombstone, auto=auto, strict=strict
            )
        if tombstone is not None:
            raise InvalidInputError("a tombstone needs a key", remedy="give latest_by as well")
        done = run_publish(self._context, format, settle=settle, strict=strict)
        if auto is not None:
            run_set_auto_publish(self._context, format, on=auto)
        return done


def context_of(stream: Stream) -> StreamContext:
    """Return what the verbs of other rooms take as a stream, for connectors."""
    return stream._context  # noqa: SLF001 - the only access from outside of the class
