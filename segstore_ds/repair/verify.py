"""Verify: reads a whole stream and reports what is wrong, and where. It changes nothing."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, compress, repeat
from typing import Any, Self

import numpy as np
import pyarrow as pa

from segstore_ds.errors import CorruptionError, FormatError, MissingObjectError
from segstore_ds.format import names
from segstore_ds.format.bloom import lacks_value
from segstore_ds.format.bounds import Piece, compute, label_of, merge
from segstore_ds.format.inline import frame_is_sound
from segstore_ds.format.operation import Operation
from segstore_ds.format.parts.rows import column_values
from segstore_ds.format.parts.segments import SegmentFilters
from segstore_ds.format.root import PartRef, Root
from segstore_ds.format.schema.codec import fingerprint
from segstore_ds.format.segment import find_format
from segstore_ds.format.statistics import parse_piece
from segstore_ds.log.context import StreamContext
from segstore_ds.log.metadata_log import find_gaps
from segstore_ds.log.origins import share_origins
from segstore_ds.log.place import no_stream
from segstore_ds.log.seen import lost_commits
from segstore_ds.log.transition import broken_invariants, broken_rules
from segstore_ds.options.arguments import Progress, unheard
from segstore_ds.publish.check import damaged_tables
from segstore_ds.read.reader_records import each_reader
from segstore_ds.read.segments import OpenSegment, frame_stats, open_segment
from segstore_ds.repair.witnesses import find_witnesses
from segstore_ds.status.epochs import epoch_schema
from segstore_ds.status.history import History
from segstore_ds.status.references import list_objects
from segstore_ds.status.store import check_object
from segstore_ds.status.table import RowsTable, Table, readable_rows, stats_of
from segstore_ds.status.table_status import Slice

MISSING = "versions are missing"
_TRIES = 3  # each may sleep until what it verifies was purged


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        code: The code of the error.
        where: The object, and the place in it.
        what: What is wrong, as a sentence.
        version: The newest version that needs the object; None if that is the stream's newest, or
            if the object belongs to no version.
    """

    code: str
    where: str
    what: str
    version: int | None = None

    @classmethod
    def of(cls, error: FormatError, where: str, version: int | None = None) -> Self:
        """Return the problem of an error, without the error's advice to call `verify`."""
        what = str(error).removesuffix(f"; {FormatError.default_remedy}")
        return cls(error.code, where, what, version)


@dataclass(slots=True)
class Report:
    """What `verify` found.

    Attributes:
        problems: Everything that is wrong; empty for a sound stream.
        versions: How many commit files were read.
        segments: How many segments of the newest version were read. Segments that only older
            versions list are read but not counted.
        frames: How many frames these have.
        rows: How many events these have.
        leftovers: Objects that nothing refers to: staged, and not yet or never committed. They are
            no damage.
        abandoned: Commit files that a repair abandoned, and that can't be read or are missing.
        unclaimed: The leftovers that were staged on the newest version or a later one: they are
            about to be committed, or part of a lost commit.
    """

    problems: list[Problem] = field(default_factory=list)
    versions: int = 0
    segments: int = 0
    frames: int = 0
    rows: int = 0
    leftovers: list[str] = field(default_factory=list)
    abandoned: list[str] = field(default_factory=list)
    unclaimed: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if nothing is wrong."""
        return not self.problems

    def check(self) -> "Report":
        """Return this report if nothing is wrong.

        Raises:
            CorruptionError: Something is wrong; it lists the problems.
        """
        if self.problems:
            raise CorruptionError(
                "the stream is damaged", problems=[f"{p.where}: {p.what}" for p in self.problems]
            )
        return self


def run_verify(context: StreamContext, *, progress: Progress = unheard) -> Report:
    """Read and check all that a read of a kept version, a reader or a published table can need."""
    return _verify(context, progress, deep=True)


def damaged_status(context: StreamContext) -> set[str]:
    """Return the status objects and twins that are damaged; segments are not read."""
    report = _verify(context, unheard, deep=False)
    return {problem.where for problem in report.problems if names.is_status(problem.where)}


def _verify(context: StreamContext, progress: Progress, *, deep: bool) -> Report:
    """Verify the newest version, and again if it was purged meanwhile and objects are missing."""
    for _ in range(_TRIES):
        verifier = _Verifier(context.fresh(), progress, deep=deep)
        report = verifier.run()
        if not verifier.expired:
            break
    return report


class _Verifier:
    def __init__(self, context: StreamContext, progress: Progress, *, deep: bool) -> None:
        self._context, self._progress = context, progress
        self._deep = deep  # whether to read more than status objects
        self._url = context.storage.url
        self._report = Report()
        self.expired = False  # whether objects of the newest version may have been deleted rightly
        self._checked: set[str] = set()
        self._older: int | None = None  # the version being checked; None for the newest
        self._released = False  # whether origins may have deleted the objects shared with it
        self._done = self._total = 0

    def run(self) -> Report:
        newest = self._verify_log()
        while newest is None and self._context.log.files.newest_listed() != self._listed:
            self._report.problems.clear()  # new commits were made, and the listed ones purged
            newest = self._verify_log()
        if newest is not None:
            self._verify_kept(newest)
            self._find_leftovers(newest)
            if self._deep:
                self._check_witnesses(newest)
                if self._has_log(newest):
                    self._verify_readers()
        if self._deep:
            self._verify_published()
        self._forget_expired()
        return self._report

    def _has_log(self, newest: Root) -> bool:
        """Tell whether the log has a newest root; if it can't be opened, adopts `newest`."""
        try:
            self._context.log.recent()
        except FormatError:  # damage that is already reported
            try:
                self._context.log.adopt(newest)
            except FormatError:
                return False
        return True

    def _problem(self, where: str, error: FormatError, events: range | None = None) -> None:
        if self._released and isinstance(error, MissingObjectError):
            return
        if events is not None:
            error.tell(offsets=f"[{events.start}, {events.stop})")
        self._report.problems.append(Problem.of(error, where, self._older))

    def _wrong(self, where: str, what: str) -> None:
        self._report.problems.append(Problem(CorruptionError.code, where, what, self._older))

    def _is_new(self, path: str) -> bool:
        """Tell whether an object was not checked before, and note that it is now."""
        known = path in self._checked
        self._checked.add(path)
        return not known

    def _verify_log(self) -> Root | None:
        """Check the commits and what each of them names, newest first; return the newest."""
        # Read the hint before the listing: later, it may name a commit that is not listed.
        hint = self._context.log.files.read_hint()
        numbers = self._context.log.files.numbers()
        if not numbers:
            raise no_stream(self._context.storage)
        self._listed = numbers[-1]
        if hint is not None and not hint.stream_id and hint.number > numbers[-1]:
            self._wrong(
                names.HINT_PATH,
                f"names version {hint.number:020d}, but the log ends at {numbers[-1]}",
            )
        newest = older = None
        lost: frozenset[int] = frozenset()
        for number in reversed(numbers):
            if newest is not None and older is not None:
                if number < newest.log_start:
                    break
                self._older = number
                # The version directly below a repair was lost, even if no history says so.
                repaired = older.operation == Operation.REPAIR and older.version == number + 1
                root = self._read_root(number, abandoned=repaired or number in lost)
            else:
                root = self._read_root(number)
            if root is None:
                continue
            self._verify_root(root)
            if newest is None or older is None:
                newest = root
                lost = self._find_gaps(newest, numbers)
                self._total += sum(kept >= newest.log_start for kept in numbers)
            else:
                self._verify_frames_of(root)
                if older.version == number + 1:
                    # The committer checked the same rules, without fields of later formats.
                    for rule in broken_rules(root, replace(older, extra=root.extra)):
                        self._wrong(
                            self._context.log.files.path(older.version), f"broken rule: {rule}"
                        )
            self._released = bool(root.origins) and not newest.origins
            self._verify_history(root)
            self._verify_status(root)
            self._advance(1)
            older = root
        self._older, self._released = None, False
        return newest

    def _verify_kept(self, newest: Root) -> None:
        """Check the versions that tags keep, since their commit files may be purged."""
        for tag in newest.kept_tags.values():
            self._older = tag.version
            root = newest.kept_version(tag.version)
            if root is not None:
                self._verify_status(root)
        self._older = None

    def _find_gaps(self, newest: Root, numbers: Sequence[int]) -> frozenset[int]:
        """Report the missing versions; return those that a repair abandoned."""
        lost = self._lost(newest)
        there = {number for number in numbers if number >= newest.log_start}
        self._report.abandoned += [
            self._context.log.files.path(number) for number in sorted(lost - there)
        ]
        for gap in find_gaps(there | lost, newest.log_start, numbers[-1]):
            self._older = gap[-1]
            first = self._context.log.files.path(gap[0])
            self._wrong(first, f"{MISSING}: {gap[0]} to {gap[-1]}")
        self._older = None
        return lost

    def _check_witnesses(self, newest: Root) -> None:
        for witness in find_witnesses(self._context, newest):
            error = lost_commits(
                self._url, version=witness.version, newest=newest.version, witness=witness.what
            )
            self._problem(names.LOG_FOLDER, error)

    def _verify_readers(self) -> None:
        """Check the newest record of each reader, which replaces the older ones."""
        for name, reader in each_reader(self._context):
            if isinstance(reader, FormatError):
                self._problem(f"{names.READERS_FOLDER}/{name}", reader)

    def _verify_published(self) -> None:
        for where, error in damaged_tables(self._context):
            self._problem(where, error)

    def _forget_expired(self) -> None:
        """Remove missing objects of versions purged meanwhile; note whether the newest was one."""
        missing = [
            problem
            for problem in self._report.problems
            if problem.code == MissingObjectError.code
            and (problem.version is not None or problem.where in self._checked)
        ]
        if not missing:
            return
        try:
            newest = self._context.log.reopen()
        except FormatError:
            return
        for problem in missing:
            if problem.version is None:  # a newer version may name the object, too
                self.expired = self.expired or self._listed < newest.log_start
            elif (
                problem.version < newest.log_start and newest.kept_version(problem.version) is None
            ):
                self._report.problems.remove(problem)

    def _lost(self, newest: Root) -> frozenset[int]:
        try:
            return History(self._context.storage).lost(newest, newest.log_start, newest.version)
        except FormatError:
            return frozenset()  # `_verify_history` reports it

    def _read_root(self, number: int, *, abandoned: bool = False) -> Root | None:
        where = self._context.log.files.path(number)
        try:
            root = self._context.log.files.get(number)
        except FormatError as error:
            if abandoned:
                self._report.abandoned.append(where)
            else:
                self._problem(where, error)
            return None
        self._report.versions += 1
        if root is None:
            self._problem(where, MissingObjectError("the commit file disappeared", where=where))
        elif root.version != number:
            self._wrong(where, f"the file holds version {root.version}")
            return None
        return root

    def _verify_root(self, root: Root) -> None:
        where = self._context.log.files.path(root.version)
        for rule in broken_invariants(root):
            self._wrong(where, f"broken rule: {rule}")

    def _verify_frames_of(self, root: Root) -> None:
        """Check an older version's inline frames; those of the newest are checked as segments."""
        where = self._context.log.files.path(root.version)
        for entry in root.entries:
            if entry.frame and not frame_is_sound(entry.frame):
                path = names.segment_object(entry.path)
                self._wrong(f"{where}: {path}", "an inline frame fails its checksum")

    def _verify_status(self, root: Root) -> None:
        """Check the objects that a version names and no newer version does."""
        try:
            share_origins(self._context.storage, root)
        except FormatError as error:
            self._problem(self._context.log.files.path(root.version), error)
        schemas = self._verify_blobs(root)
        placed: list[Slice] = []
        parts: list[PartRef] = []
        for part in self._verify_lists(self._context.status.table, root):
            alone = replace(root, lists=(), parts=(part,), entries=())
            try:
                placed.extend(self._context.status.segments(alone, part.start, part.end))
                parts.append(part)
                if not _covers(part, self._context.status.bounds(root, part)):
                    self._wrong(part.path, "the part's events have other times than the root says")
            except FormatError as error:
                self._problem(part.path, error)
        inline = replace(root, lists=(), parts=())
        placed.extend(self._context.status.segments(inline, inline.listed_start, root.tail))
        if self._older is None:
            numbers = [item.entry.segment_id & 0xFFFFFFFF for item in placed]
            if len(set(numbers)) != len(numbers):
                self._wrong("status", "segment numbers are not unique")
        new = [
            # Inline frames of older versions are checked with their commit files.
            (self._older is None or item.entry.frame is None)
            and self._is_new(names.segment_object(item.entry.path))
            for item in placed
        ]
        if not self._deep:
            return
        self._total += sum(item.entry.rows for item in compress(placed, new))
        for item, filters in compress(zip(placed, self._filters_of(parts), strict=False), new):
            self._verify_segment(root, item, schemas, filters)
            self._advance(item.entry.rows)

    def _advance(self, count: int) -> None:
        self._done += count
        self._progress(self._done, self._total)

    def _filters_of(self, parts: Sequence[PartRef]) -> Iterator[SegmentFilters]:
        """Yield the filters of each segment of parts, then None for the segments after them."""
        for part in parts:
            try:
                yield from self._context.status.table.filters(part)
                continue
            except FormatError as error:
                self._problem(part.path, error)
            yield from repeat(None, part.count)
        yield from repeat(None)

    def _verify_history(self, root: Root) -> None:
        history, tail = History(self._context.storage), 0  # without cached parts
        for part in self._verify_lists(history, root):
            try:
                tails = column_values(history.part(part), "tail")
            except FormatError as error:
                self._problem(part.path, error)
                continue
            if int(tails[0]) < tail or (np.diff(tails) < 0).any():
                self._wrong(part.path, "tails in the history decrease")
            tail = int(tails[-1])
        if root.history and root.history[-1].tail != root.tail:
            self._wrong("history", "the newest row has another tail than the stream")

    def _verify_lists(self, table: Table, root: Root) -> Iterator[PartRef]:
        """Yield the parts of all lists and of the root that are new and readable."""
        for ref in filter(lambda ref: self._can_read(ref.path), table.lists(root)):
            try:
                yield from (part for part in table.members(ref) if self._can_read(part.path))
            except FormatError as error:
                self._problem(ref.path, error)
        yield from (part for part in table.inline(root) if self._can_read(part.path))

    def _can_read(self, path: str, *, deletable: bool = False) -> bool:
        """Tell whether a status object is new and it or its twin is readable; report their damage.

        With `deletable` both may be missing.
        """
        if not self._is_new(path):
            return False
        sound = 0
        for name in names.both_names(path):
            self._checked.add(name)
            where = self._context.storage.describe(name)
            try:
                check_object(name, self._context.storage.get(name), where=where)
            except FormatError as error:
                if not (deletable and isinstance(error, MissingObjectError)):
                    self._problem(name, error)
            else:
                sound += 1
        return sound > 0

    def _verify_blobs(self, root: Root) -> dict[int, pa.Schema]:
        status, schemas = self._context.status, dict[int, pa.Schema]()
        for epoch in root.epochs:
            where = epoch.blob.path if epoch.blob else f"epoch {epoch.number}"
            new = self._can_read(where) if epoch.blob else self._is_new(where)
            try:
                schemas[epoch.number] = epoch_schema(status, epoch)
            except FormatError as error:
                if new:
                    self._problem(where, error)
        if self._older is None:  # nothing reads those of an older version
            self._verify_rows(root, status.retired)
            self._verify_rows(root, status.writers)
        return schemas

    def _verify_rows(self, root: Root, table: RowsTable[Any]) -> None:
        for part in self._verify_lists(table, root):
            try:
                table.part(part)
            except FormatError as error:
                self._problem(part.path, error)

    def _verify_segment(
        self,
        root: Root,
        placed: Slice,
        schemas: dict[int, pa.Schema],
        filters: SegmentFilters,
    ) -> None:
        storage, entry = self._context.storage, placed.entry
        path = names.segment_place(entry.path, root.version)
        self._report.segments += self._older is None
        try:
            if entry.frame is None:
                size = storage.info(path).size
                if size != entry.bytes:
                    self._wrong(path, f"it has {size} bytes, but {entry.bytes} were committed")
                    return
                form = find_format(entry.format, where=path)
                form.check_head(storage.get_range(path, 0, form.head_bytes), where=path)
            segment = open_segment(storage, entry, where=path, whole=False)
            pieces = frame_stats(segment, entry)
        except FormatError as error:
            self._problem(path, error, range(placed.start, placed.start + entry.rows))
            return
        frames = segment.frames
        if sum(frame.rows for frame in frames) != entry.rows:
            self._wrong(path, "the frames have another number of rows than was committed")
        schema = schemas.get(entry.epoch)
        if schema is None:
            return
        held = filters or {}
        stats = list(self._verify_frames(path, segment, pieces, schema, held, end=placed.start))
        self._report.rows += entry.rows if self._older is None else 0
        if len(stats) == len(frames):
            try:
                claimed = parse_piece(entry.stats, where=path)
            except FormatError as error:
                self._problem(path, error)
                return
            if not claimed.items() <= merge(stats).items():
                self._wrong(path, "the statistics in the status are not those of the frames")

    def _verify_frames(
        self,
        path: str,
        segment: OpenSegment,
        pieces: Sequence[Piece],
        schema: pa.Schema,
        filters: Mapping[str, Sequence[bytes]],
        *,
        end: int,
    ) -> Iterator[tuple[int, Piece]]:
        labels = {label_of(field): field.name for field in schema}
        for number, (frame, stats) in enumerate(zip(segment.frames, pieces, strict=True)):
            where = f"{path}[{frame.start}:{frame.end}]"
            start, end = end, end + frame.rows
            try:
                batch = segment.read_frame(number, schema=schema)
            except FormatError as error:
                self._problem(where, error, range(start, end))
                continue
            self._report.frames += self._older is None
            if frame.fingerprint != fingerprint(schema):
                self._wrong(where, "the frame has another schema than its epoch")
            columns = [labels[label] for label in stats if label in labels]
            if compute(batch, columns) != stats:
                self._wrong(where, "the frame's statistics are not those of its rows")
            for name, data in frame.filters.items():
                if name not in schema.names or lacks_value([data], batch.column(name)):
                    self._wrong(where, f"the frame's filter of column {name!r} lacks a value")
            for name, held in filters.items():
                if name not in schema.names or lacks_value(held, batch.column(name)):
                    self._wrong(path, f"the status' filter of column {name!r} lacks a value")
            yield frame.rows, stats

    def _find_leftovers(self, root: Root) -> None:
        named = {*self._checked, *self._retired(root)}
        for info in list_objects(self._context.storage):
            if info.path not in named:
                self._report.leftovers.append(info.path)
                if (names.staged_version(info.path) or 0) >= root.version:
                    self._report.unclaimed.append(info.path)

    def _retired(self, root: Root) -> Iterator[str]:
        """Yield the objects that commits dropped, as far as the rows can be read."""
        rows = readable_rows(self._context.status.retired, root)  # damage is already reported
        for item in chain(root.retired, *rows):
            if item.kind == "segment":
                yield names.segment_object(item.path)
                continue
            yield from names.both_names(item.path)
            if item.kind == "part":
                self._can_read(item.path, deletable=item.version <= root.log_start)
                with suppress(FormatError):  # already reported
                    entries = self._context.status.table.retired(item.path)
                    yield from (names.segment_object(entry.path) for entry in entries)


def _covers(part: PartRef, stats: str | None) -> bool:
    """Tell whether the bounds in a part's row cover those of its segments, `stats`."""
    claimed, own = stats_of(part), stats_of(replace(part, stats=stats))
    for label in claimed.keys() & own.keys():
        both = [(part.end - part.start, claimed[label]), (part.end - part.start, own[label])]
        joined = merge([(rows, {label: each}) for rows, each in both])[label]
        if (joined.min, joined.max) != (claimed[label].min, claimed[label].max):
            return False
    return True
