"""Metadata tables of few rows: info, storage, writers, readers and tags; and the history.

The metadata has the sizes of listed objects only, so the table `storage` lists the folder.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from segstore_ds.errors import FormatError, InvalidInputError
from segstore_ds.format import names
from segstore_ds.format.copies import all_pins
from segstore_ds.format.operation import Operation
from segstore_ds.format.parts.kinds import HISTORY_SCHEMA
from segstore_ds.format.parts.rows import column_values
from segstore_ds.format.policies import DEFAULT_POLICY, GRACE_S, OFF, upkeep_of
from segstore_ds.format.reader_record import NO_END
from segstore_ds.format.record import Row, escape_text, from_json, parse_json
from segstore_ds.format.redactions import redactions_of
from segstore_ds.format.root import Root, Tag
from segstore_ds.log.context import StreamContext
from segstore_ds.options.quantities import to_moment
from segstore_ds.read.reader_records import each_reader
from segstore_ds.status.deletable import plan_deletion, plan_horizon
from segstore_ds.status.references import list_objects, read_references

BATCH_ROWS = 16_384
LISTED, LOG = "listed", "commits"  # reasons in the table `storage`

RowDicts = list[dict[str, Any]]
_Held = tuple[int, datetime | None, datetime | None]  # bytes; since and until when it stays


def ints(*names: str) -> list[pa.Field]:
    """Return columns of integers."""
    return [pa.field(name, pa.int64()) for name in names]


def texts(*names: str) -> list[pa.Field]:
    """Return columns of texts."""
    return [pa.field(name, pa.string()) for name in names]


def flags(*names: str) -> list[pa.Field]:
    """Return columns of booleans."""
    return [pa.field(name, pa.bool_()) for name in names]


def times(*names: str) -> list[pa.Field]:
    """Return columns of times."""
    return [pa.field(name, pa.timestamp("us", "UTC")) for name in names]


def build_batches(rows: RowDicts, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield rows as batches; texts that are not valid Unicode are escaped."""
    for first in range(0, len(rows), BATCH_ROWS):
        piece = rows[first : first + BATCH_ROWS]
        try:
            yield pa.RecordBatch.from_pylist(piece, schema)
        except UnicodeEncodeError:
            # A stream may still hold a name that is no longer accepted: show it escaped.
            shown = [{name: escape_text(value) for name, value in row.items()} for row in piece]
            yield pa.RecordBatch.from_pylist(shown, schema)


_INFO = pa.schema(
    [
        *texts("stream_id"),
        *ints("version", "generation"),
        *times("time"),
        *ints("head", "tail"),
        *flags("sealed"),
        *ints("events", "segments", "bytes", "parts", "root_segments", "inline_segments"),
        *ints("log_start", "staging_floor", "retired", "tags", "pins", "next_segment", "versions"),
        *times("kept_since", "retired_since", "freed_at"),
        *ints("pinned_version"),
        *texts("upkeep"),
        *times("upkeep_time"),
    ]
)


def facts_of(root: Root) -> dict[str, Any]:
    """Return the columns that the table `info` and the table of streams share."""
    return {
        "stream_id": root.stream_id,
        "version": root.version,
        "generation": root.generation,
        "time": root.time_us,
        "head": root.head,
        "tail": root.tail,
        "sealed": root.sealed,
        "events": root.tail - root.head,
    }


def _info(context: StreamContext, root: Root) -> RowDicts:
    runs = context.status.runs(root, root.head, root.tail)
    sizes = [(len(run.columns), int(run.columns.bytes.sum())) for run in runs]
    policy, dropped = upkeep_of(root), next(context.status.retired.all(root), None)
    grace_us = int((GRACE_S if policy is None else policy.grace_s) * 1e6)
    pinned = [pin.version for pin in all_pins(root).values()]
    pinned += [tag.version for tag in root.kept_tags.values()]
    row = {
        **facts_of(root),
        "segments": sum(count for count, _ in sizes),
        "bytes": sum(size for _, size in sizes),
        "parts": sum(1 for _ in context.status.table.parts(root)),
        "root_segments": len(root.entries),
        "inline_segments": sum(1 for entry in root.entries if entry.frame),
        "log_start": root.log_start,
        "staging_floor": root.staging_floor,
        "retired": root.retired_count,
        "tags": len(root.tags),
        "pins": len(root.pins),
        "next_segment": root.next_segment,
        "versions": root.version + 1 - root.log_start,
        "kept_since": _kept_since(context, root),
        "retired_since": dropped and dropped.time_us,
        "freed_at": dropped and dropped.time_us + grace_us,  # the oldest dropped object
        "pinned_version": min(pinned, default=None),
        "upkeep": OFF if policy is None else policy.to_json(),
        "upkeep_time": root.upkeep and root.upkeep.time_us,
    }
    return [row]


def _kept_since(context: StreamContext, root: Root) -> datetime | None:
    """Return the time of the oldest version that is kept, if the history knows it."""
    found = context.log.history.moment(root, root.log_start)
    return None if found is None else to_moment(found.time_us)


_STORAGE = pa.schema([*texts("why"), *ints("objects", "bytes"), *times("since", "until")])


def storage_rows(context: StreamContext, root: Root) -> RowDicts:
    """Return the rows of the table `storage`, the largest first; lists the stream's folder once."""
    policy = upkeep_of(root) or DEFAULT_POLICY
    keep_us, grace_us = policy.keep_s * 1_000_000, policy.grace_s * 1_000_000
    # Parts that were retired may be deleted at any moment, together with their segments.
    refs = read_references(context.status, root, gone_before=root.version, gone_until_us=1 << 62)
    versions = {retired.version for retired in refs.retired.values()}
    operations = context.log.history.operations(root, versions)
    grace = timedelta(microseconds=grace_us)
    until_us = context.clock.wall_us() - grace_us
    horizon = plan_horizon(root, floor=0, until_us=until_us, age_us=max(grace_us, keep_us))
    objects = [*list_objects(context.storage)]
    found: dict[str, list[_Held]] = defaultdict(list)
    found[LISTED] = [(info.size, None, None) for info in objects if info.path in refs.live]
    for item in plan_deletion(refs, horizon, objects, operations):
        why, until = item.why, item.until
        if item.dropped is None and item.since and names.is_object(item.path):
            # The staging floor passes it one grace later; after another one it is swept.
            until = item.since + 2 * grace
        elif item.dropped is not None and until is None and horizon.pin:
            why = f"needed by {horizon.pin[1]}"
        found[why].append((item.bytes or 0, item.since, until))
    since = _kept_since(context, root)
    kept_until_us = root.time_us + max(keep_us, int(context.log.grace_s * 1e6))
    found[LOG] = [
        (info.size, since, to_moment(kept_until_us))
        for info in context.storage.list(names.LOG_FOLDER)
        if names.parse_log_name(info.path.rpartition("/")[2]) is not None
    ]
    rows = [_held_row(why, held) for why, held in found.items() if held]
    return sorted(rows, key=lambda row: (-row["bytes"], row["why"]))


def _held_row(why: str, held: list[_Held]) -> dict[str, Any]:
    since = [moment for _, moment, _ in held if moment is not None]
    until = [moment for _, _, moment in held if moment is not None]
    size = sum(size for size, _, _ in held)
    span = {"since": min(since, default=None), "until": max(until, default=None)}
    return {"why": why, "objects": len(held), "bytes": size, **span}


_WRITERS = pa.schema(
    [*texts("writer_id", "owner"), *ints("batch_id", "version", "rows", "start", "end")]
)
_MEMBER = ("start", "end", "behind", "lease_s")  # `end` is null where it is not fixed yet
_READERS = pa.schema(
    [
        *texts("name", "owner"),
        *ints("offset", "behind", "lost", "generation"),
        *times("renewed"),
        *ints("lapse_s"),
        *flags("live", "released"),
        pa.field("members", pa.list_(pa.struct([*texts("member"), *ints(*_MEMBER)]))),
        *texts("damaged"),
    ]
)
_TAGS = pa.schema([*texts("name"), *ints("offset", "version"), *times("time"), *ints("kept_bytes")])


def _writers(context: StreamContext, root: Root) -> RowDicts:
    return [
        {
            "writer_id": name,
            "owner": writer.owner,
            "batch_id": writer.batch_id,
            "version": writer.version,
            "rows": writer.rows,
            "start": writer.end - writer.rows,
            "end": writer.end,
        }
        for name, writer in sorted(context.status.writers.all(root).items())
    ]


def _readers(context: StreamContext, root: Root) -> RowDicts:
    now_us = context.clock.wall_us()  # the store's time would take a write
    return [
        {"name": name, "damaged": str(seen)}
        if isinstance(seen, FormatError)
        else {
            "name": name,
            "owner": seen.record.owner,
            "offset": seen.record.offset,
            "behind": max(root.tail - seen.record.offset, 0),
            "lost": max(root.head - seen.record.offset, 0),
            "generation": seen.record.generation,
            "renewed": seen.renewed_us,
            "lapse_s": seen.record.lapse_s,
            "live": seen.is_live(now_us),
            "released": seen.record.released,
            "members": [
                {
                    "member": member,
                    "start": lease.start,
                    "end": None if lease.end == NO_END else lease.end,
                    "behind": lease.behind(root.tail),
                    "lease_s": lease.lease_s,
                }
                for member, lease in sorted(seen.record.members.items())
            ],
        }
        for name, seen in each_reader(context)
    ]


def _tags(context: StreamContext, root: Root) -> RowDicts:
    return [
        {
            "name": name,
            "offset": tag.offset,
            "version": tag.version,
            "time": tag.time_us,
            "kept_bytes": _kept_bytes(context, root, tag) if name in root.kept else None,
        }
        for name, tag in sorted(root.tags.items())
    ]


def _kept_bytes(context: StreamContext, root: Root, tag: Tag) -> int:
    """Return the bytes of the segments that a tag keeps and the newest version does not list."""
    table, kept = context.status.table, root.kept_version(tag.version)
    old, new = (set(table.parts(each)) for each in (kept or root, root))
    sizes = [
        dict(zip(map(columns.path, range(len(columns))), columns.bytes.tolist(), strict=True))
        for columns in map(table.columns, old - new)
    ]
    listed = {entry.path for entry in root.entries}
    for columns in map(table.columns, new - old if sizes else ()):
        listed.update(map(columns.path, range(len(columns))))
    return sum(size for part in sizes for path, size in part.items() if path not in listed)


ROW_TABLES: Mapping[str, tuple[pa.Schema, Callable[[StreamContext, Root], RowDicts]]] = {
    "info": (_INFO, _info),
    "storage": (_STORAGE, storage_rows),
    "writers": (_WRITERS, _writers),
    "readers": (_READERS, _readers),
    "tags": (_TAGS, _tags),
}


HISTORY = pa.schema(
    [
        *HISTORY_SCHEMA,
        *(("start", pa.int64()), ("end", pa.int64())),
        *(("changed", pa.string()), ("reason", pa.string())),
    ]
)


def history_rows(
    context: StreamContext, root: Root, start: int = 0, end: int = 1 << 63
) -> Iterator[pa.RecordBatch]:
    """Yield what the commits of the versions ``[start, end)`` did, oldest first."""
    reasons = {f"redact:{each.redact_id}": each.reason for each in redactions_of(root).values()}
    head = 0  # of the version before
    for batch in context.log.history.batches(root, max(start - 1, 0), max(start, end)):
        versions, heads = (column_values(batch, name) for name in ("version", "head"))
        if not len(versions):
            continue
        before = np.concatenate([[head if versions[0] else heads[0]], heads[:-1]])
        head = int(heads[-1])
        details = batch["merged"].to_pylist()
        low, high = _affected(batch, before, details)
        columns = {name: batch[name] for name in batch.schema.names}
        columns |= {
            "merged": _texts(text if (text or "").startswith("[") else None for text in details),
            "start": pa.array(low, mask=low >= high),
            "end": pa.array(high, mask=low >= high),
            "changed": _texts(text if (text or "").startswith("{") else None for text in details),
            "reason": _texts(reasons.get(name) or None for name in batch["writer_id"].to_pylist()),
        }
        found = pa.RecordBatch.from_arrays([*columns.values()], schema=HISTORY)
        yield found.slice(int(np.searchsorted(versions, start)))


def _affected(batch: pa.RecordBatch, before: Any, details: list[str | None]) -> tuple[Any, Any]:
    """Return starts and ends of the events that each commit added, dropped or replaced.

    `before` has the head before each commit; rows that a compaction replaces below it don't count.
    """
    head, tail, rows = (column_values(batch, name) for name in ("head", "tail", "rows"))
    none, most = np.iinfo(np.int64).max, np.int64(0)
    low = np.minimum(np.where(rows > 0, tail - rows, none), np.where(head > before, before, none))
    high = np.maximum(np.where(rows > 0, tail, most), np.where(head > before, head, most))
    for place, text in enumerate(details):
        for run in _runs(text) if text and text.startswith("[") else ():
            low[place] = min(low[place], max(run.start, before[place]))
            high[place] = max(high[place], run.end)
    return low, high


@dataclass(frozen=True, slots=True)
class _Run(Row):
    start: int
    end: int


def _runs(text: str) -> tuple[_Run, ...]:
    where = "the replaced ranges in a row of the history"
    return from_json(tuple[_Run, ...], parse_json(text.encode(), where=where), where=where)


def _texts(values: Iterator[str | None]) -> pa.Array:
    return pa.array(values, pa.string())


def pick_commits(
    operation: str | Collection[str] | None, client: str | None
) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Return a filter of history rows: by operation, and by a text that the client contains."""
    asked = [operation] if isinstance(operation, str) else operation
    wanted = None if asked is None else {*asked}
    if unknown := (wanted or set()) - {each.value for each in Operation}:
        raise InvalidInputError(
            "no such operation",
            remedy=f"known: {', '.join(Operation)}",
            operation=sorted(map(str, unknown)),
        )

    def pick(batch: pa.RecordBatch) -> pa.RecordBatch:
        done, names = batch["operation"].to_pylist(), batch["client"].to_pylist()
        kept = [
            (wanted is None or what in wanted) and (client is None or client in name)
            for what, name in zip(done, names, strict=True)
        ]
        return batch if all(kept) else batch.filter(pa.array(kept, pa.bool_()))

    return pick
