"""A reader of published tables that takes no other engine: the metadata, and the files."""

import io
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow.parquet as pq

from segstore_ds.options.table import TableFormat
from segstore_ds.publish import delta, iceberg
from segstore_ds.publish.folder import list_table
from segstore_ds.publish.life import CODECS
from segstore_ds.publish.manifests import Entry, Form, decode_list, decode_manifest
from segstore_ds.publish.snapshot import Published
from segstore_ds.storage import Storage
from segstore_ds.stream.stream import Stream


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


@dataclass(frozen=True)
class Table:
    """A format: how it is published and read, its first version, the call of its second commit."""

    kind: TableFormat
    shown: Callable[[Storage], tuple[int, list[dict[str, object]]]]
    first: int
    second: str

    def objects(self, storage: Storage) -> list[str]:
        """Return the paths of the table's metadata and of its own files."""
        return [info.path for info in list_table(storage, CODECS[self.kind])]

    def publish(self, stream: Stream, *, settle: bool = False) -> Published:
        """Publish a stream in this format."""
        return stream.publish(self.kind, settle=settle)


DELTA = Table("delta", shown, 0, f"create _delta_log/{1:020d}")
ICEBERG = Table("iceberg", shown_iceberg, 1, "create metadata/v2.metadata.json")
TABLES = (DELTA, ICEBERG)
