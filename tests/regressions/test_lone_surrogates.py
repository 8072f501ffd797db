"""A lone surrogate, which JSON can write and UTF-8 can't, broke every later commit."""

import uuid

import pyarrow as pa

from segstore_ds.engine.state import Slot
from segstore_ds.format.root import Root
from segstore_ds.storage import open_storage
from segstore_ds.stream import create_on, open_on

TABLE = pa.table({"n": [1]})


def test_lone_surrogates_are_carried_through() -> None:
    """As a writer's id, and within what a newer version stored in the root."""
    storage = open_storage(f"memory://{uuid.uuid4().hex}")
    stream = create_on(storage, TABLE.schema)
    for _ in range(2):
        stream.append(TABLE, writer_id="\ud800", batch_id=1)
    assert open_on(storage).tail == 1

    def add_tag(root: Root, slot: Slot) -> Root:
        from dataclasses import replace

        return replace(root, tags={"\udfff": [0, slot.version, slot.time_us]}, operation="tag")

    stream._log.commit(add_tag, transaction="t" * 32)
    stream.append(TABLE)
    root = open_on(storage).root
    assert (list(root.tags), list(root.writers)) == (["\udfff"], ["\ud800"])
    stream.verify().check()


def test_lone_surrogates_leave_the_root_with_the_history() -> None:
    """When there are many, rows of commits move into Arrow's strings: that ended every commit."""
    storage = open_storage(f"memory://{uuid.uuid4().hex}")
    stream = create_on(storage, TABLE.schema)
    for batch in range(140):
        stream.append(TABLE, writer_id="\ud800", batch_id=batch)
    assert stream.root.history_parts
    assert "\\ud800" in stream.history().read_all()["writer_id"].to_pylist()
    stream.verify().check()
