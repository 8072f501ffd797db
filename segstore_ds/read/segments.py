"""Reading segment objects: their index, and the byte ranges of frames and columns.

The entry names the segment's format; nothing here depends on a particular format.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from segstore_ds.cache.views import ByteArraySegment
from segstore_ds.errors import CorruptionError, TruncatedObjectError
from segstore_ds.format import names
from segstore_ds.format.arrow.index import FrameEntry
from segstore_ds.format.root import SegmentEntry
from segstore_ds.format.segment import SegmentIndex, find_format
from segstore_ds.storage import Storage

WHOLE_OBJECT_BYTES = 1 << 20  # up to this size one request for the object beats two for parts of it
READ_BYTES = 16 << 20  # adjacent ranges are fetched together up to this size
GAP_BYTES = 128 << 10  # up to this size reading an unwanted gap beats another request

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class OpenSegment:
    """A segment whose index was read; `whole` is the object's bytes if it was fetched whole."""

    storage: Storage
    name: str
    where: str
    index: SegmentIndex
    whole: ByteArraySegment | None

    @property
    def frames(self) -> tuple[FrameEntry, ...]:
        """The index entries of the frames."""
        return self.index.frames

    def stored(
        self, numbers: Sequence[int], columns: Sequence[str] | None = None
    ) -> Iterator[tuple[int, list[pa.Buffer]]]:
        """Fetch frames as `fetch_frames` does, but unchecked."""
        wanted = [(number, self.index.spans(number, columns)) for number in numbers]
        spans = [(number, span) for number, ranges in wanted for span in ranges]
        left = {number: len(ranges) for number, ranges in wanted}
        ready: list[pa.Buffer] = []
        for number, data in self._fetch(spans):
            ready.append(data)
            if len(ready) == left[number]:
                yield number, ready
                ready = []

    def _fetch(self, spans: Sequence[tuple[int, Span]]) -> Iterator[tuple[int, pa.Buffer]]:
        for run in plan_runs(spans, READ_BYTES):
            start, end = run[0][1][0], run[-1][1][1]
            if self.whole is None:
                view = ByteArraySegment(self.storage.get_range(self.name, start, end))
            else:
                view = self.whole.slice(start, end)
            for number, (first, last) in run:
                # No copy: an uncompressed batch refers to the fetched bytes.
                yield number, view.slice(first - start, last - start).to_arrow()

    def decode(
        self,
        number: int,
        data: Sequence[pa.Buffer],
        *,
        schema: pa.Schema,
        columns: Sequence[str] | None = None,
    ) -> pa.RecordBatch:
        """Decode a frame from bytes that were checked."""
        return self.index.decode(number, data, schema=schema, columns=columns, where=self.where)

    def read_frame(self, number: int, *, schema: pa.Schema) -> pa.RecordBatch:
        """Fetch, check and decode all columns of one frame."""
        ((_, data),) = fetch_frames(self, [number])
        return self.decode(number, data, schema=schema)


def fetch_frames(
    segment: OpenSegment, numbers: Sequence[int], columns: Sequence[str] | None = None
) -> Iterator[tuple[int, list[pa.Buffer]]]:
    """Yield frames by number, each with the checked bytes of its columns, for `decode`.

    Every read of committed events passes through here. `numbers` ascend; `columns` of None means
    all columns, whose bytes are one buffer.
    """
    for number, data in segment.stored(numbers, columns):
        segment.index.check(number, data, columns=columns, where=segment.where)
        yield number, data


def plan_runs(
    spans: Sequence[tuple[int, Span]], most_bytes: int, gap_bytes: int = GAP_BYTES
) -> Iterator[list[tuple[int, Span]]]:
    """Group byte ranges with gaps of at most `gap_bytes` into runs of at most `most_bytes`. Pure.

    `spans` are pairs of a number and its range, with ascending ranges. A single range may exceed
    `most_bytes`.
    """
    run: list[tuple[int, Span]] = []
    for number, (start, end) in spans:
        if run and (start - run[-1][1][1] > gap_bytes or end - run[0][1][0] > most_bytes):
            yield run
            run = []
        run.append((number, (start, end)))
    if run:
        yield run


def open_segment(
    storage: Storage, entry: SegmentEntry, *, where: str | None = None, whole: bool = True
) -> OpenSegment:
    """Read the index of a segment.

    `where` names the object in errors; None means its URL. With `whole`, a small object is fetched
    in one request; its errors then do not tell a damaged index from other damage.
    """
    name = names.segment_object(entry.path)
    where = where or storage.describe(name)
    form = find_format(entry.format, where=where)
    if entry.footer_bytes > entry.bytes:
        raise CorruptionError("footer is larger than its segment", where=where)
    found = None
    if whole and entry.bytes <= WHOLE_OBJECT_BYTES:
        found = storage.get(name, limit_bytes=entry.bytes)
        if len(found) < entry.bytes:
            raise TruncatedObjectError(
                "segment is shorter than committed",
                where=where,
                expected=entry.bytes,
                actual=len(found),
            )
        tail = found[entry.bytes - entry.footer_bytes :]
    else:
        tail = storage.get_range(name, entry.bytes - entry.footer_bytes, entry.bytes)
    index = form.parse_index(
        tail, object_bytes=entry.bytes, where=where, footer_crc=entry.footer_crc
    )
    view = None if found is None else ByteArraySegment(found)
    return OpenSegment(storage, name, where, index, view)
