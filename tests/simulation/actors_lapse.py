"""Actors of a stream whose values expire, whose newest events are published, and whose settings
several hands change.

A value may go once it is as old as the least age that anybody asked for, and has to go by the rule
that holds in the end: from every stored byte.
"""

import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from actors_upkeep import Curator
from actors_write import Appender
from sim_actor import KEYS, SCHEMA, Actor, read_rows
from sim_bounds import judge_stored
from sim_ledger import Batch, Ledger, Violation
from sim_world import HOUR_US, Process

from segstore_ds.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    SegstoreError,
    SnapshotExpiredError,
)
from segstore_ds.format.policies import UpkeepPolicy
from segstore_ds.publish.latest import WRITER, rule_of
from segstore_ds.status.writers import Commit
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.stream import Stream

URL = "memory://bucket/lapse"
_LATEST = "/bucket/lapse_latest/"
TABLE_FOLDERS = tuple(_LATEST + each for each in ("_delta_log/", "delta/", "metadata/", "iceberg/"))
LEFT = re.compile("table of another stream|needs a missing or empty folder")
SLACK_US = HOUR_US // 4  # by which clocks, and the steps of the ages, may differ
SETTINGS: dict[str, tuple[Any, ...]] = {
    "expiry": (
        {"email": 7200},
        {"email": 20_000},
        {"email": {"age": 10_000, "filters": "key == 'ada'"}},
        None,
    ),
    "key_columns": (("key",), ("id", "key"), ()),
    "upkeep": (UpkeepPolicy(), UpkeepPolicy(keep_s=3600, grace_s=86_400), None),
}


@dataclass
class Lapse:
    """What is known of the stream.

    Attributes:
        times: Event -> when it was first tried, and when it was acknowledged.
        least_us: The least age that anybody asked for.
    """

    ledger: Ledger = field(default_factory=lambda: Ledger("lapse"))
    times: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    least_us: float = float("inf")

    def check(self, rows: list[tuple[int, str, str, str | None]], now_us: int) -> None:
        """Hold what was read until now: nothing has gone too early."""
        self.ledger.read(row[:2] for row in rows)
        self.ledger.check_values(rows, {})
        for _, event, _, value in rows:
            if value is None and now_us < self.times[event][0] + self.least_us - SLACK_US:
                raise Violation(f"{event!r} lost its value too early")


class _Lapsing(Actor):
    troupe = "lapse"
    share = 0.9

    def begin(self) -> None:
        self.lapse = self.life.state(Lapse)
        self.ledger, self.url = self.lapse.ledger, URL
        with suppress(AlreadyExistsError):
            create_on(self.storage(), SCHEMA, clock=self.clock)
        super().begin()


class LapseWriter(_Lapsing, Appender):
    """Appends, and notes when."""

    def write(self, batch: Batch, rows: pa.Table) -> Commit:
        times, began_us = self.lapse.times, self.world.now_us
        times.update(dict.fromkeys(batch.ids, (began_us, None)))
        done = super().write(batch, rows)
        times.update(dict.fromkeys(batch.ids, (began_us, self.world.now_us)))
        return done


class LapseReader(_Lapsing):
    """Reads all of it."""

    def step(self) -> None:
        floor = self.ledger.floor
        self.stream.refresh()
        self.ledger.check_tail(floor, self.stream.tail)
        rows = read_rows(self.stream, self.stream.head, self.stream.tail)
        self.lapse.check(rows, self.world.now_us)


class Hand(_Lapsing):
    """Changes one setting, which no other one does: it shows what was set last."""

    pace = 4.0
    what = ""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.what = self.name.partition("-")[2]
        self.maybe: list[Any] = []

    def step(self) -> None:
        value = self.chance.choice(SETTINGS[self.what])
        if self.what == "expiry":
            self.ledger.maybe_redacted.update(KEYS)
            for rule in (value or {}).values():
                age_s = rule["age"] if isinstance(rule, dict) else rule
                self.lapse.least_us = min(self.lapse.least_us, age_s * 1e6)
        self.maybe = [*(self.maybe or [self.shown()]), value]
        self.stream.settings.update(**{self.what: value})
        self.maybe = [value]
        self.check(self.stream.refresh())

    def shown(self) -> Any:
        """Return what the stream shows, as it was given."""
        found = getattr(self.stream.settings, self.what)
        if self.what != "expiry":
            return found
        rules = {
            rule.column: {"age": rule.age_s, "filters": rule.filters}
            if rule.filters
            else rule.age_s
            for rule in found
        }
        return rules or None

    def check(self, stream: Stream) -> None:
        """Hold what is shown against what was asked; raises Violation."""
        self.stream = stream
        if self.maybe and self.shown() not in self.maybe:
            raise Violation(f"{self.what} is {self.shown()}, asked was {self.maybe}")

    def expects(self, error: SegstoreError) -> bool:
        return isinstance(error, InvalidInputError) and "tags keep versions" in error.fact

    def judge(self, process: Process) -> None:
        self.process = process
        self.check(self.open())


class LapseCurator(_Lapsing, Curator):
    """Keeps versions, which is refused while values expire."""


class Newest(_Lapsing):
    """Publishes the newest event of each key, and compares that with the stream."""

    pace = 3.0
    removes = False

    def step(self) -> None:
        if self.removes or self.chance.random() < 0.1:
            self.removes = True
            self.stream.published.remove_latest()
            self.removes = False  # else it is repeated
            return
        auto = self.chance.choice((None, None, True, False))
        kind = self.chance.choice(("delta", "iceberg"))
        try:
            done = self.stream.publish(kind, latest_by=["key"], auto=auto)
        except NotFoundError:
            return  # rounds of others found it removed
        except InvalidInputError as error:
            if "power" not in self.life.store.faults.counts or not LEFT.search(error.fact):
                raise
            # The power went, and files that were deleted are back: moved away, as the error says.
            for full in [*self.life.store.objects]:
                if full.startswith(TABLE_FOLDERS):
                    del self.life.store.objects[full]
            return
        self.compare(done.version)

    def compare(self, least: int) -> None:
        """Hold what the stream beside shows against the version that it names."""
        beside = self.open(f"{URL}_latest")
        rounds = beside.history().read_all().to_pylist()
        version = [row["batch_id"] for row in rounds if row["writer_id"] == WRITER][-1]
        if version < least:
            raise Violation(f"newest events are of {version} after {least}")
        shown = beside.read(end=beside.tail).read_all().to_pylist()
        with suppress(NotFoundError, SnapshotExpiredError):  # it was forgotten
            newest = self.stream.refresh().latest(["key"], as_of=version, offset_column="_offset")
            if shown != (asked := pa.table(newest).to_pylist()):
                raise Violation(f"newest events of {version}: {shown}, not {asked}")


class Warden(_Lapsing):
    """Looks after it, and judges what is left of it in the end."""

    pace = 3.0

    def step(self) -> None:
        if self.chance.random() < 0.3:
            self.stream.compact(target_rows=self.chance.choice((10, 100)))
        else:
            self.stream.maintain()

    def judge(self, process: Process) -> None:
        self.process = process
        stream = self.open()
        stream.maintain()
        rows, now_us = read_rows(stream.refresh(), stream.head, stream.tail), self.world.now_us
        self.lapse.check(rows, now_us)
        for rule in stream.settings.expiry:
            until_us = now_us - rule.age_s * 1e6 * 33 / 32 - SLACK_US
            for _, event, key, value in rows:
                acked_us = self.lapse.times[event][1]
                due = acked_us is not None and acked_us < until_us
                if due and value is not None and (not rule.filters or key == "ada"):
                    raise Violation(f"{event!r} still has its value {value!r}")
        if rule_of(stream.refresh()._log.root) is not None:  # perhaps left by who was killed
            for kind in ("delta", "iceberg"):
                stream.publish(kind, latest_by=["key"], auto=True)
        gone = {event for _, event, _, value in rows if value is None}
        judge_stored(self.life, process, URL, gone)
        self.life.judge_stream(process, URL, self.ledger)


CAST: dict[str, type[Actor]] = {
    "lapse-write-1": LapseWriter,
    "lapse-write-2": LapseWriter,
    "lapse-read": LapseReader,
    "lapse-expiry": Hand,
    "lapse-key_columns": Hand,
    "lapse-upkeep": Hand,
    "lapse-curate": LapseCurator,
    "lapse-newest": Newest,
    "lapse-keep": Warden,
}
