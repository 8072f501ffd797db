"""The explorer of interleavings leaves out orders that make no difference, and no other one."""

from interleaving import Scene, explore


def seer(actor):
    """Leave an object that says whether `x` was there."""
    actor.note("ready")
    there = [info.path for info in actor.storage.list("x")]
    actor.storage.create(f"saw/{len(there)}", b"")


def maker(actor):
    """Make `x` after two reads that nobody changes, so that this write comes to light late."""
    actor.note("ready")
    for _ in range(2):
        list(actor.storage.list("y"))
    actor.storage.create("x/1", b"")


def looker(actor):
    """Read what nobody writes."""
    actor.note("ready")
    for _ in range(3):
        list(actor.storage.list("y"))


def contents(**actors):
    """Return what lies there at some time in some order, and what was covered."""
    found = set()

    def check(files, _now_s, _ghost):
        found.add(frozenset(files))

    explored = explore(Scene(actors, None, lambda ghost, _event: ghost, check))
    return found, explored


def test_a_read_comes_before_and_after_a_write_that_was_not_known_at_first():
    for actors in ({"s": seer, "m": maker}, {"m": maker, "s": seer}):
        found, _ = contents(**actors)
        assert {frozenset({"x/1", "saw/0"}), frozenset({"x/1", "saw/1"})} <= found


def test_reads_that_nobody_changes_have_one_order():
    assert contents(a=looker, b=looker)[1].states == 1
