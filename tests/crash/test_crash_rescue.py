"""Repair and salvage, failing and crashing at their 1st, 2nd, 3rd... storage call.

What they are for is a damaged stream, so the rules differ from those of other operations: they
delete nothing of what they were given, whatever happens to them.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from crash_kit import (
    ABSENT,
    SCHEMA,
    Checked,
    Sweep,
    content_on,
    events,
    files_of,
    fresh_storage,
)
from faults import Fault, FaultStorage
from virtual_time import TimedStorage, VirtualTime

from segstore_ds.errors import FormatError, UnsupportedVersionError
from segstore_ds.log.clock import Clock
from segstore_ds.storage import Storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.rescue import repair as repair_on
from segstore_ds.stream.rescue import salvage as salvage_on

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_inline")]

# Repair and salvage create objects and delete none, which the sweep of all operations does, on a
# disk too.
FAULTS = [
    Fault(1, "fail", "before"),
    Fault(1, "fail", "after"),
    Fault(1, "fail", "before", calls=10**9),
    Fault(1, "crash", "before"),
    Fault(1, "crash", "after"),
]
EACH_FAULT = pytest.mark.parametrize(
    "fault", FAULTS, ids=lambda fault: f"{fault.kind}-{fault.when}-{fault.calls}"
)
STRIDE = 3
Run = Callable[[Storage, Clock], object]
LOST, DROPPED = "can't be read", "dropped"


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few commits fill parts, and merge them."""
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.rows", 2)
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.fan_in", 2)
    monkeypatch.setattr("segstore_ds.status.table.RETIRED.rows", 2)
    monkeypatch.setattr("segstore_ds.status.table.HISTORY.rows", 4)


def seen(storage: Storage) -> object:
    """Return what a reader learns: the content, or that it is told there is none to be had."""
    try:
        return content_on(storage)
    except UnsupportedVersionError:
        return DROPPED
    except FormatError:
        return LOST


# By what is run: other faults leave many states that are the same.
CHECKED: dict[str, Checked] = {}


def swept(name: str, files: dict[str, bytes], now_us: int, run: Run) -> Sweep:
    """Return the sweep of a run."""
    checked = CHECKED.setdefault(name, Checked())
    return Sweep(partial(fresh_storage, "memory", Path()), files, now_us, run, checked)


def prepared() -> tuple[Storage, VirtualTime]:
    """Return a stream of nine commits, with a part that was merged from parts of kept versions."""
    time = VirtualTime(1)
    storage = TimedStorage(fresh_storage("memory", Path()), time)
    stream = create_on(storage, SCHEMA, clock=time.clock)
    for n in range(9):
        stream.append(events(n, n + 1))
    while stream._log.root.operation != "append":  # to lose the newest commit loses an event
        stream.append(events(9, 10))
    assert stream._log.root.parts
    return storage, time


def lose_part(storage: Storage) -> None:
    """Lose the merged part."""
    storage.delete(max(open_on(storage)._log.root.parts, key=lambda part: part.count).path)


def lose_hint(storage: Storage) -> None:
    """Damage the hint."""
    storage.put("log/_latest", b"rubbish")


def lose_newest(storage: Storage) -> None:
    """Damage the newest commit."""
    name = f"log/{open_on(storage).version:020d}"
    storage.put(name, storage.get(name)[:-9])


@pytest.mark.parametrize("harm", [lose_part, lose_hint, lose_newest], ids=lambda f: f.__name__)
@EACH_FAULT
def test_repair_survives_a_fault_at_every_call(
    harm: Callable[[Storage], None], fault: Fault
) -> None:
    """The stream is damaged or repaired, nothing is deleted, and a second repair finishes."""
    storage, time = prepared()
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
    sweep = swept(f"repair {harm.__name__}", files, time.now_us, run)
    for step in sweep.steps(fault, stride=STRIDE):
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
@EACH_FAULT
def test_salvage_survives_a_fault_at_every_call(
    harm: Callable[[Storage], None], fault: Fault
) -> None:
    """The damaged stream stays as it is; the new one is whole, or as it was made, or not there."""
    storage, time = prepared()
    harm(storage)
    old = files_of(storage)

    def run(given: Storage, clock: Clock) -> None:
        salvage_on(storage, given, skip_damaged=True, clock=clock)

    second = VirtualTime(2, now_us=time.now_us)
    target = TimedStorage(fresh_storage("memory", Path()), second)
    run(target, second.clock)
    expected = content_on(target)
    empty = content_on(create_on(fresh_storage("memory", Path()), SCHEMA)._log.storage)
    assert expected != empty
    sweep = swept(f"salvage {harm.__name__}", {}, time.now_us, run)
    for step in sweep.steps(fault, stride=STRIDE):
        allowed = [expected] if step.error is None else [ABSENT, empty, DROPPED, expected]
        assert seen(step.storage) in allowed, step.place
        assert files_of(storage) == old, step.place
