"""Reading segment objects: their index, and the byte ranges of frames and columns.

The entry names the segment's format; nothing here depends on a particular format.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from segstore_ds.cache.views import ByteArraySegment
from segstore_ds.errors import CorruptionError, TruncatedObjectError
from segstore_ds.format import names
from segstore_ds.format.arrow.index import FrameEntry
from segstore_ds.format.segment import SegmentIndex, find_format
from segstore_ds.storage import Storage

WHOLE_OBJECT_BYTES = 1 << 20  # up to this size one request for the object beats two for parts of it
READ_BYTES = 16 << 20  # adjacent ranges are fetched together up to this size
GAP_BYTES = 128 << 10  # up to this size reading an unwanted gap beats another request

Span = tuple[int, int]


class Stored(Protocol):
    """The table status's facts about a segment: an entry, or a slice to read."""

    @property
    def path(self) -> str:
        """The segment, relative to the folder of segments."""

    @property
    def bytes(self) -> int:
        """The size of the object."""

    @property
    def footer_bytes(self) -> int:
        """The size of the footer."""

    @property
    def footer_crc(self) -> int:
        """CRC-32 of the footer."""

    @property
    def format(self) -> str:
        """The name of its format."""


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

    def fetch(
        self, numbers: Sequence[int], columns: Sequence[str] | None
    ) -> Iterator[tuple[int, list[pa.Buffer]]]:
        """Yield each frame's number and the bytes of its columns, for `SegmentIndex.decode`.

        `numbers` ascend; `columns` of None means all columns.
        """
        wanted = [(number, self.index.spans(number, columns)) for number in numbers]
        spans = [(number, span) for number, ranges in wanted for span in ranges]
        left = {number: len(ranges) for number, ranges in wanted}
        ready: list[pa.Buffer] = []
        for number, data in self._fetch(spans):
            ready.append(data)
            if len(ready) == left[number]:
                yield number, ready
                ready = []

    def raw_frames(self, numbers: Sequence[int]) -> Iterator[tuple[int, pa.Buffer]]:
        """Yield each frame's number and its stored bytes."""
        places = [(self.frames[number].start, self.frames[number].end) for number in numbers]
        return self._fetch(list(zip(numbers, places, strict=True)))

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
        """Verify and decode a frame."""
        return self.index.decode(number, data, schema=schema, columns=columns, where=self.where)

    def read_frame(self, number: int, *, schema: pa.Schema) -> pa.RecordBatch:
        """Fetch, verify and decode all columns of one frame."""
        ((_, data),) = self.fetch([number], None)
        return self.decode(number, data, schema=schema)


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
    storage: Storage, stored: Stored, *, where: str | None = None, whole: bool = True
) -> OpenSegment:
    """Read the index of a segment.

    `where` names the object in errors; None means its URL. With `whole`, a small object is fetched
    in one request; its errors then do not tell a damaged index from other damage.
    """
    name = names.segment_object(stored.path)
    where = where or f"{storage.url}/{name}"
    form = find_format(stored.format, where=where)
    if stored.footer_bytes > stored.bytes:
        raise CorruptionError("footer is larger than its segment", where=where)
    found = None
    if whole and stored.bytes <= WHOLE_OBJECT_BYTES:
        found = storage.get(name, limit_bytes=stored.bytes)
        if len(found) < stored.bytes:
            raise TruncatedObjectError(
                "segment is shorter than committed",
                where=where,
                expected=stored.bytes,
                actual=len(found),
            )
        tail = found[stored.bytes - stored.footer_bytes :]
    else:
        tail = storage.get_range(name, stored.bytes - stored.footer_bytes, stored.bytes)
    index = form.parse_index(
        tail, object_bytes=stored.bytes, where=where, footer_crc=stored.footer_crc
    )
    view = None if found is None else ByteArraySegment(found)
    return OpenSegment(storage, name, where, index, view)
