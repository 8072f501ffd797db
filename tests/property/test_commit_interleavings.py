"""Every order of two or three actors on one log: the real protocol, and mutants that must fail."""

import pytest
from commit_ghost import Ghost
from commit_programs import (
    HOURS,
    PUTS,
    FollowsNames,
    FollowsNamesUnconfirming,
    FollowsTheHint,
    LosesToItself,
    NoLateCheck,
    StandsOnAnything,
    TrustsItsHurry,
    TrustsRefusals,
    creator,
    dropper,
    hinter,
    looker,
    purge_all,
    purger,
    scene,
    straggler,
    writer,
)
from interleaving import Play, Scene, Violation, explore

from segstore_ds.log.lookup import version_at
from segstore_ds.retention import deletion


@pytest.fixture(autouse=True)
def slow_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let losers stand on the winner's commit, as on a slow store: calls take no time here."""
    monkeypatch.setattr("segstore_ds.log.turns.FAST_S", 0.0)
    monkeypatch.setattr("segstore_ds.log.metadata_log.ADD_ATTEMPTS", PUTS)


NAP = {"naps": (HOURS,)}
LATE = frozenset({"late"})
READS = frozenset({"fail", "read"})


# --- every order ---------------------------------------------------------------------------------

QUIET = {"hints": False}
SCENES = {
    "two writers, three failures": lambda: scene({"a": writer("a1"), "b": writer("b1")}, faults=3),
    "two writers, failing reads": lambda: scene(
        {"a": writer("a1"), "b": writer("b1", attempts=1)}, faults=2, kinds=READS
    ),
    "two writers, a nap, a failure": lambda: scene(
        {"a": writer("a1", **QUIET), "b": writer("b1", attempts=1, **QUIET)}, faults=1, **NAP
    ),
    "three writers, a failure": lambda: scene(
        {"a": writer("a1", **QUIET), "b": writer("b1", **QUIET), "c": straggler("c1")}, faults=2
    ),
    "a sleeper, and one who commits and purges": lambda: scene(
        {"a": writer("a1", **QUIET), "c": writer("c1", "c2", sleeps=HOURS, purges=True)}, **NAP
    ),
    "two sleepers, a purge": lambda: scene(
        {"a": writer("a1", **QUIET), "b": straggler("b1"), "c": purger(**QUIET)}, **NAP
    ),
    "a handle, a leftover, a purge": lambda: scene(
        {"a": straggler("a1"), "r": looker(), "c": purger()}, **NAP
    ),
    "a fresh look, a lost hint, a leftover, a purge": lambda: scene(
        {"a": straggler("a1"), "h": hinter(0), "r": looker(fresh=True), "c": purger()}, **NAP
    ),
    "two purges": lambda: scene({"c": purger(), "d": purger(before=())}, **NAP),
    "two creators": lambda: creation({"a": creator("a"), "b": creator("b")}, faults=2),
    "a drop, a creation, an old handle, a failure": lambda: dropping(
        {"a": writer("a1", **QUIET), "d": dropper("n")}, faults=1
    ),
    "a drop, a creation, two old handles": lambda: dropping(
        {"a": writer("a1", **QUIET), "b": writer("b1", **QUIET), "d": dropper("n")}
    ),
    "a drop and two creators": lambda: dropping(
        {"d": dropper("n"), "e": creator("e")}, faults=1, kinds=LATE
    ),
}
# Scenes of a second or two.
IN_A_CHANGE = (
    "two writers, three failures",
    "two writers, failing reads",
    "a handle, a leftover, a purge",
    "a drop, a creation, an old handle, a failure",
    "a drop, a creation, two old handles",
)
SWEEPS = {
    "an old handle that sleeps, a drop, a creation": lambda: dropping(
        {"a": writer("a1", **QUIET), "d": dropper("n")}, **NAP
    ),
    "a sleeper, a purge, a late put": lambda: scene(
        {"a": writer("a1", **QUIET), "c": purger(**QUIET)}, faults=1, kinds=LATE, **NAP
    ),
    "a fresh look, a purge, listings by pages": lambda: scene(
        {"a": straggler("a1"), "r": looker(fresh=True), "c": purger()}, page=2, **NAP
    ),
    "a sleeper, a purge, listings by pages": lambda: scene(
        {"a": writer("a1", **QUIET), "c": purger()}, page=2, **NAP
    ),
    "an old handle that sleeps, two drops": lambda: dropping(
        {"a": writer("a1", **QUIET), "d": dropper("m", "n")}, **NAP
    ),
    "a creator that slept": lambda: creation(
        {"a": creator("a"), "b": creator("b", sleeps=HOURS)}, **NAP
    ),
    "three writers, three failures": lambda: scene(
        {"a": writer("a1"), "b": writer("b1"), "c": writer("c1", **QUIET)}, faults=2
    ),
    "a sleeper, a purge, a failure": lambda: scene(
        {"a": writer("a1"), "c": purger()}, faults=1, **NAP
    ),
    "a sleeper, a purge, two naps": lambda: scene(
        {"a": writer("a1", **QUIET), "c": purger(**QUIET)}, naps=(HOURS, HOURS)
    ),
    "a sleeper, a purge, two short naps and a long one": lambda: scene(
        {"a": writer("a1", **QUIET), "c": purger(**QUIET)}, naps=(90, HOURS)
    ),
    "two sleepers, a purge, a late put": lambda: scene(
        {"a": writer("a1", **QUIET), "b": straggler("b1"), "c": purger(**QUIET)},
        faults=1,
        kinds=LATE,
        **NAP,
    ),
    "two sleepers with all they do, a purge": lambda: scene(
        {"a": writer("a1", **QUIET), "b": writer("b1", **QUIET), "c": purger(**QUIET)}, **NAP
    ),
    "a fresh look, a purge, a late hint": lambda: scene(
        {"r": looker(fresh=True), "c": writer("c1", "c2", sleeps=HOURS, purges=True)},
        faults=1,
        kinds=LATE,
        **NAP,
    ),
}


def creation(actors: dict, **options) -> Scene:
    return scene(actors, ghost=Ghost(), files={}, **options)


def dropping(actors: dict, **options) -> Scene:
    """Return a scene in which the stream is dropped after three commits."""
    play = Play(scene({}, dates_commits=True))
    play.perform("past", writer("p1", "p2", "p3", **QUIET))
    past = {"files": play.state.files, "made": play.state.made, "ghost": play.ghost}
    return scene(actors, dates_commits=True, **past, **options)


@pytest.mark.parametrize(
    "title",
    [
        title if title in IN_A_CHANGE else pytest.param(title, marks=pytest.mark.slow)
        for title in SCENES
    ],
)
def test_every_order_keeps_the_promises(title):
    explored = explore(SCENES[title]())
    assert explored.ends


@pytest.mark.sweep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("title", SWEEPS)
def test_every_order_of_a_larger_scene_keeps_the_promises(title):
    explored = explore(SWEEPS[title](), most_states=20_000_000)
    assert explored.ends


# --- mutants -------------------------------------------------------------------------------------


def sleeper(log_class):
    return {"a": writer("a1", log_class=log_class), "c": purger(**QUIET)}


MUTANTS = {
    "no check of a late win": lambda: (
        scene(sleeper(NoLateCheck), **NAP),
        "acknowledged|by hint a newcomer finds SEG_MISSING_OBJECT",
    ),
    "a late win is never a commit's": lambda: (
        scene(
            {
                "a": writer("a1", log_class=TrustsItsHurry, **QUIET),
                "c": writer("c1", "c2", sleeps=HOURS, purges=True, **QUIET),
            },
            **NAP,
        ),
        "committed twice",
    ),
    "not found after a put is lost": lambda: (
        scene({"a": writer("a1", files_class=LosesToItself), "b": writer("b1")}, faults=1),
        "committed twice|committed once|given up",
    ),
    "a refusal is a loss": lambda: (
        scene({"a": writer("a1", files_class=TrustsRefusals), "b": writer("b1")}, faults=1),
        "committed twice|committed once|given up",
    ),
    "names are followed from a base of any age": lambda: (
        scene({"a": straggler("a1"), "r": looker(log_class=FollowsNames), "c": purger()}, **NAP),
        "r saw version",
    ),
    "neither age nor base is asked": lambda: (
        scene({"r": looker(log_class=FollowsNamesUnconfirming), "c": purger()}, **NAP),
        "r saw version . when 4 was the newest",
    ),
    "a loser stands on whatever took its slot": lambda: (
        scene(
            {
                "a": writer("a1", log_class=StandsOnAnything, **QUIET),
                "b": straggler("b1"),
                "c": purger(**QUIET),
            },
            **NAP,
        ),
        "acknowledged",
    ),
    "an open follows names from the hint": lambda: (
        scene(
            {
                "a": straggler("a1"),
                "h": hinter(0),
                "r": looker(fresh=True, log_class=FollowsTheHint),
                "c": purger(),
            },
            **NAP,
        ),
        "r saw version 1",
    ),
    "drop deletes all commits": lambda: (
        dropping({"a": writer("a1", **QUIET), "d": dropper("n", purges=purge_all)}),
        "was deleted|acknowledged",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("title", MUTANTS)
def test_some_order_breaks_a_protocol_that_lacks_a_rule(title):
    broken, text = MUTANTS[title]()
    with pytest.raises(Violation, match=text):
        explore(broken)


@pytest.mark.slow
def test_some_order_breaks_a_purge_that_keeps_no_version_more(monkeypatch):
    """A commit that slept between stamp and put would let its base go within the grace."""

    def plan(context, _root, older_than_s, _now_us):
        age_s = max(older_than_s, context.log.grace_s)
        kept = version_at(context.log, context.clock.wall_us() - int(age_s * 1e6))
        return kept.version if kept else context.log.root.log_start

    monkeypatch.setattr(deletion, "plan_log_start", plan)
    with pytest.raises(Violation, match="within its grace"):
        explore(SCENES["a sleeper, and one who commits and purges"]())
