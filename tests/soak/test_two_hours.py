"""Two hours of everything at once on a real S3 server, with faults, and a kill every minute.

`pytest -m soak` runs it; the variable SEGSTORE_SOAK_MINUTES makes it shorter. Objects can be seen
to stay only where it is longer than the hour for which the log keeps what was purged.
"""

import json
import logging
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from fault_proxy import Answer, FaultProxy, HttpFault, fault_proxy
from fixtures_servers import FETCHES
from s3fs.core import S3FileSystem
from soak_actors import ROLES, SCHEMA
from soak_query import ROWS

import segstore_ds as segstore

MINUTES = int(os.environ.get("SEGSTORE_SOAK_MINUTES", "120"))
# The first limit counts, for the test alone: fetching servers has a shorter one of its own.
LIMIT = pytest.mark.timeout((MINUTES + 20) * 60, func_only=True)
pytestmark = [pytest.mark.soak, LIMIT, *FETCHES]

LOG = logging.getLogger(__name__)
HERE = Path(__file__).parent
QUERIES = ("query-a", "query-b")
COMMANDS = dict.fromkeys(ROLES, "soak_actors.py") | dict.fromkeys(QUERIES, "soak_query.py")
MOST_GROWTH = 1.5  # of memory and objects, between the second and the last third
LEAST_MINUTES_OF_OBJECTS = 100
VERBS = ("GET", "PUT", "POST", "DELETE", "HEAD")
BUSY = Answer(503, b"<Error><Code>SlowDown</Code><Message>made by the tests</Message></Error>")
FAULTS = (HttpFault("refuse", BUSY, 2), HttpFault("lose", BUSY), HttpFault("cut", calls=2))


@dataclass
class Actor:
    """A process that is started again when it was killed, or ended by an error of the storage."""

    role: str
    plan: Path
    kills: int = 0
    ends: int = 0
    memory: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log = self.plan.parent / f"{self.role}.log"
        self.start()

    def start(self) -> None:
        """Start the process."""
        command = [sys.executable, str(HERE / COMMANDS[self.role]), self.role, str(self.plan)]
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def kill(self) -> None:
        """Kill it with all that it started."""
        for process in self.family():
            with suppress(psutil.NoSuchProcess):  # it ended by itself meanwhile
                process.kill()
        self.process.wait()

    def family(self) -> list[psutil.Process]:
        """Return the process and its children."""
        try:
            found = psutil.Process(self.process.pid)
            return [found, *found.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def look(self) -> None:
        """Note its memory; start it again where it has ended, unless its error is ours."""
        if self.process.poll() is None:
            self.memory.append(sum(resident(process) for process in self.family()))
            return
        # Spark gives a query up at an error that may be tried again; a supervisor starts it anew.
        text = self.log.read_text()
        assert self.role in QUERIES, f"{self.role} ended: {text[-3000:]}"
        assert "SEG_" in text, f"{self.role} ended, and not by the storage: {text[-3000:]}"
        self.ends += 1
        self.start()


def resident(process: psutil.Process) -> int:
    """Return a process's memory, 0 of one that is gone."""
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def grows(samples: list[int]) -> float:
    """Return the last third's median over the second's."""
    third = len(samples) // 3
    middle, last = (sorted(part) for part in (samples[third : 2 * third], samples[2 * third :]))
    return last[len(last) // 2] / max(middle[len(middle) // 2], 1)


def committed(checkpoint: Path) -> int:
    """Return how many batches a query's checkpoint says are done."""
    return 1 + max((int(p.name) for p in (checkpoint / "commits").glob("[0-9]*")), default=-1)


def disturb(actors: list[Actor], proxy: FaultProxy, count: Callable[[], int]) -> list[int]:
    """Let requests fail every two seconds and kill an actor every minute; return the counts."""
    chance, counts = random.Random(MINUTES), []
    until = time.monotonic() + MINUTES * 60
    kill_at = time.monotonic() + 60
    while time.monotonic() < until:
        proxy.arm(HttpFault(**{**vars(chance.choice(FAULTS)), "verbs": VERBS}))
        time.sleep(2)
        for actor in actors:
            actor.look()
        if time.monotonic() > kill_at:
            counts.append(count())
            killed = chance.choice(actors)
            killed.kill()
            killed.start()
            killed.kills += 1
            kill_at += 60
    proxy.arm(None)
    return counts


def test_nothing_is_lost_and_nothing_grows(minio, tmp_path) -> None:
    """Offsets are dense, each event is there once and in order, memory and objects stay."""
    url, follower = f"{minio.new_bucket()}/stream", f"{minio.new_bucket()}/follower"
    straight = segstore.create(url, SCHEMA, storage_options=minio.options, upkeep=None)
    straight.followers.add(follower)
    fs = S3FileSystem(**minio.options, use_listings_cache=False)
    plan = tmp_path / "plan.json"
    with fault_proxy(minio.endpoint) as proxy:
        behind = minio.behind(proxy.endpoint).options
        plan.write_text(json.dumps({"url": url, "options": behind}))
        actors = [Actor(role, plan) for role in COMMANDS]
        try:
            objects = disturb(actors, proxy, lambda: len(fs.find(url)))
            codes = [
                end(actor) for actor in sorted(actors, key=lambda actor: actor.role == "reader")
            ]
        finally:
            for actor in actors:
                actor.kill()
    growth = {actor.role: grows(actor.memory) for actor in actors}
    LOG.info("kills, ends: %s", {actor.role: (actor.kills, actor.ends) for actor in actors})
    LOG.info("growth of memory: %s; objects: %s", growth, objects)
    assert not any(codes), {actor.role: actor.log.read_text()[-1000:] for actor in actors}
    assert max(growth.values()) < MOST_GROWTH, growth
    assert MINUTES < LEAST_MINUTES_OF_OBJECTS or grows(objects) < MOST_GROWTH, objects
    straight.refresh()
    check_events(tmp_path, straight)
    there = segstore.open(follower, storage_options=minio.options)
    assert there.version == straight.version
    assert there.read().read_all().equals(straight.read().read_all())
    for stream in (straight, there):
        stream.verify().check()


def end(actor: Actor) -> int:
    """Let an actor end by itself; return how it did."""
    (actor.plan.parent / f"stop-{actor.role}").touch()
    return actor.process.wait(300)


def check_events(folder: Path, stream: segstore.Stream) -> None:
    """The reader has seen all that the writers and the checkpoints know of, and no more."""
    position, seen = json.loads((folder / "reader.json").read_text())
    assert position == stream.tail == sum(seen.values())
    for role in ("writer-a", "writer-b"):
        assert seen[role] == json.loads((folder / f"{role}.json").read_text())[1]
    for role in QUERIES:
        done = committed(folder / f"{role}-checkpoint") * ROWS
        # The sink may have a batch that the query was stopped before it noted.
        assert seen[role] in (done, done + ROWS), role
    assert stream.head > 0, "retention has forgotten something"
