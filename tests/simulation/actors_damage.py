"""Actors of a stream that is kept twice, whose stored objects are damaged in one of the places.

What one lost the other has: repair mends everything, and nothing that was acknowledged is lost.
"""

from contextlib import suppress

from actors_upkeep import Keeper
from actors_write import Appender, Writer
from sim_actor import SCHEMA, Actor
from sim_ledger import Ledger, Violation
from sim_world import Process

from segstore_ds.errors import (
    AlreadyExistsError,
    FormatError,
    SegstoreError,
    StorageError,
    UnderReplicatedError,
)
from segstore_ds.retention.drop import run_drop
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.rescue import repair, salvage

PLACES = ("memory://hurt", "memory://hurt-twin")
DAMAGES = ("flip", "cut", "empty", "delete")
STATUS = ("status/", "twins/")


class Hurt:
    """What is damaged now, in one of the two places."""

    def __init__(self) -> None:
        self.ledger = Ledger("hurt")
        self.ready = False
        self.sick = ""
        self.harmful = 0  # strikes that may cost an error: a status object has a twin


class _Hurt(Actor):
    troupe = "hurt"
    share = 0.9

    def begin(self) -> None:
        self.hurt = self.life.state(Hurt)
        self.ledger, self.url = self.hurt.ledger, PLACES[0]
        if not self.hurt.ready:
            with suppress(AlreadyExistsError):
                create_on(self.storage(), SCHEMA, clock=self.clock)
            self.open().followers.add(PLACES[1])
            self.hurt.ready = True
        super().begin()

    def expects(self, error: SegstoreError) -> bool:
        harm = FormatError | StorageError | UnderReplicatedError
        return self.hurt.harmful > 0 and isinstance(error, harm)


class HurtAppender(_Hurt, Appender):
    """Appends to it."""


class HurtWriter(_Hurt, Writer):
    """Appends to it, and repeats."""


class HurtKeeper(_Hurt, Keeper):
    """Looks after it; `verify` is the mender's."""

    def verify(self) -> None:
        self.stream = self.open()


class Mender(_Hurt):
    """Has an object damaged, and then repairs the stream, here or there."""

    pace = 8.0
    saved = 0
    unnamed = False  # the commit that names the twin is damaged, and repair asks for a replica

    def begin(self) -> None:
        with suppress(FormatError):  # it may have died before it could repair
            super().begin()

    def step(self) -> None:
        if not self.hurt.sick:
            self.strike()
        elif self.chance.random() < 0.2:
            self.rescue()
        else:
            self.mend()

    def strike(self) -> None:
        """Damage one stored object, as a disk does: no request, no trace."""
        objects = self.life.store.objects
        place = self.chance.choice(PLACES).removeprefix("memory:/")
        part = self.chance.choice(("log/0", "log/0", "log/_", *STATUS, "segments/"))
        names = sorted(name for name in objects if name.startswith(f"{place}/{part}"))
        if not names:
            return
        name = names[-1] if self.chance.random() < 0.4 else self.chance.choice(names)
        data, made_us = objects[name]
        # The name of the newest commit would be taken again by a writer that knows the one before.
        last = name == names[-1] and part == "log/0" and place == PLACES[0].removeprefix("memory:/")
        how = self.chance.choice(DAMAGES[: 3 if last else 4])
        self.world.note(f"damage: {how} {name}")
        self.hurt.sick = name
        self.hurt.harmful += part not in STATUS
        if how == "delete":
            del objects[name]
            return
        spoiled = bytearray(data)
        if how == "flip" and data:
            spoiled[self.chance.randrange(len(data))] ^= 1 << self.chance.randrange(8)
        size = {"flip": len(data), "empty": 0}.get(how, self.chance.randrange(len(data) + 1))
        objects[name] = bytes(spoiled[:size]), made_us

    def mend(self) -> None:
        """Repair; once that says that all is well, the next damage may come."""
        places = self.chance.sample(PLACES, self.chance.choice((1, 2)))
        if PLACES[0] not in places:
            places.append(PLACES[0])
        for url in places:
            replica = PLACES[1] if self.unnamed and url == PLACES[0] else None
            try:
                report = repair(self.storage(url), clock=self.clock, replica=replica)
            except FormatError as error:
                self.unnamed = url == PLACES[0] and "replica" in str(error)
                raise
            self.unnamed = False
            self.world.note(f"repaired {url}: {report.ok} {report.repaired}")
            if any("followers.add" in told for told in report.damaged):
                self.open().followers.add(PLACES[1])  # it lost the commit that made it a follower
                report = repair(self.storage(url), clock=self.clock)
            if not report.ok:
                if self.life.ending or not self.life.faulty:
                    raise Violation(f"{self.hurt.sick}: {report.damaged[:3]}")
                return
        self.hurt.sick = ""

    def rescue(self) -> None:
        """Copy what can be read to a new stream: nothing in it is invented."""
        self.saved += 1
        url = f"{PLACES[0]}-saved-{self.saved}"
        source = self.storage(self.chance.choice(PLACES))
        salvage(source, self.storage(url), skip_damaged=True, clock=self.clock)
        found = self.open(url).read(columns=["id"]).read_all()["id"].to_pylist()
        written = {event for batch in self.ledger.batches for event in batch.ids}
        if len({*found}) != len(found) or not written.issuperset(found):
            raise Violation(f"salvage made events up: {found[:20]}")
        run_drop(self.storage(url), confirm=url, clock=self.clock, client="")

    def finish(self) -> None:
        for _ in range(5):
            if not self.hurt.sick:
                return
            self.mend()
        raise Violation(f"not mended: {self.hurt.sick}")

    def judge(self, process: Process) -> None:
        self.life.judge_stream(process, self.url, self.ledger)


CAST: dict[str, type[Actor]] = {
    "hurt-append": HurtAppender,
    "hurt-write": HurtWriter,
    "hurt-keep": HurtKeeper,
    "hurt-mend": Mender,
}
