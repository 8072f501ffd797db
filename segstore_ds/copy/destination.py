"""Where a copy goes to: whether it may begin there, whether it is done, and its one commit."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from segstore_ds.copy.request import Copied, CopyRequest
from segstore_ds.errors import AlreadyExistsError, ConflictError, InvalidInputError
from segstore_ds.format.copies import EVENTS, parse_copy
from segstore_ds.format.operation import Operation
from segstore_ds.format.root import Epoch, Root, SegmentEntry
from segstore_ds.log.clock import SYSTEM_CLOCK, Clock
from segstore_ds.log.context import StreamContext
from segstore_ds.log.place import COPIED, first_version, may_begin
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.read.cuts import Position, check_position
from segstore_ds.status.history import begin_history
from segstore_ds.status.slot import Slot
from segstore_ds.storage import Overlap, Storage, compare_names, refuse_overlap
from segstore_ds.write.create import first_root

EpochTexts = tuple[int, str, str | None]  # since when, text of the schema, Spark's JSON


@dataclass(frozen=True, slots=True)
class Destination:
    """A copy's destination as a run of the copy found it; picklable."""

    storage: Storage = field(repr=False)  # the folder
    request: CopyRequest  # what the caller asked for
    source: Root = field(repr=False)  # the source's root that the run was planned on
    client: str  # who commits, for the history
    # The result if the copy had been made before; then there is nothing to do.
    done: Copied | None = None
    # The version that the first root gets. What is staged from now on is there when a root gets
    # that version: only a drop deletes it, and it leaves a later one.
    position: int = 0

    def find_done(self, clock: Clock) -> Copied | None:
        """Return the result if the copy has been made since."""
        return find_done(StreamLog(self.storage, clock=clock), self.request, self.source)

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
        clock: Clock = SYSTEM_CLOCK,
    ) -> Copied:
        """Create the first root, with `bounds` as head and tail, which lists all entries.

        `copied` is the range in offsets of the source. Returns what was copied; `repeated` if
        another run of the same copy was first.
        """
        context = StreamContext.of(StreamLog(self.storage, clock=clock), client=self.client)
        known: tuple[Epoch, ...] = ()
        for number, (since, text, spark) in enumerate(epochs):
            known = (*known, context.status.put_epoch(0, number, since, text, spark, beside=known))
        request, size = self.request, sum(entry.bytes for entry in entries)
        record = replace(
            request.begin(self.source, copied, mode=mode), segments=len(entries), bytes=size
        )
        first = replace(
            first_root(context, Operation.COPY, known),
            head=bounds[0],
            tail=bounds[1],
            sealed=request.seal,
            next_segment=len(entries) if next_segment is None else next_segment,
            entries=entries,
            copies={request.copy_id: record.to_value()},
            properties=properties,
        )
        first = begin_history(first, segments=len(entries))
        first = context.status.tidy(first, Slot(0, first.time_us, 0))
        if context.log.create(first, self.position) is not None:
            return Copied(*copied, len(entries), size)
        done = self.find_done(clock)
        if done is None:
            raise ConflictError(
                "a stream was made and dropped at the destination in the meantime",
                remedy="copy again",
                url=self.storage.url,
            )
        return done


def open_destination(
    source: StreamContext, target: Storage, request: CopyRequest, *, client: str
) -> Destination:
    """Find out whether a copy may begin, or is done; `source` is refreshed."""
    # Comparing names is enough: under any other name, the source's folder already holds a log.
    overlap = compare_names(target, source.storage)
    if overlap is Overlap.SAME:
        raise InvalidInputError("a stream can't be copied onto itself", url=target.url)
    refuse_overlap(target, source.storage, overlap, "copy")
    log, root = StreamLog(target, clock=source.clock), source.log.root
    done = find_done(log, request, root)
    position = None if done else first_version(log.files)
    if position is None:  # another run was first, a moment ago
        done = done or find_done(log, request, root)
    return Destination(target, request, root, client, done, position or 0)


def find_done(log: StreamLog, request: CopyRequest, source: Root) -> Copied | None:
    """Return the result of a copy that is done; None if the destination may begin now.

    What copies have staged there is allowed.
    """
    if may_begin(log.files, resumed=COPIED):
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
