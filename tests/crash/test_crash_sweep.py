"""Every operation, failing and crashing at its 1st, 2nd, 3rd... storage call until it succeeds.

After each the stream is opened again through a sound storage: it verifies, holds the old or the new
content and nothing else, holds the new one if the call returned and the old one if the error says
so, and goes on working: the same batch again gives exactly one copy.
"""

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from crash_kit import (
    ABSENT,
    SCHEMA,
    Checked,
    Step,
    Sweep,
    attempt,
    content_on,
    events,
    files_of,
    fresh_storage,
)
from faults import Crash, Fault, FaultStorage
from fixtures_servers import MOST_FETCH_S, Server
from sweep_operations import LEFT_TOKEN, OPERATIONS, Operation
from virtual_time import TimedStorage, VirtualTime

from segstore_ds.errors import CommitUnknownError, ConflictError, StorageError
from segstore_ds.format.redactions import redactions_of
from segstore_ds.log.clock import Clock
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream

# Every fault in memory; on a disk those that its own code could answer in another way. A crash
# before a call leaves what a crash after the call before it leaves.
FAULTS = [
    ("memory", Fault(1, "fail", "before")),
    ("memory", Fault(1, "fail", "after")),
    ("memory", Fault(1, "fail", "before", calls=10**9)),
    ("memory", Fault(1, "fail", "after", calls=10**9)),
    ("memory", Fault(1, "crash", "after")),
    ("local", Fault(1, "fail", "after")),
    ("local", Fault(1, "crash", "after")),
]
# Swept in a change, in memory; CI sweeps every operation.
IN_A_CHANGE = ("append-with-writer", "append-staged", "overwrite", "compact")
# A disk answers for a verb, whatever operation it is a step of: these use every verb there is.
ON_A_DISK = ("create", "append-staged", "overwrite", "purge", "compact", "vacuum", "upkeep")


def _marks(operation: str, kind: str, fault: Fault) -> list[pytest.MarkDecorator]:
    if kind == "local" and operation not in ON_A_DISK:
        return [pytest.mark.sweep]
    hard = fault.when == "after" and fault.calls == 1
    asked = kind == "memory" and hard and operation in IN_A_CHANGE
    return [] if asked else [pytest.mark.slow]


SWEEPS = [
    pytest.param(
        operation,
        kind,
        fault,
        id=f"{operation.name}-{kind}-{fault.kind}-{fault.when}-{fault.calls}",
        marks=_marks(operation.name, kind, fault),
    )
    for operation in OPERATIONS
    for kind, fault in FAULTS
]


# By operation and kind of storage: the faults of one leave many states that are the same.
CHECKED: dict[tuple[str, str], Checked] = {}


def allowed(error: BaseException | None, expected: "Expected", commits: int) -> list[object]:
    """Return which content may be seen after a run that ended so."""
    if error is None:
        return [expected.after]
    if commits > 1 or isinstance(error, Crash | CommitUnknownError):
        return [expected.before, expected.after]
    # What says that the storage failed also says that nothing was committed.
    assert isinstance(error, StorageError | ConflictError), repr(error)
    return [expected.before]


@dataclass(frozen=True, slots=True)
class Expected:
    """What may be seen: content before and after; after it the commits and what is beside them."""

    before: object
    after: object
    versions: tuple[int, ...]
    upkeep: object


@pytest.mark.parametrize(("operation", "kind", "fault"), SWEEPS)
def test_operation_survives_a_fault_at_every_call(
    operation: Operation, kind: str, fault: Fault, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state is the old or the new one, and the new one after the acknowledgement."""
    for module, name, value in operation.tiny:
        monkeypatch.setattr(module, name, value)
    checked = CHECKED.setdefault((operation.name, kind), Checked())
    _sweep(operation, partial(fresh_storage, kind, folder), fault, checked)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", [Fault(1, "fail", "after"), Fault(1, "crash", "after")], ids=["fail", "crash"]
)
@pytest.mark.timeout(2 * MOST_FETCH_S)
def test_append_survives_a_fault_at_every_call_of_a_server(server: Server, fault: Fault) -> None:
    """The same on real servers, for an operation with many verbs."""
    bucket = server.new_bucket()
    staged = next(operation for operation in OPERATIONS if operation.name == "append-staged")
    fresh = lambda: open_storage(f"{bucket}/{uuid.uuid4().hex}", server.options)  # noqa: E731
    _sweep(staged, fresh, fault, Checked())


def _sweep(
    operation: Operation, fresh: Callable[[], Storage], fault: Fault, checked: Checked
) -> None:
    time = VirtualTime(1)
    start = TimedStorage(fresh(), time)
    operation.prepare(start, time)
    files, prepared_us = files_of(start), time.now_us
    before = content_on(start)
    assert before == ABSENT or not REACHED[operation.name](open_on(start))
    operation.run(start, VirtualTime(2, now_us=prepared_us).clock)
    upkeep = _upkeep(start, operation.name)
    expected = Expected(before, content_on(start), _versions(start), upkeep)
    _check_reaches(operation.name, open_on(start))
    sweep = Sweep(fresh, files, prepared_us, operation.run, checked, like=start)
    for step in sweep.steps(fault):
        found = content_on(step.storage)
        assert found in allowed(step.error, expected, operation.commits), step.place
        if checked.is_new(step.storage):
            _check_after(operation, step, found, expected)


def _check_after(operation: Operation, step: Step, found: object, expected: Expected) -> None:
    storage, clock, place = step.storage, step.clock, step.place
    if found != ABSENT:
        open_on(storage).verify().check()
    if operation.again is not None:
        operation.again(storage, clock)
        assert content_on(storage) == expected.after, place
        assert operation.name != "purge" or _versions(storage) == expected.versions, place
        assert _upkeep(storage, operation.name) == expected.upkeep, place
    if found != ABSENT and operation.name != "seal":
        _check_goes_on(storage, clock, place)


def _held(stream: Stream) -> tuple[int, int]:
    """Return how many segments the root lists, and how many of them it holds."""
    entries = stream._log.root.entries
    return len(entries), sum(entry.frame is not None for entry in entries)


def _redacted(stream: Stream) -> list[bool]:
    """Return which redactions the stream knows, by whether they are done."""
    return [each.done for each in redactions_of(stream._log.root).values()]


# What each operation is swept for, as its stream shows it afterwards.
REACHED: dict[str, Callable[[Stream], object]] = {
    "create": lambda stream: (stream.version, stream.tail) == (0, 0),
    "append": lambda stream: (stream.version, stream.tail) == (3, 9),
    "append-with-writer": lambda stream: stream._log.root.writers["w"].batch_id == 1,
    "append-staged": lambda stream: formats(stream) == ["arrow"] * 5,
    "append-parquet": lambda stream: formats(stream) == ["arrow"] * 2 + ["parquet"] * 3,
    "compact-to-parquet": lambda stream: set(formats(stream)) == {"parquet"},
    "append-that-spills": lambda stream: stream._log.root.parts,
    "append-that-spills-times": lambda stream: any(part.stats for part in stream._log.root.parts),
    "append-that-adds-filters": lambda stream: stream._log.root.operation == "merge",
    "append-that-fills-the-share": lambda stream: _held(stream) == (1, 0),
    "append-that-joins-the-share": lambda stream: _held(stream) == (1, 1),
    "overwrite": lambda stream: (stream.head, stream.tail) == (6, 9),
    "merge-schema": lambda stream: "extra" in stream.schema.names,
    "purge": lambda stream: stream._log.files.numbers()[0] == stream._log.root.log_start > 0,
    "truncate": lambda stream: (stream.head, stream._log.root.operation) == (5, "truncate"),
    "seal": lambda stream: stream.sealed,
    "change-schema": lambda stream: "t" in stream.schema.names,
    "tag": lambda stream: "eod" in stream.tags,
    "retain": lambda stream: stream.head > 0,
    "restore": lambda stream: stream._log.root.operation == "restore",
    "reader": lambda stream: [seen.record.offset for seen in stream.readers] == [3],
    "vacuum": lambda stream: not [*stream._log.storage.list(f"segments/{LEFT_TOKEN}")],
    "upkeep": lambda stream: (
        stream._log.root.operation == "upkeep"
        and not [*stream._log.storage.list(f"segments/{LEFT_TOKEN}")]
    ),
    "merge-parts": lambda stream: max(part.count for part in stream._log.root.parts) > 3,
    "list-parts": lambda stream: stream._log.root.lists,
    "merge-history": lambda stream: stream._log.root.operation == "merge",
    "list-history": lambda stream: stream._log.root.history_lists,
    "compact": lambda stream: formats(stream) == ["arrow"],
    "compact-stitch": lambda stream: formats(stream) == ["arrow"],
    "redact": lambda stream: _redacted(stream) == [True],
    "expire": lambda stream: _redacted(stream) == [True],
    "redact-parts": lambda stream: _redacted(stream) == [True] and stream._log.root.parts,
    "set-time-column-of-parts": lambda stream: all(part.stats for part in stream._log.root.parts),
    "append-times": lambda stream: known_times(stream) == [False] * 3 + [True] * 3,
    "pin": lambda stream: stream._log.root.pins,
}


def formats(stream: Stream) -> list[str]:
    """Return the formats of a stream's segments."""
    return stream.segments().read_all()["format"].to_pylist()


def known_times(stream: Stream) -> list[bool]:
    """Return whether the bounds in time of each segment are known."""
    return stream.segments().read_all()["time_min"].is_valid().to_pylist()


def _check_reaches(operation: str, stream: Stream) -> None:
    """Check that the operation did what it is swept for."""
    assert REACHED[operation](stream)
    assert [row["version"] for row in stream.history().read_all().to_pylist()] == list(
        range(stream.version + 1)
    )


def _check_goes_on(storage: Storage, clock: Clock, place: str) -> None:
    stream = open_on(storage, clock=clock)
    tail, fields = stream.tail, list(stream.schema)
    stream.append(pa.table({field.name: pa.nulls(1, field.type) for field in fields}))
    seen = open_on(storage)
    rows = seen.history().read_all()
    assert rows["version"].to_pylist() == list(range(seen.version + 1)), place
    assert (seen.tail, seen.read(tail).read_all().num_rows) == (tail + 1, 1), place


def _upkeep(storage: Storage, operation: str) -> object:
    """Return what an operation leaves beside events: tags, readers, what vacuum kept."""
    stream = open_on(storage)
    beside = [stream.sealed, {name: tag.offset for name, tag in stream.tags.items()}]
    # The stream id that a pin gives its clone is made by chance, as a transaction's is.
    pins = {name: replace(pin, clone_id="") for name, pin in stream.pins.items()}
    beside += [stream.settings.retention, pins]
    if operation == "reader":
        # What a reader has seen and counted differs where an operation was repeated.
        beside += [
            (seen.name, replace(seen.record, version=0, transaction="", number=0, id=None))
            for seen in stream.readers
        ]
    if operation.startswith(("redact", "expire")):
        beside.append([(each.rows, each.done) for each in redactions_of(stream._log.root).values()])
    if operation in ("vacuum", "upkeep"):
        beside += [sorted(info.path for info in storage.list("segments")), stream._log.root.retired]
    return beside


def _versions(storage: Storage) -> tuple[int, ...]:
    """Return the commits that are kept."""
    return tuple(open_on(storage)._log.files.numbers())


def test_outcome_answers_for_every_unknown_commit(folder: Path) -> None:
    """After an outage at any call of a plain append, `outcome` says whether it is in the log."""
    seen = set()
    for number in range(1, 1000):
        time = VirtualTime(number)
        inner = TimedStorage(fresh_storage("memory", folder), time)
        storage = FaultStorage(inner)
        stream = create_on(storage, SCHEMA, clock=time.clock)
        when = "after" if number % 2 else "before"
        storage.fault = Fault(len(storage.calls) + (number + 1) // 2, "fail", when, calls=10**9)
        error = attempt(stream.append, events(0, 2))
        if isinstance(error, CommitUnknownError):
            time.advance(7200)
            names = error.fields
            known = open_on(inner, clock=time.clock)
            outcome = known.outcome(names["transaction"], names["version"])
            seen.add((when, outcome.state.value, open_on(inner).tail))
        if not storage.struck:
            break
    assert ("after", "committed", 2) in seen
    assert {(state, tail) for _, state, tail in seen} <= {
        ("committed", 2),
        ("not committed", 0),
        ("unknown", 0),
    }
