"""Repair, salvage and drop, failing and crashing at their 1st, 2nd, 3rd... storage call.

What they are for is a stream that is damaged or about to end, so the rules differ from those of
other operations: repair and salvage delete nothing of what they were given, whatever happens to
them, and a stream that was half dropped is never read as one that is smaller.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from crash_kit import (
    ABSENT,
    SCHEMA,
    Checked,
    content_on,
    discard,
    events,
    files_of,
    fresh_storage,
    is_as_before,
    quick_folder,
    restore,
)
from faults import Crash, Fault, FaultStorage
from virtual_time import TimedStorage, VirtualTime

from segstore_ds.errors import FormatError, NotFoundError, SegstoreError, UnsupportedVersionError
from segstore_ds.log.clock import Clock
from segstore_ds.retention.drop import run_drop
from segstore_ds.storage import Storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.rescue import repair as repair_on
from segstore_ds.stream.rescue import salvage as salvage_on

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_inline")]

IN_MEMORY = [
    ("memory", Fault(1, "fail", "before")),
    ("memory", Fault(1, "fail", "after")),
    ("memory", Fault(1, "fail", "before", calls=10**9)),
    ("memory", Fault(1, "crash", "before")),
    ("memory", Fault(1, "crash", "after")),
]
ON_A_DISK = [("local", Fault(1, "crash", "before")), ("local", Fault(1, "crash", "after"))]


def faults(*, stride: int) -> list[object]:
    """Return where something is swept with which fault and stride: each call, or one in so many.

    What is thinned out, and the disk beside it, are for the long sweeps: repair and salvage create
    objects and delete none, which the sweep of all operations does on a disk too.
    """
    chosen = [(*sweep, stride) for sweep in IN_MEMORY]
    long = [(*sweep, 1) for sweep in IN_MEMORY if stride > 1] + [(*sweep, 1) for sweep in ON_A_DISK]
    return [
        pytest.param(
            *sweep,
            id=f"{sweep[0]}-{sweep[1].kind}-{sweep[1].when}-{sweep[1].calls}-{sweep[2]}",
            marks=[pytest.mark.sweep] if sweep in long and stride > 1 else [],
        )
        for sweep in chosen + long
    ]


LOST, DROPPED = "can't be read", "dropped"


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few commits fill parts, and merge them."""
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.rows", 2)
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.fan_in", 2)
    monkeypatch.setattr("segstore_ds.status.table.RETIRED.rows", 2)
    monkeypatch.setattr("segstore_ds.status.table.HISTORY.rows", 4)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder for streams on a disk."""
    with quick_folder() as path:
        yield path


def seen(storage: Storage) -> object:
    """Return what a reader learns: the content, or that it is told there is none to be had."""
    try:
        return content_on(storage)
    except UnsupportedVersionError:
        return DROPPED
    except FormatError:
        return LOST


def attempt(work: Callable[[], object]) -> BaseException | None:
    """Run something, and return the error that it ended with."""
    try:
        work()
    except (Crash, SegstoreError) as error:
        return error
    return None


@dataclass(slots=True)
class Step:
    """One run of a sweep: the storage as it was left, and how the run ended."""

    storage: Storage
    clock: Clock
    error: BaseException | None
    place: str


# By what is run and kind of storage: other faults leave many states that are the same.
CHECKED: dict[tuple[str, str], Checked] = {}


def sweep(
    where: tuple[str, Path],
    fault: Fault,
    files: dict[str, bytes],
    run: Callable[[Storage, Clock], object],
    *,
    name: str,
    now_us: int,
    stride: int = 1,
) -> Iterator[Step]:
    """Run something with a fault at its 1st, 2nd, 3rd... call, up to a run that has none."""
    checked = CHECKED.setdefault((name, where[0]), Checked())
    for number in range(1, 1000, stride):
        time = VirtualTime(100, now_us=now_us)
        inner = TimedStorage(restore(fresh_storage(*where), files), time)
        faulty = FaultStorage(inner, replace(fault, at=number))
        error = attempt(lambda faulty=faulty, time=time: run(faulty, time.clock))
        known = faulty.struck and is_as_before(fault, faulty.calls[number - 1])
        if known or (faulty.struck and not checked.is_new(inner, type(error))):
            discard(inner)
            continue
        yield Step(inner, time.clock, error, f"call {number}: {faulty.calls[-1:]}, {error!r}")
        discard(inner)
        if not faulty.struck:
            assert error is None
            assert number > 3
            return
    pytest.fail("it never succeeds")


def prepared(kind: str, folder: Path) -> tuple[Storage, VirtualTime]:
    """Return a stream of nine commits, with a part that was merged from parts of kept versions."""
    time = VirtualTime(1)
    storage = TimedStorage(fresh_storage(kind, folder), time)
    stream = create_on(storage, SCHEMA, clock=time.clock)
    for n in range(9):
        stream.append(events(n, n + 1))
    while (
        stream._log.root.operation != "append"
    ):  # so that to lose the newest commit loses an event
        stream.append(events(9, 10))
    assert stream._log.root.parts
    return storage, time


def lose_part(storage: Storage) -> None:
    """Lose the merged part."""
    storage.delete(max(open_on(storage)._log.root.parts, key=lambda part: part.count).path)


def lose_history(storage: Storage) -> None:
    """Lose the newest history part."""
    storage.delete(open_on(storage)._log.root.history_parts[-1].path)


def lose_dropped(storage: Storage) -> None:
    """Lose a list of what was dropped."""
    storage.delete(open_on(storage)._log.root.retired_parts[0].path)


def lose_hint(storage: Storage) -> None:
    """Damage the hint."""
    storage.put("log/_latest", b"rubbish")


def lose_newest(storage: Storage) -> None:
    """Damage the newest commit."""
    name = f"log/{open_on(storage).version:020d}"
    storage.put(name, storage.get(name)[:-9])


@pytest.mark.parametrize(
    "harm",
    [lose_part, lose_history, lose_dropped, lose_hint, lose_newest],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize(("kind", "fault", "stride"), faults(stride=3))
def test_repair_survives_a_fault_at_every_call(
    harm: Callable[[Storage], None], kind: str, fault: Fault, stride: int, folder: Path
) -> None:
    """The stream is damaged or repaired, nothing is deleted, and a second repair finishes."""
    storage, time = prepared(kind, folder)
    whole = seen(storage)
    harm(storage)
    files, before = files_of(storage), seen(storage)

    def run(given: Storage, clock: Clock) -> None:
        report = repair_on(given, allow_loss=harm is lose_newest, clock=clock)
        left = [text for text in report.damaged if not text.startswith("log/_latest")]
        assert not left
        assert report.ok or isinstance(given, FaultStorage)  # a hint that failed is told

    run(storage, VirtualTime(2, now_us=time.now_us).clock)
    repaired = seen(storage)
    assert (repaired == whole) == (harm is not lose_newest)
    for step in sweep(
        (kind, folder),
        fault,
        files,
        run,
        name=f"repair {harm.__name__}",
        now_us=time.now_us,
        stride=stride,
    ):
        allowed = [repaired] if step.error is None else [before, repaired]
        assert seen(step.storage) in allowed, step.place
        now = files_of(step.storage)
        kept = {path: data for path, data in files.items() if path != "log/_latest"}
        assert kept.items() <= now.items(), step.place
        run(step.storage, step.clock)
        assert seen(step.storage) == repaired, step.place
        stream = open_on(step.storage, clock=step.clock)
        stream.append(events(50, 51))
        stream.verify().check()


@pytest.mark.parametrize("harm", [lose_part, lose_newest], ids=lambda f: f.__name__)
@pytest.mark.parametrize(("kind", "fault", "stride"), faults(stride=3))
def test_salvage_survives_a_fault_at_every_call(
    harm: Callable[[Storage], None], kind: str, fault: Fault, stride: int, folder: Path
) -> None:
    """The damaged stream stays as it is; the new one is whole, or as it was made, or not there."""
    storage, time = prepared(kind, folder)
    harm(storage)
    old = files_of(storage)

    def run(given: Storage, clock: Clock) -> None:
        salvage_on(storage, given, skip_damaged=True, clock=clock)

    second = VirtualTime(2, now_us=time.now_us)
    target = TimedStorage(fresh_storage(kind, folder), second)
    run(target, second.clock)
    expected = content_on(target)
    empty = content_on(create_on(fresh_storage(kind, folder), SCHEMA)._log.storage)
    assert expected != empty
    for step in sweep(
        (kind, folder),
        fault,
        {},
        run,
        name=f"salvage {harm.__name__}",
        now_us=time.now_us,
        stride=stride,
    ):
        allowed = [expected] if step.error is None else [ABSENT, empty, DROPPED, expected]
        assert seen(step.storage) in allowed, step.place
        assert files_of(storage) == old, step.place


@pytest.mark.parametrize(("kind", "fault", "stride"), faults(stride=1))
def test_drop_survives_a_fault_at_every_call(
    kind: str, fault: Fault, stride: int, folder: Path
) -> None:
    """The stream is complete or unreadable; a second drop leaves the log alone."""
    storage, time = prepared(kind, folder)
    open_on(storage, clock=time.clock).readers.register("etl", owner="a")
    files, before = files_of(storage), seen(storage)

    def run(given: Storage, clock: Clock) -> None:
        run_drop(given, confirm=given.url, clock=clock, client="")

    for step in sweep(
        (kind, folder), fault, files, run, name="drop", now_us=time.now_us, stride=stride
    ):
        allowed = [ABSENT] if step.error is None else [before, DROPPED, ABSENT]
        found = seen(step.storage)
        assert found in allowed, step.place
        if found == before:
            open_on(step.storage).verify().check()
        again = attempt(lambda step=step: run(step.storage, step.clock))
        assert again is None or isinstance(again, NotFoundError), step.place
        left = {path.partition("/")[0] for path in files_of(step.storage)}
        assert left == {"log"}, step.place  # for an hour
