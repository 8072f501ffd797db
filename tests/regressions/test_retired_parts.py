"""`verify` took the segments of a retired status part for leftovers that nothing refers to."""

import uuid

import pyarrow as pa
import pytest

from segstore_ds.format.names import both_names
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.write.layout import Layout

TABLE = pa.table({"n": [1, 2, 3]})


@pytest.mark.parametrize("retired_inline", [0, 100])
def test_segments_of_a_retired_part_are_no_leftovers(
    monkeypatch: pytest.MonkeyPatch, retired_inline: int
) -> None:
    """They are retired with it, whether the root or a part lists them."""
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.rows", 2)
    monkeypatch.setattr("segstore_ds.status.table.RETIRED.rows", retired_inline)
    stream = create_on(open_storage(f"memory://{uuid.uuid4().hex}"), TABLE.schema)
    stream.append(
        TABLE, layout=Layout(inline_bytes=0, segment_rows=1, frame_rows=1, segment_format="arrow")
    )
    stream.append(TABLE)
    stream.overwrite(TABLE)
    assert bool(stream._log.root.retired_parts) == (retired_inline == 0)
    assert stream.verify().check().leftovers == []


def test_segments_of_a_lost_retired_part_are_leftovers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then nothing refers to its segments any more; the version that listed it is damaged."""
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.rows", 2)
    stream = create_on(open_storage(f"memory://{uuid.uuid4().hex}"), TABLE.schema)
    stream.append(
        TABLE, layout=Layout(inline_bytes=0, segment_rows=1, frame_rows=1, segment_format="arrow")
    )
    stream.overwrite(TABLE)
    (part,) = [item for item in stream._log.root.retired if item.kind == "part"]
    for path in both_names(part.path):
        stream._log.storage.delete(path)
    report = stream.verify()
    assert [problem.where for problem in report.problems] == [*both_names(part.path)]
    assert len(report.leftovers) == 3
