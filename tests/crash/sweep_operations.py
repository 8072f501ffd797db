"""What the crash sweep goes through: each operation, the stream before it, how to repeat it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType

import pyarrow as pa
from crash_kit import SCHEMA, events
from virtual_time import VirtualTime

from segstore_ds.copy.pins import run_pin
from segstore_ds.errors import AlreadyExistsError
from segstore_ds.format.policies import UpkeepPolicy
from segstore_ds.log.clock import Clock
from segstore_ds.redact.expire import run_expiry
from segstore_ds.retention.upkeep import run_upkeep
from segstore_ds.status import table, table_status
from segstore_ds.storage import Storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write import append
from segstore_ds.write.layout import Layout

SEGMENTS = Layout(inline_bytes=0, segment_rows=2, frame_rows=2, segment_format="arrow")
LEFT_TOKEN = "00000000000000000001-0123456789ab"  # noqa: S105 - the name of a folder
WIDER = pa.table({"n": [9], "s": ["event 9"], "extra": [1.5]})


@dataclass(frozen=True, slots=True)
class Operation:
    """What is swept: the stream before it, what is run, how to ask for the same again."""

    name: str
    prepare: Callable[[Storage, VirtualTime], None]
    run: Callable[[Storage, Clock], None]
    again: Callable[[Storage, Clock], None] | None = None
    tiny: tuple[tuple[ModuleType, str, int], ...] = ()
    commits: int = 1  # with several a failure may come after the content has changed


def _plain(storage: Storage, time: VirtualTime) -> None:
    stream = create_on(storage, SCHEMA, clock=time.clock)
    stream.append(events(0, 4))
    stream.append(events(4, 6), writer_id="w", batch_id=0)


def _crowded(storage: Storage, time: VirtualTime) -> None:
    most = table.SEGMENTS.rows
    stream = create_on(storage, SCHEMA, clock=time.clock)
    stream.append(events(0, most), layout=replace(SEGMENTS, segment_rows=1, frame_rows=1))
    assert (len(stream._log.root.entries), stream._log.root.parts) == (most, ())


def _keyed(storage: Storage, time: VirtualTime) -> None:
    stream = create_on(storage, SCHEMA, key_columns=["s"], clock=time.clock)
    stream.append(events(0, 4), layout=SEGMENTS)


def _ordered(storage: Storage, time: VirtualTime) -> None:
    stream = create_on(storage, SCHEMA, time_column="n", clock=time.clock)
    stream.append(events(0, 4), layout=SEGMENTS)


def _inline(storage: Storage, time: VirtualTime) -> None:
    stream = create_on(storage, SCHEMA, clock=time.clock)
    for n in range(3):
        stream.append(events(n, n + 1))
    assert [entry.frame is not None for entry in stream._log.root.entries] == [True] * 3


def _nearly_merged(storage: Storage, time: VirtualTime) -> None:
    stream = create_on(storage, SCHEMA, clock=time.clock)
    for n in range(8):
        stream.append(events(n, n + 1))
    assert len(stream._log.root.parts) == 2


def _spilled(kind: str, appends: int) -> Callable[[Storage, VirtualTime], None]:
    """Return what makes a stream whose next commit moves parts of that kind to a list."""

    def prepare(storage: Storage, time: VirtualTime) -> None:
        stream = create_on(storage, SCHEMA, clock=time.clock)
        for n in range(appends):
            stream.append(events(n, n + 1))
        assert len(getattr(stream._log.root, kind)) == 4

    return prepare


def _aged(storage: Storage, time: VirtualTime) -> None:
    stream = create_on(storage, SCHEMA, upkeep=None, clock=time.clock)
    for n in range(4):
        time.advance(3600)
        stream.append(events(n, n + 1))
    time.advance(3600)


def _expiring(storage: Storage, time: VirtualTime) -> None:
    _plain(storage, time)
    open_on(storage, clock=time.clock).settings.update(expiry={"s": "1h"})
    time.advance(7200)


def _appending(table: pa.Table, **options: object) -> Callable[[Storage, Clock], None]:
    def run(storage: Storage, clock: Clock) -> None:
        open_on(storage, clock=clock).append(table, **options)

    return run


def _create(storage: Storage, clock: Clock) -> None:
    create_on(storage, SCHEMA, clock=clock)


def _create_again(storage: Storage, clock: Clock) -> None:
    try:
        _create(storage, clock)
    except AlreadyExistsError:
        return


def _overwrite(storage: Storage, clock: Clock) -> None:
    open_on(storage, clock=clock).overwrite(events(9, 12), writer_id="w", batch_id=1)


def _purge(storage: Storage, clock: Clock) -> None:
    open_on(storage, clock=clock).maintain(keep=7200)


def _replaced(storage: Storage, time: VirtualTime) -> None:
    _plain(storage, time)
    open_on(storage, clock=time.clock).overwrite(events(20, 23))


def _nearly_merged_history(storage: Storage, time: VirtualTime) -> None:
    stream = create_on(storage, SCHEMA, clock=time.clock)
    for n in range(5):
        stream.append(events(n, n + 1))
    assert len(stream._log.root.history_parts) == 2


def _pin(storage: Storage, clock: Clock) -> None:
    run_pin(open_on(storage, clock=clock)._context, "c", "memory://clone")


def _neglected(storage: Storage, time: VirtualTime) -> None:
    """Make a stream whose upkeep has all of its work before it, noted by an earlier round."""
    stream = create_on(storage, SCHEMA, upkeep=None, clock=time.clock)
    stream.append(events(0, 4), layout=SEGMENTS)
    storage.put(f"segments/{LEFT_TOKEN}/0-left-0.arrow", b"by a killed job")
    stream.truncate(2)
    for n in range(8):
        time.advance(60 * 3600)
        stream.append(events(4 + n, 5 + n))
    stream.settings.update(upkeep=UpkeepPolicy())
    assert run_upkeep(stream._context)
    stream.settings.update(upkeep=None)
    time.advance(60 * 3600)
    stream.append(events(12, 13))
    stream.settings.update(upkeep=UpkeepPolicy())
    assert [*storage.list(f"segments/{LEFT_TOKEN}")]
    assert stream._log.root.retired


def _dropped(storage: Storage, time: VirtualTime) -> None:
    stream = create_on(storage, SCHEMA, upkeep=None, clock=time.clock)
    stream.append(events(0, 4), layout=SEGMENTS)
    stream.plan_write(SCHEMA, layout=SEGMENTS)
    storage.put(f"segments/{LEFT_TOKEN}/0-left-0.arrow", b"by a killed job")
    stream.truncate(2)
    for n in range(3):
        time.advance(48 * 3600)
        stream.append(events(4 + n, 5 + n))
    stream.maintain(keep=24 * 3600)


def _timed(storage: Storage, time: VirtualTime) -> None:
    stream = create_on(storage, SCHEMA, clock=time.clock)
    bare = replace(SEGMENTS, stats_columns=())
    stream.append(events(0, 4), layout=bare)
    stream.append(events(4, 6), writer_id="w", batch_id=0, layout=bare)
    stream.settings.update(time_column="n")


def _doing(
    work: Callable[[Stream], object],
) -> Callable[[Storage, Clock], None]:
    def run(storage: Storage, clock: Clock) -> None:
        work(open_on(storage, clock=clock))

    return run


TRUNCATING = _doing(lambda stream: stream.truncate(5))
TIMING = _doing(lambda stream: stream.settings.update(time_column="n"))
SEALING = _doing(lambda stream: stream.seal())
RENAMING = _doing(
    lambda stream: "s" in stream.schema.names and stream.change_schema(rename={"s": "t"})
)
TAGGING = _doing(lambda stream: stream.tags.set("eod", 4))
RETAINING = _doing(lambda stream: stream.retain(max_bytes=0, min_bytes=1))
READING = _doing(lambda stream: stream.readers.register("etl", owner="a").publish(3))
UPKEEPING = _doing(lambda stream: run_upkeep(stream._context))
VACUUMING = _doing(lambda stream: stream.maintain(grace=86_400))
KEYED = _appending(events(6, 9), writer_id="w", batch_id=1)
SPILLING = _appending(events(64, 66), writer_id="w", batch_id=1)
LISTING = _appending(events(9, 10), writer_id="w", batch_id=1)
ROWS = _appending(events(5, 6), writer_id="w", batch_id=1)
MERGING = _appending(events(8, 9), writer_id="w", batch_id=1)
WIDENING = _appending(WIDER, writer_id="w", batch_id=1, merge_schema=True)
STAGING = _appending(events(6, 11), writer_id="w", batch_id=1, layout=SEGMENTS)
PARQUET = replace(SEGMENTS, segment_format="parquet")
FILTERING = _appending(events(4, 11), writer_id="w", batch_id=1, layout=SEGMENTS)
STAGING_PARQUET = _appending(events(6, 11), writer_id="w", batch_id=1, layout=PARQUET)
SETTLING = _doing(lambda stream: stream.compact(layout=PARQUET))
COMPACTING = _doing(lambda stream: stream.compact())
STITCHING = _doing(lambda stream: stream.compact(mode="stitch"))
REDACTING = _doing(
    lambda stream: stream.redact([["n", "in", [1, 4]]], columns=["s"], redact_id="r")
)
EXPIRING = _doing(lambda stream: run_expiry(stream._context))
FILLING = _appending(events(3, 5), writer_id="w", batch_id=1)
JOINED_SHARE = ((table_status, "SHARE_BYTES", 1500),)  # three frames of these events
TINY_SHARE = (*JOINED_SHARE, (table_status, "JOINED_SHARE", 0))
NO_INLINE = (append, "FRAME_MOST_BYTES", 0)
TINY_PARTS = (NO_INLINE, (table.SEGMENTS, "rows", 2), (table.SEGMENTS, "fan_in", 3))
TINY_ROOT = ((table.SEGMENTS, "rows", 3),)
TINY_LISTS = (
    NO_INLINE,
    (table.SEGMENTS, "rows", 1),
    (table.SEGMENTS, "fan_in", 99),
    (table.SEGMENTS, "parts", 4),
)
TINY_HISTORY = (
    (table.HISTORY, "rows", 2),
    (table.HISTORY, "hard", 4),
    (table.HISTORY, "fan_in", 3),
)
TINY_HISTORY_LISTS = (
    (table.HISTORY, "rows", 2),
    (table.HISTORY, "fan_in", 99),
    (table.HISTORY, "parts", 4),
)
OPERATIONS = [
    Operation("create", lambda *_: None, _create, _create_again),
    Operation("append", _plain, _appending(events(6, 9))),
    Operation("append-with-writer", _plain, KEYED, KEYED),
    Operation("append-staged", _plain, STAGING, STAGING),
    Operation("append-parquet", _plain, STAGING_PARQUET, STAGING_PARQUET),
    Operation("compact-to-parquet", _plain, SETTLING),
    Operation("append-that-spills", _crowded, SPILLING, SPILLING),
    Operation("append-that-adds-filters", _keyed, FILTERING, FILTERING, TINY_ROOT),
    Operation("append-that-spills-times", _ordered, FILTERING, FILTERING, TINY_ROOT),
    Operation("set-time-column-of-parts", _nearly_merged, TIMING, TIMING, TINY_PARTS, commits=2),
    Operation("append-that-fills-the-share", _inline, FILLING, FILLING, TINY_SHARE),
    Operation("append-that-joins-the-share", _inline, FILLING, FILLING, JOINED_SHARE),
    Operation("overwrite", _plain, _overwrite, _overwrite),
    Operation("merge-schema", _plain, WIDENING, WIDENING),
    Operation("purge", _aged, _purge, _purge),
    Operation("truncate", _plain, TRUNCATING, TRUNCATING),
    Operation("seal", _plain, SEALING, SEALING),
    Operation("change-schema", _plain, RENAMING, RENAMING),
    Operation("tag", _plain, TAGGING, TAGGING),
    Operation("retain", _plain, RETAINING, RETAINING),
    Operation("restore", _replaced, _doing(lambda stream: stream.restore(2))),
    Operation("reader", _plain, READING, READING),
    Operation("vacuum", _dropped, VACUUMING, VACUUMING),
    Operation("upkeep", _neglected, UPKEEPING, UPKEEPING),
    Operation("merge-parts", _nearly_merged, MERGING, MERGING, TINY_PARTS),
    Operation("list-parts", _spilled("parts", 9), LISTING, LISTING, TINY_LISTS),
    Operation("merge-history", _nearly_merged_history, ROWS, ROWS, TINY_HISTORY),
    Operation("list-history", _spilled("history_parts", 9), LISTING, LISTING, TINY_HISTORY_LISTS),
    Operation("compact", _plain, COMPACTING, COMPACTING),
    Operation("compact-stitch", _plain, STITCHING, STITCHING),
    Operation("redact", _plain, REDACTING, REDACTING, commits=2),
    Operation("expire", _expiring, EXPIRING, EXPIRING, commits=2),
    Operation("redact-parts", _nearly_merged, REDACTING, REDACTING, TINY_PARTS, commits=2),
    Operation("append-times", _timed, STAGING, STAGING),
    Operation("pin", _plain, _pin, _pin),
]
