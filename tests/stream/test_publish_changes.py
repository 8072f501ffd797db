"""What other engines see as new in a published table is what is new in the stream."""

import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from faults import Crash
from publish_kit import DELTA, ICEBERG, SCHEMA, SETTLED, TABLES, Mixture, Table
from pyiceberg.table import StaticTable
from stream_kit import Meddling

import segstore_ds as segstore
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream


@dataclass
class Seen:
    """What a reader has seen of a table: rows that are new to it since the last look."""

    look: Callable[[int], tuple[int, list[int]]]
    place: int = -1  # the newest commit or snapshot that it knows

    def news(self) -> list[int]:
        """Return the numbers of the events that are new."""
        self.place, found = self.look(self.place)
        return sorted(found)


def by_pyiceberg(folder: Path, place: int) -> tuple[int, list[int]]:
    """Look with pyiceberg's incremental append scan."""
    table = StaticTable.from_metadata(str(folder))
    if newest_of(table) == place:  # which it refuses
        return place, []
    scan = table.incremental_append_scan(from_snapshot_id_exclusive=place if place >= 0 else None)
    return newest_of(table), scan.to_arrow()["n"].to_pylist()


def newest_of(table: StaticTable) -> int:
    """Return the id of a table's current snapshot."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


def by_delta_rs(folder: Path, place: int) -> tuple[int, list[int]]:
    """Look with delta-rs at the changes of rows."""
    table = deltalake.DeltaTable(folder)
    if place < 0:
        return table.version(), table.to_pyarrow_table()["n"].to_pylist()
    if place == table.version():
        return place, []
    rows = pa.table(table.load_cdf(starting_version=place + 1).read_all()).to_pylist()
    return table.version(), [row["n"] for row in rows if row["_change_type"] == "insert"]


LOOKS = {by_pyiceberg: ICEBERG, by_delta_rs: DELTA}


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    """Return a stream without events and without upkeep."""
    return segstore.create(tmp_path / "stream", SCHEMA, upkeep=None)


def test_readers_of_changes_see_each_event_once(stream: Stream) -> None:
    """Whatever else happened since the last publication; nothing comes again, nothing is missed."""
    folder = Path(stream.url.removeprefix("file://"))
    seen = [(look, Seen(partial(look, folder))) for look in LOOKS]
    tails = dict.fromkeys(TABLES, 0)
    for what in Mixture(stream).rounds():
        for table in TABLES:
            done = table.publish(stream, settle="settled" in what)
            tail, tails[table] = tails[table], done.tail
            for look, reader in seen:
                if LOOKS[look] is table:
                    wanted = list(range(tail, tails[table]))
                    assert reader.news() == wanted, (what, look)
        kept = pa.chunked_array([range(stream.head, tails[DELTA])], pa.int64())
        assert deltalake.DeltaTable(folder).to_pyarrow_table()["n"].sort() == kept, what
    assert tails[DELTA] == stream.tail
    assert stream.verify().ok


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.kind)
def test_new_events_beside_a_redaction_are_new(stream: Stream, table: Table) -> None:
    """Also in the same segment; the redacted ones are no append, and readers of changes skip them.

    delta-rs shows a redacted file as deletes and inserts.
    """
    folder = Path(stream.url.removeprefix("file://"))
    seen = [(look, Seen(partial(look, folder))) for look, kind in LOOKS.items() if kind is table]
    mixture = Mixture(stream)
    mixture.append()
    mixture.append()
    table.publish(stream)
    assert all(reader.news() == list(range(40)) for _, reader in seen)
    mixture.append()
    stream.compact(start=20, layout=SETTLED)
    stream.redact([["n", "in", [25, 45]]], columns=["word"], redact_id="r")
    mixture.append()
    assert table.publish(stream).tail == 80
    for look, reader in seen:
        again = range(20, 40) if look is by_delta_rs else ()
        assert reader.news() == sorted([*again, *range(40, 80)]), look
    assert table.shown(stream._log.storage)[1] == stream.read().read_all().to_pylist()


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.kind)
@pytest.mark.parametrize("what", ["merged", "divided", "widened", "redacted"])
def test_publication_may_stop_after_each_of_its_commits(what: str, table: Table) -> None:
    """Each shows the newest version's events up to some offset, and the next publisher goes on."""
    storage = open_storage(f"memory://{uuid.uuid4().hex}")
    stream = create_on(storage, SCHEMA.set(0, pa.field("n", pa.int32())), upkeep=None)
    mixture = Mixture(stream)
    mixture.append()
    mixture.append()
    table.publish(stream)
    if what == "widened":
        stream.append(pa.table({"n": [40.5]}), layout=SETTLED, merge_schema=True)
    mixture.append()
    stream.compact(layout=SETTLED)
    if what == "divided":
        stream.truncate(7)
    if what == "redacted":
        stream.redact([["n", "==", 45]], columns=["word"], redact_id="r")
    commits = {"merged": 2, "divided": 3, "widened": 3, "redacted": 3}[what]
    for nth in range(1, commits + 1):
        stopped = Meddling(storage, table.create_of(nth + 1), stop)
        with suppress(Crash):
            table.publish(open_on(stopped))
        assert stopped.met == (nth < commits)
        version, rows = table.shown(storage)
        place = len(rows) + stream.head
        wanted = stream.read(stream.head, place).read_all().to_pylist()
        assert (version, rows) == (stream.version, wanted)
        assert [type(row["n"]) for row in rows] == [type(row["n"]) for row in wanted]
    assert place == stream.tail
    assert table.publish(open_on(storage)).table_version == table.first + commits


def stop() -> None:
    """End the publisher."""
    raise Crash
