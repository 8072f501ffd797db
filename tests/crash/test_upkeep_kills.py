"""Upkeep, compactions, redactions and copies in processes that are killed with SIGKILL."""

import signal
from pathlib import Path

import pytest
from process_kit import messages, running
from upkeep_programs import PROGRAMS, die_at_call, prepare

pytestmark = pytest.mark.slow

COPIES = {"copy_file_range"}
WRITES = {
    "upkeep": {"write"},
    "compact": {"writev"},
    "redact": {"writev"},
    "expire": {"writev"},
    "copy": COPIES,
    "copy-events": {"writev"},
    "materialize": COPIES,
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(
    "stride",
    [pytest.param(7, id="short"), pytest.param(1, id="long", marks=pytest.mark.sweep)],
)
def test_killed_upkeep_is_finished_by_the_next_run(folder: Path, name: str, stride: int) -> None:
    """What there was is whole, nothing in part is taken for a stream, and the next run ends it."""
    program = PROGRAMS[name]
    for kills, number in enumerate(range(1 + len(name) % stride, 1000, stride)):
        place = folder / str(number)
        before = prepare(place, program)
        with running(die_at_call, name, place, number) as (child, pipe):
            child.join(300)
            done = [*messages(pipe)]
        program.look(place, before)
        program.finish(place, before)
        if done:
            assert child.exitcode == 0
            assert kills > 1
            assert WRITES[name] & done[0], "no data was cut"
            return
        assert child.exitcode == -signal.SIGKILL
    pytest.fail("the program never ends")
