"""Eight processes at once, on one stream and for one name."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from crash_children import BATCH_ROWS, SCHEMA, append_some, create_many
from process_kit import running

from segstore_ds.stream import create, open  # noqa: A004 - as the package has it

pytestmark = pytest.mark.slow

PROCESSES = 8
BATCHES = 25
NAMES = 6


def test_processes_append_at_once(tmp_path: Path) -> None:
    """Nothing is lost, nothing is there twice, offsets are dense, each writer's order is kept."""
    url = str(tmp_path / "stream")
    stream = create(url, SCHEMA)
    with ExitStack() as stack:
        pipes = [
            stack.enter_context(running(append_some, url, writer, BATCHES))[1]
            for writer in range(PROCESSES)
        ]
        assert [pipe.recv() for pipe in pipes] == ["ready"] * PROCESSES
        for pipe in pipes:
            pipe.send("go")
        for pipe in pipes:
            assert [pipe.recv() for _ in range(BATCHES)] == list(range(BATCHES))
    rows = stream.refresh().read(offset_column="offset").read_all().to_pylist()
    assert [row["offset"] for row in rows] == list(range(PROCESSES * BATCHES * BATCH_ROWS))
    for writer in range(PROCESSES):
        numbers = [row["n"] for row in rows if row["writer"] == writer]
        assert numbers == list(range(BATCHES * BATCH_ROWS))
    report = stream.verify().check()
    assert report.rows == len(rows)
    assert report.leftovers == []  # whoever loses a race takes away what only it would have named
    history = stream.history().read_all()
    assert sum(history["races_lost"].to_pylist()) > PROCESSES  # or they came one after another


def test_processes_create_one_stream_at_once(tmp_path: Path) -> None:
    """Exactly one creates it, and the stream that is there is that one's."""
    urls = [str(tmp_path / f"stream-{number}") for number in range(NAMES)]
    with ExitStack() as stack:
        pipes = [stack.enter_context(running(create_many, urls))[1] for _ in range(PROCESSES)]
        for url in urls:
            assert [pipe.recv() for pipe in pipes] == ["ready"] * PROCESSES
            for pipe in pipes:
                pipe.send("go")
            won = [stream_id for pipe in pipes if (stream_id := pipe.recv()) is not None]
            assert won == [open(url).stream_id]
            open(url).verify().check()


def test_children_of_the_races_report_errors(tmp_path: Path) -> None:
    """A child that fails ends its pipe, so that no race is won by silence."""
    with running(append_some, str(tmp_path / "nothing"), 0, 1) as (child, pipe):
        with pytest.raises(EOFError):
            pipe.recv()
        child.join()
        assert child.exitcode == 1
