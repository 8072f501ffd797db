"""Segment formats: the interface that all readers of segments use, and the known formats.

A segment's entry names its format. A format parses the end of the object, whose length and checksum
are in the entry, into an index of frames. The index says which bytes hold a frame's columns,
verifies these bytes and decodes them into a record batch. Readers of segments use nothing else, so
a stream may mix formats. Pure: nothing here reads an object.
"""

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Protocol

import pyarrow as pa

from segstore_ds.errors import UnsupportedVersionError
from segstore_ds.format.arrow.index import MAX_INDEX_BYTES, FrameEntry
from segstore_ds.format.statistics import Stats

ARROW, PARQUET = "arrow", "parquet"  # On disk, also as suffixes. Never change; add a new one.
LAST_BYTES = 40  # enough last bytes to find the length of an object's end, in any format


class SegmentIndex(Protocol):
    """Where the frames of one segment are, and how to decode them."""

    @property
    def frames(self) -> tuple[FrameEntry, ...]:
        """The frames in order; they fill the object between its head and its end."""

    @property
    def stats(self) -> Stats:
        """The statistics of the frames."""

    def spans(self, number: int, columns: Sequence[str] | None) -> tuple[tuple[int, int], ...]:
        """Return the ``[start, end)`` ranges of the object that `check` and `decode` need.

        `columns` of None means all columns. The ranges ascend; there is at least one, and none is
        empty. Raises CorruptionError if the index contradicts itself.
        """

    def check(self, number: int, span: tuple[int, int], data: pa.Buffer, *, where: str) -> None:
        """Verify the bytes of one of a frame's ranges, as `spans` returns them."""

    def decode(
        self,
        number: int,
        data: Sequence[pa.Buffer],
        *,
        schema: pa.Schema,
        columns: Sequence[str] | None,
        where: str,
    ) -> pa.RecordBatch:
        """Decode `columns`, in that order, from bytes that `check` has verified."""


class SegmentFormat(Protocol):
    """One layout of segments."""

    name: str  # its name in segment entries, and the suffix of its objects' names
    head_bytes: int  # the number of bytes before the first frame

    def parse_index(
        self, tail: bytes, *, object_bytes: int, where: str, footer_crc: int
    ) -> SegmentIndex:
        """Parse the index from the end of the object.

        `tail` is as many of the last bytes as the entry says, and `footer_crc` is their expected
        CRC-32.
        """

    def measure_end(self, last: bytes, *, object_bytes: int) -> int:
        """Return the length of an object's end, which is all bytes after its frames, unchecked.

        `last` has at least the last `LAST_BYTES` of the object. Call it again with as many bytes as
        it returned: then the result is what `parse_index` needs. It is 0 for too few bytes.
        """

    def check_head(self, data: bytes, *, where: str) -> None:
        """Verify the first `head_bytes` of the object, which reads do not need."""


_CLASSES = {ARROW: "ArrowSegments", PARQUET: "ParquetSegments"}


@cache
def _load(name: str) -> SegmentFormat:
    # Imported when first used, because importing pyarrow.parquet takes time.
    module = import_module(f"{__package__}.{name}.segment")
    form: SegmentFormat = getattr(module, _CLASSES[name])()
    return form


def find_end(form: SegmentFormat, fetch: Callable[[int], bytes], *, object_bytes: int) -> int:
    """Return the length of the end of an object without an entry; 0 if it can't be found."""
    length = form.measure_end(fetch(min(LAST_BYTES, object_bytes)), object_bytes=object_bytes)
    if 0 < length <= min(object_bytes, MAX_INDEX_BYTES):
        length = form.measure_end(fetch(length), object_bytes=object_bytes)
    return length if length <= min(object_bytes, MAX_INDEX_BYTES) else 0


def find_format(name: str, *, where: str) -> SegmentFormat:
    """Return the format that an entry names; UnsupportedVersionError if it is unknown."""
    if name not in _CLASSES:
        raise UnsupportedVersionError(
            "a segment has a format that this version does not know",
            where=where,
            format=name,
            known=", ".join(_CLASSES),
        )
    return _load(name)


def format_of(path: str) -> SegmentFormat | None:
    """Return the format of a segment by the suffix of its name, or None."""
    ending = path.rpartition(".")[2]
    return _load(ending) if ending in _CLASSES else None
