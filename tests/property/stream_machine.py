"""A stream and a list of events go through the same life and say the same, whatever it is."""

import datetime as dt
import uuid

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from model import Batch, Event, ModelStream
from strategies import (
    COLUMNS,
    FIRST_COLUMNS,
    events,
    filters,
    layouts,
    to_table,
)
from virtual_time import TimedStorage, VirtualTime

from segstore_ds.errors import (
    NotFoundError,
    PositionError,
    SnapshotExpiredError,
    TruncatedError,
    WriterConflictError,
)
from segstore_ds.format.policies import UpkeepPolicy
from segstore_ds.status import table_status
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream

WRITERS = st.sampled_from(["w1", "w2", "w3", "größe"])
GRACE_S = 3600


class StreamMachine(RuleBasedStateMachine):
    """Runs every operation on a stream and on its model."""

    policy: UpkeepPolicy | None = None

    def __init__(self) -> None:
        super().__init__()
        self.time = VirtualTime(3)
        self.storage = TimedStorage(open_storage(f"memory://{uuid.uuid4().hex}"), self.time)
        # Few commits fill a level, so that every run meets parts, merges and blobs of writers.
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr("segstore_ds.status.table.SEGMENTS.rows", 4)
        self.patch.setattr("segstore_ds.status.table.SEGMENTS.fan_in", 2)
        self.patch.setattr("segstore_ds.status.table.WRITERS.rows", 2)
        self.patch.setattr("segstore_ds.status.table.RETIRED.rows", 3)
        # Two or three inline segments fill the root's share: they are joined, then an object.
        self.patch.setattr(table_status, "SHARE_BYTES", 4000)
        self.patch.setattr(table_status, "JOINED_SHARE", 0.5)

    @initialize()
    def create(self) -> None:
        schema = pa.schema([(name, COLUMNS[name]) for name in FIRST_COLUMNS])
        self.stream = create_on(self.storage, schema, upkeep=self.policy, clock=self.time.clock)
        self.model = ModelStream(FIRST_COLUMNS, self.time.now_us)

    def teardown(self) -> None:
        report = open_on(self.storage).verify().check()
        assert report.leftovers == []
        for info in list(self.storage.list("")):
            self.storage.delete(info.path)
        self.patch.undo()

    def _tick(self) -> None:
        self.time.advance(1)
        self.model.now_us = self.time.now_us

    def _same(self, commit: object, batch: Batch | None, *, repeated: bool = False) -> None:
        if batch is None:
            assert commit.rows == 0
            return
        found = (commit.version, commit.start, commit.end, commit.repeated)
        merges = self.stream._log.root.operation == "merge"
        assert found == (batch.version, batch.start, batch.end, repeated)
        if merges and not repeated:
            # The merge of parts after an append is a version of its own.
            self.model.follow(self.stream.version)

    # --- writing ---------------------------------------------------------------------------

    @precondition(lambda self: not self.model.sealed)
    @rule(data=st.data(), layout=layouts)
    def append(self, data: st.DataObject, layout: object) -> None:
        rows = data.draw(events(self.model.columns))
        self._tick()
        order = data.draw(st.permutations(self.model.columns))
        commit = self.stream.append(to_table(rows, tuple(order)), layout=layout)
        self._same(commit, self.model.write(rows))

    @precondition(lambda self: not self.model.sealed)
    @rule(data=st.data(), writer=WRITERS, step=st.integers(1, 3), layout=layouts)
    def append_as_writer(self, data: st.DataObject, writer: str, step: int, layout: object) -> None:
        rows = data.draw(events(self.model.columns))
        last = self.model.writers.get(writer)
        batch_id = (last.batch_id if last else -1) + step
        self._tick()
        table = to_table(rows, self.model.columns)
        commit = self.stream.append(table, writer_id=writer, batch_id=batch_id, layout=layout)
        self._same(commit, self.model.write(rows, writer=(writer, batch_id)))

    @precondition(lambda self: self.model.writers)
    @rule(data=st.data())
    def repeat_batch(self, data: st.DataObject) -> None:
        writer = data.draw(st.sampled_from(sorted(self.model.writers)))
        last = self.model.writers[writer]
        rows = self.model.read(last.start, last.end)
        table = to_table([event for _, event in rows], self.model.columns)
        self._tick()
        commit = self.stream.append(table, writer_id=writer, batch_id=last.batch_id)
        self._same(commit, last, repeated=True)

    @precondition(lambda self: self.model.writers)
    @rule(data=st.data())
    def other_events_under_a_known_batch_are_refused(self, data: st.DataObject) -> None:
        writer = data.draw(st.sampled_from(sorted(self.model.writers)))
        last = self.model.writers[writer]
        rows = [event for _, event in self.model.read(last.start, last.end)]
        table = to_table([*rows, {}], self.model.columns)
        self._tick()
        with pytest.raises(WriterConflictError, match="other events"):
            self.stream.append(table, writer_id=writer, batch_id=last.batch_id)

    @precondition(lambda self: self.model.writers)
    @rule(data=st.data())
    def older_batch_is_refused(self, data: st.DataObject) -> None:
        writer = data.draw(st.sampled_from(sorted(self.model.writers)))
        batch_id = self.model.writers[writer].batch_id - 1
        if batch_id < 0:
            return
        with pytest.raises(WriterConflictError, match="older"):
            self.stream.append(
                to_table([{}], self.model.columns), writer_id=writer, batch_id=batch_id
            )

    @precondition(lambda self: not self.model.sealed)
    @rule(data=st.data(), layout=layouts)
    def overwrite(self, data: st.DataObject, layout: object) -> None:
        rows = data.draw(events(self.model.columns))
        self._tick()
        commit = self.stream.overwrite(to_table(rows, self.model.columns), layout=layout)
        self._same(commit, self.model.write(rows, overwrite=True))

    @precondition(lambda self: not self.model.sealed)
    @rule(data=st.data())
    def append_with_other_columns(self, data: st.DataObject) -> None:
        columns = data.draw(st.permutations(sorted(COLUMNS)).map(lambda some: tuple(some[:4])))
        rows = data.draw(events(columns))
        self._tick()
        commit = self.stream.append(to_table(rows, columns), merge_schema=True)
        batch = self.model.write(rows, columns=columns)
        self._same(commit, batch)
        assert tuple(self.stream.schema.names) == self.model.columns

    # --- reading ---------------------------------------------------------------------------

    def _read(self, start: object, end: object, **options: object) -> list[tuple[int, Event]]:
        table = self.stream.read(start, end, offset_column="offset", **options).read_all()
        return [(row.pop("offset"), row) for row in table.to_pylist()]

    @rule(data=st.data())
    def read_range(self, data: st.DataObject) -> None:
        start = data.draw(st.integers(self.model.head, self.model.tail))
        end = data.draw(st.integers(start, self.model.tail))
        columns = data.draw(
            st.none() | st.permutations(self.model.columns).map(lambda some: tuple(some[:2]))
        )
        texts, keep = data.draw(filters(self.model.columns))
        found = self._read(start, end, columns=columns, filters=texts)
        assert found == self.model.read(start, end, columns=columns, keep=keep)

    @precondition(lambda self: self.model.head > 0)
    @rule(data=st.data())
    def read_below_head(self, data: st.DataObject) -> None:
        start = data.draw(st.integers(0, self.model.head - 1))
        with pytest.raises(TruncatedError):
            self.stream.read(start)
        clamped = self._read(start, "tail", fail_on_data_loss=False)
        assert clamped == self.model.read(self.model.head, self.model.tail)

    @rule(past=st.integers(1, 3))
    def read_beyond_tail(self, past: int) -> None:
        with pytest.raises(PositionError):
            self.stream.read("tail", self.model.tail + past)

    @rule(data=st.data())
    def read_to_version(self, data: st.DataObject) -> None:
        version = data.draw(st.integers(0, self.model.version + 1))
        if version > self.model.version:
            with pytest.raises(NotFoundError):
                self.stream.read("head", f"version:{version}")
        elif version < self.model.first:  # of a stream that was dropped
            with pytest.raises(SnapshotExpiredError):
                self.stream.read("head", f"version:{version}")
        else:
            # History answers for purged versions too. Nothing is left of what lies below the head.
            end = self.model.versions[version].tail
            expected = self.model.read(self.model.head, end)
            start = min(self.model.head, end)
            cut = f"version:{version}"
            assert self._read(start, cut, fail_on_data_loss=False) == expected

    @rule(data=st.data())
    def read_to_time(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.model.versions))
        time_us = one.time_us + data.draw(st.sampled_from([-1, 0, 1]))
        moment = dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=time_us)
        end = self.model.tail_at(time_us)
        if end >= self.model.head:
            assert self._read("head", moment) == self.model.read(self.model.head, end)

    # --- time, handles ----------------------------------------------------------------------

    @rule(hours=st.sampled_from([0.3, 0.6, 2]))
    def wait(self, hours: float) -> None:
        self.time.advance(hours * 3600)
        self.model.now_us = self.time.now_us

    @rule(hours=st.sampled_from([0, 1, 3]))
    def purge(self, hours: int) -> None:
        self._tick()
        kept = self.stream.maintain(keep=hours * 3600).log_start
        self.model.purge(max(hours * 3600, GRACE_S))
        assert kept == self.model.log_start

    @rule()
    def reopen(self) -> None:
        self.stream = open_on(self.storage, clock=self.time.clock)

    @rule()
    def hint_is_lost(self) -> None:
        self.storage.delete("log/_latest")

    @rule(version=st.integers(0, 30))
    def hint_lies(self, version: int) -> None:
        known = min(max(version, self.model.log_start), self.model.version)
        self.storage.put("log/_latest", f"{known:020d}".encode())

    @rule()
    def verify(self) -> None:
        self.stream.verify().check()

    def _follow_upkeep(self) -> None:
        """Follow rounds that ran after a commit."""

    @invariant()
    def says_the_same(self) -> None:
        if hasattr(self, "model"):
            self._follow_upkeep()
            stream: Stream = self.stream
            seen = (stream.head, stream.tail, stream.version, tuple(stream.schema.names))
            model = self.model
            assert seen == (model.head, model.tail, model.version, model.columns)
