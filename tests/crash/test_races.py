"""Several processes at once, on one stream and for one name: on a disk and on real servers."""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from crash_children import BATCH_ROWS, SCHEMA, append_some, create_many
from fixtures_servers import FETCHES
from process_kit import running

from segstore_ds.stream.opening import create, open  # noqa: A004 - as the package has it

pytestmark = pytest.mark.slow

NAMES = 6


@dataclass(frozen=True)
class Races:
    """Where the races take place and how large they are; more than `lost` of them are lost."""

    place: str
    options: dict[str, Any] | None
    processes: int
    batches: int
    lost: int


@pytest.fixture(
    params=[
        "disk",
        *(pytest.param(name, marks=FETCHES) for name in ("minio", "azurite", "fake_gcs")),
    ]
)
def races(request: pytest.FixtureRequest, tmp_path: Path) -> Races:
    """Return a disk, or a bucket of a server, by turns."""
    if request.param == "disk":
        return Races(str(tmp_path), None, 8, 25, 8)
    server = request.getfixturevalue(request.param)
    return Races(server.new_bucket(), server.options, 4, 20, 0)


def test_processes_append_at_once(races: Races) -> None:
    """Nothing is lost, nothing is there twice, offsets are dense, each writer's order is kept."""
    url, batches = f"{races.place}/stream", races.batches
    stream = create(url, SCHEMA, storage_options=races.options)
    with ExitStack() as stack:
        pipes = [
            stack.enter_context(running(append_some, url, writer, batches, races.options))[1]
            for writer in range(races.processes)
        ]
        assert [pipe.recv() for pipe in pipes] == ["ready"] * races.processes
        for pipe in pipes:
            pipe.send("go")
        for pipe in pipes:
            assert [pipe.recv() for _ in range(batches)] == list(range(batches))
    rows = stream.refresh().read(offset_column="offset").read_all().to_pylist()
    assert [row["offset"] for row in rows] == list(range(races.processes * batches * BATCH_ROWS))
    for writer in range(races.processes):
        numbers = [row["n"] for row in rows if row["writer"] == writer]
        assert numbers == list(range(batches * BATCH_ROWS))
    report = stream.verify().check()
    assert report.rows == len(rows)
    assert report.leftovers == []  # whoever loses a race takes away what only it would have named
    history = stream.history().read_all()
    # Otherwise they came one after another.
    assert sum(history["races_lost"].to_pylist()) > races.lost


def test_processes_create_one_stream_at_once(races: Races) -> None:
    """Exactly one creates it, and the stream that is there is that one's."""
    urls = [f"{races.place}/stream-{number}" for number in range(NAMES)]
    with ExitStack() as stack:
        pipes = [
            stack.enter_context(running(create_many, urls, races.options))[1]
            for _ in range(races.processes)
        ]
        for url in urls:
            assert [pipe.recv() for pipe in pipes] == ["ready"] * races.processes
            for pipe in pipes:
                pipe.send("go")
            won = [stream_id for pipe in pipes if (stream_id := pipe.recv()) is not None]
            stream = open(url, storage_options=races.options)
            assert won == [stream._log.root.stream_id]
            stream.verify().check()
