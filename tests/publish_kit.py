"""A reader of published tables that takes no other engine: the metadata, and the files.

And a stream that changes in every mixture between publications.
"""

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from segstore_ds.options.table import TableFormat
from segstore_ds.publish import delta, iceberg
from segstore_ds.publish.folder import list_table
from segstore_ds.publish.life import CODECS
from segstore_ds.publish.manifests import ADDED, Entry, Form, decode_list, decode_manifest
from segstore_ds.publish.snapshot import Published
from segstore_ds.storage import Storage
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout


def shown(storage: Storage) -> tuple[int, list[dict[str, object]]]:
    """Return the stream's version and all rows that the table shows; every file is there whole."""
    table, files = delta.read_files(storage, delta.newest(storage))
    assert table.note is not None
    found, place = [], table.note.head
    for file in sorted(files.values(), key=lambda file: file.start):
        data = storage.get(file.path)
        rows = pq.read_table(io.BytesIO(data))
        assert (len(data), place) == (file.bytes, file.start)
        found += rows.to_pylist()
        place += rows.num_rows
    assert place == table.note.tail
    return table.note.version, found


def iceberg_entries(storage: Storage) -> list[Entry]:
    """Return the files that the Iceberg table lists, in the order of their offsets."""
    snapshot, form = iceberg.newest(storage).state.snapshot, Form("", storage.url)
    listed = decode_list(storage.get(form.path(snapshot["manifest-list"])), form)
    found = []
    for manifest in listed:
        entries = decode_manifest(storage.get(manifest.path), manifest.start, form)
        if not entries:  # its files are gone since this snapshot
            assert manifest.record["added_snapshot_id"] == snapshot["snapshot-id"]
        else:
            assert (entries[0].start, entries[-1].end) == (manifest.start, manifest.end)
        found += entries
    assert snapshot["summary"]["total-data-files"] == str(len(found))
    return found


def shown_iceberg(storage: Storage) -> tuple[int, list[dict[str, object]]]:
    """Return the stream's version and all rows that the table shows; every file is there whole."""
    note = iceberg.newest(storage).note
    assert note is not None
    found, place = [], note.head
    for file in (entry.file for entry in iceberg_entries(storage)):
        data = storage.get(file.path)
        rows = pq.read_table(io.BytesIO(data))
        assert (len(data), place) == (file.bytes, file.start)
        assert place + rows.num_rows == file.end
        found += rows.to_pylist()
        place = file.end
    assert place == note.tail
    return note.version, found


def appended(storage: Storage, since: int) -> list[tuple[int, int]]:
    """Return the offsets of the files that a Delta table's commits add for a reader of changes.

    These are the commits after one that take no rows away.
    """
    found = []
    for version in range(since + 1, delta.newest(storage).version + 1):
        actions = delta.read_commit(storage, version)
        if not any(action.get("remove", {}).get("dataChange") for action in actions):
            added = (action["add"] for action in actions if "add" in action)
            found += [
                (add["baseRowId"], add["baseRowId"] + delta._rows_of(add))
                for add in added
                if add["dataChange"]
            ]
    return sorted(found)


def appended_iceberg(storage: Storage, since: int) -> list[tuple[int, int]]:
    """Return the offsets of the files that an incremental append scan reads after a version.

    A version has one snapshot.
    """
    metadata, form = iceberg.newest(storage).state.metadata, Form("", storage.url)
    newest = metadata["last-sequence-number"]
    lists = {
        snapshot["snapshot-id"]: form.path(snapshot["manifest-list"])
        for snapshot in metadata["snapshots"]
        if snapshot["summary"]["operation"] == "append"
        and snapshot["sequence-number"] > newest - (iceberg.newest(storage).version - since)
    }
    found = []
    for number, path in lists.items():
        for manifest in decode_list(storage.get(path), form):
            if manifest.record["added_snapshot_id"] == number:
                entries = decode_manifest(storage.get(manifest.path), manifest.start, form)
                found += [
                    (entry.file.start, entry.file.end)
                    for entry in entries
                    if entry.status == ADDED and entry.snapshot_id == number
                ]
    return sorted(found)


SCHEMA = pa.schema([("n", pa.int64()), ("word", pa.string())])
SETTLED = Layout(inline_bytes=0, segment_format="parquet")
HOT = Layout(inline_bytes=0, segment_format="arrow")


def events(start: int, end: int) -> pa.Table:
    """Return the events start to end, whose numbers are their offsets."""
    words = [["", "ada", "größe", None][n % 4] for n in range(start, end)]
    return pa.table({"n": list(range(start, end)), "word": words}, SCHEMA)


@dataclass
class Mixture:
    """What happens to a stream between two publications."""

    stream: Stream

    def append(self, count: int = 20, layout: Layout = SETTLED) -> None:
        """Add events."""
        found = events(self.stream.tail, self.stream.tail + count).cast(self.stream.schema)
        self.stream.append(found, layout=layout)

    def rounds(self) -> Iterator[str]:
        """Change the stream in each way alone and in mixtures, and say which."""
        stream = self.stream
        self.append()
        self.append()
        yield "appends"
        self.append()
        yield "an append"
        stream.compact(layout=SETTLED)
        yield "a compaction"
        self.append()
        stream.compact(layout=SETTLED)
        yield "a segment of shown and new events"
        self.append()
        self.append()
        yield "appends again"
        stream.compact(start=80, layout=SETTLED)
        self.append()
        yield "a compaction, then an append"
        stream.truncate(7)
        yield "a truncation inside a segment"
        self.append()
        stream.truncate(80)
        yield "an append and a truncation"
        self.append()
        stream.truncate(95)
        stream.compact(layout=SETTLED)
        yield "a truncation, then a segment of shown and new events"
        self.append()
        stream.compact(layout=SETTLED)
        stream.truncate(97)
        yield "a truncation inside a segment of shown and new events"
        self.append(5, HOT)
        yield "events in Arrow"
        self.append()
        stream.compact(layout=SETTLED)
        yield "events that were in Arrow"
        self.append(5, HOT)
        stream.compact(layout=HOT)
        self.append(1, HOT)
        yield "more in Arrow"
        yield "nothing, but settled"


@dataclass(frozen=True)
class Table:
    """A format: how it is published and read, its first version, the call that makes a commit."""

    kind: TableFormat
    shown: Callable[[Storage], tuple[int, list[dict[str, object]]]]
    appended: Callable[[Storage, int], list[tuple[int, int]]]
    first: int
    call: str

    def objects(self, storage: Storage) -> list[str]:
        """Return the paths of the table's metadata and of its own files."""
        return [info.path for info in list_table(storage, CODECS[self.kind])]

    def create_of(self, nth: int) -> str:
        """Return the call that decides a commit, from 0 on."""
        return self.call.format(self.first + nth)

    def publish(self, stream: Stream, *, settle: bool = False) -> Published:
        """Publish a stream in this format."""
        return stream.publish(self.kind, settle=settle)


DELTA = Table("delta", shown, appended, 0, "create _delta_log/{:020d}")
ICEBERG = Table("iceberg", shown_iceberg, appended_iceberg, 1, "create metadata/v{}.metadata.json")
TABLES = (DELTA, ICEBERG)
