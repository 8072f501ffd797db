"""Golden streams of what came after the first format: levels, history, tags, readers, retirement.

They were added when those features were; `make_golden` writes them, as all others.
"""

import datetime as dt
import tempfile
from typing import Any

from golden_parquet import SCHEMA, events
from virtual_time import TimedStorage, VirtualTime

from segstore_ds.format.parts.kinds import HISTORY_SCHEMA
from segstore_ds.format.policies import RetentionPolicy
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout

STAGED = Layout(inline_bytes=0, segment_rows=2, frame_rows=2, segment_format="arrow")
HOUR, DAY = 3600, 86_400


def levels(stream: Stream) -> None:
    """Parts of several levels, lists that the head cut, parts of writers and retired objects."""
    for n in range(26):
        stream._log.clock.sleep(61)
        if n % 5 == 0:
            # Some segments have no statistics, some those of one column.
            layout = Layout(inline_bytes=0, segment_rows=1, stats_columns=("n",) if n else ())
            stream.append(events(n * 2, n * 2 + 2), layout=layout)
        else:
            stream.append(events(n * 2, n * 2 + 2), writer_id=f"w{n % 7}", batch_id=n)
    stream.truncate(9)
    root = stream._log.root
    assert root.lists
    assert root.parts
    assert root.history_lists
    assert root.retired_parts
    assert root.writers_parts


def kept(stream: Stream) -> None:
    """Tags, readers, a policy, a compaction, a restore, a purge, a vacuum, and the end."""
    for n in range(6):
        stream._log.clock.sleep(HOUR)
        stream.append(events(n * 3, n * 3 + 3), layout=STAGED, writer_id="etl", batch_id=n)
    stream.tags.set("first", 5)
    stream.tags.set("moved", 1)
    stream.tags.set("moved", "tail", move=True)
    stream.tags.set("gone", 4)
    stream.tags.delete("gone")
    stream.readers.register("slow", owner="ada", start=4).publish(8)
    stream.readers.register("done", owner="bob", lapse_s=60).release()
    stream.settings.update(retention=RetentionPolicy(min_bytes=1 << 40))
    stream.truncate(4)
    stream._log.clock.sleep(HOUR)
    stream.compact(start=6, end=14, target_rows=6)
    stream._log.clock.sleep(2 * DAY)
    stream.append(events(18, 19))
    before = stream.version
    stream.overwrite(events(100, 102))
    stream.restore(before)
    stream._log.clock.sleep(2 * DAY)
    stream.append(events(19, 21), writer_id="etl", batch_id=6)
    stream._log.clock.sleep(2 * HOUR)
    stream.append(events(21, 22))
    assert stream.maintain(keep=DAY).versions
    assert stream.maintain(grace=DAY).deleted
    stream.append(events(22, 23))
    stream.seal()
    assert stream._log.root.retired_count
    assert stream._log.root.log_start > before


def copied(stream: Stream) -> None:
    """A stream that is a copy of a range of another one, and went on."""
    stream.append(events(30, 32))


def start_copied(timed: TimedStorage, time: VirtualTime) -> Stream:
    """Make a stream by copying another one."""
    with tempfile.TemporaryDirectory() as folder:
        source = create_on(
            TimedStorage(open_storage(folder), time), SCHEMA, upkeep=None, clock=time.clock
        )
        for n in range(4):
            source.append(events(n * 4, n * 4 + 4), layout=STAGED)
        source.copy_to(timed.url, copy_id="backup-1", start=3, end=13)
    return open_on(timed, clock=time.clock)


STARTS = {"copied": start_copied}
LEVELS = {"levels": levels, "kept": kept, "copied": copied}
# Levels so small that a few commits fill them; they are no part of the format.
TINY = {"hard": 4, "fan_in": 2, "final": 8, "parts": 2, "listed": 2}
TINY_TABLES = {
    "SEGMENTS": {**TINY, "rows": 2},
    "HISTORY": {**TINY, "rows": 3},
    "WRITERS": {**TINY, "rows": 4},
    "RETIRED": {**TINY, "rows": 4},
}


def described(stream: Stream) -> dict[str, Any]:
    """Return what has to be known of a stream beside its events, as JSON."""
    history = stream.history().read_all().to_pylist()
    segments = stream.segments().read_all().to_pylist()
    retired = list(stream._context.status.retired.all(stream._log.root))
    readers = [(seen.name, seen.record) for seen in stream.readers]
    writers = stream.metadata("writers").read_all().to_pylist()
    return {
        "generation": stream._log.root.generation,
        "sealed": stream.sealed,
        "log_start": stream._log.root.log_start,
        "staging_floor": stream._log.root.staging_floor,
        "properties": dict(stream._log.root.properties),
        "copies": json_of(dict(stream._log.root.copies)),
        "tags": {name: [tag.offset, tag.version] for name, tag in stream.tags.items()},
        "readers": {
            name: [one.owner, one.offset, one.lapse_s, one.released] for name, one in readers
        },
        "writers": json_of(sorted(writers, key=lambda row: row["writer_id"])),
        "segments": json_of([[row["segment_id"], row["start"], row["end"]] for row in segments]),
        "paths": [row["path"] for row in segments],
        "stats": [row["stats"] for row in segments],
        "retired": sorted([item.kind, item.path, item.version, item.time_us] for item in retired),
        "history": [json_of([row[name] for name in HISTORY_SCHEMA.names]) for row in history],
        "cuts": cuts(stream, history),
    }


def cuts(stream: Stream, history: list[dict[str, Any]]) -> dict[str, int]:
    """Return the offsets of all cuts that the history answers, and of named ones."""
    asked = [f"version:{row['version']}" for row in history]
    asked += sorted({row["time"].isoformat() for row in history})
    asked += [f"tag:{name}" for name in stream.tags]
    live = [seen.name for seen in stream.readers if not seen.record.released]
    asked += [f"reader:{name}" for name in live]
    return {cut: stream.position(cut).offset for cut in asked}


def json_of(value: Any) -> Any:
    """Return a value as JSON reads it back."""
    match value:
        case dict():
            return {name: json_of(child) for name, child in value.items()}
        case list() | tuple():
            return [json_of(child) for child in value]
        case dt.datetime():
            return value.isoformat()
    return value
