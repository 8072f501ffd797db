"""Remembers, in this process, the encodings that small Parquet segments of a stream were given.

Two trial writes choose them, which cost more than writing 20,000 rows does. The tasks of a query's
batches write alike rows, so one trial serves many. Any encodings store any rows of their schema
exactly: a choice that has aged costs bytes, never events.
"""

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock

from segstore_ds.format.parquet.encodings import Encodings
from segstore_ds.format.parquet.writer import ParquetEncoder
from segstore_ds.write.request import Target

REUSED_ROWS = 1 << 19  # rows that one trial serves: its two writes of 2^14 rows are 6 % of them
_LARGER = 1.5  # a segment with so many times the trial's bytes per row ends the use of its choice
_SLACK_BYTES = 4 << 10  # for headers, which count where rows take next to nothing
_MOST_KNOWN = 64

_Key = tuple[object, ...]


@dataclass(slots=True)
class _Known:
    encodings: Encodings
    rows: int


_known: OrderedDict[_Key, _Known] = OrderedDict()
_lock = Lock()


def recall_encodings(target: Target) -> Encodings | None:
    """Return encodings that suited the target's last segments, or None to try them anew."""
    with _lock:
        found = _known.get(_key(target))
        return found.encodings if found else None


def remember_encodings(target: Target, encoder: ParquetEncoder) -> None:
    """Keep the encodings of a segment, before its footer, for the next one unless they aged."""
    if encoder.encodings is None:
        return
    key = _key(target)
    with _lock:
        found = _known.pop(key, None)
        if found is None or found.encodings is not encoder.encodings:
            found = _Known(encoder.encodings, 0)
        found.rows += encoder.rows
        most = _SLACK_BYTES + _LARGER * encoder.encodings.expect_bytes(encoder.rows)
        if found.rows < REUSED_ROWS and encoder.encoded_bytes <= most:
            _known[key] = found
        while len(_known) > _MOST_KNOWN:
            _known.popitem(last=False)


def _key(target: Target) -> _Key:
    layout = target.layout
    return target.storage.url, target.schema, layout.compression, layout.compression_level
