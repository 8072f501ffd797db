"""Rebuild status parts and lists of parts from what is left. This module writes nothing.

A part lists the segments that were live in its range when it was made. It was made by the version
after the one in its name. The kept version before that lists the same segments, except those that
this one commit added. Those are the segments of a job that no list names: their own names and ends
describe them, and the history says which commit added so many. They count only if the whole part
then has the digest that the root names: it is the lost object itself. Without that proof (another
zstd release compresses to other bytes) a part counts only if kept versions name every segment.
"""

import re
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, islice

import pyarrow as pa

from segstore_ds.errors import FormatError
from segstore_ds.format import names
from segstore_ds.format.arrow.index import count_raws
from segstore_ds.format.indexed_columns import key_columns_of
from segstore_ds.format.operation import Operation
from segstore_ds.format.parts.kinds import LIST, SEGMENTS, encode_object
from segstore_ds.format.parts.segments import SegmentFilters
from segstore_ds.format.root import PartRef, Retired, SegmentEntry
from segstore_ds.format.segment import FORMATS, find_end
from segstore_ds.format.statistics import entry_stats, merge
from segstore_ds.repair.kept_versions import (
    KeptVersions,
    covers,
    epochs_by_fingerprint,
    find_schema,
    tile,
    tile_known,
)
from segstore_ds.repair.rebuild_rest import HistoryFacts, told_list
from segstore_ds.status.key_filters import find_filters
from segstore_ds.status.parts import build_object
from segstore_ds.status.store import is_proven
from segstore_ds.status.table import readable_parts
from segstore_ds.status.table_status import PlacedSegment, TableStatus
from segstore_ds.storage import Storage

_COPIED = re.compile(r"copy-[^/]+/([0-9a-f]{16})-[0-9a-f]{12}\.[a-z]+")
_STAGED = re.compile(r"([0-9]{1,18})-(.+)-([0-9]{1,18})\.[a-z]+")
_MOST_TRIED = 100  # parts that are encoded to compare their digests


@dataclass(frozen=True, slots=True)
class Unlisted:
    """A segment as it describes itself: it stores no offset and no number.

    Attributes:
        entry: What a list would say about it; its id is known only if a copy by segments wrote it,
            or if `epoch` is set.
        fingerprint: Digest of its schema.
        version: The version that its job was planned on; -1 if the name does not say.
        order: Its place among the segments of all jobs: version, token, task, attempt, place.
        epoch: Its epoch, if a list named it.
    """

    entry: SegmentEntry
    fingerprint: str
    version: int
    order: tuple[int, str, int, str, int, str]
    epoch: int | None = None


Job = Sequence[Unlisted]  # the segments of one job, in the order of their offsets
Added = tuple[int | None, Unlisted]  # the version that added a segment, where that is known


@dataclass(slots=True)
class FoundPart:
    """What was found of a lost part.

    Attributes:
        entries: All of its segments; empty if they are not all known.
        data: The lost object itself, byte for byte; None if that is not proven.
        placed: The segments that are certain, in offset order.
        missing: The ranges about which nothing is certain.
    """

    entries: tuple[SegmentEntry, ...] = ()
    data: bytes | None = None
    placed: list[PlacedSegment] = field(default_factory=list)
    missing: list[tuple[int, int]] = field(default_factory=list)


class PartRebuilder:
    """Rebuilds the lost parts of one root from kept versions, the history and segments."""

    def __init__(self, kept: KeptVersions, facts: HistoryFacts) -> None:
        self._kept = kept
        self._facts = facts
        self._knows_dropped = True
        self._filters: dict[str, SegmentFilters] = {}

    def find(self, part: PartRef) -> FoundPart:
        """Find the segments of a part."""
        made = names.parse_status_version(part.path) or 0
        known = self._own(part) or self._told(part, made)
        runs, missing = tile_known(known, part.start, part.end)
        for added in islice(self._additions(missing, made), _MOST_TRIED):
            entries = self._entries(part, made, runs, missing, added)
            data = None if entries is None else self._packed(part, entries)
            if entries is not None and data is not None:
                return FoundPart(entries, data, _place(part.start, entries))
        merged = self._merged(made) if missing else ()
        data = self._packed(part, merged) if merged else None
        if data is not None:
            return FoundPart(merged, data, _place(part.start, merged))
        found = FoundPart(placed=runs, missing=missing)
        there = all(_is_there(self._kept.storage, segment.entry) for segment in runs)
        if not missing and len(runs) == part.count and there and self._knows_dropped:
            found.entries = tuple(segment.entry for segment in runs)
        return found

    def find_list(self, ref: PartRef) -> tuple[PartRef, ...] | None:
        """Find the parts of a list; None if they are not known.

        Without an older version that names them, the parts that no list names are its own, if those
        that lie side by side have the list's digest.
        """
        found = told_list(ref, (self._kept.parts_of(root) for root in self._kept.older()))
        if found is not None:
            return found
        stored = self._unlisted_parts()
        runs = (_from_offset(stored[first:], ref) for first in range(len(stored)))
        return next((run for run in runs if run and is_proven(ref, encode_object(LIST, run))), None)

    def _unlisted_parts(self) -> list[PartRef]:
        """Return the stored parts that the root neither names nor dropped, by segment number."""
        known = {part.path for part in self._kept.parts_of(self._kept.newest)}
        known |= {item.path for item in self._retired if item.kind in ("status", "part")}
        found: list[tuple[int, PartRef]] = []
        for info in self._kept.objects(names.STATUS_FOLDER):
            if names.parse_status_kind(info.path) != SEGMENTS.name or info.path in known:
                continue
            try:
                entries, size = self._kept.status.whole_part(info.path)
            except FormatError:
                continue
            rows = sum(entry.rows for entry in entries)
            part = PartRef(info.path, 0, rows, len(entries), size)
            found.append((entries[0].segment_id & 0xFFFFFFFF, part))
        return [part for _, part in sorted(found, key=lambda item: item[0])]

    def schema_of(self, epoch: int) -> pa.Schema:
        """Return the schema of an epoch; without columns if it is lost."""
        try:
            return self._kept.status.schemas_of(self._kept.newest)(epoch)
        except FormatError:
            return find_schema(self._kept, epoch) or pa.schema([])

    # --- what is listed ------------------------------------------------------------------------

    def _own(self, part: PartRef) -> dict[int, PlacedSegment] | None:
        """Return what the part itself still says: perhaps only its statistics are damaged."""
        alone = replace(self._kept.newest, lists=(), parts=(part,), entries=())
        status = TableStatus(self._kept.storage)
        try:
            bare = list(status.segments(alone, part.start, part.end, with_stats=False))
        except FormatError:
            return None
        made = names.parse_status_version(part.path) or 0
        told = self._told(part, made).values()
        recorded = {segment.entry.segment_id: segment.entry for segment in told}
        found: dict[int, PlacedSegment] = {}
        for segment in bare:
            entry = recorded.get(segment.entry.segment_id)
            if entry is None or replace(entry, stats=None) != segment.entry:
                read = describe(self._kept.storage, segment.entry.path, segment.entry.bytes)
                stats = None if read is None else read.entry.stats
                entry = replace(segment.entry, stats=stats)
            found[segment.start] = PlacedSegment(segment.start, entry)
        return found

    def _told(self, part: PartRef, made: int) -> dict[int, PlacedSegment]:
        """Return the segments that versions before the part list in its range, by offset.

        A segment is left out if it was dropped after the version that listed it, up to the part's
        own commit.
        """
        found: dict[int, PlacedSegment] = {}
        for root in self._kept.older(made):
            listed = {
                segment.start: segment
                for segment in self._kept.segments_of(root, part.start, part.end, beside=part.path)
            }
            for start, segment in listed.items():
                gone = self._dropped.get(segment.entry.path, ())
                if not any(root.version < version <= made + 1 for version in gone):
                    found.setdefault(start, segment)
            first, last = max(part.start, root.listed_start), min(part.end, root.tail)
            # This version lists the range without a gap, so older versions add nothing.
            if tile(found, part.start, part.end) is not None or covers(listed, first, last):
                break
        return found

    def _merged(self, made: int) -> tuple[SegmentEntry, ...]:
        """Return what the parts list that a part's own commit dropped, if they can all be read."""
        found: list[SegmentEntry] = []
        for item in self._retired:
            if item.version == made + 1 and names.parse_status_kind(item.path) == SEGMENTS.name:
                try:
                    found += self._kept.status.whole_part(item.path)[0]
                except FormatError:
                    return ()
        return tuple(found)

    @cached_property
    def _dropped(self) -> dict[str, list[int]]:
        """The versions that dropped each segment, by its path."""
        found: dict[str, list[int]] = defaultdict(list)
        for item in self._retired:
            if item.kind == "segment":
                found[item.path].append(item.version)
        return found

    @cached_property
    def _retired(self) -> list[Retired]:
        """The objects that were dropped, as far as they can be read."""
        root, items = self._kept.newest, list(self._kept.newest.retired)
        table = self._kept.status.retired

        def lost(_path: str, _error: FormatError) -> None:
            self._knows_dropped = False

        for part in readable_parts(table, root, lost):
            try:
                items += table.part(part)
            except FormatError:
                self._knows_dropped = False
        return items

    # --- what is not listed --------------------------------------------------------------------

    def _additions(
        self, gaps: Sequence[tuple[int, int]], made: int
    ) -> Iterator[Sequence[Sequence[Added]]]:
        """Yield what may fill the gaps: the segments of each, in order.

        First come the jobs of the commits that appended there; then one job, whichever it is, or
        all jobs in the order of their names.
        """
        if not gaps:
            yield ()
            return
        appended = [self._appended(gap, made) for gap in gaps]
        jobs = list(self._jobs_before(made))
        complete = self._kept.at(made) is not None
        for known in (appended, [None] * len(gaps)):
            left = [gap for gap, found in zip(gaps, known, strict=True) if found is None]
            for job in jobs if left else ((),):
                for runs in _fill(job, [end - start for start, end in left]):
                    rest = iter(
                        [
                            (
                                made + 1 if complete else self._facts.rewritten_after(item.version),
                                item,
                            )
                            for item in run
                        ]
                        for run in runs
                    )
                    yield [next(rest) if found is None else found for found in known]

    def _appended(self, gap: tuple[int, int], made: int) -> list[Added] | None:
        """Return the segments of the commits that appended a gap; None if they are not known."""
        rows = self._facts.appended(*gap, before=made + 2)
        if rows is None:
            return None
        found: list[Added] = []
        used: set[str] = set()
        for row in rows:
            sums = (row.segments, row.rows, row.bytes)
            fitting = (
                job
                for job in self._jobs_by_sums.get(sums, ())
                if job[0].version < row.version and job[0].entry.path not in used
            )
            chosen = next(fitting, None)
            if chosen is None:
                return None
            used.add(chosen[0].entry.path)
            found += [(row.version, segment) for segment in chosen]
        return found

    def _jobs_before(self, made: int) -> Iterator[Job]:
        """Yield the jobs that were planned up to a version, newest first, then all as one.

        If the part's own commit is a restore, the segments of each kept version come last.
        """
        yield from (job for job in self._jobs if job[0].version <= made)
        yield [segment for segment in self._unlisted if segment.version <= made]
        if self._facts.operation(made + 1) == Operation.RESTORE:
            for root in self._kept.older(made):
                listed = self._kept.segments_of(root, root.head, root.tail)
                yield [
                    Unlisted(item.entry, "", made, _order(made, item.entry.path), item.entry.epoch)
                    for item in listed
                ]

    @cached_property
    def _jobs(self) -> list[Job]:
        """The segments of each job that no list names, newest version first.

        Of several attempts of a task the one with the most rows counts: the others were killed.
        """
        jobs: dict[tuple[int, str], dict[int, dict[str, list[Unlisted]]]] = {}
        for segment in self._unlisted:
            version, token, task, attempt, *_ = segment.order
            tasks = jobs.setdefault((version, token), {})
            tasks.setdefault(task, {}).setdefault(attempt, []).append(segment)
        return [
            [
                segment
                for attempts in jobs[key].values()
                for segment in max(attempts.values(), key=_rows)
            ]
            for key in sorted(jobs, reverse=True)
        ]

    @cached_property
    def _jobs_by_sums(self) -> dict[tuple[int, int, int], list[Job]]:
        """The jobs by what the history says of a commit: segments, rows and bytes."""
        found: dict[tuple[int, int, int], list[Job]] = defaultdict(list)
        for job in self._jobs:
            found[len(job), _rows(job), sum(segment.entry.bytes for segment in job)].append(job)
        return found

    @cached_property
    def _unlisted(self) -> list[Unlisted]:
        """The segments that the newest version does not list and nobody dropped, by their names."""
        prefix = f"{names.SEGMENTS_FOLDER}/"
        known = {*self._listed, *self._dropped}
        found = (
            describe(self._kept.storage, info.path.removeprefix(prefix), info.size)
            for info in self._kept.objects(names.SEGMENTS_FOLDER)
            if info.path.removeprefix(prefix) not in known
        )
        return sorted((item for item in found if item is not None), key=lambda item: item.order)

    @cached_property
    def _listed(self) -> dict[str, int]:
        """The numbers of the segments that the newest version lists, by path."""
        root = self._kept.newest
        placed = self._kept.segments_of(root, root.listed_start, root.tail)
        return {item.entry.path: item.entry.segment_id & 0xFFFFFFFF for item in placed}

    # --- putting together ----------------------------------------------------------------------

    def _entries(
        self,
        part: PartRef,
        made: int,
        runs: Sequence[PlacedSegment],
        gaps: Sequence[tuple[int, int]],
        added: Sequence[Sequence[Added]],
    ) -> tuple[SegmentEntry, ...] | None:
        """Return a part's segments in order, found ones with numbers and epochs; None on a misfit.

        A commit assigns its numbers in offset order.
        """
        if len(runs) + sum(map(len, added)) != part.count:
            return None
        used = {segment.entry.segment_id & 0xFFFFFFFF for segment in runs}
        used.update(self._listed.values() if gaps else ())
        epochs = epochs_by_fingerprint(self._kept, self._kept.at(made + 1) or self._kept.newest)
        free: dict[int, Iterator[int]] = {}
        found = {segment.start: segment for segment in runs}
        for (cursor, _), items in zip(gaps, added, strict=True):
            for version, segment in items:
                entry, epoch = segment.entry, segment.epoch
                if not _COPIED.fullmatch(entry.path):
                    epoch = epochs.get(segment.fingerprint) if epoch is None else epoch
                    numbers = None if version is None else self._facts.numbers(version)
                    if version is None or epoch is None or numbers is None:
                        return None
                    left = free.setdefault(version, (n for n in numbers if n not in used))
                    number = next(left, None)
                    if number is None:
                        return None
                    entry = replace(entry, segment_id=epoch << 32 | number)
                found[cursor] = PlacedSegment(cursor, entry)
                cursor += entry.rows  # noqa: PLW2901 - the place of the next segment
        tiled = tile(found, part.start, part.end)
        return None if tiled is None else tuple(segment.entry for segment in tiled)

    def _packed(self, part: PartRef, entries: Sequence[SegmentEntry]) -> bytes | None:
        """Return the part as an object if it has the digest that its reference names."""
        data, rest = build_object(entries, self.schema_of)
        if not is_proven(part, data) and key_columns_of(self._kept.newest):
            new = [entry for entry in entries if entry.path not in self._filters]
            filters = find_filters(self._kept.storage, new)
            self._filters.update(zip((entry.path for entry in new), filters, strict=True))
            filters = [self._filters[entry.path] for entry in entries]
            data, rest = build_object(entries, self.schema_of, filters)
        return data + rest if is_proven(part, data) else None


def describe(storage: Storage, path: str, size: int) -> Unlisted | None:
    """Read what a segment says about itself; None if it can't be read."""
    form = next(
        (candidate for candidate in FORMATS.values() if path.endswith(candidate.ending)), None
    )
    name = names.segment_object(path)
    if form is None or not size:
        return None
    try:
        end_bytes = find_end(
            form, lambda count: storage.get_range(name, size - count, size), object_bytes=size
        )
        if not end_bytes:
            return None
        end = storage.get_range(name, size - end_bytes, size)
        crc = zlib.crc32(end)
        index = form.parse_index(end, object_bytes=size, where=name, footer_crc=crc)
    except FormatError:
        return None
    frames = index.frames
    fingerprints = {frame.fingerprint for frame in frames}
    rows = sum(frame.rows for frame in frames)
    if len(fingerprints) != 1 or not rows:
        return None
    copied = _COPIED.fullmatch(path)
    entry = SegmentEntry(
        segment_id=int(copied[1], 16) if copied else -1,
        path=path,
        rows=rows,
        bytes=size,
        footer_bytes=end_bytes,
        footer_crc=crc,
        format=form.name,
        stats=entry_stats(merge([(frame.rows, frame.stats) for frame in frames])),
        frames=len(frames),
        frame_raws=count_raws(frames),
    )
    version = names.parse_token_version(names.segment_token(path))
    known = -1 if version is None else version
    return Unlisted(entry, fingerprints.pop(), known, _order(known, path))


def _order(version: int, path: str) -> tuple[int, str, int, str, int, str]:
    token, _, name = path.partition("/")
    match = _STAGED.fullmatch(name)
    task, attempt, place = (int(match[1]), match[2], int(match[3])) if match else (0, "", 0)
    return (version, token, task, attempt, place, name)


def _fill(job: Job, sizes: Sequence[int]) -> Iterator[list[Job]]:
    """Yield runs of a job's segments that hold as many rows as each gap, in order. Pure.

    The first gap may begin at any segment; each other one takes the first run that follows.
    """
    if not sizes:
        yield []
        return
    sums = list(accumulate((segment.entry.rows for segment in job), initial=0))
    places = {total: number for number, total in enumerate(sums)}
    for start in range(len(job)):
        runs: list[Job] = []
        first = start
        for size in sizes:
            after = range(first, len(job) if runs else start + 1)
            found = next((n for n in after if sums[n] + size in places), None)
            if found is None:
                break
            first = places[sums[found] + size]
            runs.append(job[found:first])
        else:
            yield runs


def _rows(job: Iterable[Unlisted]) -> int:
    return sum(segment.entry.rows for segment in job)


def _is_there(storage: Storage, entry: SegmentEntry) -> bool:
    """Tell whether the object of an entry exists with the right size."""
    try:
        return storage.info(names.segment_object(entry.path)).size == entry.bytes
    except FormatError:
        return False


def _place(start: int, entries: Collection[SegmentEntry]) -> list[PlacedSegment]:
    starts = accumulate((entry.rows for entry in entries), initial=start)
    return [PlacedSegment(first, entry) for first, entry in zip(starts, entries, strict=False)]


def _from_offset(parts: Sequence[PartRef], ref: PartRef) -> tuple[PartRef, ...]:
    """Return the first parts that fill a list's range, with their offsets in it; () on a misfit."""
    placed, start = [], ref.start
    for part in parts:
        placed.append(replace(part, start=start, end=start + part.end - part.start))
        start = placed[-1].end
        if start >= ref.end:
            break
    return tuple(placed) if start == ref.end else ()
