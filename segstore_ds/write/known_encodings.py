"""Remembers, in this process, how the columns of a stream's last Parquet segments were encoded.

To choose that costs as much as to write 7,000 rows. The tasks of a query's batches write alike
rows, so one choice serves many; a segment's writer takes it only for rows that it suits.
"""

from collections import OrderedDict
from threading import Lock

from segstore_ds.format.parquet.encodings import Encodings
from segstore_ds.format.parquet.writer import CHOICE_ROWS, ParquetEncoder
from segstore_ds.write.request import Target

_MOST_KNOWN = 64

_Key = tuple[object, ...]

_known: OrderedDict[_Key, tuple[Encodings, int]] = OrderedDict()  # and how many rows they served
_lock = Lock()


def recall_encodings(target: Target) -> Encodings | None:
    """Return how the target's last segment was encoded, or None to choose anew."""
    with _lock:
        found, _ = _known.get(_key(target), (None, 0))
        return found


def remember_encodings(target: Target, encoder: ParquetEncoder) -> None:
    """Keep the encodings of a segment for the next one, unless they have served many rows."""
    if encoder.encodings is None:
        return
    key = _key(target)
    with _lock:
        found, rows = _known.pop(key, (None, 0))
        rows = encoder.rows + (rows if found is encoder.encodings else 0)
        if rows < CHOICE_ROWS:
            _known[key] = encoder.encodings, rows
        while len(_known) > _MOST_KNOWN:
            _known.popitem(last=False)


def _key(target: Target) -> _Key:
    layout = target.layout
    return target.storage.url, target.schema, layout.compression, layout.compression_level
