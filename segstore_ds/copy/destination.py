"""What all modes of a copy share: the request, whether it may begin or is done, the commit."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from segstore_ds.errors import AlreadyExistsError, ConflictError, InvalidInputError
from segstore_ds.format import names
from segstore_ds.format.copies import CLONE, EVENTS, CopyRecord, parse_copy
from segstore_ds.format.envelope import digest_of
from segstore_ds.format.operation import Operation
from segstore_ds.format.record import build_json, to_json
from segstore_ds.format.root import Epoch, Root, SegmentEntry
from segstore_ds.format.schema.codec import decode_schema
from segstore_ds.format.schema.column_names import Names
from segstore_ds.log.clock import SYSTEM_CLOCK, Clock
from segstore_ds.log.context import StreamContext
from segstore_ds.log.place import first_version, may_begin, seen_before
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.read.cuts import Position, check_position, parse_cut, resolve_range
from segstore_ds.status.epochs import with_features
from segstore_ds.status.history import begin_history
from segstore_ds.status.table import Slot
from segstore_ds.status.table_status import TableStatus
from segstore_ds.storage import Overlap, Storage, compare_names, refuse_overlap
from segstore_ds.write.create import first_root

_COPY_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """What a caller asks to copy."""

    copy_id: str  # names the copy: a call with the same id continues it, or does nothing
    start: str  # the text of the cut where the range begins
    end: str  # the text of the cut where the range ends
    seal: bool = False  # whether the destination is sealed after the last event
    # ``segments``, ``events``, ``rows`` (made by a job from the events) or ``clone``.
    mode: str = "segments"
    version: int | None = None  # the version that a clone starts from; None for the newest one
    allow_redacted: bool = False  # whether a clone may start from a version older than a redaction

    def __post_init__(self) -> None:
        """Check the values that go into the destination's root unchanged."""
        if not isinstance(self.seal, bool):
            raise InvalidInputError(
                "seal is not a boolean", remedy="give True or False", seal=self.seal
            )
        if not isinstance(self.copy_id, str) or _COPY_ID.fullmatch(self.copy_id) is None:
            raise InvalidInputError(
                "not a copy id", remedy="use letters, digits and dashes", copy_id=self.copy_id
            )
        if self.version is not None and self.mode != CLONE:
            raise InvalidInputError(
                "an older version can only be cloned",
                remedy='use mode="clone", or restore the version in a clone and copy that',
                version=self.version,
            )
        if self.start != "head" and self.mode == CLONE:
            raise InvalidInputError(
                "a clone takes no start",
                remedy='truncate the clone, or copy with mode="segments"',
                start=self.start,
            )

    @property
    def token(self) -> str:
        """Name of the folder that holds the copied objects."""
        return names.build_copy_token(self.copy_id)

    def bind(self, context: StreamContext, root: Root) -> tuple[int, int]:
        """Return the offsets of the range as of a root of the source."""
        cuts = parse_cut(self.start), parse_cut(self.end)
        return resolve_range(context, root, *cuts, remedy="start the copy at 'head'")

    def digest(self, source: Root) -> str:
        """Return a digest of the arguments, which shows when an id is used for other ones."""
        given = [source.stream_id, source.generation, self.start, self.end, self.seal, self.mode]
        given += [] if self.version is None else [self.version]
        return digest_of(build_json(given))

    def check_digest(self, known: str, source: Root, *, url: str) -> None:
        """Raise InvalidInputError if the copy at `url` was begun with another digest."""
        if known != self.digest(source):
            raise InvalidInputError(
                "the copy id was used for another copy",
                remedy="repeat the copy with the arguments of its first call, or use another id",
                copy_id=self.copy_id,
                url=url,
            )

    def begin(self, source: Root, bounds: tuple[int, int], *, mode: str) -> CopyRecord:
        """Return the record of this copy, still without the numbers of segments and bytes."""
        return CopyRecord(
            copy_id=self.copy_id,
            mode=mode,
            source=source.stream_id,
            generation=source.generation,
            version=source.version,
            start=bounds[0],
            end=bounds[1],
            digest=self.digest(source),
        )


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy did: the destination has the source's events ``[start, end)``, or a job's rows.

    Attributes:
        start: Offset of the first event of the source.
        end: Offset after the last event of the source.
        segments: Number of segments that the copy added to the destination.
        bytes: Encoded bytes of those segments; 0 for a clone.
        reused: Number of segments that an earlier attempt had completed.
        repeated: Whether the copy had been done before.
    """

    start: int
    end: int
    segments: int
    bytes: int
    reused: int = 0
    repeated: bool = False


EpochTexts = tuple[int, str, str | None, Names]  # first offset, schema, Spark's JSON, names


@dataclass(frozen=True, slots=True)
class Destination:
    """A copy's destination, as it was when a run of the copy began; picklable."""

    storage: Storage = field(repr=False)  # the folder
    request: CopyRequest  # what the caller asked for
    source: Root = field(repr=False)  # the source's root that the run was planned on
    client: str  # who commits, for the history
    # The result if the copy had been made before; then there is nothing to do.
    done: Copied | None = None
    # The version that the first root gets. Only a drop deletes what is staged meanwhile. After it
    # a first root gets a later version, so this commit fails.
    position: int = 0
    clock: Clock = field(default=SYSTEM_CLOCK, repr=False)  # of the committing process

    @property
    def log(self) -> StreamLog:
        """A new handle on the destination's log."""
        return StreamLog(self.storage, clock=self.clock)

    def find_done(self) -> Copied | None:
        """Return the result if another run has made the copy since."""
        return find_done(self.log, self.request, self.source)

    def commit(
        self,
        entries: tuple[SegmentEntry, ...],
        bounds: tuple[int, int],
        *,
        copied: tuple[int, int],
        mode: str,
        epochs: list[EpochTexts],
        properties: Mapping[str, str],
        next_segment: int | None = None,
    ) -> Copied:
        """Create the first root, with `bounds` as head and tail, which lists all entries.

        `copied` is the range in offsets of the source. Returns what was copied; `repeated` if
        another run of the same copy was first.
        """
        context = StreamContext.of(self.log, client=self.client)
        known: tuple[Epoch, ...] = ()
        for number, (since, text, spark, called) in enumerate(epochs):
            facts = (seen_before(self.position), number, since, text, spark)
            known = (*known, context.status.put_epoch(*facts, names=called, beside=known))
        request, size = self.request, sum(entry.bytes for entry in entries)
        record = replace(
            request.begin(self.source, copied, mode=mode), segments=len(entries), bytes=size
        )
        schemas = (decode_schema(text) for _, text, _, _ in epochs)
        first = replace(
            first_root(context, Operation.COPY, known, schemas),
            head=bounds[0],
            tail=bounds[1],
            sealed=request.seal,
            next_segment=len(entries) if next_segment is None else next_segment,
            entries=entries,
            copies={request.copy_id: to_json(record)},
            properties=properties,
        )
        first = begin_history(with_features(first), segments=len(entries))
        named = replace(first, version=seen_before(self.position))
        first = context.status.tidy(named, Slot(0, first.time_us, 0))
        if context.log.create(replace(first, version=0), self.position) is not None:
            return Copied(*copied, len(entries), size)
        done = self.find_done()
        if done is None:
            raise ConflictError(
                "a stream was made and dropped at the destination in the meantime",
                remedy="copy again",
                url=self.storage.url,
            )
        return done


def bytes_of(status: TableStatus, root: Root, ranges: Iterable[tuple[int, int]]) -> int:
    """Return the encoded bytes of the segments in some ranges."""
    runs = (run for bounds in ranges for run in status.runs(root, *bounds))
    return sum(int(run.columns.bytes.sum()) for run in runs)


def open_destination(source: StreamContext, target: Storage, request: CopyRequest) -> Destination:
    """Find out whether a copy may begin, or is done; `source` is refreshed."""
    # Comparing names is enough: if other names mean the same folder, it already holds a log.
    overlap = compare_names(target, source.storage)
    if overlap is Overlap.SAME:
        raise InvalidInputError("a stream can't be copied onto itself", url=target.url)
    refuse_overlap(target, source.storage, overlap, "copy")
    log, root = StreamLog(target, clock=source.clock), source.log.root
    done = find_done(log, request, root)
    position = None if done else first_version(log.files)
    if position is None:  # another run has just made it
        done = done or find_done(log, request, root)
    return Destination(target, request, root, source.client, done, position or 0, source.clock)


def find_done(log: StreamLog, request: CopyRequest, source: Root) -> Copied | None:
    """Return the result of a copy that is done; None if the destination may be created."""
    if may_begin(log.files, resumed=names.COPIED) is not None:
        return None
    known = log.open().copies.get(request.copy_id)
    if known is None:
        raise AlreadyExistsError(
            "a stream already exists here",
            remedy="copy to a location without a stream",
            url=log.storage.url,
        )
    record = parse_copy(request.copy_id, known)
    if record.mode == EVENTS and record.source == source.stream_id:
        check_position(source, Position(record.source, record.generation, record.start))
    request.check_digest(record.digest, source, url=log.storage.url)
    return Copied(record.start, record.end, record.segments, record.bytes, repeated=True)
