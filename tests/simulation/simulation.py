"""A life of a few streams: actors that use the engine as its users do, faults, and judgement."""

import gc
import importlib
import os
import pkgutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar
from unittest.mock import patch

import actors_damage
import actors_desk
import actors_lapse
import actors_promote
import actors_shape
from actors_copy import Copier, Home, Operator, Tenant
from actors_read import Consumer, Member, Reader
from actors_upkeep import Curator, Keeper, Redactor, Stranger, Truncater
from actors_write import Appender, Job, Overwriter, Sink, Writer
from sim_actor import SCHEMA, Actor, key_of, read_rows
from sim_bounds import Foreign, judge_stored
from sim_ledger import Ledger, Violation
from sim_store import KINDS, Faults, Store, open_sim
from sim_threads import engine_in
from sim_weather import Weather
from sim_world import HOUR_US, START_US, Process, Stuck, World

import segstore_ds
from segstore_ds.errors import (
    ClosedError,
    CommitUnknownError,
    ConflictError,
    FormatError,
    InternalError,
    InvalidInputError,
    SegstoreError,
    SnapshotExpiredError,
    StorageError,
    TruncatedError,
    UnderReplicatedError,
)
from segstore_ds.log.context import CLIENT_VARIABLE
from segstore_ds.log.late_hints import LATE_HINTS
from segstore_ds.log.metadata_log import Codec
from segstore_ds.storage import local_files
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.write import batch_plan

T = TypeVar("T")
END_S = 4 * 86_400.0  # within which every actor ends once all is calm
JUDGE_S = 40 * 86_400.0  # while upkeep waits until it may delete
DECODED_MOST = 5000

CAST: Mapping[str, type[Actor]] = {
    "append-1": Appender,
    "append-2": Appender,
    "write-1": Writer,
    "write-2": Writer,
    "read-1": Reader,
    "read-2": Reader,
    "consume": Consumer,
    "job": Job,
    "keep": Keeper,
    "keep-2": Keeper,
    "truncate": Truncater,
    "overwrite": Overwriter,
    "redact": Redactor,
    "follow": Operator,
    "member-1": Member,
    "member-2": Member,
    "copy": Copier,
    "tenant-1": Tenant,
    "tenant-2": Tenant,
    **actors_promote.CAST,
    **actors_damage.CAST,
    **actors_shape.CAST,
    "sink": Sink,
    **actors_lapse.CAST,
    "curate": Curator,
    "stranger": Stranger,
    **actors_desk.CAST,
}
# The chance that those who share another stream are in a life.
TROUPES = {"": 1.0, "pair": 0.3, "hurt": 0.1, "shape": 0.25, "lapse": 0.25, "desk": 0.25}


@dataclass
class Outcome:
    """What a run of a seed was: its counts and its trace."""

    seed: int
    hours: float
    operations: int
    requests: int
    faults: dict[str, int]
    digest: str
    trace: list[str] = field(default_factory=list)


def _load_engine() -> None:
    """Import every room: a world changes what is loaded when it begins."""
    for module in pkgutil.walk_packages(segstore_ds.__path__, "segstore_ds."):
        if not module.name.startswith(
            ("segstore_ds.spark", "segstore_ds.cli", "segstore_ds.serve")
        ):
            with suppress(ImportError):  # an extra that is not installed
                importlib.import_module(module.name)


@contextmanager
def _decoded_once() -> Iterator[None]:
    """Have all processes of a life share what they decode from the same bytes: it never changes."""
    plain, known = Codec.decode_file, dict[tuple[int, bytes, str], Any]()

    def decode_file(codec: Codec[Any], data: bytes, where: str) -> Any:
        key = id(codec), data, where
        if (found := known.get(key)) is None:
            if len(known) > DECODED_MOST:
                known.clear()
            found = known[key] = plain(codec, data, where)
        return found

    Codec.decode_file = decode_file  # type: ignore[method-assign]
    try:
        yield
    finally:
        Codec.decode_file = plain  # type: ignore[method-assign]


def _forget() -> None:
    """Drop what the engine remembers by location: the next life has streams at the same ones."""
    batch_plan._known.clear()
    LATE_HINTS._due.clear()
    local_files._JOBS.clear()


class Life:
    """One seed's life: which actors, which faults, how long.

    `cast` and `kinds` leave out actors and kinds of faults that the seed would draw.
    """

    def __init__(
        self,
        seed: int,
        *,
        hours: float,
        cast: Collection[str] = tuple(CAST),
        kinds: Collection[str] = KINDS,
        keep: int = 400,
    ) -> None:
        self.seed = seed
        self.world = World(seed, keep=keep)
        self.hours = hours
        chance = self.world.chance_of("life")
        far, rate = chance.random() < 0.7, chance.choice((0.0, 0.002, 0.01, 0.05))
        self.store = Store(self.world, far, Faults(rate, kinds=kinds))
        self.faulty = rate > 0
        self.url = "memory://stream"
        self.ledger = Ledger("stream")
        self.ending = False
        self.operations = 0
        self.shared: set[int] = set()  # what members were given
        self.confirmed: dict[int, int] = {}  # offset -> when a member had done it
        self.skipped, self.anew = 0, True  # what was dropped before; whether they begin anew
        self.home = Home(Ledger("let"))
        self.foreign = Foreign(self.store)
        self.states: dict[type, Any] = {}
        here = {name: self.world.chance_of(name).random() < TROUPES[name] for name in TROUPES}
        drawn = [name for name in CAST if chance.random() < CAST[name].share]
        self.actors = [
            CAST[name](self, name) for name in drawn if name in cast and here[CAST[name].troupe]
        ]

    def state(self, kind: type[T]) -> T:
        """Return what all actors of a kind know together."""
        made: T = self.states.setdefault(kind, kind())
        return made

    def run(self) -> Outcome:
        """Live to the end, and judge; raises Violation or Stuck."""
        world = self.world
        _load_engine()
        # Cycles are collected at moments that depend on what ran before, and close generators.
        gc.collect()
        gc.disable()
        disk = self.store.disk
        # Commits name their client: its length would decide where a bit of them flips.
        client = patch.dict(os.environ, {CLIENT_VARIABLE: "simulation"})
        with engine_in(world, os if disk is None else disk.os), _decoded_once(), client:
            try:
                self._live()
            except BaseException as error:
                error.add_note("\n".join(world.trace[-60:]))
                raise
            finally:
                world.close()
                _forget()
                gc.enable()
        faults = self.store.faults
        return Outcome(
            self.seed,
            (world.now_us - START_US) / HOUR_US,
            self.operations,
            self.store.requests,
            faults.counts,
            world.digest,
            world.trace,
        )

    def _live(self) -> None:
        world = self.world
        first = world.process("first")
        rate, self.store.faults.rate = self.store.faults.rate, 0.0
        world.spawn(first, lambda: self._create(first), "first")
        world.run(world.now_us + HOUR_US)
        self.store.faults.rate = rate
        weather = Weather(self)
        if self.faulty:
            weather.forecast()
        for actor in self.actors:
            actor.start()
        world.run(world.now_us + int(self.hours * HOUR_US))
        # All is calm from here on: every actor has to end within a bounded time.
        self.store.faults.rate = 0.0
        self.ending = True
        weather.calm()
        world.run(world.now_us + int(END_S * 1e6))
        left = [actor.name for actor in self.actors if not actor.finished]
        if left:
            raise Stuck(f"actors did not end: {left}")
        judge = world.process("judge")
        world.spawn(judge, lambda: self._judge(judge), "judge")
        world.run(world.now_us + int(JUDGE_S * 1e6))

    def _create(self, process: Process) -> None:
        create_on(open_sim(self.store, process, self.url), SCHEMA, clock=process.clock)

    def _judge(self, process: Process) -> None:
        self.judge_stream(process, self.url, self.ledger)
        self._judge_home(process)
        for actor in self.actors:
            actor.judge(process)
        bounds = self.ledger.redacted
        places = {**self.ledger.seen, **self.ledger.placed}.items()
        gone = {event for offset, event in places if offset < bounds.get(key_of(event), 0)}
        judge_stored(self, process, self.url, gone)
        self.judge_stream(process, self.url, self.ledger)
        self.foreign.judge()
        self.operations += 3

    def judge_stream(self, process: Process, url: str, ledger: Ledger) -> None:
        """Hold a whole stream and its followers against a ledger."""
        stream = open_on(open_sim(self.store, process, url), clock=process.clock)
        rows = read_rows(stream, stream.head, stream.tail)
        ledger.read(row[:2] for row in rows)
        ledger.check_values(rows, ledger.redacted)
        ledger.judge(stream.head, stream.tail, [row[1] for row in rows])
        report = stream.verify()
        if not report.ok:
            raise Violation(f"verify: {report.problems[:3]}")
        for follower in stream.followers:
            other = open_on(open_sim(self.store, process, follower), clock=process.clock)
            if read_rows(other, other.head, other.tail) != rows:
                raise Violation(f"the follower {follower} differs")
            if not (report := other.verify()).ok:
                raise Violation(f"verify of the follower: {report.problems[:3]}")

    def _judge_home(self, process: Process) -> None:
        if not self.home.kept or self.home.leaving:
            return
        stream = open_on(open_sim(self.store, process, self.url + "-let"), clock=process.clock)
        found = {row[:2] for row in read_rows(stream, stream.head, stream.tail)}
        lost = [each for each in self.home.kept if each not in found]
        if lost:
            raise Violation(f"acknowledged after the last drop, and gone: {lost[:3]}")

    def judge_error(self, actor: Actor, error: SegstoreError) -> None:
        """Raise Violation for an error that no fault explains."""
        added = "is not marked as a follower" in str(error.__cause__)  # it is being added
        if added or actor.expects(error):
            return
        jumped = actor.process is not None and actor.process.jumped
        if jumped and error.fact.startswith("this machine's clock differs"):
            return
        if isinstance(error, InternalError | InvalidInputError):
            raise Violation(f"{actor.name}: {error}") from error
        if isinstance(
            error, ConflictError | CommitUnknownError | SnapshotExpiredError | ClosedError
        ):
            return
        if isinstance(error, StorageError | UnderReplicatedError) and self.faulty:
            return
        # What is read ahead may have been spoiled long before it is asked for.
        if isinstance(error, FormatError) and actor.process is not None and actor.process.spoiled:
            return
        if isinstance(error, TruncatedError) and self.ledger.may_drop:
            return
        raise Violation(f"{actor.name}: {type(error).__name__}: {error}") from error
