"""Copies and followers from one filesystem to the next, and clones within one over HTTP."""

import os
import uuid
from pathlib import Path

import pyarrow as pa
from fixtures_s3 import S3Server

import segstore_ds as segstore
from segstore_ds.write.layout import Layout

LAYOUT = Layout(inline_bytes=0)


def _events(start: int, end: int) -> pa.Table:
    return pa.table({"n": pa.array(range(start, end), pa.int64())})


def _numbers(stream: segstore.Stream) -> list[int]:
    return stream.read().read_all()["n"].to_pylist()


def test_local_to_s3_to_memory(s3_server, tmp_path) -> None:
    """Bytes and offsets stay, also at divided segments; concurrent appends are not copied."""
    stream = segstore.create(str(tmp_path / "stream"), _events(0, 0).schema)
    for n in range(3):
        stream.append(_events(10 * n, 10 * n + 10), layout=LAYOUT)
    there = f"s3://{s3_server.new_bucket()}/copied"
    stream.copy_to(there, copy_id="up", start=5, storage_options=s3_server.options)
    stream.append(_events(30, 40))
    assert stream.copy_to(there, copy_id="up", start=5, storage_options=s3_server.options).repeated
    remote = segstore.open(there, storage_options=s3_server.options)
    assert _numbers(remote) == list(range(5, 30))
    last = f"memory://{uuid.uuid4().hex}"
    remote.copy_to(last, copy_id="down")
    assert _numbers(segstore.open(last)) == list(range(5, 30))
    for one in (remote, segstore.open(last)):
        one.verify().check()


def test_live_stream_moves_from_a_disk_to_a_bucket(s3_server, tmp_path) -> None:
    """Writers, readers, positions and a kept version go with it; the second call has the rest."""
    stream = segstore.create(str(tmp_path / "stream"), _events(0, 0).schema)
    stream.append(_events(0, 10), writer_id="etl", batch_id=1, layout=LAYOUT)
    reader = stream.readers.register("billing", owner="a", start="head")
    stream.tags.set("v1", keep=True)
    there, options = f"s3://{s3_server.new_bucket()}/moved", s3_server.options
    stream.back_up(there, storage_options=options)
    stream.append(_events(10, 20), writer_id="etl", batch_id=2)
    reader.publish(7)
    position = stream.position("tail")
    stream.back_up(there, storage_options=options)
    segstore.drop(stream.url, confirm=stream.url)
    moved = segstore.open(there, storage_options=options)
    assert moved.append(_events(10, 20), writer_id="etl", batch_id=2).repeated
    assert moved.append(_events(20, 30), writer_id="etl", batch_id=3).start == 20
    assert moved.read(position).read_all()["n"].to_pylist() == list(range(20, 30))
    assert moved.readers.register("billing", owner="a").offset == 7
    assert moved.scan(as_of="tag:v1").count() == 10
    moved.verify().check()


def test_clone_on_s3(s3_server) -> None:
    """A clone uses its origin's options; materialized, it is independent and removes its pin."""
    bucket = s3_server.new_bucket()
    origin, place = f"s3://{bucket}/origin", f"s3://{bucket}/clone"
    stream = segstore.create(origin, _events(0, 0).schema, storage_options=s3_server.options)
    stream.append(_events(0, 10), layout=LAYOUT)
    stream.copy_to(place, copy_id="c", mode="clone")
    clone = segstore.open(place, storage_options=s3_server.options)
    clone.append(_events(10, 20))
    assert _numbers(clone) == list(range(20))
    assert clone.materialize() == 1
    segstore.drop(origin, confirm=origin, storage_options=s3_server.options)
    again = segstore.open(place, storage_options=s3_server.options)
    assert _numbers(again) == list(range(20))
    again.verify().check()


def large_events(start: int, end: int) -> pa.Table:
    """Return events of 64 KiB that don't compress."""
    texts = [os.urandom(1 << 16) for _ in range(start, end)]
    return pa.table(
        {"n": pa.array(range(start, end), pa.int64()), "s": pa.array(texts, pa.binary())}
    )


def test_a_bucket_follows_a_local_stream(tmp_path: Path, s3_server: S3Server) -> None:
    """Parts are uploaded while a segment is written; then the disk is lost."""
    bucket = f"s3://{s3_server.new_bucket()}/follower"
    options = {"s3://": s3_server.options}
    stream = segstore.create(
        f"{tmp_path}/stream", large_events(0, 0).schema, storage_options=options
    )
    stream.append(large_events(0, 2))
    stream.followers.add(bucket)
    layout = Layout(compression="none", frame_rows=16)
    requests = s3_server.requests(lambda: stream.append(large_events(2, 300), layout=layout))
    parts = [line for line in requests if line.startswith("PUT") and "partNumber=" in line]
    assert len(parts) >= 3, requests
    assert not [line for line in requests if line.startswith("DELETE")], requests
    # One request each to begin and to end, two to look whether it is whole, and those of the log.
    assert len(requests) - len(parts) <= 8, requests
    requests = s3_server.requests(lambda: stream.append(large_events(300, 301)))
    # The segment, its size and its end, three looks whether the log is there, the commit.
    assert len(requests) <= 7, requests
    stream.compact()
    kept = stream.read().read_all()

    (tmp_path / "stream").rename(tmp_path / "lost")
    copy = segstore.open(bucket, storage_options=s3_server.options)
    assert copy.followers.promote() == 1
    assert copy.append(large_events(301, 302)).start == 301
    assert copy.verify().ok
    assert copy.read("head", 301).read_all() == kept
