"""`Scan.count`: what `read` gives, with as little read as the answer takes."""

import pytest
from stream_kit import make_stream, numbers

from segstore_ds.errors import FormatError, PositionError, TruncatedError
from segstore_ds.read import segments
from segstore_ds.stream.opening import open as open_on
from segstore_ds.write.layout import Layout

FILTERS = [
    None,
    [["n", ">=", 33]],
    [["n", "in", [5, 44, 999]]],
    [["n", "<", 0]],
    [["n", "is null"]],
]


@pytest.fixture(params=["arrow", "parquet"])
def stream(request):
    """Six segments of ten events, with frames of five."""
    made, _ = make_stream(0)
    layout = Layout(frame_rows=5, segment_format=request.param, inline_bytes=0)
    for start in range(0, 60, 10):
        made.append(numbers(start, start + 10), layout=layout)
    return made


@pytest.mark.parametrize("cuts", [("head", "tail"), (7, 48), (12, 12), (59, 60)])
def test_count_is_what_read_gives(stream, cuts):
    for filters in FILTERS:
        expected = stream.read(*cuts, filters=filters).read_all().num_rows
        assert stream.scan(*cuts, filters=filters).count() == expected


def test_count_without_filters_reads_no_segment(stream):
    for info in list(stream._log.storage.list("segments")):
        stream._log.storage.delete(info.path)
    again = open_on(stream._log.storage, clock=stream._log.clock)
    again._log.storage.stats.reset()
    assert (again.scan().count(), again.scan(5).count(), again.scan(5, 50).count()) == (60, 55, 45)
    assert again._log.storage.stats.total <= 9  # three requests look for newer commits
    assert set(again._log.storage.stats.requests) <= {"get", "info"}


def test_damage_is_never_counted_as_nothing(stream):
    frame = stream.metadata("frames").read_all().to_pylist()[0]
    data = bytearray(stream._log.storage.get(frame["path"]))
    stream._log.storage.delete(frame["path"])
    with pytest.raises(FormatError):
        stream.scan(filters=[["n", ">=", 0]], read_cache_bytes=0).count()
    data[frame["place"] + frame["bytes"] // 2] ^= 1
    stream._log.storage.put(frame["path"], bytes(data))
    with pytest.raises(FormatError):
        stream.scan(filters=[["n", "is not null"], ["n", "!=", 7]], read_cache_bytes=0).count()


def test_count_takes_versions_times_and_cuts_as_read_does(stream):
    version, at = stream.version, stream.history().read_all().to_pylist()[-1]["time"]
    stream._log.clock.sleep(5.0)
    stream.append(numbers(60, 70))
    stream.truncate(8)
    assert (stream.scan().count(), stream.scan(as_of=version).count()) == (62, 60)
    assert stream.scan(as_of=at).count() == 60
    assert stream.scan(f"version:{version}", "tail").count() == 10
    with pytest.raises(TruncatedError):
        stream.scan(3).count()
    assert stream.scan(3, fail_on_data_loss=False).count() == 62
    with pytest.raises(PositionError):
        stream.scan(0, 71).count()


def test_count_with_filters_skips_by_statistics(stream, monkeypatch):
    monkeypatch.setattr(segments, "WHOLE_OBJECT_BYTES", 0)
    stream._log.storage.stats.reset()
    assert stream.scan(filters=[["n", ">=", 57]], read_cache_bytes=0).count() == 3
    assert (
        stream._log.storage.stats.requests["get_range"] == 2
    )  # the footer of one segment, one frame
    stream._log.storage.stats.reset()
    assert stream.scan(filters=[["n", ">", 59]], read_cache_bytes=0).count() == 0
    assert "get_range" not in stream._log.storage.stats.requests
