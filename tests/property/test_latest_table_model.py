"""Tables of newest events after random operations of the stream, beside `Stream.latest`."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from latest_kit import KEY, SCHEMA, TOMBSTONE, beside, expected, rows, shown
from publish_kit import TABLES

from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout

pytestmark = pytest.mark.slow

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["ada", "bob", "eve", "", None]),
        st.integers(0, 3),
        st.sampled_from([True, False, None]),
    ),
    min_size=1,
    max_size=6,
)
TENTH = st.integers(0, 10)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), EVENTS),
        st.tuples(st.just("append"), EVENTS),
        st.tuples(st.just("publish")),
        st.tuples(st.just("publish")),
        st.tuples(st.just("overwrite"), EVENTS),
        st.tuples(st.just("widen"), EVENTS, st.sampled_from("xyz")),
        st.tuples(st.just("truncate"), TENTH),
        st.tuples(st.just("restore"), TENTH),
        st.tuples(st.just("redact"), st.sampled_from(SCHEMA.names), st.integers(0, 3)),
        st.tuples(st.just("compact")),
        st.tuples(st.just("meddle"), EVENTS),
    ),
    min_size=4,
    max_size=16,
)


class Program:
    """Runs steps on a stream, and compares the tables with it after each publication."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def append(self, events: Any) -> None:
        """Add events, null in columns that the stream has beside theirs."""
        self.stream.append(rows(*events), merge_schema=True)

    def overwrite(self, events: Any) -> None:
        """Replace everything."""
        self.stream.overwrite(rows(*events), merge_schema=True)

    def widen(self, events: Any, name: str) -> None:
        """Add events with a column more."""
        data = rows(*events)
        self.stream.append(data.append_column(name, data["n"]), merge_schema=True)

    def truncate(self, tenth: int) -> None:
        """Move the head anywhere."""
        head, tail = self.stream.head, self.stream.tail
        self.stream.truncate(head + (tail - head) * tenth // 10)

    def restore(self, tenth: int) -> None:
        """Append what an older version held."""
        if "redact" not in self.stream.history().read_all()["operation"].to_pylist():
            self.stream.restore(self.stream.version * tenth // 10)

    def redact(self, column: str, number: int) -> None:
        """Take values away, also those of the key and of the tombstone."""
        if column in self.stream.schema.names:  # a restored version may have none
            self.stream.redact([["n", "==", number]], columns=[column])

    def compact(self) -> None:
        """Merge segments, which changes no event."""
        self.stream.compact(layout=Layout(segment_format="parquet"))

    def meddle(self, events: Any) -> None:
        """Write to the stream beside, which nobody should do."""
        if self.stream.refresh().published.latest:
            beside(self.stream).overwrite(rows(*events), merge_schema=True)

    def publish(self) -> None:
        """Compare what both tables show with what a scan finds."""
        for table in TABLES:
            done = self.stream.publish(table.kind, latest_by=KEY, tombstone=TOMBSTONE)
            assert shown(self.stream, table) == expected(self.stream)
            stream = self.stream.refresh()
            assert (done.version, done.head) == (stream.version, stream.head)
            assert done.tail == stream.tail
            assert (done.lag, done.latest_by) == (0, ("user",))
            assert stream.published.latest[table.kind] == done


@given(STEPS)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_table_shows_what_a_scan_finds(steps: list[tuple[Any, ...]]) -> None:
    """Whatever happened between two rounds, at whatever points."""
    storage = open_storage(f"memory://latest-{id(steps)}")
    program = Program(create_on(storage, SCHEMA, upkeep=None))
    for name, *how in (("append", [("ada", 0, None)]), *steps, ("publish",)):
        getattr(program, name)(*how)
    beside(program.stream).verify().check()
    for place in (storage, beside(program.stream)._log.storage):
        for info in list(place.list("")):
            place.delete(info.path)
