"""Every byte of a segment passes the cache: on its way in, on its way to a copy, and back."""

import uuid

import pytest
from stream_kit import SCHEMA, numbers

import segstore_ds as segstore
from segstore_ds.cache.service import WriteCacheService
from segstore_ds.cache.views import ByteArraySegment
from segstore_ds.write.layout import Layout

LAYOUT = Layout(inline_bytes=0, frame_rows=100)


@pytest.fixture
def written(monkeypatch) -> list[int]:
    """The lengths of all records that write caches take from now on."""
    lengths: list[int] = []
    accept = WriteCacheService._accept

    def accepted(self, record, buffer):
        lengths.append(record.length)
        return accept(self, record, buffer)

    monkeypatch.setattr(WriteCacheService, "_accept", accepted)
    return lengths


@pytest.fixture
def stream():
    return segstore.create(f"memory://{uuid.uuid4().hex}", SCHEMA)


def size(stream: segstore.Stream) -> int:
    return sum(entry.bytes for entry in stream.refresh()._log.root.entries)


@pytest.mark.usefixtures("no_inline")
@pytest.mark.parametrize("layout", [LAYOUT, Layout()])
def test_appends_and_appenders_write_through_it(stream, written, layout):
    stream.append(numbers(0, 1000), layout=layout)
    assert sum(written) == size(stream)
    with stream.appender(layout=layout) as appender:
        for start in range(0, 500, 50):
            appender.append(numbers(start, start + 50))
    assert sum(written) == size(stream)


def test_copies_and_compactions_use_a_write_cache(stream, written, tmp_path):
    for start in range(0, 5000, 1000):
        stream.append(numbers(start, start + 1000), layout=LAYOUT)
    written.clear()
    copy = f"file://{tmp_path}/copy"  # within one store no byte passes this process
    stream.copy_to(copy, copy_id="one")
    assert sum(written) == size(segstore.open(copy)) == size(stream)
    written.clear()
    stream.compact()
    assert sum(written) == size(stream)


def test_scans_read_through_its_views(stream, monkeypatch):
    stream.append(numbers(0, 1000), layout=LAYOUT)
    sliced: list[int] = []
    cut = ByteArraySegment.slice

    def slice_(self, start, end):
        part = cut(self, start, end)
        sliced.append(part.length)
        return part

    monkeypatch.setattr(ByteArraySegment, "slice", slice_)
    assert stream.read().read_all().num_rows == 1000
    assert sum(sliced) > 0.8 * size(stream)
