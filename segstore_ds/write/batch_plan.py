"""What a task does with a batch while it has no segment yet: keep it inline, or begin one.

The decision is pure. The encodings of the columns of a stream's last Parquet segments are kept in
this process: choosing them costs as much as writing 7,000 rows, and the batches of a query have
similar rows. A segment's writer uses them only if they suit its rows.
"""

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from threading import Lock

import pyarrow as pa

from segstore_ds.format.parquet.encodings import Encodings
from segstore_ds.format.parquet.writer import CHOICE_ROWS, ParquetEncoder, can_store
from segstore_ds.format.segment import ARROW, PARQUET
from segstore_ds.write.layout import Layout
from segstore_ds.write.request import Target

INLINE_COMMIT_BYTES = 8 << 20
SURELY_LARGER = 64  # a compression ratio that is assumed never to be exceeded
LIKELY_LARGER = 4  # a compression ratio that a task's only frame rarely exceeds
PARQUET_ROWS = 10_000  # from here on, Parquet takes fewer bytes than Arrow and hardly more time
_MOST_KNOWN = 64


class Way(Enum):
    """Where a batch goes."""

    INLINE = "inline"
    ARROW = ARROW
    PARQUET = PARQUET


@dataclass(frozen=True, slots=True)
class BatchRules:
    """The options of a task that the decision depends on."""

    inline_bytes: int  # most encoded bytes of its inline frames
    segment_format: str  # the option `segmentFormat`
    schema: pa.Schema  # what its rows are converted to; Parquet can't store every one
    # Whether rows may be read back before the commit, which only Arrow allows.
    readable: bool = False

    @classmethod
    def of(cls, layout: Layout, schema: pa.Schema, task: int, *, readable: bool) -> "BatchRules":
        """Return the rules of a task; the later ones of a job have less room for inline frames."""
        most = min(layout.inline_bytes, INLINE_COMMIT_BYTES // (task + 1))
        return cls(most, layout.segment_format, schema, readable)

    def format(self, *, bulk: bool) -> Way:
        """Return the format of the task's segments."""
        wanted = self.segment_format == PARQUET or (self.segment_format == "auto" and bulk)
        parquet = wanted and not self.readable and can_store(self.schema)
        return Way.PARQUET if parquet else Way.ARROW


def plan_batch(
    rules: BatchRules, rows: int, size: int, *, encoded: bool = False, more: bool = False
) -> Way:
    """Return where a batch goes while its task has no segment. Pure.

    `size` is that of its rows, or if `encoded` of all frames of the task. `more` says that the task
    has other rows, too.

    | the batch | `size` | `segmentFormat` | goes |
    |---|---|---|---|
    | encoded | at most `inline_bytes` | any | inline |
    | encoded | more | `parquet`; `auto` if `more` | into a Parquet segment |
    | encoded | more | otherwise | into an Arrow segment |
    | rows | surely more than `inline_bytes` once encoded | `parquet`; `auto` if bulk | Parquet |
    | rows | otherwise | any | inline: encode it as an Arrow frame, and plan that |

    Rows are bulk if there is `more` or if they are at least `PARQUET_ROWS`. Bulk rows surely take
    more than `inline_bytes` if they have more than `SURELY_LARGER` times as many bytes; at least
    `PARQUET_ROWS` rows that are the whole task, `LIKELY_LARGER` times; all rows, if `inline_bytes`
    is 0. Arrow replaces Parquet if the rows are `readable`, or if Parquet can't store the schema.
    """
    many = rows >= PARQUET_ROWS and not encoded
    bulk = many or more
    if encoded:
        return rules.format(bulk=bulk) if size > rules.inline_bytes else Way.INLINE
    ratio = LIKELY_LARGER if many and not more else SURELY_LARGER
    large = not rules.inline_bytes or (bulk and size > ratio * rules.inline_bytes)
    parquet = large and rules.format(bulk=bulk) is Way.PARQUET
    return Way.PARQUET if parquet else Way.INLINE


_Key = tuple[object, ...]

_known: OrderedDict[_Key, tuple[Encodings, int]] = OrderedDict()  # with the rows that used them
_lock = Lock()


def recall_encodings(target: Target) -> Encodings | None:
    """Return the encodings of the target's last segment, or None if they have to be chosen."""
    with _lock:
        found, _ = _known.get(_key(target), (None, 0))
        return found


def remember_encodings(target: Target, encoder: ParquetEncoder) -> None:
    """Keep the encodings of a segment for the next one, unless many rows have used them."""
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
