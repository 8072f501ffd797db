"""Rebuild status parts and lists of parts from what is left. This module writes nothing.

A part lists the segments that were live in its range when it was made. It was made by the version
after the one in its name. The kept version before that lists the same segments, except those that
commits added since. The history says how many each commit added and where; one job staged as many,
and its names and ends describe them. They count only if the whole part then has the digest that the
root names: it is the lost object itself. A job that staged as much and died has another digest.
Without that proof (another zstd release compresses to other bytes) a part counts only if kept
versions name every segment.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, chain

import pyarrow as pa

from segstore_ds.checksum import crc32
from segstore_ds.errors import FormatError
from segstore_ds.format import names
from segstore_ds.format.arrow.index import count_raws, merge_frames
from segstore_ds.format.indexed_columns import key_columns_of
from segstore_ds.format.operation import Operation
from segstore_ds.format.parts.kinds import LIST, SEGMENTS, encode_object
from segstore_ds.format.parts.segments import SegmentFilters
from segstore_ds.format.root import HistoryRow, PartRef, Retired, SegmentEntry
from segstore_ds.format.segment import find_end, format_of
from segstore_ds.format.statistics import entry_stats
from segstore_ds.repair.kept_versions import (
    KeptVersions,
    epochs_by_fingerprint,
    find_schema,
    tile,
    tile_known,
    uncovered,
)
from segstore_ds.repair.rebuild_rest import REWRITES, HistoryFacts, told_list
from segstore_ds.status.key_filters import find_filters
from segstore_ds.status.parts import build_object
from segstore_ds.status.store import is_proven
from segstore_ds.status.table import readable_rows
from segstore_ds.status.table_status import PlacedSegment
from segstore_ds.storage import Storage

_COPIED = re.compile(r"copy-[^/]+/([0-9a-f]{16})-[0-9a-f]{12}\.[a-z]+")
_STAGED = re.compile(r"([0-9]{1,18})-(.+)-([0-9]{1,18})\.[a-z]+")

Job = Sequence[tuple[str, int, SegmentEntry | None]]  # path, size, and the entry if a list has it


@dataclass(slots=True)
class FoundPart:
    """What was found of a lost part."""

    entries: tuple[SegmentEntry, ...] = ()  # all of its segments; empty if they are not all known
    data: bytes | None = None  # the lost object itself; None if that is not proven
    placed: list[PlacedSegment] = field(default_factory=list)  # what is certain, in order
    missing: list[tuple[int, int]] = field(default_factory=list)  # where nothing is certain


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
        known = self._told(part, made)
        runs, missing = tile_known(known, part.start, part.end)
        filled = known | self._added(missing, made) if missing else known
        tiled = tile(filled, part.start, part.end)
        entries = tuple(segment.entry for segment in tiled or ())
        data = self._packed(part, entries) if len(entries) == part.count else None
        if data is not None:
            return FoundPart(entries, data, _place(part.start, entries))
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
                entries, size = self._kept.status.table.whole(info.path)
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
                if not self._is_dropped(segment.entry, root.version, made):
                    found.setdefault(start, segment)
            first, last = max(part.start, root.listed_start), min(part.end, root.tail)
            # This version lists the range without a gap, so older versions add nothing.
            spans = ((segment.start, segment.end) for segment in listed.values())
            if tile(found, part.start, part.end) is not None or not any(
                uncovered(spans, first, last)
            ):
                break
        return found

    def _is_dropped(self, entry: SegmentEntry, since: int, made: int) -> bool:
        """Tell whether a segment was dropped after a version, up to the commit that made a part."""
        return any(since < version <= made + 1 for version in self._dropped.get(entry.path, ()))

    @cached_property
    def _dropped(self) -> dict[str, list[int]]:
        """The versions that dropped each segment, by its path."""
        found: dict[str, list[int]] = defaultdict(list)
        for item in self._retired:
            if item.kind == "segment":
                found[item.path].append(item.version)
            elif item.kind == "part":
                try:
                    entries = self._kept.status.table.retired(item.path)
                except FormatError:
                    self._knows_dropped = False
                    continue
                for entry in entries:
                    found[entry.path].append(item.version)
        return found

    @cached_property
    def _retired(self) -> list[Retired]:
        """The objects that were dropped, as far as they can be read."""

        def lost(_path: str, _error: FormatError) -> None:
            self._knows_dropped = False

        root, table = self._kept.newest, self._kept.status.retired
        return [*chain.from_iterable(readable_rows(table, root, lost)), *root.retired]

    # --- what is not listed --------------------------------------------------------------------

    def _added(self, gaps: Sequence[tuple[int, int]], made: int) -> dict[int, PlacedSegment]:
        """Return what commits added in the gaps, as the history and names say, by offset.

        An append's segments lie where its row says. Those of a compaction fill what is left, in the
        order of their names.
        """
        found: dict[int, PlacedSegment] = {}
        rows = self._facts.newest(made + 2)
        for row in (row for row in rows if row.operation not in REWRITES):
            if not any(row.tail - row.rows < end and row.tail > first for first, end in gaps):
                continue
            entries = self._entries(row)
            for placed in _place(row.tail - sum(entry.rows for entry in entries), entries):
                fits = any(first <= placed.start and placed.end <= end for first, end in gaps)
                if fits and not self._is_dropped(placed.entry, row.version, made):
                    found[placed.start] = placed
        left = [gap for first, end in gaps for gap in tile_known(found, first, end)[1]]
        for row in (row for row in rows if left and row.operation in REWRITES):
            entries = [each for each in self._entries(row) if each.path not in self._listed]
            for first, end in left:
                run = _find_run(entries, end - first)
                found.update((item.start, item) for item in _place(first, run))
                entries = entries[entries.index(run[-1]) + 1 :] if run else entries
            left = [gap for first, end in left for gap in tile_known(found, first, end)[1]]
        return found

    def _entries(self, row: HistoryRow) -> list[SegmentEntry]:
        """Return what a commit added, in order, with numbers and epochs; empty if not known."""
        job, numbers = self._job_of(row), self._facts.numbers(row.version)
        if numbers is None:
            return []
        outlined = self._outlined[row.version - 1]
        if len(outlined) == 1:
            # What was inline before, and the commit's own events if they were small.
            first = (numbers.start if job else numbers.stop) - 1
            job, numbers = (*outlined[0], *job), range(first, numbers.stop)
        root = self._kept.at(row.version) or self._kept.newest
        epochs, found = epochs_by_fingerprint(self._kept, root), list[SegmentEntry]()
        for number, (path, size, listed) in zip(numbers, job, strict=False):
            entry, epoch = listed, listed.epoch if listed is not None else None
            if entry is None:
                entry, fingerprint = describe(self._kept.storage, path, size) or (None, "")
                epoch = epochs.get(fingerprint)
            copied = _COPIED.fullmatch(path)
            if entry is None or (epoch is None and not copied):
                return []
            known = entry.segment_id if copied else (epoch or 0) << 32 | number
            found.append(replace(entry, segment_id=known))
        return found

    def _job_of(self, row: HistoryRow) -> Job:
        """Return the newest job that staged as much as a commit added; empty if there is none."""
        if row.operation == Operation.RESTORE:
            segments_of = self._kept.segments_of
            listed: Iterator[Job] = (
                [(item.entry.path, 0, item.entry) for item in segments_of(old, old.head, old.tail)]
                for old in self._kept.older(row.version - 1)
            )
            return next((job for job in listed if len(job) == row.segments), ())
        # The row of a compaction does not tell all bytes, and what it replaced was dropped.
        rewrites = row.operation in REWRITES
        known = self._listed.keys() | self._dropped.keys() if rewrites else ()
        fitting = (
            job
            for version, job in self._jobs_by[row.segments, 0 if rewrites else row.bytes]
            if version < row.version and not all(path in known for path, *_ in job)
        )
        return next(fitting, ())

    @cached_property
    def _jobs_by(self) -> Mapping[tuple[int, int], list[tuple[int, Job]]]:
        """The jobs by what they staged: how many segments, and how many bytes or 0."""
        found: Mapping[tuple[int, int], list[tuple[int, Job]]] = defaultdict(list)
        for version, job in self._jobs:
            for size in (0, sum(size for _, size, _ in job)):
                found[len(job), size].append((version, job))
        return found

    @cached_property
    def _outlined(self) -> Mapping[int, list[Job]]:
        """What was inline until a version, by that version."""
        found: Mapping[int, list[Job]] = defaultdict(list)
        for version, job in self._jobs:
            if names.is_outlined(job[0][0]):
                found[version].append(job)
        return found

    @cached_property
    def _jobs(self) -> list[tuple[int, Job]]:
        """The segments of each job by their names, with the version it was planned on.

        Of several attempts of a task the largest one counts: the others were killed.
        """
        jobs: dict[tuple[int, str], dict[int, dict[str, list[tuple[int, str, int]]]]] = {}
        for info in self._kept.objects(names.SEGMENTS_FOLDER):
            path = info.path.removeprefix(f"{names.SEGMENTS_FOLDER}/")
            token, _, name = path.partition("/")
            version = names.parse_token_version(names.segment_token(path))
            match = _STAGED.fullmatch(name)
            task, attempt, place = (int(match[1]), match[2], int(match[3])) if match else (0, "", 0)
            tasks = jobs.setdefault((-1 if version is None else version, token), {})
            tasks.setdefault(task, {}).setdefault(attempt, []).append((place, path, info.size))
        return [
            (
                key[0],
                [
                    (path, size, self._listed.get(path))
                    for _, attempts in sorted(jobs[key].items())
                    for _, path, size in sorted(max(attempts.values(), key=_bytes))
                ],
            )
            for key in sorted(jobs, reverse=True)
        ]

    @cached_property
    def _listed(self) -> dict[str, SegmentEntry]:
        """The segments that the newest version lists, by path."""
        root = self._kept.newest
        placed = self._kept.segments_of(root, root.listed_start, root.tail)
        return {item.entry.path: item.entry for item in placed}

    def _packed(self, part: PartRef, entries: Sequence[SegmentEntry]) -> bytes | None:
        """Return the part as an object if it has the digest that its reference names."""
        data, rest = build_object(entries)
        if not is_proven(part, data) and key_columns_of(self._kept.newest):
            new = [entry for entry in entries if entry.path not in self._filters]
            filters = find_filters(self._kept.storage, new)
            self._filters.update(zip((entry.path for entry in new), filters, strict=True))
            filters = [self._filters[entry.path] for entry in entries]
            data, rest = build_object(entries, filters)
        return data + rest if is_proven(part, data) else None


def describe(storage: Storage, path: str, size: int) -> tuple[SegmentEntry, str] | None:
    """Read what a segment says about itself: an entry, whose id is known of copies alone.

    Returns the entry and the digest of its schema, or None if it can't be read.
    """
    form = format_of(path)
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
        crc = crc32(end)
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
        stats=entry_stats(merge_frames(frames, index.stats.pieces())),
        frames=len(frames),
        frame_raws=count_raws(frames),
    )
    return entry, fingerprints.pop()


def _find_run(entries: Sequence[SegmentEntry], rows: int) -> Sequence[SegmentEntry]:
    """Return the first run of entries that holds so many rows; empty if none does. Pure."""
    sums = list(accumulate((entry.rows for entry in entries), initial=0))
    places = {total: number for number, total in enumerate(sums)}
    fitting = (
        entries[first : places[total + rows]]
        for first, total in enumerate(sums)
        if total + rows in places
    )
    return next(fitting, ())


def _bytes(segments: Iterable[tuple[int, str, int]]) -> int:
    return sum(size for _, _, size in segments)


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
