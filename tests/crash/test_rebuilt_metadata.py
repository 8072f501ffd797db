"""Every object of metadata lost in every way, on streams of every kind: repair brings all back."""

from collections.abc import Callable
from functools import cache

import pytest
from crash_kit import discard, events
from fsspec.implementations.memory import MemoryFileSystem
from rebuild_kit import KINDS, MAKERS, Made, copied, damaged, named, said, tight

from segstore_ds.format import envelope, names
from segstore_ds.repair.repair import RepairReport
from segstore_ds.status.table_status import TableStatus
from segstore_ds.storage import Storage
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.rescue import repair as repair_on

pytestmark = pytest.mark.slow

Maker = Callable[[], Made]
QUICK = ("missing",)
PACKED_QUICKLY = ("evolved", "compacted", "restored")


@cache
def made_by(maker: Maker) -> tuple[Made, dict[str, object], int]:
    """Return a stream of a kind, what it says of itself, and its version; it is made once."""
    with tight():
        made = maker()
    storage, time = made.open()
    stream = open_on(storage, clock=time.clock)
    found = made, said(stream), stream.version
    discard(storage)
    return found


def lose(storage: Storage, path: str, kind: str) -> None:
    """Damage an object."""
    data = damaged(storage.get(path), kind)
    storage.delete(path)
    if data:
        storage.put(path, data)
    elif data is not None:
        full = storage.url.removeprefix("memory:/")
        MemoryFileSystem().pipe_file(f"{full}/{path}", b"", mode="overwrite")
        assert storage.info(path).size == 0


def may_be_dropped(made: Made) -> set[str]:
    """Return the lists of what was dropped, and the dropped parts that nothing tells.

    No version lists one that its own commit dropped; what was restored is not dropped any more.
    """
    storage, _ = made.open()
    stream = open_on(storage)
    root = stream._log.root
    restored = "restore" in stream.history().read_all()["operation"].to_pylist()
    status = TableStatus(storage)
    parts = {
        item.path
        for item in status.retired.all(root)
        if item.kind == "part"
        and (restored or names.parse_status_version(item.path) == item.version - 1)
    }
    return {ref.path for ref in (*root.retired_lists, *status.retired.parts(root))} | parts


def partly_told(made: Made) -> set[str]:
    """Return the writers that only the history tells, without owners and fingerprints."""
    storage, _ = made.open()
    root = open_on(storage)._log.root
    made_in = {ref.path: names.parse_status_version(ref.path) for ref in root.writers_parts}
    return {path for path, version in made_in.items() if version < root.log_start}


def without_owners(expected: dict[str, object]) -> dict[str, object]:
    """Return what a stream says of itself, its writers without their owners."""
    writers = [{**row, "owner": None} for row in expected["writers"]]
    return {**expected, "writers": sorted(writers, key=str)}


def is_newest_sound(report: RepairReport, path: str) -> bool:
    """Tell whether what stays damaged is one object that older versions alone need."""
    older = f"{path}: ", "; restore the object from a backup, or forget versions: segstore maintain"
    return all(text.startswith(older[0]) and older[1] in text for text in report.damaged)


def said_before(storage: Storage, clock: object, version: int) -> dict[str, object]:
    """Return what a stream says of itself, but for the row of a repair behind a version."""
    stream = open_on(storage, clock=clock)
    assert all(problem.version is not None for problem in stream.verify().problems)
    found = said(stream)
    if stream.version > version:
        assert stream._log.root.operation == "repair"
        found["history"] = found["history"][:-1]
    return found


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[] if kind in QUICK else [pytest.mark.sweep]) for kind in KINDS],
)
@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.__name__)
def test_every_lost_object_is_built_again(maker: Maker, kind: str) -> None:
    """The stream says afterwards what it said before; but for what was dropped, byte for byte."""
    made, expected, version = made_by(maker)
    paths = named(made.open()[0])
    assert paths
    for path in paths:
        storage, time = made.open()
        lose(storage, path, kind)
        problems = open_on(storage, clock=time.clock).verify().problems
        sound = all(problem.version is not None for problem in problems)
        with tight():
            report = repair_on(storage, clock=time.clock)
            wanted = expected
            if path in partly_told(made):
                assert "allow_loss" in report.damaged[0], path
                report = repair_on(storage, allow_loss=True, clock=time.clock)
                wanted = without_owners(expected)
        assert is_newest_sound(report, path), (path, report)
        assert report.ok or sound or any("once more" in text for text in report.repaired), path
        found = said_before(storage, time.clock, version)
        assert (found if wanted is expected else without_owners(found)) == wanted, path
        if wanted is not expected:
            continue
        dropped = any(text.endswith("are dropped once more") for text in report.repaired)
        # Of dropped parts those whose segments were restored are told by nothing.
        assert not dropped or path in may_be_dropped(made), path
        assert dropped or report.version == version, path
        assert sound or dropped or storage.get(path) == made.files.get(path, b"shared"), path
        discard(storage)


@pytest.mark.parametrize(
    "maker",
    [
        pytest.param(
            maker,
            id=maker.__name__,
            marks=[] if maker.__name__ in PACKED_QUICKLY else [pytest.mark.sweep],
        )
        for maker in MAKERS
    ],
)
def test_nothing_is_guessed_where_no_digest_can_match(
    maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects with other compression: what is restored is right, and the rest is reported."""
    made, expected, version = made_by(maker)
    # As another version of zstd would: what is packed now differs in every byte.
    monkeypatch.setattr(envelope, "COMPRESS_ABOVE_BYTES", 1)
    told = 0
    for path in named(made.open()[0]):
        storage, time = made.open()
        lose(storage, path, "missing")
        with tight():
            report = repair_on(storage, clock=time.clock)
        stream = open_on(storage, clock=time.clock)
        assert report.ok == stream.verify().ok, (path, report)
        if is_newest_sound(report, path):
            told += report.version > version
            found = said_before(storage, time.clock, version)
            assert found == expected, path
            with tight():
                stream.append(events(50, 51), merge_schema=True)
            problems = open_on(storage, clock=time.clock).verify().problems
            assert all(problem.version is not None for problem in problems), path
        else:
            assert path in "".join(report.damaged)
        discard(storage)
    assert told or maker is copied  # it has a schema, and a part that this does not change
