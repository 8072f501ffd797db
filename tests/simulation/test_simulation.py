"""Lives of a stream in virtual time: actors, faults, and judgement; one number replays each.

    pytest tests/simulation --seeds 1000-2000 --hours 24

A failure prints the command that replays it with the actors and the kinds of faults that it takes.

The engine and its libraries take four fifths of a life's CPU time, and the store, the threads and
the oracles one: 20 to 24 % in three lives of 8 hours, profiled thread by thread. So a harness that
cost nothing would live a quarter more operations in a second.
"""

import datetime as dt
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sim_mutants import MUTANTS, Mutant
from sim_store import KINDS
from simulation import CAST, Life, Outcome

HERE = Path(__file__).parent
QUICK = (12, 17)
SLOW = (11, *range(100, 104))
FRESH_S = (5.0, pytest.param(60.0, marks=pytest.mark.sweep))


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Leave the warnings about faults out, which thousands of them would repeat."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def live(
    seed: int,
    hours: float = 8.0,
    cast: tuple[str, ...] = tuple(CAST),
    kinds: tuple[str, ...] = tuple(KINDS),
) -> Outcome:
    """Run a life; a failure says how to replay it with no more than it takes."""
    try:
        return Life(seed, hours=hours, cast=cast, kinds=kinds).run()
    except AssertionError as error:
        cast, kinds = reduce_life(seed, hours, cast, kinds)
        error.add_note(
            f"replay: pytest tests/simulation --seeds {seed} --hours {hours:g} "
            f"--actors {','.join(cast)} --faults {','.join(kinds)}"
        )
        raise


def fails(seed: int, hours: float, cast: tuple[str, ...], kinds: tuple[str, ...]) -> bool:
    """Tell whether a life breaks a promise."""
    try:
        Life(seed, hours=hours, cast=cast, kinds=kinds).run()
    except AssertionError:
        return True
    return False


def reduce_life(
    seed: int, hours: float, cast: tuple[str, ...], kinds: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Leave out actors and kinds of faults, one after the other, while the life still fails."""
    for name in cast:
        fewer = tuple(other for other in cast if other != name)
        if fails(seed, hours, fewer, kinds):
            cast = fewer
    for kind in kinds:
        fewer = tuple(other for other in kinds if other != kind)
        if fails(seed, hours, cast, fewer):
            kinds = fewer
    return cast, kinds


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Take the seeds that were asked for."""
    if "asked_seed" in metafunc.fixturenames:
        first, _, last = metafunc.config.getoption("--seeds", default="").partition("-")
        unasked = [pytest.param(0, marks=pytest.mark.sweep)]
        seeds = range(int(first), int(last or first) + 1) if first else unasked
        metafunc.parametrize("asked_seed", seeds)


def test_asked_seeds_keep_every_promise(asked_seed: int, request: pytest.FixtureRequest) -> None:
    option = request.config.getoption
    cast = tuple(option("--actors").split(",")) if option("--actors") else tuple(CAST)
    kinds = tuple(KINDS) if option("--faults") is None else tuple(option("--faults").split(","))
    assert live(asked_seed, option("--hours"), cast, kinds).operations


@pytest.mark.parametrize("seed", QUICK)
def test_a_life_keeps_every_promise(seed: int) -> None:
    """Acknowledged events are there once, whole, in order; readers miss none; all actors end."""
    assert live(seed).operations > 100


@pytest.mark.slow
@pytest.mark.parametrize("seed", SLOW)
def test_more_lives_keep_every_promise(seed: int) -> None:
    live(seed)


@pytest.mark.parametrize("seconds", FRESH_S)
def test_lives_of_today_keep_every_promise(seconds: float) -> None:
    """Other seeds each day, as many as there is time for; it prints them."""
    seed = int(dt.datetime.now(dt.UTC).strftime("%Y%m%d")) * 1000
    began = time.process_time()
    while time.process_time() - began < seconds:
        print(f"seed {seed}")  # noqa: T201 - shown by `-rP`, or by a failure
        live(seed)
        seed += 1


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_broken_rule_is_noticed(mutant: Mutant) -> None:
    """Few lives of the actors concerned break a promise; `-rP` prints how many hours it took."""
    noticed = mutant.notice()
    print(noticed)  # noqa: T201 - the table of `-rP`
    assert noticed is not None


@pytest.mark.slow
def test_a_seed_replays_to_the_same_trace() -> None:
    """Two users' processes, whose sets are in other orders, live the same life by requests."""
    program = (
        "import sys, logging; from simulation import Life; logging.disable(50); "
        "print(Life(int(sys.argv[1]), hours=8).run().digest)"
    )
    for seed in (1, 103):  # the second one has the casts of other streams, too
        running = []
        for order in ("1", "2"):
            paths = os.pathsep.join(map(str, (HERE, HERE.parent, HERE.parent.parent)))
            environment = {**os.environ, "PYTHONHASHSEED": order, "PYTHONPATH": paths}
            environment["LOGNAME"] = "somebody" * int(order)  # on whatever machine it runs
            command = [sys.executable, "-c", program, str(seed)]
            running.append(
                subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
            )
        digests = [each.communicate()[0] for each in running]
        assert [each.returncode for each in running] == [0, 0]
        assert digests[0] == digests[1]
