"""Numbers through two sinks while the driver is killed again and again: each once, in order."""

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pytest
from checkpoints import clear_unborn, forget_newest_commit
from process_kit import spark_environment

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

    @contextmanager
    def driver(self, trigger: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run the driver in a group of processes of its own; all of it is killed at the end."""
        hops = []
        for number, checkpoint in enumerate(self.checkpoints):
            hops += [self.streams[number], self.streams[number + 1], f"file://{checkpoint}"]
        self.ready.unlink(missing_ok=True)
        paths = [str(HERE.parents[1]), str(HERE)]
        with (self.folder / "driver.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, DRIVER, trigger, str(self.rows), self.ready, *hops],
                env=spark_environment(
                    PYTHONPATH=os.pathsep.join(paths), PYSPARK_PYTHON=self.python
                ),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):  # it ended by itself
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    @property
    def ready(self) -> Path:
        return self.folder / "ready"

    def await_ready(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until the first query has begun."""
        limit = time.monotonic() + START_LIMIT_S
        while not self.ready.exists():
            assert process.poll() is None, (self.folder / "driver.log").read_text()[-3000:]
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
            assert code == 0, (self.folder / "driver.log").read_text()[-3000:]

    def await_numbers(self, count: int) -> None:
        """Wait until so many numbers have arrived behind the first sink."""
        limit = time.monotonic() + START_LIMIT_S
        numbers = [["n", ">=", 0]]
        while segstore.open(self.streams[1]).read(filters=numbers).read_all().num_rows < count:
            assert time.monotonic() < limit
            time.sleep(0.2)

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


def run_rounds(chain: Chain, rounds: int, *, forget: bool, seed: int) -> None:
    """Start the driver, kill it at a random moment, again and again; then run to the end."""
    run_killed(chain, rounds, forget=forget, seed=seed)
    chain.finish()
    chain.check()


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
            clear_unborn(checkpoint)
            if forget:
                forget_newest_commit(checkpoint)


@pytest.mark.smoke
@pytest.mark.timeout(1800)
def test_killed_driver_repeats_and_loses_nothing(tmp_path: Path, worker_python: str) -> None:
    """SIGKILL at random moments of the whole group: driver, JVM and workers."""
    chain = Chain(tmp_path, worker_python, rows=20)
    run_killed(chain, 1, forget=False, seed=7)
    run_rounds(chain, 1, forget=True, seed=8)


@pytest.mark.sweep
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("forget", [False, True], ids=["killed", "killed-and-commits-deleted"])
def test_driver_killed_thirty_times(tmp_path: Path, worker_python: str, forget: bool) -> None:
    """The long form."""
    run_rounds(
        Chain(tmp_path, worker_python, rows=7),
        30,
        forget=forget,
        seed=int(os.environ.get("SEED", "1")),
    )


class Folder(Chain):
    """Streams of numbers in a folder, which get more, and one sink behind all."""

    def __init__(self, folder: Path, python: str, *, rows: int) -> None:
        self.folder, self.python, self.rows = folder, python, rows
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

    def check(self) -> None:
        """Every number of every stream once, in order."""
        found = pa.table(segstore.open(self.streams[1]).scan())
        names = found["stream"].to_numpy(zero_copy_only=False)
        for number, source in enumerate(self.sources):
            mine = found.filter(pa.array(names == f"{number:03}"))
            assert mine["n"].to_pylist() == list(range(source.refresh().tail)), source.url


@pytest.mark.sweep
@pytest.mark.timeout(7200)
def test_driver_of_a_query_over_a_folder_is_killed(tmp_path: Path, worker_python: str) -> None:
    """Streams join meanwhile; each event of each arrives once."""
    folder = Folder(tmp_path, worker_python, rows=20)
    seed = int(os.environ.get("SEED", "1"))
    run_killed(folder, 3, forget=False, seed=seed)
    run_rounds(folder, 3, forget=True, seed=seed + 1)


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


def append_others(url: str, writer: int, stop: multiprocessing.Event) -> None:
    """Append events that are no numbers of the source until told to stop."""
    stream = segstore.open(url)
    while not stop.is_set():
        stream.append(pa.table({"n": [-writer]}, SCHEMA))
        stop.wait(0.05)  # as often as a batch's commit, not more: the second query reads it all


@pytest.mark.timeout(1800)
def test_upkeep_during_driver_kills_loses_nothing(tmp_path: Path, worker_python: str) -> None:
    """Both sources are compacted, truncated up to their reader and vacuumed at the same time."""
    chain = Chain(tmp_path, worker_python, rows=20)
    context = multiprocessing.get_context("spawn")
    stop, done = context.Event(), context.Queue()
    keeper = context.Process(target=keep_in_order, args=(chain.streams[:2], stop, done))
    keeper.start()
    try:
        chain.extend(300)  # so that it is killed in the middle
        run_killed(chain, 1, forget=False, seed=11)
        for number, checkpoint in enumerate(chain.checkpoints):
            if not chain.has_published(number):  # else no kill leaves it so
                forget_newest_commit(checkpoint)
        chain.finish()
        limit = time.monotonic() + START_LIMIT_S
        while not all(segstore.open(url).head for url in chain.streams[:2]):
            assert time.monotonic() < limit
            time.sleep(0.2)
    finally:
        stop.set()
        keeper.join()
    assert keeper.exitcode == 0
    counts = done.get(timeout=10)
    assert counts["compacted"] >= 1
    assert counts["truncated"] >= 2
    last = segstore.open(chain.streams[2])
    assert last.read().read_all()["n"].to_pylist() == list(range(chain.source.refresh().tail))
    for url in chain.streams:
        segstore.open(url).verify().check()


@pytest.mark.timeout(1800)
def test_lost_races_repeat_and_lose_nothing(tmp_path: Path, worker_python: str) -> None:
    """Three writers append to the same stream all the while, and the driver is killed once."""
    chain = Chain(tmp_path, worker_python, rows=1000)
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    others = [
        context.Process(target=append_others, args=(chain.streams[1], writer, stop))
        for writer in (1, 2, 3)
    ]
    for other in others:
        other.start()
    try:
        chain.extend(100)
        with chain.driver("forever") as process:
            chain.await_ready(process)
            chain.await_numbers(1)
        forget_newest_commit(chain.checkpoints[0])
        chain.extend(20)
        chain.finish()
        second = segstore.open(chain.streams[1])
        while not sum(second.history().read_all()["races_lost"].to_pylist()):
            time.sleep(0.2)
            second.refresh()
    finally:
        stop.set()
        for other in others:
            other.join()
    assert all(other.exitcode == 0 for other in others)
    chain.check()
    assert second.refresh().tail > chain.source.tail
