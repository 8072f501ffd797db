"""Processes that append and are killed with SIGKILL at random moments, many times over."""

import random
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from crash_children import BATCH_ROWS, SCHEMA, append_keyed, append_plain
from process_kit import messages, running

from segstore_ds.stream import Stream, create, open_on

LONGEST_PAUSE_S = 0.012  # about as long as an append takes


@pytest.mark.parametrize(
    "lives",
    [
        pytest.param(18, id="short"),
        pytest.param(300, id="long", marks=pytest.mark.sweep),
    ],
)
def test_acknowledged_events_survive_kills(tmp_path: Path, lives: int) -> None:
    """Each acknowledged event is there once and in order, however often its writer was killed."""
    url = str(tmp_path / "stream")
    stream = create(url, SCHEMA)
    chance = random.Random(20)
    acknowledged = {0: -1, 1: -1}
    programs = (append_keyed, append_plain)
    for _ in range(lives):
        with ExitStack() as stack:
            running_now = [
                # The keyed writer may repeat a committed batch; the plain one asks the stream.
                stack.enter_context(running(programs[writer], url, writer, last + 1))
                for writer, last in acknowledged.items()
            ]
            for writer, (child, pipe) in enumerate(running_now):
                for _ in range(chance.randint(1, 4)):
                    assert pipe.poll(60), "the child hangs"
                    acknowledged[writer] = pipe.recv()
                time.sleep(chance.random() * LONGEST_PAUSE_S)  # any moment of an append
                child.kill()
                for batch in messages(pipe):
                    acknowledged[writer] = batch
    _check(open_on(stream.storage), acknowledged)
    assert min(acknowledged.values()) >= lives


def _check(stream: Stream, acknowledged: dict[int, int]) -> None:
    rows = stream.read(offset_column="offset").read_all().to_pylist()
    assert [row["offset"] for row in rows] == list(range(len(rows)))
    for writer, last in acknowledged.items():
        numbers = [row["n"] for row in rows if row["writer"] == writer]
        assert numbers == list(range(len(numbers)))
        # One batch more may have landed without its acknowledgement.
        assert (last + 1) * BATCH_ROWS <= len(numbers) <= (last + 2) * BATCH_ROWS
    stream.verify().check()
