"""What upkeep's processes run until they are killed: the stream before it, the work, the checks."""

from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from unittest.mock import patch

from crash_children import deadly
from crash_kit import ABSENT, SCHEMA, content, content_on, events
from stream_kit import DAY, age_files, days_later, make_old, staged_job, wait

import segstore_ds as segstore
from segstore_ds.copy import events as copy_events
from segstore_ds.format import names
from segstore_ds.redact import expire
from segstore_ds.retention.upkeep import run_upkeep
from segstore_ds.status.references import read_references
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout

STAGED = Layout(inline_bytes=0, frame_rows=4)
ROWS = 5
SEGMENTS = 4


@dataclass(frozen=True, slots=True)
class Program:
    """One kind of upkeep: how it is run, and what may be seen after it was killed anywhere."""

    run: Callable[[Path], object]
    look: Callable[[Path, object], None]
    finish: Callable[[Path, object], None]
    clone: bool = False
    make: Callable[[Path], Stream] | None = None


def prepare(folder: Path, program: Program) -> object:
    """Make the stream, and a clone where one is needed; return what the stream holds."""
    if program.make is not None:
        return content(program.make(folder))
    stream = segstore.create(folder / "stream", SCHEMA)
    for n in range(SEGMENTS):
        stream.append(events(ROWS * n, ROWS * (n + 1)), layout=STAGED)
    if program.clone:
        stream.copy_to(folder / "copy", copy_id="c", mode="clone")
    return content(stream)


def die_at_call(reply: Connection, name: str, folder: Path, number: int) -> None:
    """Run a program and be killed at its n-th system call that changes a file."""
    with deadly(number) as made:
        PROGRAMS[name].run(folder)
    reply.send(made)


def check_clean(stream: Stream) -> None:
    """Check that vacuum leaves no segment that nobody names."""
    for _ in range(2):  # what was staged on the newest version goes once that is not the newest
        stream.refresh()
        stream.maintain(grace=0, short_grace=True)
    refs = read_references(stream._context.status, stream.refresh()._log.root)
    there = {info.path for info in stream._log.storage.list(names.SEGMENTS_FOLDER)}
    assert there <= refs.live | refs.retired.keys()


def check_same(folder: Path, expected: object, name: str = "stream") -> Stream:
    """Check that a stream is whole and holds what it shall; return it."""
    stream = segstore.open(folder / name)
    assert content(stream) == expected
    stream.verify().check()
    return stream


def _source_is_whole(folder: Path, before: object) -> None:
    check_same(folder, before)


def _compact(folder: Path) -> int:
    return segstore.open(folder / "stream").compact().commits


def _compacted(folder: Path, before: object) -> None:
    _compact(folder)
    stream = check_same(folder, before)
    assert len([*stream._context.status.segments(stream._log.root, 0, stream.tail)]) == 1
    assert _compact(folder) == 0
    check_clean(stream)
    check_same(folder, before)


def _redact(folder: Path) -> bool:
    stream = segstore.open(folder / "stream")
    return stream.redact([["n", "in", [3, 12]]], columns=["s"], redact_id="r").repeated


def _redacted_rows(before: object) -> object:
    head, tail, columns, rows = before
    return (
        head,
        tail,
        columns,
        [{**row, "s": None if row["n"] in (3, 12) else row["s"]} for row in rows],
    )


def _old_or_redacted(folder: Path, before: object) -> None:
    stream = segstore.open(folder / "stream")
    assert content(stream) in (before, _redacted_rows(before))
    stream.verify().check()


def _redacted(folder: Path, before: object) -> None:
    _redact(folder)
    assert _redact(folder)
    stream = check_same(folder, _redacted_rows(before))
    assert [row["batch_id"] for row in _redactions(stream)] == [2, 0]
    check_clean(stream)
    check_same(folder, _redacted_rows(before))


def _redactions(stream: Stream) -> list[dict]:
    rows = stream.history().read_all().to_pylist()
    return [row for row in rows if row["operation"] == "redact"]


def _make_expiring(folder: Path) -> Stream:
    """Make a stream all of whose texts have expired."""
    stream, storage = make_old(folder / "stream", 4)
    for n in range(SEGMENTS):
        stream.append(events(ROWS * n, ROWS * (n + 1)), layout=STAGED)
    wait(storage, 2 * DAY)
    stream.settings.update(expiry={"s": "1d"})
    age_files(storage, folder / "stream")
    return stream


def _expire(folder: Path) -> int:
    with patch.object(expire, "COMMIT_BYTES", 1):
        return expire.run_expiry(segstore.open(folder / "stream")._context)


def _old_or_expired(folder: Path, before: object) -> None:
    """Each commit takes the texts of one segment more."""
    head, tail, columns, rows = before
    stream = segstore.open(folder / "stream")
    found = content(stream)
    gone = [row["s"] for row in found[3]].count(None)
    rows = [{**row, "s": None} for row in rows[:gone]] + rows[gone:]
    assert gone % ROWS == 0
    assert found == (head, tail, columns, rows)
    stream.verify().check()


def _expired(folder: Path, before: object) -> None:
    _expire(folder)
    version = segstore.open(folder / "stream").version
    assert _expire(folder) == 0
    head, tail, columns, rows = before
    expected = (head, tail, columns, [{**row, "s": None} for row in rows])
    stream = check_same(folder, expected)
    assert stream.version == version
    changed = [row["batch_id"] for row in _redactions(stream)]
    assert changed == [ROWS] * SEGMENTS + [0]
    check_clean(stream)
    check_same(folder, expected)


def _copy(folder: Path) -> bool:
    stream = segstore.open(folder / "stream")
    return stream.copy_to(folder / "copy", copy_id="c", start=2, end=ROWS * SEGMENTS).repeated


def _copy_is_all_or_nothing(folder: Path, before: object) -> None:
    check_same(folder, before)
    if content_on(open_storage(folder / "copy")) != ABSENT:
        _check_copy(folder)


def _check_copy(folder: Path) -> Stream:
    """Check a copy, under its own offsets or, by events, from 0 on and sealed."""
    copy = segstore.open(folder / "copy")
    assert copy.read().read_all().equals(segstore.open(folder / "stream").read(2).read_all())
    assert (copy.head, copy.sealed) in ((2, False), (0, True))
    copy.verify().check()
    return copy


def _copied(run: Callable[[Path], bool]) -> Callable[[Path, object], None]:
    def finish(folder: Path, before: object) -> None:
        run(folder)
        check_clean(_check_copy(folder))
        assert run(folder)
        check_same(folder, before)
        _check_copy(folder)

    return finish


def _copy_events(folder: Path) -> bool:
    stream = segstore.open(folder / "stream")
    with (  # a piece per segment of the source
        patch.object(copy_events, "PIECE_BYTES", 1),
        patch.object(copy_events, "LEAST_PIECE_ROWS", ROWS),
    ):
        done = stream.copy_to(folder / "copy", mode="events", copy_id="c", start=2, seal=True)
    assert (done.start, done.end) == (2, ROWS * SEGMENTS)
    return done.repeated


def _materialize(folder: Path) -> int:
    return segstore.open(folder / "copy").materialize()


def _clone_is_whole(folder: Path, before: object) -> None:
    check_same(folder, before)
    check_same(folder, before, "copy")


def _materialized(folder: Path, before: object) -> None:
    _materialize(folder)
    assert _materialize(folder) == 0
    clone = check_same(folder, before, "copy")
    assert clone._log.root.origins == {}
    origin = check_same(folder, before)
    assert origin.pins == {}
    segstore.drop(origin.url, confirm=origin.url)
    check_clean(check_same(folder, before, "copy"))


def _make_neglected(folder: Path) -> Stream:
    """Make a stream whose upkeep has all of its work before it, noted by an earlier round."""
    stream, storage = make_old(folder / "stream", 40)
    for n in range(SEGMENTS):
        stream.append(events(ROWS * n, ROWS * (n + 1)), layout=STAGED)
    stream.truncate(2 * ROWS)
    staged_job(open_on(storage, clock=stream._context.clock), 90, 95)
    for n in range(8):
        wait(storage, 2.5 * DAY)
        stream.append(events(n, n + 1))
    stream.settings.update(upkeep=segstore.UpkeepPolicy())
    assert run_upkeep(stream._context)
    stream.settings.update(upkeep=None)
    wait(storage, 2.5 * DAY)
    stream.append(events(8, 9))
    stream.settings.update(upkeep=segstore.UpkeepPolicy())
    age_files(storage, folder / "stream")
    assert stream._log.root.retired
    assert [*(folder / "stream" / "segments").glob("*/0-a-0.arrow")]
    return stream


def _keep_up(folder: Path) -> object:
    return run_upkeep(segstore.open(folder / "stream")._context)


def _kept_up(folder: Path, before: object) -> None:
    """The next rounds finish what the killed one began, and find nothing twice."""
    stream = days_later(folder / "stream")
    stream.append(events(9, 10))
    head, tail, columns, rows = before
    stream.refresh().verify().check()
    rows = [*rows, {"n": 9, "s": "event 9", "offset": tail}]
    assert content(stream) == (head, tail + 1, columns, rows)
    assert stream._log.root.operation == "upkeep"
    assert stream._log.files.numbers() == [*range(stream._log.root.log_start, stream.version + 1)]
    there = {info.path for info in stream._log.storage.list(names.SEGMENTS_FOLDER)}
    assert there <= read_references(stream._context.status, stream._log.root).live
    stream.maintain(grace=DAY)
    assert [*stream._log.storage.temporaries()] == []


PROGRAMS = {
    "upkeep": Program(_keep_up, _source_is_whole, _kept_up, make=_make_neglected),
    "compact": Program(_compact, _source_is_whole, _compacted),
    "redact": Program(_redact, _old_or_redacted, _redacted),
    "expire": Program(_expire, _old_or_expired, _expired, make=_make_expiring),
    "copy": Program(_copy, _copy_is_all_or_nothing, _copied(_copy)),
    "copy-events": Program(_copy_events, _copy_is_all_or_nothing, _copied(_copy_events)),
    "materialize": Program(_materialize, _clone_is_whole, _materialized, clone=True),
}
