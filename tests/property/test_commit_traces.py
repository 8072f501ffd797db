"""Traces that would lose or repeat a commit, each told step by step over the real code."""

import pytest
from actors import Actor
from commit_ghost import Ghost
from commit_programs import (
    HOURS,
    PUTS,
    FollowsNames,
    FollowsNamesUnconfirming,
    FollowsTheHint,
    TrustsAnyLoss,
    Unconfirming,
    commit,
    creator,
    looker,
    open_log,
    purge,
    scene,
    straggler,
    writer,
)
from interleaving import Play, Scene, Violation

from segstore_ds.format.names import Hint
from segstore_ds.log.stream_log import StreamLog


@pytest.fixture(autouse=True)
def no_upkeep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let scripts name each request: no commit moves rows of the history elsewhere."""
    monkeypatch.setattr("segstore_ds.status.table.HISTORY.rows", 1 << 20)
    monkeypatch.setattr("segstore_ds.status.table.HISTORY.hard", 1 << 20)


@pytest.fixture(autouse=True)
def few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the outcome of a commit be unknown as soon as in the models of all orders."""
    monkeypatch.setattr("segstore_ds.log.metadata_log.ADD_ATTEMPTS", PUTS)


def name(number: int) -> str:
    return f"log/{number:020d}"


def grown(versions: int, actors: dict, **options) -> Play:
    """Return a play whose actors start when the log has that many versions."""
    play = Play(scene({}))
    play.perform("past", writer(*(f"p{n}" for n in range(1, versions)), hints=False))
    return Play(scene(actors, files=play.state.files, ghost=play.ghost, **options))


def others(*, commits: int, more: int = 0):
    """Commit, let two hours pass, commit more, and purge what was superseded before."""

    def run(actor: Actor) -> None:
        log = open_log(actor)
        for number in range(commits):
            commit(actor, log, f"o{number}")
        actor.clock.sleep(HOURS)
        for number in range(commits, commits + more):
            commit(actor, log, f"o{number}")
        purge(log)

    return run


def slept_past_a_purge(until: str) -> Play:
    """(a) It reads root 41 and sleeps; others commit to 200 and purge below 150; it creates 42."""
    play = grown(42, {"a": writer("a1")})
    play.run("a", until=f"create {name(42)}")
    before = len(play.trace)
    play = grown(42, {"a": writer("a1")})
    while len(play.trace) < before - (until == "clock"):
        play.step("a")
    assert str(play.asks("a")).startswith(until)
    play.perform("others", others(commits=109, more=50))
    assert name(42) not in play.state.files
    assert min(play.state.files) == name(149)
    play.run("a")
    assert play.ghost.transactions[200] == "o158"
    assert name(42) in play.state.files  # nobody's commit, and no newcomer is misled by it
    return play


def test_writer_asleep_during_a_purge_commits_after_newest():
    play = slept_past_a_purge(until="clock")
    assert play.ghost.transactions[202:] == ["a1"]
    assert "a1" in play.ghost.acknowledged


def test_put_asleep_during_a_purge_learns_its_outcome():
    """Its slot was purged, but the history names the transaction that took the version."""
    play = slept_past_a_purge(until="create")
    assert play.ghost.transactions[202:] == []
    assert "a1" not in play.ghost.acknowledged
    assert "a1" in play.ghost.denied


def test_put_landing_after_an_empty_read_is_recognised():
    """(b) A put of 42 times out, reading 42 finds nothing, the put lands late."""
    play = grown(42, {"a": writer("a1")})
    play.run("a", until=f"create {name(42)}")
    play.step("a", "late")
    play.run("a", until=f"create {name(42)}")
    play.land()
    play.run("a")
    assert play.ghost.transactions[42:] == ["a1"]
    assert "a1" in play.ghost.acknowledged


def test_put_landing_after_giving_up_is_found_by_outcome():
    play = grown(42, {"a": writer("a1")})
    for _ in range(2):
        play.run("a", until=f"create {name(42)}")
        play.step("a", "late")
    play.run("a", until="list log")  # it asks for the outcome
    play.land()
    play.run("a")
    assert play.ghost.transactions[42:] == ["a1"]
    assert "a1" not in play.ghost.acknowledged


def test_refusal_without_a_winner_is_decided_by_reading():
    """(c) Two writers, one of them answered 409: it lost only if the slot holds another's bytes."""
    play = grown(42, {"a": writer("a1"), "b": writer("b1")})
    for actor in "ab":
        play.run(actor, until=f"create {name(42)}")
    play.step("a", "fail")
    play.run("b")
    play.run("a")
    assert play.ghost.transactions[42:] == ["b1", "a1"]
    play = grown(42, {"a": writer("a1"), "b": writer("b1")})
    play.run("a", until=f"create {name(42)}")
    play.step("a", "denied")
    play.run("a")
    play.run("b")
    assert play.ghost.transactions[42:] == ["a1", "b1"]
    assert play.ghost.acknowledged >= {"a1", "b1"}


def probed_while_purged(log_class) -> Play:
    play = grown(42, {"r": looker(log_class=log_class)})
    play.run("r", until="clock")
    play.perform("others", others(commits=20, more=1))
    play.run("r")
    return play


@pytest.mark.parametrize("log_class", [StreamLog, FollowsNames, Unconfirming])
def test_a_handle_whose_next_names_are_purged_finds_the_newest(log_class):
    """(d) A handle at 41 probes 42 while the log is purged past it. Either guard is enough."""
    play = probed_while_purged(log_class)
    assert play.ghost.tip > 42 + 20  # what the others committed was seen to land
    assert not play.ghost.looking  # the ghost has checked what the look saw


def test_handle_without_guards_takes_an_old_version_as_newest():
    with pytest.raises(Violation, match="saw version 41 when"):
        probed_while_purged(FollowsNamesUnconfirming)


def three_sleepers() -> Play:
    """Leave two names behind a purge that look like a log, and a hint to the first of them."""
    play = Play(scene({"a": writer("a1"), "b": writer("b1")}, check=lambda *_: None))
    play.run("b", until=f"create {name(1)}")
    play.run("a", until=f"create {name(1)}")
    play.step("a", "late")
    play.run("a")  # its second put makes version 1; its first one is still under way
    play.run("b", until=f"create {name(2)}")
    play.perform("others", others(commits=4, more=1))
    play.land()
    play.step("b")
    play.perform("hint", lambda actor: open_log(actor).files.write_hint(Hint(1)))
    assert {name(1), name(2)} < {*play.state.files}
    assert name(3) not in play.state.files
    return play


def test_commit_after_a_lost_hint_builds_on_the_newest():
    """Three sleepers can show a reader an old state, but no commit is built on it."""
    play = three_sleepers()
    play.perform("w", writer("w1", fresh=True))
    assert play.ghost.transactions[-1] == "w1"
    play = three_sleepers()
    with pytest.raises(Violation, match="acknowledged w1"):
        play.perform("w", writer("w1", fresh=True, log_class=FollowsTheHint))


def lost_to_a_leftover(log_class) -> Play:
    """Land a put late, purge what it made, and let another sleeper take the name again."""
    play = Play(scene({"a": writer("a1", log_class=log_class), "b": straggler("b1")}))
    play.run("a", until=f"create {name(1)}")
    play.step("a", "late")
    play.land()
    assert play.ghost.transactions == ["t0", "a1"]
    play.perform("others", others(commits=4, more=1))
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
    assert play.ghost.transactions == ["b0", "b1", "b2", "b3", "b-1", "a1"]


def test_version_superseded_by_a_late_put_keeps_its_grace():
    """The stamp of the put is old, the put is not; nothing below it may go but what lay there."""
    play = Play(scene({"a": writer("a1")}))
    play.perform("b", writer("b1", "b2"))
    play.run("a", until=f"create {name(1)}")
    play.run("a", until=f"create {name(3)}")
    play.sleep(HOURS)
    play.run("a")
    play.perform("purger", lambda actor: purge(open_log(actor)))
    assert min(play.state.files) == name(2)


def creation(actors: dict) -> Scene:
    return scene(actors, ghost=Ghost(), files={})
