"""`Stream.metrics`: figures against what the stream's other doors say."""

import shutil
import uuid

import pyarrow as pa
import pytest
from stream_kit import make_stream, numbers, wait

import segstore_ds as segstore
from segstore_ds.observe.figures import measure_lag
from segstore_ds.storage.locations import resolve_location

SCHEMA = pa.schema([("n", pa.int64())])
STAGED = segstore.Layout(inline_bytes=0, segment_format="arrow", compression="none")


def rows(count, start=0):
    return pa.table({"n": range(start, start + count)})


@pytest.fixture
def stream(tmp_path):
    return segstore.create(tmp_path / "s", SCHEMA, upkeep=None)


def test_sizes_are_those_of_info(stream):
    for size in (5, 1, 7):
        stream.append(rows(size), layout=STAGED)
    stream.truncate(6)
    stream.tags.set("a")
    found, info = stream.metrics(), stream.info()
    assert (info["events"], info["head"], info["tail"]) == (7, 6, 13)
    assert (info["segments"], info["version"]) == (1, stream.version)
    assert info["bytes"] == sum(entry.bytes for entry in stream._log.root.entries)
    assert (info["retired"], info["tags"]) == (2, 1)
    same = ("version", "generation", "head", "tail", "events", "sealed", "segments", "bytes")
    assert {name: getattr(found, name) for name in same} == {name: info[name] for name in same}
    assert (found.versions, found.retired) == (info["versions"], info["retired"])
    assert (found.stream_id, found.url) == (info["stream_id"], stream.url)
    assert found.last_commit == info["time"]
    assert found.storage is None
    assert found.readers == found.followers == ()
    assert found.published == ()
    assert found.last_upkeep is None


def test_lag_of_a_reader_in_events_bytes_and_seconds():
    stream, storage = make_stream(0)
    stream.append(numbers(0, 10), layout=STAGED)
    wait(storage, 30)
    stream.append(numbers(10, 20), layout=STAGED)
    first, second = (row["bytes"] for row in stream.segments().read_all().to_pylist())
    for name, offset in (("all", 0), ("half", 5), ("next", 10), ("none", 20)):
        stream.readers.register(name, owner="test", start=offset)
    wait(storage, 12)
    found = {one.name: one.lag for one in stream.metrics().readers}
    expected = {
        "all": (20, first + second, 42.0),
        "half": (15, first // 2 + second, 42.0),
        "next": (10, second, 12.0),
        "none": (0, 0, 0.0),
    }
    assert {n: (lag.events, lag.bytes, lag.seconds) for n, lag in found.items()} == expected
    assert measure_lag(stream._context, 5) == found["half"]


def test_idle_goes_by_the_newest_event_and_not_by_the_newest_commit():
    stream, storage = make_stream(0)
    assert stream.metrics().last_append is None
    stream.append(numbers(0, 10), layout=STAGED)
    appended = stream.metrics().last_append
    wait(storage, 30)
    stream.readers.register("slow", owner="test", start=0)
    stream.truncate(10)
    found = stream.metrics()
    assert (found.last_append, found.idle_s) == (appended, 30.0)
    assert found.last_commit > appended


def test_lag_of_followers(stream, tmp_path):
    stream.append(rows(10))
    url = (tmp_path / "copy").as_uri()
    stream.followers.add(url)
    stream.append(rows(5))
    (one,) = stream.metrics().followers
    assert (one.version, one.lag_versions, one.lag_events) == (stream.version, 0, 0)
    # As if the newest commit had not reached it yet.
    (tmp_path / "copy/log" / f"{stream.version:020}").unlink()
    fresh = segstore.open(stream.url)
    (one,) = fresh.metrics().followers
    assert (one.version, one.lag_versions, one.lag_events) == (stream.version - 1, 1, 5)
    shutil.rmtree(tmp_path / "copy")
    (one,) = fresh.metrics().followers
    assert one == type(one)(resolve_location(url).url, None, None, None)


def test_lag_of_published_tables(stream):
    stream.append(rows(10))
    stream.publish("delta", settle=True)
    stream.append(rows(4))
    stream.publish("iceberg", settle=True)
    stream.append(rows(2))
    found = stream.metrics().published
    assert [(one.format, one.tail, one.lag) for one in found] == [
        ("delta", 10, 6),
        ("iceberg", 14, 2),
    ]


def test_writes_of_this_process_are_counted_dense_and_scattered(tmp_path):
    """By folder, whichever handle wrote; a copy between stores writes parts in any order."""
    stream = segstore.create(f"memory://{uuid.uuid4().hex}", SCHEMA, upkeep=None)
    assert stream.metrics().written.channel_writes == 0
    for _ in range(2):
        stream.append(rows(5), layout=STAGED)
    written = segstore.open(stream.url).metrics().written
    assert (written.channel_writes, written.scattered_writes) == (2, 0)
    assert written.channel_bytes == written.accepted_bytes == stream.info()["bytes"]
    stream.copy_to(f"file://{tmp_path}/copy", copy_id="one")
    copy = segstore.open(f"file://{tmp_path}/copy").metrics()
    assert (copy.written.channel_writes, copy.written.scattered_writes) == (2, 2)
    assert copy.written.channel_bytes == copy.bytes


def test_a_reader_that_lost_events_still_counts_them(stream):
    stream.append(rows(10), layout=STAGED)
    stream.readers.register("slow", owner="test", start=2)
    stream.truncate(8)
    (reader,) = stream.metrics().readers
    assert (reader.lag.events, reader.lost_events, reader.live) == (8, 6, True)
    table = stream.metadata("readers").read_all().to_pylist()
    assert reader.lag.events == table[0]["behind"]
