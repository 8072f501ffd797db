"""Every order of retention beside writers and readers: the real code, and mutants that fail."""

import threading
from dataclasses import replace

import pytest
from commit_programs import PUTS
from interleaving import Violation, explore
from retention_programs import (
    DAY,
    appender,
    compactor,
    freer,
    job,
    keeper,
    pinned,
    publisher,
    purger,
    registrar,
    restorer,
    retainer,
    scene,
    truncater,
    upkeeper,
    vacuumer,
)

from segstore_ds.compact import commit as compact_commit
from segstore_ds.errors import StorageError
from segstore_ds.log import metadata_log
from segstore_ds.retention import deletion, readers, truncate
from segstore_ds.status import references
from segstore_ds.write import append

pytestmark = pytest.mark.slow

HOURS = 3 * 3600
NAP = {"naps": (DAY + HOURS,)}
# Two events, a day, a third: whatever was staged on the first versions is below the floor now.
OLD = ("ab", DAY + HOURS, "c", DAY + HOURS)
# The same, and the first event dropped at once and its versions purged.
DROPPED = ("a", truncater(1), "b", DAY + HOURS, "cd", HOURS, purger())
# What is there is replaced a few hours ago, and versions were committed since.
REPLACED = (appender("d", overwrites=True), "ef", HOURS)
# The first event is dropped; later ones follow, each after a day.
CUT = ("a", truncater(1), DAY + HOURS, "bc", DAY + HOURS)
# The first two events are dropped, and a round of upkeep has noted what the next one may delete.
UPKEPT = ("ab", truncater(2), "c", DAY + HOURS, "d", upkeeper(), HOURS, "e")
# What was replaced is brought back before the round; what was brought back is replaced again.
RESTORED = (
    *("a", appender("b", overwrites=True), restorer(1), "c", DAY + HOURS),
    *("d", upkeeper(), HOURS, "e"),
)
DROPPED_AGAIN = (
    *("a", truncater(1), DAY, "b", restorer(1)),
    *(appender("c", overwrites=True), "de", HOURS, purger()),
)
# A tag keeps what was replaced a day ago.
KEPT = ("a", keeper(), appender("b", overwrites=True), DAY + HOURS, "cd", HOURS)
# The first event was replaced ten minutes ago, and that one three minutes ago.
FRESH = ("a", appender("b", overwrites=True), 600, appender("c", overwrites=True), 180)

HALF = 20


def late(naps, **others):
    """Return a scene of a reader that lapses after twice `HALF`, and a retention."""
    actors = {"r": publisher("x", 1, lapse_s=2 * HALF), "t": retainer(), **others}
    return scene(actors, "ab", naps=naps)


def freeing(others, **options):
    """Return a scene of who frees a full disk; it goes by the times of commit files, too."""
    return scene({"f": freer(), **others}, *FRESH, dates_commits=True, **options)


SCENES = {
    "a job of yesterday commits while vacuum runs": lambda: scene(
        {"j": job("e", staged_on=1), "v": vacuumer()}, *OLD
    ),
    "a job of yesterday, vacuum, a failure": lambda: scene(
        {"j": job("e", staged_on=1), "v": vacuumer()}, *OLD, faults=1
    ),
    "two vacuums, a crash in one": lambda: scene(
        {"v": vacuumer(), "w": vacuumer()}, *DROPPED, faults=1, kinds=frozenset({"fail", "read"})
    ),
    "a purge and a vacuum after an overwrite, a pinned reader": lambda: scene(
        {"r": pinned(3), "p": purger(), "v": vacuumer()}, *OLD, *REPLACED
    ),
    "a restore that was dropped again, a vacuum": lambda: scene(
        {"v": vacuumer(), "a": appender("f")}, *DROPPED_AGAIN
    ),
    "a purge and a truncation, a failure": lambda: scene(
        {"p": purger(), "t": truncater(1)}, *OLD, faults=1
    ),
    "a retention and a vacuum, a pinned reader": lambda: scene(
        {"r": pinned(2), "t": retainer(), "v": vacuumer()}, *OLD
    ),
    "a reader registers while retention runs": lambda: scene(
        {"r": registrar("x", 0), "t": retainer()}, *OLD
    ),
    "a reader, a retention, a failure": lambda: scene(
        {"r": registrar("x", 0), "t": retainer()}, "ab", faults=1
    ),
    "a reader publishes within its time while retention runs": lambda: late((HALF - 1,)),
    "a reader publishes late while retention runs, a nap": lambda: late((2 * HALF + 1,)),
    "two rounds of upkeep": lambda: scene({"u": upkeeper(), "v": upkeeper()}, *UPKEPT),
    "a round of upkeep and an append, a failure": lambda: scene(
        {"u": upkeeper(), "a": appender("f")}, *UPKEPT, faults=1
    ),
    "a round of upkeep and a purge, a pinned reader": lambda: scene(
        {"r": pinned(5), "u": upkeeper(), "p": purger()}, *UPKEPT
    ),
    "a round of upkeep and an overwrite, a nap": lambda: scene(
        {"u": upkeeper(), "o": appender("f", overwrites=True)}, *UPKEPT, **NAP
    ),
    "a round of upkeep while a job of before the last one commits": lambda: scene(
        {"j": job("f", staged_on=1), "u": upkeeper()}, *UPKEPT
    ),
    "a round of upkeep and a compaction, a pinned reader": lambda: scene(
        {"r": pinned(7), "c": compactor("f"), "u": upkeeper()}, *UPKEPT
    ),
    "a restore, a round of upkeep": lambda: scene({"r": restorer(7), "u": upkeeper()}, *UPKEPT),
    "a round of upkeep after a restore": lambda: scene(
        {"u": upkeeper(), "a": appender("f")}, *RESTORED
    ),
    "a compaction and a vacuum, a pinned reader": lambda: scene(
        {"r": pinned(3), "c": compactor("e"), "v": vacuumer()}, *OLD
    ),
    "a compaction and a purge, a pinned reader": lambda: scene(
        {"r": pinned(3), "c": compactor("e"), "p": purger()}, *OLD
    ),
    "a vacuum after a compaction of a few hours ago, a pinned reader": lambda: scene(
        {"r": pinned(3), "p": purger(), "v": vacuumer()}, *OLD, compactor("d"), "ef", HOURS
    ),
    "a purge and a vacuum of what a tag keeps": lambda: scene(
        {"p": purger(), "v": vacuumer()}, *KEPT
    ),
    "a tag that keeps moves while upkeep runs": lambda: scene(
        {"k": keeper(), "u": upkeeper()}, *KEPT
    ),
    "a tag keeps a version while an overwrite drops it": lambda: scene(
        {"k": keeper(), "o": appender("e", overwrites=True)}, "a", faults=1
    ),
    "a disk is freed, a pinned reader": lambda: freeing({"r": pinned(2)}),
    "a disk is freed, an overwrite": lambda: freeing({"o": appender("d", overwrites=True)}),
    "a disk is freed while a tag comes to keep a version": lambda: freeing({"k": keeper()}),
}
# The longest: mutants die in their first seconds.
SWEEPS = {
    "an overwrite, a vacuum, a nap": lambda: scene(
        {"o": appender("e", overwrites=True), "v": vacuumer()}, *OLD, **NAP
    ),
    "a restore, a purge, a vacuum": lambda: scene(
        {"r": restorer(1), "p": purger(), "v": vacuumer()}, *CUT
    ),
}


def in_turn(works):
    """Run one after another what a far storage runs at the same time: an actor has one thread."""
    results, errors = [], []
    for work in works:
        try:
            results.append(work())
        except StorageError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return results


@pytest.fixture(autouse=True)
def spill(monkeypatch):
    """Let every commit that may spill do so, and give up soon where an outcome stays unknown."""
    monkeypatch.setattr("segstore_ds.status.store.at_once", in_turn)
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.rows", 1)
    monkeypatch.setattr("segstore_ds.log.metadata_log.ADD_ATTEMPTS", PUTS)


@pytest.mark.parametrize(
    "made",
    [
        *(pytest.param(one, id=title) for title, one in SCENES.items()),
        *(pytest.param(one, id=title, marks=pytest.mark.sweep) for title, one in SWEEPS.items()),
    ],
)
def test_every_interleaving_keeps_needed_objects(made):
    explored = explore(made())
    assert explored.ends


# --- mutants -------------------------------------------------------------------------------------


def no_floor(monkeypatch):
    """Delete without a commit before."""
    monkeypatch.setattr(deletion.Aim, "raised", lambda _self, root, _version: root)


def floor_ignored(monkeypatch):
    """Commit what was staged below the floor."""
    real = append.check_preconditions
    monkeypatch.setattr(
        append, "check_preconditions", lambda root, plan: real(replace(root, staging_floor=0), plan)
    )


def look_before_the_floor(monkeypatch):
    """Ask what is referred to before the floor is raised."""
    run = threading.local()
    commit, read = deletion.commit_aim, deletion.read_references

    def committed(context, aim, **how):
        if "objects" in how:
            run.known = read(context.status, context.log.root)
        return commit(context, aim, **how)

    monkeypatch.setattr(deletion, "commit_aim", committed)
    monkeypatch.setattr(deletion, "read_references", lambda *_, **__: run.known)


def purge_ignored(monkeypatch):
    """Delete what a kept version still lists."""
    real = deletion.plan_horizon
    monkeypatch.setattr(
        deletion,
        "plan_horizon",
        lambda root, **given: replace(real(root, **given), version=root.version),
    )


def tag_ignored(monkeypatch):
    """Delete what a tag keeps."""
    real = deletion.plan_horizon
    monkeypatch.setattr(
        deletion, "plan_horizon", lambda root, **given: real(replace(root, kept={}), **given)
    )


def freed_at_once(monkeypatch):
    """Free what readers of the last minutes need."""
    monkeypatch.setattr(deletion, "FREE_S", 0.0)


def log_freed(monkeypatch):
    """Free the commit files of the last hour, too."""
    monkeypatch.setattr(
        metadata_log.MetadataLog,
        "superseded",
        lambda self, below, _: [n for n in self.numbers() if n < below],
    )


def grace_ignored(monkeypatch):
    """Delete what was dropped a moment ago."""
    real = deletion.plan_horizon
    monkeypatch.setattr(
        deletion,
        "plan_horizon",
        lambda root, **given: replace(real(root, **given), time_us=1 << 62),
    )


def oldest_retirement(monkeypatch):
    """Let an object's first retirement count, and what is live not at all."""
    monkeypatch.setattr(
        references.References,
        "retire",
        lambda self, path, item: self.retired.setdefault(path, item),
    )


def restore_unchecked(monkeypatch):
    """Restore a version that was purged since it was read."""
    real = truncate.plan_restore

    def plan(root, *rest, **options):
        planned = real(replace(root, log_start=0), *rest, **options)
        return replace(planned, log_start=root.log_start)

    monkeypatch.setattr(truncate, "plan_restore", plan)


def silent_reader(monkeypatch):
    """Register, then check the head, without a commit."""

    def announce(context, seen):
        if context.log.refresh().head > seen.record.offset:
            raise readers.TruncatedError("gone")
        return True

    monkeypatch.setattr(readers, "_announce", announce)


def lapse_asked_early(monkeypatch):
    """Ask whether the reader may have lapsed before its next record is put."""
    run = threading.local()
    publish, lapses = readers.NamedReader.publish, readers.NamedReader._lapses_soon

    def early(self, offset):
        run.lapses = lapses.fget(self)
        publish(self, offset)

    monkeypatch.setattr(readers.NamedReader, "_lapses_soon", property(lambda _: run.lapses))
    monkeypatch.setattr(readers.NamedReader, "publish", early)


def silent_publisher(monkeypatch):
    """Never register again, however late."""
    monkeypatch.setattr(readers.NamedReader, "_lapses_soon", False)


def compacted_unretired(monkeypatch):
    """Retire the parts that a compaction drops, and not the segments in them."""
    real = compact_commit.replace_runs

    def replace_runs(status, root, *rest):
        changed = real(status, root, *rest)
        retired = tuple(
            item if item.kind != "part" else replace(item, kind="status")
            for item in changed.retired
            if item.kind != "segment"
        )
        return replace(changed, retired=retired)

    monkeypatch.setattr(compact_commit, "replace_runs", replace_runs)


MUTANTS = {
    compacted_unretired: ("a compaction and a vacuum, a pinned reader", "misses"),
    no_floor: ("a job of yesterday commits while vacuum runs", "misses"),
    floor_ignored: ("a job of yesterday commits while vacuum runs", "misses"),
    look_before_the_floor: ("a job of yesterday commits while vacuum runs", "misses"),
    tag_ignored: ("a purge and a vacuum of what a tag keeps", "misses"),
    freed_at_once: ("a disk is freed, a pinned reader", "misses"),
    log_freed: ("a disk is freed, a pinned reader", "gone from the log"),
    purge_ignored: ("an overwrite, a vacuum, a nap", "misses"),
    grace_ignored: ("a purge and a vacuum after an overwrite, a pinned reader", "misses"),
    oldest_retirement: ("a restore that was dropped again, a vacuum", "misses"),
    restore_unchecked: ("a restore, a purge, a vacuum", "misses"),
    silent_reader: ("a reader registers while retention runs", "lost events"),
    lapse_asked_early: ("a reader publishes late while retention runs, a nap", "held 1 and lost"),
    silent_publisher: ("a reader publishes late while retention runs, a nap", "held 1 and lost"),
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_some_order_breaks_retention_that_lacks_a_rule(mutant, monkeypatch):
    title, text = MUTANTS[mutant]
    broken = (SCENES | SWEEPS)[title]()
    mutant(monkeypatch)
    with pytest.raises(Violation, match=text):
        explore(broken)
