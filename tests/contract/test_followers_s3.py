"""A follower in another kind of store: a local stream that is followed in a bucket."""

import os
from pathlib import Path

import pyarrow as pa
from fixtures_s3 import S3Server

import segstore_ds as segstore
from segstore_ds.write.layout import Layout

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.binary())])


def events(start: int, end: int) -> pa.Table:
    """Return events of 64 KiB that don't compress."""
    texts = [os.urandom(1 << 16) for _ in range(start, end)]
    return pa.table({"n": list(range(start, end)), "s": texts}, SCHEMA)


def test_a_bucket_follows_a_local_stream(tmp_path: Path, s3_server: S3Server) -> None:
    """Parts are uploaded while a segment is written; then the disk is lost."""
    bucket = f"s3://{s3_server.new_bucket()}/follower"
    options = {"s3://": s3_server.options}
    stream = segstore.create(f"{tmp_path}/stream", SCHEMA, storage_options=options)
    stream.append(events(0, 2))
    stream.followers.add(bucket)
    layout = Layout(compression="none", frame_rows=16)
    requests = s3_server.requests(lambda: stream.append(events(2, 300), layout=layout))
    parts = [line for line in requests if line.startswith("PUT") and "partNumber=" in line]
    assert len(parts) >= 3, requests
    assert not [line for line in requests if line.startswith("DELETE")], requests
    # One request each to begin and to end, two to look whether it is whole, and those of the log.
    assert len(requests) - len(parts) <= 8, requests
    requests = s3_server.requests(lambda: stream.append(events(300, 301)))
    # The segment, its size and its end, three looks whether the log is there, the commit.
    assert len(requests) <= 7, requests
    stream.compact()
    kept = stream.read().read_all()

    (tmp_path / "stream").rename(tmp_path / "lost")
    copy = segstore.open(bucket, storage_options=s3_server.options)
    assert copy.followers.promote() == 1
    assert copy.append(events(301, 302)).start == 301
    assert copy.verify().ok
    assert copy.read("head", 301).read_all() == kept
