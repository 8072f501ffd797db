"""Numbers through two sinks while the driver is killed again and again: each once, in order."""

import json
import multiprocessing
import os
import random
import subprocess
import time
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pytest
from checkpoints import forget_newest_commit
from sessions import running_group

import segstore_ds as segstore

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
DRIVER = str(HERE / "streaming_driver.py")
SCHEMA = pa.schema([("n", pa.int64())])
START_LIMIT_S = 600.0


class Chain:
    """A source of numbers, a stream behind it, and another one behind that."""

    def __init__(self, folder: Path, python: str, *, rows: int) -> None:
        self.folder = folder
        self.python = python
        self.rows = rows
        self.streams = [f"file://{folder}/{name}" for name in ("first", "second", "third")]
        self.checkpoints = [folder / "checkpoint-1", folder / "checkpoint-2"]
        self.source = segstore.create(self.streams[0], SCHEMA)
        for url in self.streams[1:]:
            segstore.create(url, SCHEMA)

    def extend(self, count: int) -> None:
        """Append the next numbers."""
        tail = self.source.refresh().tail
        self.source.append(pa.table({"n": list(range(tail, tail + count))}, SCHEMA))

    def driver(self, trigger: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
        """Run the driver in a group of processes of its own; all of it is killed at the end."""
        hops = []
        for number, checkpoint in enumerate(self.checkpoints):
            hops += [self.streams[number], self.streams[number + 1], f"file://{checkpoint}"]
        self.ready.unlink(missing_ok=True)
        command = [DRIVER, trigger, self.rows, self.ready, *hops]
        return running_group(command, self.folder, self.python)

    @property
    def ready(self) -> Path:
        return self.folder / "ready"

    def await_ready(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until the first query has begun."""
        limit = time.monotonic() + START_LIMIT_S
        while not self.ready.exists():
            assert process.poll() is None, (self.folder / "log").read_text()[-3000:]
            assert time.monotonic() < limit
            time.sleep(0.05)

    def finish(self) -> None:
        """Run both queries to their end."""
        runs = 1
        if find_spec("pyspark.sql.streaming.datasource") is None:
            # Before Spark 4.2 a run is one batch: first that of the kill, then all the rest.
            runs, self.rows = 2, 1_000_000
        for _ in range(runs):
            with self.driver("available") as process:
                code = process.wait(1500)
            assert code == 0, (self.folder / "log").read_text()[-3000:]

    def has_published(self, number: int) -> bool:
        """Tell whether a query's reader has passed the newest batch that Spark has committed."""
        checkpoint = self.checkpoints[number]
        readers = {seen.name: seen.record for seen in segstore.open(self.streams[number]).readers}
        done = [
            int(path.name) for path in (checkpoint / "commits").glob("*") if path.name.isdigit()
        ]
        if not done or not readers:
            return False
        end = json.loads((checkpoint / f"offsets/{max(done)}").read_text().splitlines()[-1])
        return readers[f"hop-{number}"].offset >= end["offset"]

    def check(self) -> None:
        """Every number once, in order, in both sinks."""
        expected = list(range(self.source.refresh().tail))
        for url in self.streams[1:]:
            stream = segstore.open(url)
            found = [n for n in stream.read().read_all()["n"].to_pylist() if n >= 0]
            assert found == expected, url
            stream.verify().check()


def run_killed(chain: Chain, rounds: int, *, forget: bool, seed: int) -> None:
    """Start the driver, kill it at a random moment, again and again."""
    chance = random.Random(seed)
    for _ in range(rounds):
        chain.extend(chance.randint(1, 60))
        with chain.driver("forever") as process:
            chain.await_ready(process)
            until = time.monotonic() + chance.uniform(0.0, 3.0)
            while time.monotonic() < until:
                chain.extend(chance.randint(1, 5))
                time.sleep(chance.uniform(0.0, 0.6))
        for checkpoint in chain.checkpoints:
            _clear_unborn(checkpoint)
            if forget:
                forget_newest_commit(checkpoint)


def _clear_unborn(checkpoint: Path) -> None:
    """Delete what a kill left of a query's first offset: Spark refuses to begin beside it."""
    left = [*(checkpoint / "offsets").glob("*")]
    if all(".tmp" in path.name for path in left):
        for path in left:
            path.unlink()


@pytest.mark.smoke
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kills", [1, pytest.param(15, marks=pytest.mark.sweep)])
def test_killed_driver_repeats_and_loses_nothing(tmp_path, worker_python, kills) -> None:
    """SIGKILL at random moments of the whole group: driver, JVM and workers."""
    chain = Chain(tmp_path, worker_python, rows=20)
    seed = int(os.environ.get("SEED", "7"))
    run_killed(chain, kills, forget=False, seed=seed)
    run_killed(chain, kills, forget=True, seed=seed + 1)
    chain.finish()
    chain.check()


class Folder(Chain):
    """Streams of numbers in a folder, which get more, and one sink behind all."""

    def __init__(self, folder: Path, python: str) -> None:
        self.folder, self.python, self.rows = folder, python, 20
        self.streams = [f"file://{folder}/sources/*", f"file://{folder}/sink"]
        self.checkpoints = [folder / "checkpoint"]
        self.sources: list[segstore.Stream] = []

    def extend(self, count: int) -> None:
        """Append the next numbers to one stream after the other, and sometimes begin a new one."""
        if len(self.sources) < 3 or count % 7 == 0:
            name = f"{len(self.sources):03}"
            self.sources.append(segstore.create(f"file://{self.folder}/sources/{name}", SCHEMA))
        source = self.sources[count % len(self.sources)]
        tail = source.refresh().tail
        source.append(pa.table({"n": list(range(tail, tail + count))}, SCHEMA))


@pytest.mark.sweep
@pytest.mark.timeout(7200)
def test_driver_of_a_query_over_a_folder_is_killed(tmp_path: Path, worker_python: str) -> None:
    """Streams join meanwhile; each event of each arrives once."""
    folder = Folder(tmp_path, worker_python)
    seed = int(os.environ.get("SEED", "1"))
    run_killed(folder, 3, forget=False, seed=seed)
    run_killed(folder, 3, forget=True, seed=seed + 1)
    folder.finish()
    found = segstore.open(folder.streams[1]).read().read_all().to_pylist()
    for number, source in enumerate(folder.sources):
        mine = [row["n"] for row in found if row["stream"] == f"{number:03}"]
        assert mine == list(range(source.refresh().tail)), source.url


def keep_in_order(
    urls: list[str], stop: multiprocessing.Event, done: multiprocessing.Queue
) -> None:
    """Compact, purge, vacuum and truncate behind the readers until told to stop."""
    counts = {"compacted": 0, "truncated": 0, "vacuumed": 0}
    while not stop.is_set():
        for number, url in enumerate(urls):
            stream = segstore.open(url)
            counts["compacted"] += stream.compact(target_rows=50).commits
            stream.maintain(keep="30d")
            report = stream.maintain(grace=60, short_grace=True)
            counts["vacuumed"] += len(report.deleted)
            if f"hop-{number}" in {reader.name for reader in stream.readers}:
                before = stream.head
                counts["truncated"] += stream.truncate(f"reader:hop-{number}") > before
        stop.wait(0.2)
    done.put(counts)


def append_others(url: str, stop: multiprocessing.Event) -> None:
    """Append events that are no numbers of the source until told to stop."""
    stream = segstore.open(url)
    while not stop.is_set():
        stream.append(pa.table({"n": [-1]}, SCHEMA))
        stop.wait(0.1)  # seldom enough: the second query reads it all


@pytest.mark.timeout(1800)
def test_upkeep_and_other_writers_during_driver_kills_lose_nothing(tmp_path, worker_python) -> None:
    """Both sources are compacted, truncated up to their reader and vacuumed at the same time.

    Others append to the stream between them all the while, and the query loses races to them.
    """
    chain = Chain(tmp_path, worker_python, rows=50)
    context = multiprocessing.get_context("spawn")
    stop, done = context.Event(), context.Queue()
    keeper = context.Process(target=keep_in_order, args=(chain.streams[:2], stop, done))
    other = context.Process(target=append_others, args=(chain.streams[1], stop))
    for process in (keeper, other):
        process.start()
    try:
        chain.extend(300)  # so that it is killed in the middle
        run_killed(chain, 1, forget=False, seed=11)
        for number, checkpoint in enumerate(chain.checkpoints):
            if not chain.has_published(number):  # else no kill leaves it so
                forget_newest_commit(checkpoint)
        chain.finish()
        second, limit = segstore.open(chain.streams[1]), time.monotonic() + START_LIMIT_S
        while not (
            all(segstore.open(url).head for url in chain.streams[:2])
            and any(second.refresh().history().read_all()["races_lost"].to_pylist())
        ):
            assert time.monotonic() < limit
            time.sleep(0.2)
    finally:
        stop.set()
        for process in (keeper, other):
            process.join()
    assert [process.exitcode for process in (keeper, other)] == [0, 0]
    counts = done.get(timeout=10)
    assert counts["compacted"] >= 1
    assert counts["truncated"] >= 2
    last = segstore.open(chain.streams[2])
    assert last.read().read_all()["n"].to_pylist() == list(range(chain.source.refresh().tail))
    for url in chain.streams:
        segstore.open(url).verify().check()
