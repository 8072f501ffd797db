"""Every order of two or three actors on one log: the real protocol, and mutants that must fail."""

import pytest
from actors import Actor
from commit_ghost import Ghost
from commit_programs import (
    HOURS,
    PUTS,
    FollowsNames,
    LosesToItself,
    NoLateCheck,
    StandsOnAnything,
    TrustsAnyLoss,
    commit,
    creator,
    dropper,
    hinter,
    looker,
    open_log,
    purge,
    purger,
    scene,
    straggler,
    writer,
)
from interleaving import Play, Scene, Violation, explore

from segstore_ds.log.lookup import version_at
from segstore_ds.log.stream_log import StreamLog
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
# Longer ones, by hand.
SWEEPS = {
    "three writers, three failures": lambda: scene(
        {"a": writer("a1"), "b": writer("b1"), "c": writer("c1", **QUIET)}, faults=2
    ),
    "two sleepers, a purge, a late put": lambda: scene(
        {"a": writer("a1", **QUIET), "b": straggler("b1"), "c": purger(**QUIET)},
        faults=1,
        kinds=LATE,
        **NAP,
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
        *IN_A_CHANGE,
        *(pytest.param(each, marks=pytest.mark.slow) for each in SCENES if each not in IN_A_CHANGE),
        *(pytest.param(each, marks=pytest.mark.sweep) for each in SWEEPS),
    ],
)
def test_every_order_keeps_the_promises(title):
    explored = explore((SCENES | SWEEPS)[title](), most_states=20_000_000)
    assert explored.ends


# --- orders that are told step by step -----------------------------------------------------------


def name(number: int) -> str:
    return f"log/{number:020d}"


def commit_and_purge(actor: Actor) -> None:
    """Commit, let two hours pass, commit once more, and purge what was superseded before."""
    log = open_log(actor)
    for number in range(4):
        commit(actor, log, f"o{number}")
    actor.clock.sleep(HOURS)
    commit(actor, log, "o4")
    purge(log)


def lost_to_a_leftover(log_class) -> Play:
    """Land a put late, purge what it made, and let another sleeper take the name again."""
    play = Play(scene({"a": writer("a1", log_class=log_class), "b": straggler("b1")}))
    play.run("a", until=f"create {name(1)}")
    play.step("a", "late")
    play.land()
    assert play.ghost.transactions == ["t0", "a1"]
    play.perform("others", commit_and_purge)
    play.run("b")
    play.run("a")
    return play


def test_slot_taken_after_a_purge_is_no_proof_of_loss():
    play = lost_to_a_leftover(StreamLog)
    assert "a1" not in {*play.ghost.acknowledged, *play.ghost.denied}
    with pytest.raises(Violation, match="a1 was committed twice"):
        lost_to_a_leftover(TrustsAnyLoss)


def test_creator_asleep_during_a_purge_creates_nothing():
    """Creating again the name that another stream has purged makes no stream."""
    play = Play(creation({"a": creator("a")}))
    play.run("a", until=f"create {name(0)}")
    play.perform("b", creator("b", sleeps=HOURS))
    assert name(0) not in play.state.files
    play.run("a")
    assert play.ghost.transactions[:4] == ["b0", "b1", "b2", "b3"]
    assert play.ghost.transactions[-1] == "a1"


# --- mutants -------------------------------------------------------------------------------------


def sleeper(log_class):
    return {"a": writer("a1", log_class=log_class), "c": purger(**QUIET)}


MUTANTS = {
    "no check of a late win": lambda: (
        scene(sleeper(NoLateCheck), **NAP),
        "acknowledged|by hint a newcomer finds SEG_MISSING_OBJECT",
    ),
    "not found after a put is lost": lambda: (
        scene({"a": writer("a1", files_class=LosesToItself), "b": writer("b1")}, faults=1),
        "committed twice|committed once|given up",
    ),
    "names are followed from a base of any age": lambda: (
        scene({"a": straggler("a1"), "r": looker(log_class=FollowsNames), "c": purger()}, **NAP),
        "r saw version",
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
