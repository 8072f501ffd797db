"""A reader of published tables that takes no other engine: the table's log, and its files."""

import io

import pyarrow.parquet as pq

from segstore_ds.publish.delta_log import read_newest, read_table
from segstore_ds.storage import Storage


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
