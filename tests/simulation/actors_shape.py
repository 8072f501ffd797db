"""Actors of a stream whose columns change: renamed, dropped, added again, restored and published.

A value is the number of its column and the id of its event, such as ``7|shape-write-1:3``: whatever
a column is called, it shows its own values.
"""

from contextlib import suppress
from itertools import product

import pyarrow as pa
from publish_kit import TABLES
from sim_actor import Actor
from sim_ledger import Violation
from sim_world import Process

from segstore_ds.errors import (
    AlreadyExistsError,
    MissingObjectError,
    NotFoundError,
    SchemaMismatchError,
    SegstoreError,
)
from segstore_ds.options.table import TableFormat
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.scan import Scan
from segstore_ds.stream.stream import Stream

Columns = dict[str, int]  # name -> the column's number


class Shape:
    """What is known of the stream.

    Attributes:
        known: The columns by their names: no two sets of columns ever have the same names.
        events: Offset -> event, `written` what an event has in which column.
        unsure: Events that may have met a change: what is dropped meanwhile they lack.
        changes: How many changes were tried.
    """

    def __init__(self) -> None:
        self.url = "memory://shape"
        self.columns: Columns = {"a": 1, "b": 2}
        self.known: dict[frozenset[str], Columns] = {}
        self.events: dict[int, str] = {}
        self.written: dict[str, dict[int, str]] = {}
        self.unsure: set[str] = set()
        self.merges: list[Columns] = []  # what writes may add to the columns that they find
        self.floor = self.changes = self.head = 0
        self.numbers = 2
        self.shown: dict[str, int] = {}
        self.learn(self.columns)

    def learn(self, columns: Columns) -> None:
        """Note columns before the stream may have them."""
        self.known[frozenset(columns)] = columns

    def columns_of(self, seen: Stream | Scan) -> Columns:
        """Return the columns of a version; raises Violation."""
        names = frozenset(seen.schema.names) - {"id", "offset"}
        if names not in self.known:
            self.learn_merged(names)
        return self.known[names]

    def learn_merged(self, names: frozenset[str]) -> None:
        """Note the columns after a late write: those that it found, and its own that these lack."""
        for found, late in product([*self.known.values()], self.merges):
            lacked = {name: n for name, n in late.items() if n not in found.values()}
            merged = {**lacked, **found}
            if names == merged.keys() and len(merged) == len(found) + len(lacked):
                self.learn(merged)
                return
        raise Violation(f"nobody asked for the columns {sorted(names)}")

    def place(self, offset: int, event: str) -> None:
        """Note where an event lies, which never changes; raises Violation."""
        if self.events.setdefault(offset, event) != event:
            raise Violation(f"offset {offset} holds {self.events[offset]!r} and {event!r}")

    def check(self, stream: Stream) -> None:
        """Hold all events of a version, in all of its columns, against what was written."""
        scan = stream.scan(offset_column="offset")  # of the newest version, which others may make
        columns, head, tail = self.columns_of(scan), scan.start, scan.end
        rows = scan.to_arrow().to_pylist()
        if [row["offset"] for row in rows] != [*range(head, tail)]:
            raise Violation(f"offsets of [{head}, {tail}) are not dense")
        for row in rows:
            self.place(row["offset"], row["id"])
            for name, number in columns.items():
                value, whole = row[name], self.written[row["id"]].get(number)
                if value != whole and (value is not None or row["id"] not in self.unsure):
                    raise Violation(f"{row['id']}: column {name} shows {value!r}, not {whole!r}")

    def check_table(self, start: int, tail: int, rows: list[dict[str, object]]) -> None:
        """Hold a published table against the events at its offsets."""
        for offset, row in enumerate(rows, start):
            self.place(offset, str(row["id"]))
        if start + len(rows) != tail:
            raise Violation(f"a table shows {len(rows)} events for [{start}, {tail})")


class _Shaped(Actor):
    troupe = "shape"
    share = 0.9

    def begin(self) -> None:
        self.shape = self.life.state(Shape)
        self.url = self.shape.url
        with suppress(AlreadyExistsError):
            schema = pa.schema([("id", pa.string()), ("a", pa.string()), ("b", pa.string())])
            create_on(self.storage(), schema, clock=self.clock)
        super().begin()

    def expects(self, error: SegstoreError) -> bool:
        return isinstance(error, SchemaMismatchError)

    def append(self, ids: list[str], columns: Columns, *, replace: bool = False) -> None:
        """Append events with a value in each column."""
        shape, before = self.shape, self.shape.changes
        rows = []
        for event in ids:
            values = {number: f"{number}|{event}" for number in columns.values()}
            shape.written[event] = values
            shape.unsure.add(event)
            rows.append({"id": event, **{name: values[n] for name, n in columns.items()}})
        shape.merges += [columns] if columns not in shape.merges else []
        write = self.stream.overwrite if replace else self.stream.append
        table = pa.Table.from_pylist(rows, pa.schema([(n, pa.string()) for n in ("id", *columns)]))
        done = write(table, merge_schema=True, layout=self.a_layout())
        shape.floor = max(shape.floor, done.end)
        for offset, event in enumerate(ids, done.start):
            shape.place(offset, event)
        if shape.changes == before:
            shape.unsure.difference_update(ids)


class ShapeWriter(_Shaped):
    """Appends events with the columns that the stream has."""

    number = 0

    def step(self) -> None:
        self.number += 1
        self.stream.refresh()
        count = self.chance.choice((1, 2, 9))
        self.append(
            [f"{self.name}:{self.number}:{n}" for n in range(count)],
            self.shape.columns_of(self.stream),
        )


class ShapeReader(_Shaped):
    """Reads everything, in a fresh handle or in an old one."""

    def step(self) -> None:
        floor = self.shape.floor
        if self.chance.random() < 0.3:
            self.stream = self.open()
        self.stream.refresh()
        if self.stream.tail < floor:
            raise Violation(f"shape: tail {self.stream.tail}, acknowledged was {floor}")
        self.shape.check(self.stream)


class Smith(_Shaped):
    """Changes the columns: renames, swaps, drops, adds; goes back to an older version."""

    pace = 3.0
    number = 0

    def begin(self) -> None:
        super().begin()
        self.versions: list[int] = []

    def step(self) -> None:
        self.stream.refresh()
        columns = dict(self.shape.columns_of(self.stream))
        self.versions.append(self.stream.version)
        self.shape.changes += 1
        try:
            what = self.chance.random()
            if what < 0.3 and columns:
                self.rename(columns)
            elif what < 0.5 and len(columns) > 1:
                self.drop(columns)
            elif what < 0.75:
                self.add(columns)
            elif what < 0.9:
                self.restore()
            else:
                self.stream.compact(target_rows=100)
        finally:
            self.shape.changes += 1

    def fresh(self) -> str:
        self.shape.numbers += 1
        return f"c{self.shape.numbers}"

    def rename(self, columns: Columns) -> None:
        """Rename one, and perhaps give its name to another one in the same commit."""
        names = self.chance.sample(sorted(columns), min(self.chance.choice((1, 2)), len(columns)))
        new = {names[0]: self.fresh(), **({names[1]: names[0]} if len(names) > 1 else {})}
        self.shape.learn({new.get(name, name): number for name, number in columns.items()})
        self.stream.change_schema(rename=new)

    def drop(self, columns: Columns) -> None:
        gone = self.chance.choice(sorted(columns))
        left = {name: number for name, number in columns.items() if name != gone}
        if self.shape.known.get(frozenset(left), left) == left:
            self.shape.learn(left)
            self.stream.change_schema(drop=[gone])

    def add(self, columns: Columns) -> None:
        """Add a column, and one with a name that was dropped."""
        more = dict(columns)
        for name in (self.fresh(), self.chance.choice("ab")):
            if name not in more:
                self.shape.numbers += 1
                more[name] = self.shape.numbers
        self.shape.learn(more)
        self.number += 1
        ids = [f"{self.name}:{self.starts}:{self.number}"]
        self.append(ids, more, replace=self.chance.random() < 0.2)

    def restore(self) -> None:
        """Restore a version, whose events come back as they were, in its columns."""
        version = self.chance.choice(self.versions)
        try:
            before = self.stream.scan(as_of=version).to_arrow()
            done = self.stream.restore(version)
        except NotFoundError:
            return  # it was forgotten
        self.shape.floor = max(self.shape.floor, done.end)
        ids = before["id"].to_pylist()
        if done.end - done.start != len(ids):
            raise Violation(f"restored {len(ids)} events as [{done.start}, {done.end})")
        for offset, event in enumerate(ids, done.start):
            self.shape.place(offset, event)


class Publisher(_Shaped):
    """Publishes, and reads the tables back from their metadata; backs up; looks after it all."""

    pace = 3.0
    removed: TableFormat | None = None  # what a call that failed left is removed by the next one

    def step(self) -> None:
        what = self.chance.random()
        if self.removed is not None or 0.6 <= what < 0.7:
            self.remove(self.removed or self.chance.choice(TABLES).kind)
        elif what < 0.6:
            self.publish(settle=self.chance.random() < 0.5)
        elif what < 0.85:
            self.stream.maintain(keep="1h", grace="24h")
        else:
            self.back_up()

    def remove(self, kind: TableFormat) -> None:
        self.removed = kind
        self.stream.published.remove(kind)
        self.removed = None
        self.shape.shown.clear()

    def finish(self) -> None:
        if self.removed is not None:
            self.remove(self.removed)

    def publish(self, *, settle: bool) -> None:
        table = self.chance.choice(TABLES)
        done = self.stream.publish(table.kind, settle=settle)
        assert self.process is not None
        spoiled = self.process.spoiled
        try:
            version, rows = table.shown(self.storage())
        except (ValueError, OSError, AssertionError):
            if self.process.spoiled == spoiled:
                raise
        if self.process.spoiled != spoiled:
            return  # other engines check no sums
        if version < max(done.version, self.shape.shown.get(table.kind, 0)):
            raise Violation(f"{table.kind} shows version {version} after {done.version}")
        self.shape.shown[table.kind] = version
        if version == done.version:
            self.shape.check_table(done.head, done.tail, rows)

    def back_up(self) -> None:
        floor, place = self.shape.floor, self.storage(f"{self.url}-backup")
        try:
            done = self.stream.back_up(place)
        except MissingObjectError:
            return  # it was deleted meanwhile
        if done.tail < floor:
            raise Violation(f"the backup ends at {done.tail}, acknowledged was {floor}")
        self.shape.check(self.open(f"{self.url}-backup"))

    def judge(self, process: Process) -> None:
        self.process = process
        stream = self.open()
        self.shape.check(stream)
        if stream.tail < self.shape.floor or not stream.verify().ok:
            raise Violation(f"shape: {stream.tail} of {self.shape.floor}, {stream.verify()}")


CAST: dict[str, type[Actor]] = {
    "shape-write-1": ShapeWriter,
    "shape-write-2": ShapeWriter,
    "shape-read": ShapeReader,
    "shape-smith": Smith,
    "shape-publish": Publisher,
}
