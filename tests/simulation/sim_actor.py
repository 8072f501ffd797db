"""What an actor of the simulation is, and the events that actors write and read."""

from collections.abc import Callable
from traceback import clear_frames
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sim_ledger import Violation
from sim_store import open_sim
from sim_world import Killed, Process

from segstore_ds.errors import (
    CommitUnknownError,
    FencedError,
    SegstoreError,
    UnderReplicatedError,
)
from segstore_ds.log.clock import Clock
from segstore_ds.storage.checked import CheckedStorage
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout

if TYPE_CHECKING:
    from simulation import Life

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


def key_of(event: str) -> str:
    """Return the key that an event has."""
    return KEYS[sum(event.encode()) % len(KEYS)]


def table_of(ids: tuple[str, ...], chance: Any = None) -> pa.Table:
    """Return events: each id has a key, a number, and a value that a redaction takes.

    Without a `chance` it is the same whenever a batch is made again.
    """
    columns = [
        list(ids),
        [key_of(each) for each in ids],
        [7 if chance is None else chance.randrange(1000) for _ in ids],
        [f"mail-of-{each}" for each in ids],
    ]
    return pa.table(columns, schema=SCHEMA)


class Actor:
    """One user of the streams; what it must remember after a kill it keeps in its attributes.

    `step` does one thing. A process that was killed begins again with `begin` after a while.
    """

    pace = 1.0  # its waits are so many times as long
    troupe = ""  # those who share another stream, and are in a life together
    share = 0.7  # the chance that it is in a life

    def __init__(self, life: "Life", name: str) -> None:
        self.life = life
        self.name = name
        self.ledger = life.ledger
        self.url = life.url
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
            _let_go(error)
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

    def expects(self, _error: SegstoreError) -> bool:
        """Tell whether an error is part of what it does."""
        return False

    def judge(self, process: Process) -> None:
        """Hold what it leaves against what must be true, after the end."""

    @property
    def clock(self) -> Clock:
        """The clock of this process."""
        assert self.process is not None
        return self.process.clock

    def a_layout(self) -> Layout | None:
        """Draw how a batch is stored."""
        return self.chance.choice(LAYOUTS)

    def open(self, url: str = "") -> Stream:
        """Open a stream in this process."""
        return open_on(self.storage(url), clock=self.clock)

    def storage(self, url: str = "") -> CheckedStorage:
        """Connect this process to a folder."""
        assert self.process is not None
        return open_sim(self.life.store, self.process, url or self.url)


def _let_go(error: BaseException | None) -> None:
    """Free what the frames of an error hold: a life collects no cycles, so they would stay."""
    while error is not None:
        clear_frames(error.__traceback__)
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


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
