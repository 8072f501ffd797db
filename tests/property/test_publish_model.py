"""Published tables after random operations of the stream, at random points."""

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from publish_kit import TABLES, Table

from segstore_ds.publish import iceberg, life, manifests
from segstore_ds.status.table import SEGMENTS
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout

pytestmark = pytest.mark.slow

SCHEMA = pa.schema([("n", pa.int64())])
FORMATS = st.sampled_from(["parquet", "arrow"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), FORMATS, st.integers(1, 9)),
        st.tuples(st.just("widen"), FORMATS, st.integers(2, 9)),
        st.tuples(st.just("compact"), FORMATS, st.integers(0, 9)),
        st.tuples(st.just("truncate"), st.integers(0, 9)),
        st.tuples(st.just("overwrite"), FORMATS, st.integers(1, 9)),
        st.tuples(st.just("restore"), st.integers(0, 9)),
        st.tuples(st.just("redact"), st.integers(0, 9)),
        st.tuples(st.just("publish"), st.booleans()),
    ),
    min_size=4,
    max_size=14,
)


def rows_of(count: int, first: int) -> pa.Table:
    """Return events that no other call returns."""
    return pa.table({"n": [*range(first, first + count)]}, SCHEMA)


class Program:
    """Runs steps on a stream, and compares the table with it after each publication."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.made = 0
        self.tails = dict[str, int]()
        stream.settings.update(upkeep=None)

    def run(self, step: tuple[Any, ...]) -> None:
        """Do one step; what it can't do on this stream it leaves out."""
        getattr(self, step[0])(*step[1:])

    def append(self, form: str, count: int) -> None:
        """Add events of the first schema."""
        self.made += count
        data = rows_of(count, self.made)
        layout = Layout(inline_bytes=0, segment_format=form, segment_rows=4, frame_rows=2)
        self.stream.append(data, layout=layout, merge_schema=True)

    def widen(self, form: str, scale: int) -> None:
        """Add events with a decimal of any scale, where it is wider, and a whole number."""
        names = self.stream.schema.names
        kind = pa.decimal128(20 + scale, scale)
        if "d" in names and self.stream.schema.field("d").type.scale > scale:
            return
        self.made += 1
        data = rows_of(1, self.made).append_column("d", pa.array([Decimal("1.5")], kind))
        kind = pa.int32() if scale < 6 else pa.float64()
        data = data.append_column("x", pa.array([scale], kind))
        layout = Layout(inline_bytes=0, segment_format=form)
        self.stream.append(data, layout=layout, merge_schema=True)

    def compact(self, form: str, tenth: int) -> None:
        """Merge from somewhere on."""
        self.stream.compact(start=self.at(tenth), layout=Layout(segment_format=form))

    def truncate(self, tenth: int) -> None:
        """Move the head anywhere."""
        self.stream.truncate(self.at(tenth))

    def overwrite(self, form: str, count: int) -> None:
        """Replace everything."""
        self.made += count
        layout = Layout(inline_bytes=0, segment_format=form)
        self.stream.overwrite(rows_of(count, self.made), layout=layout, merge_schema=True)

    def restore(self, tenth: int) -> None:
        """List an older version's segments again, at other offsets."""
        if "redact" not in self.stream.history().read_all()["operation"].to_pylist():
            self.stream.restore(self.stream.version * tenth // 10)

    def redact(self, tenth: int) -> None:
        """Take the value of an event away."""
        if self.stream.tail > self.stream.head:
            self.stream.redact([["n", "<=", self.made * tenth // 10]], columns=["n"])

    def publish(self, settle: bool) -> None:
        """Compare rows and offsets with the stream's."""
        for table in TABLES:
            self.compare(table, settle)

    def compare(self, table: Table, settle: bool) -> None:
        """Publish one table, and compare it."""
        before = self.stream.published.get(table.kind) if table.kind in self.tails else None
        found = table.publish(self.stream, settle=settle)
        if before is not None and before.tail > found.head:  # some of its events are kept
            appended = table.appended(self.stream._log.storage, before.table_version)
            ends = [before.tail, *(end for _, end in appended)]
            assert [start for start, _ in appended] == ends[:-1]
            assert ends[-1] == found.tail
        version, rows = table.shown(self.stream._log.storage)
        assert (version, found.head) == (self.stream.version, self.stream.head)
        assert found.lag == self.stream.tail - found.tail
        assert not (settle and found.lag)
        assert found.tail >= self.tails.get(table.kind, 0)
        self.tails[table.kind] = found.tail
        names = self.stream.schema.names
        wanted = self.stream.read(found.head, found.tail).read_all().to_pylist()
        assert [{name: row.get(name) for name in names} for row in rows] == wanted
        assert [type(row.get("x")) for row in rows] == [type(row.get("x")) for row in wanted]

    def at(self, tenth: int) -> int:
        """Return an offset of a kept event."""
        head, tail = self.stream.head, self.stream.tail
        return head + (tail - head) * tenth // 10


@given(STEPS)
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_published_table_has_the_rows_of_the_stream(
    monkeypatch: pytest.MonkeyPatch, steps: list[tuple[Any, ...]]
) -> None:
    """Whatever happened between two publications, at whatever points."""
    monkeypatch.setattr(life, "CLEAN_EVERY", 2)
    monkeypatch.setattr(iceberg, "_MANIFEST_FILES", 3)
    monkeypatch.setattr(manifests, "_MERGED", 3)
    monkeypatch.setattr(manifests, "_SMALL", 3)
    monkeypatch.setattr(SEGMENTS, "rows", 2)  # so that versions have parts in common
    storage = open_storage(f"memory://publish-{id(steps)}")
    program = Program(create_on(storage, SCHEMA))
    for step in (*steps, ("publish", False), ("publish", True)):
        program.run(step)
    for info in list(storage.list("")):
        storage.delete(info.path)
