"""Segments: adjacent byte ranges are fetched together, and frames are checked as they come."""

import uuid
from itertools import repeat

import pyarrow as pa
import pytest

from segstore_ds.errors import CorruptionError
from segstore_ds.read.segments import fetch_frames, open_segment, plan_runs
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.write.layout import Layout


def test_frames_side_by_side_are_fetched_together():
    spans = [(n, (64 * n, 64 * n + 64)) for n in range(10)]
    assert [len(run) for run in plan_runs(spans, repeat(64 * 4))] == [4, 4, 2]
    assert [len(run) for run in plan_runs(spans, repeat(1))] == [1] * 10
    apart = [*spans[:3], *spans[5:]]
    assert [len(run) for run in plan_runs(apart, repeat(1 << 20), gap_bytes=127)] == [3, 5]
    assert [len(run) for run in plan_runs(apart, repeat(1 << 20), gap_bytes=128)] == [8]
    assert list(plan_runs([], repeat(1))) == []


@pytest.mark.parametrize("form", ["arrow", "parquet"])
@pytest.mark.parametrize("columns", [None, ["n"]])
def test_fetched_frames_are_checked(form, columns):
    """Changed values may decode well: only the checksum tells."""
    table = pa.table({"n": range(100)})
    stream = create_on(open_storage(f"memory://{uuid.uuid4().hex}"), table.schema)
    layout = Layout(segment_format=form, compression="none", frame_rows=50, inline_bytes=0)
    stream.append(table, layout=layout)
    (entry,) = stream._log.root.entries
    name = f"segments/{entry.path}"
    frames = open_segment(stream._log.storage, entry).frames
    data = bytearray(stream._log.storage.get(name))
    data[(frames[1].start + frames[1].end) // 2] ^= 1
    stream._log.storage.put(name, bytes(data))
    fetched = fetch_frames(open_segment(stream._log.storage, entry), [0, 1], columns)
    assert next(fetched)[0] == 0
    with pytest.raises(CorruptionError, match=f"{frames[1].start}:{frames[1].end}"):
        next(fetched)
