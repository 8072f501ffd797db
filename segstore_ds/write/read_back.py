"""Reading rows back before they are committed, from a frame in memory or in a staged segment."""

from dataclasses import dataclass

import pyarrow as pa

from segstore_ds.cache.buffer import Record
from segstore_ds.format.arrow.frame import Frame, check_frame, decode_frame
from segstore_ds.write.segment_writer import SegmentWriter


@dataclass(frozen=True, slots=True)
class WrittenFrame:
    """The facts needed to read a frame back from the segment it was written to."""

    rows: int
    crc: int
    raw_bytes: int
    segment: SegmentWriter
    record: Record

    def decode(self, schema: pa.Schema) -> pa.RecordBatch:
        """Return its rows; raises as `SegmentWriter.read` and `decode_frame`."""
        return _decode(self, self.segment.read(self.record), schema, self.segment.where)


def decode_inline(frame: Frame, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows of a frame that no segment holds; raises as `decode_frame`."""
    return _decode(frame, frame.data, schema, "inline frame")


def _decode(
    facts: Frame | WrittenFrame, data: pa.Buffer, schema: pa.Schema, where: str
) -> pa.RecordBatch:
    check_frame(data, crc=facts.crc, where=where)
    return decode_frame(
        data,
        rows=facts.rows,
        schema=schema,
        columns=None,
        where=where,
        limit_bytes=max(facts.raw_bytes, 1),
    )
