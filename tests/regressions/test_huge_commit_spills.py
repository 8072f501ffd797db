"""One commit of very many segments spilled to one part, too large to be read again."""

import uuid

import pyarrow as pa
import pytest

from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.write.layout import Layout


def test_commit_of_many_segments_makes_many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """No part lists more segments than a final one."""
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.rows", 2)
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.final", 3)
    table = pa.table({"n": list(range(8))})
    stream = create_on(open_storage(f"memory://{uuid.uuid4().hex}"), table.schema)
    stream.append(
        table, layout=Layout(inline_bytes=0, segment_rows=1, frame_rows=1, segment_format="arrow")
    )
    assert [part.count for part in stream._log.root.parts] == [3, 3, 2]
    assert open_on(stream._log.storage).read().read_all().equals(table)
    stream.verify().check()
