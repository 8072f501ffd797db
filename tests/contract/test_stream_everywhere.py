"""The same life of a stream on every filesystem: appended to, read, verified."""

import pickle
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fixtures_s3 import S3Server

import segstore_ds as segstore
from segstore_ds.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    StorageError,
)

SCHEMA = pa.schema([("writer", pa.int64()), ("n", pa.int64()), ("text", pa.string())])


def numbered(writer: int, start: int, count: int) -> pa.Table:
    """Return events that say who wrote them and in which order."""
    numbers = range(start, start + count)
    texts = [f"event {n}" for n in numbers]
    return pa.table({"writer": [writer] * count, "n": numbers, "text": texts}, schema=SCHEMA)


def reopen(place: dict[str, Any]) -> segstore.Stream:
    """Open the stream at a place."""
    return segstore.open(place["url"], storage_options=place.get("storage_options"))


@pytest.fixture(params=["local", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Return the arguments that name a fresh location."""
    if request.param == "local":
        return {"url": str(tmp_path / "stream")}
    if request.param == "memory":
        return {"url": f"memory://{uuid.uuid4().hex}/stream"}
    server: S3Server = request.getfixturevalue("s3_server")
    return {"url": f"s3://{server.new_bucket()}/deep/stream", "storage_options": server.options}


def make(place: dict[str, Any], schema: pa.Schema = SCHEMA) -> segstore.Stream:
    """Create a stream at a place."""
    return segstore.create(place["url"], schema, storage_options=place.get("storage_options"))


def test_stream_lives_the_same_everywhere(place: dict[str, Any]) -> None:
    """Create, append, repeat, overwrite, reopen, read between cuts, verify."""
    stream = make(place)
    with pytest.raises(AlreadyExistsError):
        make(place)
    first = stream.append(numbered(0, 0, 100))
    again = [stream.append(numbered(1, 0, 50), writer_id="w", batch_id=3) for _ in range(2)]
    assert (first.start, first.end) == (0, 100)
    assert [commit.repeated for commit in again] == [False, True]
    assert (again[1].version, again[1].start, again[1].end) == (again[0].version, 100, 150)
    other = reopen(place)
    assert (other.head, other.tail, other.version) == (0, 150, 2)
    read = other.read(90, 110, offset_column="offset").read_all()
    assert read["offset"].to_pylist() == list(range(90, 110))
    assert read["n"].to_pylist() == [*range(90, 100), *range(10)]
    assert other.read("version:1", "tail").read_all().equals(numbered(1, 0, 50))
    other.overwrite(numbered(2, 0, 5))
    assert (other.head, other.tail) == (150, 155)
    assert stream.refresh().read().read_all().equals(numbered(2, 0, 5))
    report = stream.verify().check()
    assert (report.versions, report.rows) == (4, 5)
    assert pickle.loads(pickle.dumps(stream._log.storage)).url == stream.url  # noqa: S301


def test_commit_whose_answers_are_lost_lands_once(s3_server: S3Server) -> None:
    """A server that does the put and always answers 500 neither loses nor doubles a commit."""
    bucket = s3_server.new_bucket("forgetful")
    place = {"url": f"s3://{bucket}/stream", "storage_options": s3_server.options}
    stream = make(place)
    commits = [stream.append(numbered(0, n, 1)) for n in range(3)]
    assert [commit.start for commit in commits] == [0, 1, 2]
    assert reopen(place).read(columns=["n"]).read_all()["n"].to_pylist() == [0, 1, 2]


def test_nothing_is_created_by_reading(place: dict[str, Any]) -> None:
    """A missing stream is an error, never an empty answer or a new stream."""
    if "storage_options" not in place:
        with pytest.raises(NotFoundError, match="no stream here"):
            reopen(place)
    assert not segstore.exists(place["url"], storage_options=place.get("storage_options"))
    make(place)
    assert segstore.exists(place["url"], storage_options=place.get("storage_options"))


def test_errors_do_not_show_the_secret(s3_server: S3Server) -> None:
    """A bucket that is not there and keys that are wrong are named without the keys."""
    options = s3_server.options
    with pytest.raises((StorageError, NotFoundError)) as missing:
        segstore.open("s3://no-such-bucket-here/stream", storage_options=options)
    with pytest.raises(InvalidInputError) as unset:
        segstore.open("s3://bucket/stream", storage_options={**options, "secret": "env:NOT_SET_X"})
    for caught in (missing, unset):
        assert options["secret"] not in str(caught.value)
    assert "NOT_SET_X" in str(unset.value)
