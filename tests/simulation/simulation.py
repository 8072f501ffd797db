"""A life of a few streams: actors that use the engine as its users do, faults, and judgement."""

import gc
import importlib
import pkgutil
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pyarrow as pa
from sim_ledger import Batch, Ledger, Violation
from sim_store import KINDS, Faults, SimStorage, Store, open_sim
from sim_threads import engine_in
from sim_world import HOUR_US, START_US, Killed, Process, Stuck, World

import segstore_ds
from segstore_ds.errors import (
    AlreadyExistsError,
    ClosedError,
    CommitUnknownError,
    ConflictError,
    FencedError,
    FormatError,
    InternalError,
    InvalidInputError,
    NotFoundError,
    SegstoreError,
    SnapshotExpiredError,
    StorageError,
    TruncatedError,
    UnderReplicatedError,
)
from segstore_ds.retention.drop import run_drop
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout

SCHEMA = pa.schema(
    [("id", pa.string()), ("key", pa.string()), ("n", pa.int64()), ("email", pa.string())]
)
KEYS = ("ada", "bob", "eve", "kim")
THINK_S = (0.0, 0.01, 0.3, 5.0, 60.0, 900.0, 5400.0)
LAYOUTS = (
    None,
    Layout(inline_bytes=0, segment_format="arrow"),
    Layout(inline_bytes=0, segment_format="arrow", frame_rows=3, segment_rows=7),
    Layout(inline_bytes=0, segment_format="parquet"),
)
END_S = 4 * 86_400.0  # within which every actor ends once all is calm


def table_of(ids: tuple[str, ...], chance: Any) -> pa.Table:
    """Return events: each id has a key, a number, and a value that a redaction takes."""
    columns = [
        list(ids),
        [KEYS[sum(each.encode()) % len(KEYS)] for each in ids],
        [chance.randrange(1000) for _ in ids],
        [f"mail-of-{each}" for each in ids],
    ]
    return pa.table(columns, schema=SCHEMA)


class Actor:
    """One user of the streams; what it must remember after a kill it keeps in its attributes.

    `step` does one thing. A process that was killed begins again with `begin` after a while.
    """

    pace = 1.0  # its waits are so many times as long

    def __init__(self, life: "Life", name: str) -> None:
        self.life = life
        self.name = name
        self.ledger = life.ledger
        self.world = life.world
        self.chance = life.world.chance_of(f"actor {name}")
        self.starts = 0
        self.finished = False
        self.process: Process | None = None

    def start(self) -> None:
        """Begin a process, which may have a wrong clock."""
        self.starts += 1
        life = self.life
        skewed = life.faulty and self.chance.random() < 0.3
        self.process = self.world.process(
            f"{self.name}.{self.starts}",
            skew_us=self.chance.randrange(-20_000_000, 20_000_000) if skewed else 0,
            drift=self.chance.uniform(-1e-4, 1e-4) if skewed else 0.0,
        )
        self.world.spawn(self.process, self._live, self.name)

    def _live(self) -> None:
        assert self.process is not None
        try:
            self._insist(self.begin)
            while not self.life.ending:
                self.world.sleep(self.pace * self.chance.choice(THINK_S) * self.chance.random())
                if not self.life.ending:
                    self._try(self.step)
            self._insist(self.finish)
            self.finished = True
        except Killed:
            self.process.kill()
            wait_s = self.chance.choice((0.1, 5.0, 300.0, 20_000.0))
            self.world.at(self.world.now_us + int(wait_s * 1e6), self.start)
            raise

    def _insist(self, work: Callable[[], None]) -> None:
        while not self._try(work):
            self.world.sleep(self.chance.random() * 10)

    def _try(self, work: Callable[[], None]) -> bool:
        self.life.operations += 1
        try:
            work()
        except SegstoreError as error:
            self.world.note(f"{self.name}: {type(error).__name__}: {error.fact}")
            self.life.judge_error(self, error)
            return False
        return True

    # --- what an actor is ---------------------------------------------------------------------

    def begin(self) -> None:
        """Open what a process needs."""
        self.stream = self.open()

    def step(self) -> None:
        """Do one thing."""
        raise NotImplementedError

    def finish(self) -> None:
        """Do what must be done before the end; tried again until it works."""

    def open(self, url: str = "") -> Stream:
        """Open a stream in this process."""
        assert self.process is not None
        return open_on(self.storage(url), clock=self.process.clock)

    def storage(self, url: str = "") -> SimStorage:
        """Connect this process to a folder."""
        assert self.process is not None
        return open_sim(self.life.store, self.process, url or self.life.url)


class Appender(Actor):
    """Appends batches, and gives up a batch that failed."""

    sent = 0

    def step(self) -> None:
        if self.chance.random() < 0.1:
            self.stream = self.open()
        self.sent += 1
        count = self.chance.choice((1, 1, 2, 5, 20))
        ids = tuple(f"{self.name}:{self.sent}:{place}" for place in range(count))
        batch = self.ledger.begin(ids, replaces=self.replaces())
        write = self.stream.overwrite if batch.replaces else self.stream.append
        try:
            done = write(table_of(ids, self.chance), layout=self.chance.choice(LAYOUTS))
        except SegstoreError as error:
            if not maybe_committed(error):
                self.ledger.fail(batch)
            raise
        self.ledger.ack(batch, done.start, done.end)

    def replaces(self) -> bool:
        """Tell whether the next batch overwrites."""
        return False


class Job(Actor):
    """Plans a write, stages it as a task of another process would, and commits it much later."""

    pace = 5.0
    number = 0

    def step(self) -> None:
        self.number += 1
        ids = tuple(f"{self.name}:{self.number}:{place}" for place in range(6))
        batch = self.ledger.begin(ids)
        try:
            job = self.stream.plan_write(SCHEMA, layout=Layout(inline_bytes=0, segment_rows=3))
            task = job.open_task(0, f"try{self.number}")
            for rows in table_of(ids, self.chance).to_batches(max_chunksize=2):
                task.append(rows)
            staged = task.finish()
            self.world.sleep(self.chance.choice((0.0, 60.0, 7200.0, 100_000.0)))
            done = self.stream.commit(job, [staged])
        except SegstoreError as error:
            if not maybe_committed(error):
                self.ledger.fail(batch)
            raise
        self.ledger.ack(batch, done.start, done.end)


class Overwriter(Appender):
    """Overwrites now and then."""

    pace = 20.0

    def replaces(self) -> bool:
        return True


class Writer(Actor):
    """An idempotent writer: repeats a batch until it is acknowledged, also after a kill."""

    number = 0
    batch: Batch | None = None

    def step(self) -> None:
        if self.batch is None:
            count = self.chance.choice((1, 3, 10))
            self.number += 1
            ids = tuple(f"{self.name}:{self.number}:{place}" for place in range(count))
            self.batch = self.ledger.begin(ids, writer=self.name)
        rows = table_of(self.batch.ids, _Same())
        done = self.stream.append(
            rows, writer_id=self.name, batch_id=self.number, layout=self.chance.choice(LAYOUTS)
        )
        self.ledger.ack(self.batch, done.start, done.end)
        if self.chance.random() < 0.8:  # else it forgets that it was answered
            self.batch = None

    def finish(self) -> None:
        if self.batch is not None:
            self.stream = self.open()
            self.step()
            self.batch = None


class _Same:
    """Numbers that are the same whenever a batch is made again."""

    def randrange(self, _: int) -> int:
        return 7


class Reader(Actor):
    """Looks at the tail, and reads ranges in every way."""

    def step(self) -> None:
        floor, redacted = self.ledger.floor, dict(self.ledger.redacted)
        if self.chance.random() < 0.1:
            self.stream = self.open()
        else:
            self.stream.refresh()
        self.ledger.check_tail(floor, self.stream.tail)
        head, tail = self.stream.head, self.stream.tail
        start = self.chance.randrange(head, tail + 1) if self.chance.random() < 0.7 else head
        end = min(tail, start + self.chance.choice((1, 10, 1000)))
        rows = read_rows(self.stream, start, end)
        self.ledger.read(row[:2] for row in rows)
        self.ledger.check_values(rows, redacted)


class Consumer(Actor):
    """Follows by a named reader: nothing may be left out, and at most the last batch repeated."""

    done = confirmed = 0  # up to where it got events, and up to where it surely published that
    follow: Any = None

    def begin(self) -> None:
        super().begin()
        self.follow = None

    def step(self) -> None:
        if self.follow is None or self.chance.random() < 0.05:
            try:
                self.follow = self.stream.follow(
                    self.name, timeout=0, offset_column="offset", columns=["id"]
                )
            except TruncatedError:
                self.skip()
                return
        for _ in range(self.chance.choice((1, 3, 50))):
            try:
                batch = next(self.follow, None)
            except TruncatedError:
                self.skip()
                return
            except SegstoreError:
                self.follow = None
                raise
            self.confirmed = self.done
            if batch is None:
                self.follow = None
                break
            offsets = batch.column("offset").to_pylist()
            if offsets[0] > max(self.done, self.ledger.forced):
                raise Violation(f"{self.name}: got {offsets[0]} after {self.done}")
            rows = zip(offsets, batch.column("id").to_pylist(), strict=True)
            self.ledger.read(rows)
            self.done = self.ledger.readers[self.name] = max(self.done, offsets[-1] + 1)

    def skip(self) -> None:
        """Go on at the head, if somebody asked for events to be dropped that were not read."""
        if self.ledger.forced <= self.confirmed:
            raise Violation(f"{self.name}: events from {self.confirmed} on are gone, unasked")
        self.stream.refresh()
        self.stream.readers.release(self.name)
        self.stream.readers.register(self.name, start="head")
        self.done, self.follow = max(self.done, self.stream.head), None
        self.ledger.readers[self.name] = self.done

    def finish(self) -> None:
        self.stream.refresh()
        while self.done < self.stream.tail:
            self.step()


class Member(Actor):
    """One of those that share a named reader: together they miss nothing."""

    group = "team"
    follow: Any = None

    def begin(self) -> None:
        super().begin()
        self.follow = None

    def step(self) -> None:
        try:
            if self.follow is None:
                self.join()
            for batch in islice(self.follow, self.chance.choice((1, 3, 50))):
                offsets = batch.column("offset").to_pylist()
                self.ledger.read(zip(offsets, batch.column("id").to_pylist(), strict=True))
                self.life.shared.update(offsets)
                self.note_progress()
        except TruncatedError:
            self.skip()
        except SegstoreError:
            self.follow = None
            raise
        else:
            if self.chance.random() < 0.3:
                follow, self.follow = self.follow, None
                follow.close()

    def join(self) -> None:
        """Become a member, perhaps the first."""
        self.follow = self.stream.follow(
            self.group,
            member=self.name,
            lease=self.chance.choice((5, 30, 600)),
            timeout=0,
            offset_column="offset",
            columns=["id"],
        )
        if self.life.anew:  # it begins at the head, which may have moved on
            rows = pa.table(self.stream.metadata("readers")).to_pylist()
            starts = [row["offset"] for row in rows if row["name"] == self.group]
            self.life.skipped = max([self.life.skipped, *filter(None, starts)])
            self.life.anew = False
            self.note_progress()

    def note_progress(self) -> None:
        """Note up to where all events were given to a member."""
        done = self.ledger.readers.get(self.group, 0)
        while done in self.life.shared or done < self.life.skipped:
            done += 1
        self.ledger.readers[self.group] = done

    def skip(self) -> None:
        """Begin anew at the head, if somebody asked for events to be dropped that were not read."""
        if not self.ledger.forced:
            raise Violation(f"{self.name}: events are gone, and nobody asked")
        self.stream.refresh()
        self.life.anew = True
        self.stream.readers.release(self.group)
        self.life.skipped = max(self.life.skipped, self.stream.head)
        self.note_progress()
        self.follow = None

    def finish(self) -> None:
        self.stream.refresh()
        self.life.skipped = max(self.life.skipped, min(self.stream.head, self.ledger.forced))
        self.note_progress()
        while self.ledger.readers[self.group] < self.stream.tail:
            self.step()
            self.world.sleep(60 + 600 * self.chance.random())
            self.note_progress()
        if self.follow is not None:
            self.follow.close()


class Copier(Actor):
    """Copies the stream in every way, checks the copy, and drops it or makes it independent."""

    pace = 20.0
    number = 0
    asked: tuple[str, str] | None = None
    done: bool = False

    def step(self) -> None:
        if self.asked is None:
            self.number += 1
            self.asked = f"c{self.number}", self.chance.choice(("clone", "segments", "events"))
            self.done = False
        name, mode = self.asked
        url = f"{self.life.url}-{name}"
        if not self.done:
            floor = self.ledger.floor
            target: Any = self.storage(url)
            copied = self.stream.copy_to(target, copy_id=name, mode=mode)
            if not copied.repeated and mode != "events":
                self.ledger.check_tail(floor, copied.end)
            self.done = True
        try:
            copy = self.open(url)
        except NotFoundError:
            self.asked = None  # a process that was killed has dropped it
            return
        if mode == "clone" and self.chance.random() < 0.3:
            copy.materialize()
        rows = read_rows(copy, copy.head, copy.tail)
        if mode != "events":
            self.ledger.read(row[:2] for row in rows)
        if self.chance.random() < 0.5:
            assert self.process is not None
            run_drop(self.storage(url), confirm=url, clock=self.process.clock, client="")
            self.asked = None

    def finish(self) -> None:
        """Leave what is there: nobody waits for it."""


class Tenant(Actor):
    """Uses a stream that is dropped and created again, each time under the same location."""

    pace = 3.0
    number = 0

    def begin(self) -> None:
        self.stream = None

    def step(self) -> None:
        url, home = self.life.url + "-let", self.life.home
        assert self.process is not None
        try:
            if self.stream is None:
                self.stream = self.open(url)
            what = self.chance.random()
            if what < 0.06:
                home.leaving = True
                run_drop(self.storage(url), confirm=url, clock=self.process.clock, client="")
                home.left(self.world.now_us)
            elif what < 0.6:
                self.number += 1
                ids = (f"{self.name}:{self.number}:0",)
                began, batch = self.world.now_us, home.ledger.begin(ids)
                done = self.stream.append(table_of(ids, self.chance))
                home.acked(batch, done, began)
            else:
                self.stream.refresh()
                read_rows(self.stream, self.stream.head, self.stream.tail)
        except NotFoundError:
            self.stream = None
            with suppress(AlreadyExistsError):
                create_on(self.storage(url), SCHEMA, clock=self.process.clock)
        except SegstoreError:
            self.stream = None
            raise


@dataclass
class Home:
    """What tenants know of the location that they share: what was acknowledged since it was let."""

    ledger: Ledger
    since_us: int = 0
    kept: list[tuple[int, str]] = field(default_factory=list)
    leaving: bool = False

    def left(self, now_us: int) -> None:
        """Note that it was dropped: what was acknowledged before is gone."""
        self.since_us, self.leaving = now_us, False
        self.kept.clear()

    def acked(self, batch: Batch, done: Any, began_us: int) -> None:
        """Note an event that was acknowledged, if no drop can have come between."""
        batch.state = "acked"
        if began_us > self.since_us and not self.leaving:
            self.kept.append((done.start, batch.ids[0]))


class Keeper(Actor):
    """Looks after the stream: compaction, maintenance, retention, tags."""

    pace = 4.0

    def step(self) -> None:
        what = self.chance.choice((self.compact, self.maintain, self.retain, self.tag, self.verify))
        what()

    def compact(self) -> None:
        mode = self.chance.choice(("merge", "merge", "stitch", "split"))
        self.stream.compact(mode=mode, target_rows=self.chance.choice((10, 100, 10_000)))

    def maintain(self) -> None:
        how = self.chance.choice(({}, {"keep": "1h"}, {"keep": "1h", "grace": "24h"}))
        self.stream.maintain(**how)

    def retain(self) -> None:
        self.ledger.retains = True
        self.stream.retain()  # what every live reader is done with

    def tag(self) -> None:
        with suppress(NotFoundError, TruncatedError):
            self.stream.tags.set(self.chance.choice("ab"), move=True)

    def verify(self) -> None:
        assert self.process is not None
        spoiled = self.process.spoiled
        report = self.stream.verify()
        if not report.ok and self.process.spoiled == spoiled:
            raise Violation(f"verify: {report.problems[:3]}")


class Truncater(Actor):
    """Truncates now and then, whatever readers need."""

    pace = 30.0

    def step(self) -> None:
        self.stream.refresh()
        cut = self.chance.randrange(self.stream.head, self.stream.tail + 1)
        cut = min(cut, self.stream.head + 50)
        self.ledger.drop(cut)
        self.stream.truncate(cut)


class Redactor(Actor):
    """Redacts the values of a key; an interrupted call goes on under its id."""

    pace = 30.0
    number = 0
    asked: tuple[str, str] | None = None

    def step(self) -> None:
        if self.asked is None:
            self.number += 1
            self.asked = self.chance.choice(KEYS), f"r{self.number}"
        key, name = self.asked
        self.ledger.maybe_redacted.add(key)
        done = self.stream.redact([["key", "==", key]], columns=["email"], redact_id=name)
        bound = max(self.ledger.redacted.get(key, 0), done.tail)
        self.ledger.redacted[key], self.asked = bound, None

    def finish(self) -> None:
        if self.asked is not None:
            self.step()


class Operator(Actor):
    """Adds followers, and removes them."""

    pace = 10.0
    number = 0

    def step(self) -> None:
        url = f"{self.life.url}-copy-{self.number}"
        self.stream.refresh()
        if url not in self.stream.followers:
            try:
                self.stream.followers.add(url)
            except AlreadyExistsError:
                self.number += 1  # it was removed long ago
        elif self.chance.random() < 0.2:
            self.stream.followers.remove(url)


def read_rows(stream: Stream, start: int, end: int) -> list[tuple[int, str, str, str | None]]:
    """Read events with their offsets."""
    found = stream.read(
        start, end, columns=["id", "key", "email"], offset_column="offset"
    ).read_all()
    columns = [found[name].to_pylist() for name in ("offset", "id", "key", "email")]
    rows = [*zip(*columns, strict=True)]
    if [row[0] for row in rows] != [*range(start, end)]:
        raise Violation(f"read [{start}, {end}) gave offsets {[row[0] for row in rows][:5]}...")
    return rows


def maybe_committed(error: SegstoreError) -> bool:
    """Tell whether a write may be in the log although it raised."""
    return isinstance(error, CommitUnknownError | UnderReplicatedError | FencedError)


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
}


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
        kinds: Collection[str] = tuple(KINDS),
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
        self.skipped, self.anew = 0, True  # what was dropped before; whether they begin anew
        self.home = Home(Ledger("let"))
        drawn = [name for name in CAST if chance.random() < 0.7]
        self.actors = [CAST[name](self, name) for name in drawn if name in cast]

    def run(self) -> Outcome:
        """Live to the end, and judge; raises Violation or Stuck."""
        world = self.world
        _load_engine()
        # Cycles are collected at moments that depend on what ran before, and close generators.
        gc.collect()
        gc.disable()
        with engine_in(world):
            try:
                self._live()
            except BaseException as error:
                error.add_note("\n".join(world.trace[-60:]))
                raise
            finally:
                world.close()
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
        for actor in self.actors:
            actor.start()
        world.run(world.now_us + int(self.hours * HOUR_US))
        # All is calm from here on: every actor has to end within a bounded time.
        self.store.faults.rate = 0.0
        self.ending = True
        world.run(world.now_us + int(END_S * 1e6))
        left = [actor.name for actor in self.actors if not actor.finished]
        if left:
            raise Stuck(f"actors did not end: {left}")
        judge = world.process("judge")
        world.spawn(judge, lambda: self._judge(judge), "judge")
        world.run(world.now_us + int(END_S * 1e6))

    def _create(self, process: Process) -> None:
        create_on(open_sim(self.store, process, self.url), SCHEMA, clock=process.clock)

    def _judge(self, process: Process) -> None:
        stream = open_on(open_sim(self.store, process, self.url), clock=process.clock)
        rows = read_rows(stream, stream.head, stream.tail)
        self.ledger.read(row[:2] for row in rows)
        self.ledger.check_values(rows, self.ledger.redacted)
        self.ledger.judge(stream.head, stream.tail, [row[1] for row in rows])
        report = stream.verify()
        if not report.ok:
            raise Violation(f"verify: {report.problems[:3]}")
        for url in stream.followers:
            other = open_on(open_sim(self.store, process, url), clock=process.clock)
            if read_rows(other, other.head, other.tail) != rows:
                raise Violation(f"the follower {url} differs")
            if not (report := other.verify()).ok:
                raise Violation(f"verify of the follower: {report.problems[:3]}")
        self._judge_home(process)
        self.operations += 3

    def _judge_home(self, process: Process) -> None:
        if not self.home.kept:
            return
        stream = open_on(open_sim(self.store, process, self.url + "-let"), clock=process.clock)
        found = {row[:2] for row in read_rows(stream, stream.head, stream.tail)}
        lost = [each for each in self.home.kept if each not in found]
        if lost and not self.home.leaving:
            raise Violation(f"acknowledged after the last drop, and gone: {lost[:3]}")

    def judge_error(self, actor: Actor, error: SegstoreError) -> None:
        """Raise Violation for an error that no fault explains."""
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
