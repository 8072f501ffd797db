"""A reader of published tables that takes no other engine: the metadata, and the files."""

import io
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow.parquet as pq

from segstore_ds.publish.delta_log import read_newest, read_table
from segstore_ds.publish.folders import list_table
from segstore_ds.publish.iceberg_table import read_newest as read_iceberg
from segstore_ds.publish.life_cycle import Published
from segstore_ds.publish.manifests import Entry, Form, decode_list, decode_manifest
from segstore_ds.storage import Storage
from segstore_ds.stream import Stream


def shown(storage: Storage) -> tuple[int, list[dict[str, object]]]:
    """Return the stream's version and all rows that the table shows; every file is there whole."""
    table = read_table(storage, read_newest(storage))
    assert table.note is not None
    found, place = [], table.note.head
    for path, add in sorted(table.adds.items(), key=lambda item: item[1]["baseRowId"]):
        data = storage.get(path)
        rows = pq.read_table(io.BytesIO(data))
        assert (len(data), place) == (add["size"], add["baseRowId"])
        found += rows.to_pylist()
        place += rows.num_rows
    assert place == table.note.tail
    return table.note.version, found


def iceberg_entries(storage: Storage) -> list[Entry]:
    """Return the files that the Iceberg table lists, in the order of their offsets."""
    table = read_iceberg(storage, exact=True)
    form = Form(table.metadata["format-version"], storage.url, "", 0)
    assert table.snapshot is not None
    listed = decode_list(storage.get(form.path(table.snapshot["manifest-list"])), form)
    found = []
    for manifest in listed:
        entries = decode_manifest(storage.get(manifest.path), manifest.start, form)
        if not entries:  # its files are gone since this snapshot
            assert manifest.record["added_snapshot_id"] == table.snapshot["snapshot-id"]
        else:
            assert (entries[0].start, entries[-1].end) == (manifest.start, manifest.end)
        found += entries
    assert table.snapshot["summary"]["total-data-files"] == str(len(found))
    return found


def shown_iceberg(storage: Storage) -> tuple[int, list[dict[str, object]]]:
    """Return the stream's version and all rows that the table shows; every file is there whole."""
    note = read_iceberg(storage, exact=True).note
    assert note is not None
    found, place = [], note.head
    for entry in iceberg_entries(storage):
        data = storage.get(entry.path)
        rows = pq.read_table(io.BytesIO(data))
        assert (len(data), rows.num_rows, place) == (entry.bytes, entry.rows, entry.start)
        found += rows.to_pylist()
        place = entry.end
    assert place == note.tail
    return note.version, found


@dataclass(frozen=True)
class Table:
    """A format: how it is published and read, its first version, the call of its second commit."""

    kind: str
    shown: Callable[[Storage], tuple[int, list[dict[str, object]]]]
    first: int
    second: str

    def objects(self, storage: Storage) -> list[str]:
        """Return the paths of the table's metadata and of its own files."""
        return [info.path for info in list_table(storage, self.kind)]

    def publish(self, stream: Stream, *, settle: bool = False) -> Published:
        """Publish a stream in this format."""
        found: Published = getattr(stream, f"publish_{self.kind}")(settle=settle)
        return found


DELTA = Table("delta", shown, 0, f"create _delta_log/{1:020d}")
ICEBERG = Table("iceberg", shown_iceberg, 1, "create metadata/v2.metadata.json")
TABLES = (DELTA, ICEBERG)
