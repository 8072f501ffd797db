"""What is not segstore's is refused, kept and reported, on every filesystem, byte for byte."""

import io
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fixtures_s3 import S3Server

import segstore_ds as segstore
from segstore_ds.errors import (
    CorruptionError,
    InvalidInputError,
    NotFoundError,
)

SCHEMA = pa.schema([("n", pa.int64())])
EVENTS = pa.table({"n": [1, 2, 3]}, SCHEMA)


@dataclass(frozen=True)
class Folder:
    """A folder as somebody sees it who knows nothing of segstore."""

    url: str
    path: str
    fs: Any
    options: dict[str, Any] | None = None

    def put(self, **files: bytes) -> dict[str, bytes]:
        """Write files by their paths and return them."""
        return self.put_all(files)

    def put_all(self, files: dict[str, bytes]) -> dict[str, bytes]:
        """Write files by their paths and return them."""
        for name, data in files.items():
            full = f"{self.path}/{name}"
            self.fs.makedirs(full.rpartition("/")[0], exist_ok=True)
            self.fs.pipe_file(full, data)
        return files

    def read(self) -> dict[str, bytes]:
        """Return every file's bytes by its path, hidden ones too."""
        self.fs.invalidate_cache()
        found = self.fs.find(self.path) if self.fs.exists(self.path) else []
        start = f"{self.path.lstrip('/')}/"
        return {name.lstrip("/").removeprefix(start): self.fs.cat_file(name) for name in found}

    def inner(self, name: str) -> "Folder":
        """Return a folder in this one."""
        return Folder(f"{self.url}/{name}", f"{self.path}/{name}", self.fs, self.options)

    def create(self) -> segstore.Stream:
        """Create a stream here."""
        return segstore.create(self.url, SCHEMA, storage_options=self.options)

    def open(self) -> segstore.Stream:
        """Open the stream here."""
        return segstore.open(self.url, storage_options=self.options)

    def drop(self) -> segstore.reports.Dropped:
        """Drop the stream here."""
        return segstore.drop(self.url, confirm=self.url, storage_options=self.options)


@pytest.fixture(params=["local", "memory", pytest.param("s3", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Folder]:
    """Return a folder that holds nothing yet."""
    if request.param == "local":
        yield Folder(str(tmp_path / "all"), str(tmp_path / "all"), fsspec.filesystem("file"))
    elif request.param == "memory":
        path = f"/{uuid.uuid4().hex}/all"
        yield Folder(f"memory:/{path}", path, fsspec.filesystem("memory"))
    else:
        server: S3Server = request.getfixturevalue("s3_server")
        path = f"{server.new_bucket()}/deep/all"
        fs = fsspec.filesystem("s3", **server.options, use_listings_cache=False)
        yield Folder(f"s3://{path}", path, fs, server.options)


def parquet() -> bytes:
    """Return a real Parquet file."""
    sink = io.BytesIO()
    pq.write_table(EVENTS, sink)
    return sink.getvalue()


KINDS: dict[str, tuple[str, Callable[[], dict[str, bytes]]]] = {
    "parquet": ("part-0.parquet", lambda: {"part-0.parquet": parquet(), "_SUCCESS": b"x"}),
    "delta": (
        "_delta_log/",
        lambda: {f"_delta_log/{0:020}.json": b"{}", "part-0.parquet": parquet()},
    ),
    "iceberg": (
        "metadata/",
        lambda: {"metadata/00000-a.metadata.json": b"{}", "data/0.parquet": parquet()},
    ),
    "streams": ("a/", lambda: {f"a/log/{0:020}": b"x"}),
    "notes": ("notes.txt", lambda: {"notes.txt": b"remember"}),
    "hidden": (".git/", lambda: {".git/config": b"x"}),
    "log": ("log/app.log", lambda: {"log/app.log": b"started"}),
    "segments": ("segments/a/b.arrow", lambda: {"segments/a/b.arrow": b"mine"}),
    "temporary": (".tmp-mine", lambda: {".tmp-mine": b"x"}),
}


# On a store, one of each form.
ON_S3 = ("parquet", "delta", "streams", "hidden")


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        *product(("local", "memory"), KINDS),
        *(pytest.param("s3", kind, marks=pytest.mark.slow) for kind in ON_S3),
    ],
    indirect=["place"],
)
def test_stream_begins_in_no_folder_of_another_kind(place: Folder, kind: str) -> None:
    """Create, copies, followers and salvage refuse it, name what it holds, touch nothing."""
    holds, make = KINDS[kind]
    taken = place.inner("taken")
    files = taken.put_all(make())
    stream = place.inner("stream").create()
    stream.append(EVENTS)
    begin: list[Callable[[], object]] = [
        taken.create,
        lambda: segstore.salvage(stream.url, taken.url, storage_options=place.options),
        lambda: stream.followers.add(taken.url),
        lambda: stream.copy_to(taken.url, copy_id="c", mode="clone"),
    ]
    begin += [
        lambda mode=mode: stream.copy_to(
            taken.url, copy_id="c", mode=mode, storage_options=place.options
        )
        for mode in ("segments", "events")
    ]
    for call in begin:
        with pytest.raises(InvalidInputError, match="missing or empty") as caught:
            call()
        assert holds in str(caught.value)
        assert not caught.value.retryable
        assert taken.read() == files
    assert (stream.refresh().followers, stream.pins) == ((), {})
    for call in (taken.open, taken.drop):
        with pytest.raises(NotFoundError, match="no stream here"):
            call()
    assert taken.read() == files


def test_single_file_is_named_as_such(place: Folder) -> None:
    """Opened, created on, created below where folders are real, dropped, searched."""
    place.put_all({"table.parquet": parquet()})
    file = place.inner("table.parquet")
    with pytest.raises(NotFoundError, match=r"other data.*table.parquet"):
        file.open()
    with pytest.raises(NotFoundError):
        file.drop()
    with pytest.raises(InvalidInputError, match="a file is where a folder is needed"):
        file.create()
    with pytest.raises(InvalidInputError, match="a file is where a folder is needed"):
        segstore.list_streams(file.url, storage_options=place.options)
    assert not segstore.exists(file.url, storage_options=place.options)
    if place.url.startswith("/"):
        with pytest.raises(InvalidInputError, match="a file is where"):
            file.inner("deep/er").create()
    assert place.read() == {"table.parquet": parquet()}


def test_drop_deletes_the_stream_and_keeps_the_rest(place: Folder) -> None:
    """Whatever came to lie in its folder since, also among its own objects."""
    stream = place.create()
    stream.append(EVENTS, layout=segstore.Layout(inline_bytes=0))
    stream.readers.register("etl")
    token = next(name for name in place.read() if name.startswith("segments/")).split("/")[1]
    other = place.inner("inner/stream")
    foreign = place.put_all(
        {
            "part-0.parquet": parquet(),
            f"_delta_log/{0:020}.json": b"{}",
            "notes.txt": b"remember",
            ".hidden": b"x",
            ".tmp-mine": b"x",
            f"other/log/{0:020}": b"another stream's commit",
            "other/log/.tmp-7-0123456789abcdef": b"another stream's commit under way",
            "log/app.log": b"started",
            "log/99999999999999999999": b"no number of a commit",
            "log/.notes": b"x",
            "segments/notes.txt": b"x",
            f"segments/{token}/notes.txt": b"x",
            f"segments/{token}/0-0-0.arrow.bak": b"x",
            "segments/mine/0-0-0.arrow": b"x",
            "status/report.html": b"x",
            "readers/etl/list.txt": b"x",
        }
    )
    dropped = place.drop()
    assert dropped.deleted >= 2
    left = {path: data for path, data in place.read().items() if path not in foreign}
    assert all(re.fullmatch(r"log/(\d{20}|_latest)", path) for path in left)
    assert place.read() == {**foreign, **left}
    assert set(dropped.kept) == set(foreign) - {"other/log/.tmp-7-0123456789abcdef"}
    assert not segstore.exists(place.url, storage_options=place.options)
    with pytest.raises(InvalidInputError, match="missing or empty"):
        place.create()
    with pytest.raises(NotFoundError):
        place.drop()
    assert {**place.read(), **left} == {**foreign, **left}
    other.create()


def test_stream_inside_another_is_refused(place: Folder) -> None:
    """At any depth and by any operation; nothing is left, and outside it works."""
    outer, source = place.inner("outer").create(), place.inner("source").create()
    outer.append(EVENTS)
    source.append(EVENTS)
    before = place.read()
    for name in ("x", "a/b/c", "segments/x", "log/y"):
        inner = place.inner(f"outer/{name}")
        calls: list[Callable[[], object]] = [
            inner.create,
            lambda inner=inner: source.followers.add(inner.url),
            lambda inner=inner: segstore.salvage(
                source.url, inner.url, storage_options=place.options
            ),
        ]
        calls += [
            lambda inner=inner, mode=mode: source.copy_to(
                inner.url,
                copy_id="c",
                mode=mode,
                storage_options=None if mode == "clone" else place.options,
            )
            for mode in ("segments", "events", "clone")
        ]
        for call in calls:
            with pytest.raises(
                InvalidInputError, match="can't be inside another stream's folder"
            ) as caught:
                call()
            assert caught.value.fields["stream"] == outer.url
    # The bucket's first writer is probed in the folder itself, and the probe deleted.
    assert place.read() == before
    if place.url.startswith("/"):
        assert not (Path(place.path) / "outer" / "x").exists()


@pytest.mark.parametrize("mode", ["segments", "events", "clone"])
def test_stream_is_not_copied_into_or_around_itself(place: Folder, mode: str) -> None:
    """Dropping either would take the other along."""
    stream = place.inner("outer/stream").create()
    stream.append(EVENTS)
    before = place.read()
    options = None if mode == "clone" else place.options
    for name, how in (("outer/stream/copy", "is inside"), ("outer", "contains")):
        with pytest.raises(InvalidInputError, match=f"{how} the stream's own folder"):
            stream.copy_to(place.inner(name).url, copy_id="c", mode=mode, storage_options=options)
    assert place.read() == before


def test_leftovers_of_a_killed_create_are_no_obstacle(place: Folder) -> None:
    """Temporary files, a probe, a hint, a status object: names that only segstore builds."""
    left = {
        "log/_latest": b"00000000000000000004",
        f"status/{0:020}-schema-{'0' * 32}": b"x",
        f"readers/etl/{0:020}": b"x",
        f".probe-{'0' * 32}": b"x",
    }
    if place.url.startswith("/"):
        left |= {"log/.tmp-7-0123456789abcdef": b"x", ".tmp-7-0123456789abcdef-link": b"x"}
    place.put_all(left)
    place.create().append(EVENTS)
    assert place.open().tail == 3


def test_open_of_a_folder_above_streams_names_them(place: Folder) -> None:
    """Whoever opens the folder of all streams learns what is in it."""
    place.put_all({"log/app.log": b"x", "app/log/today": b"x", "app/status/1": b"x", "x.txt": b"x"})
    stream = place.inner("clicks").create()
    with pytest.raises(NotFoundError, match="in folders below") as caught:
        place.open()
    assert caught.value.fields["streams"] == [stream.url]
    with pytest.raises(NotFoundError, match=r"other data.*log/today.*check the location$"):
        place.inner("app").open()  # where `create` is refused
    rows = segstore.streams(place.url, storage_options=place.options)
    assert rows["url"].to_pylist() == [stream.url]


def test_segments_without_a_log_may_be_all_that_is_left(place: Folder) -> None:
    """A new stream would hide their events; only a copy continues with its own leftovers."""
    place.put_all({f"segments/{0:020}-0123456789ab/0-0-0.arrow": b"x"})
    with pytest.raises(CorruptionError, match="segments of a stream but no log"):
        place.create()
    for look in (segstore.open, segstore.verify, segstore.repair):
        with pytest.raises(NotFoundError, match="copy log/ from a follower"):
            look(place.url, storage_options=place.options)
    source = place.inner("../source").create()
    source.append(EVENTS)
    with pytest.raises(CorruptionError, match="segments of a stream but no log"):
        source.copy_to(place.url, copy_id="c", storage_options=place.options)


def test_readers_without_a_log_tell_of_a_stream(place: Folder) -> None:
    """Its events may have been in commit files alone, so nobody is told to create another."""
    place.put_all({f"readers/etl/{0:020}": b"x"})
    with pytest.raises(NotFoundError, match=r"readers of one whose log is gone.*replica=follower"):
        place.open()


def test_search_of_a_missing_folder_is_an_error(place: Folder) -> None:
    """An empty answer would say that the folder was looked through."""
    with pytest.raises(NotFoundError, match="no such folder"):
        segstore.list_streams(place.url, storage_options=place.options)
    place.put_all({"notes.txt": b"x"})
    assert segstore.list_streams(place.url, storage_options=place.options) == []
    made = place.inner("stream").create()
    assert segstore.list_streams(place.url, storage_options=place.options) == [made.url]


def test_root_of_the_disk_is_refused() -> None:
    """It holds everything else."""
    with pytest.raises(InvalidInputError, match="missing or empty"):
        segstore.create("/", SCHEMA)
    assert not Path("/log").exists()


def test_empty_subfolder_on_disk_is_an_obstacle(tmp_path: Path) -> None:
    """An object store has none; on a disk it may be about to be filled."""
    (tmp_path / "a" / "incoming").mkdir(parents=True)
    with pytest.raises(InvalidInputError, match=r"holds=\['incoming/'\]"):
        segstore.create(tmp_path / "a", SCHEMA)
    segstore.create(tmp_path / "a" / "incoming", SCHEMA)


def test_link_into_a_stream_counts_as_inside_it(tmp_path: Path) -> None:
    """Where a folder really is counts; a link that leads out of a stream is outside."""
    stream = segstore.create(tmp_path / "stream", SCHEMA)
    stream.append(EVENTS)
    (tmp_path / "stream" / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "stream" / "data")
    with pytest.raises(InvalidInputError, match="can't be inside another stream's folder"):
        segstore.create(tmp_path / "link" / "x", SCHEMA)
    shutil.rmtree(tmp_path / "stream" / "data")


def let_pass(folder: Path) -> None:
    """Let others list a folder and those above it, as far as they are ours."""
    for each in (folder, *folder.parents):
        if each.stat().st_uid == os.geteuid() and each != Path("/"):
            each.chmod(each.stat().st_mode | 0o055)


@pytest.fixture
def nobody() -> Iterator[Callable[[bool], None]]:
    """Return a switch to a user who may not read everything, as root may."""
    mighty = os.geteuid() == 0

    def switch(on: bool) -> None:
        if mighty:
            os.seteuid(65534 if on else 0)

    yield switch
    switch(False)


def test_stream_that_may_not_be_read_hides_no_other(
    tmp_path: Path, nobody: Callable[[bool], None], caplog: pytest.LogCaptureFixture
) -> None:
    """It is named in a warning; what can't be listed for another reason is an error."""
    made = [segstore.create(tmp_path / name, SCHEMA).url for name in ("a", "b", "c")]
    let_pass(tmp_path)
    denied = tmp_path / "b" / "log"
    denied.chmod(0)
    nobody(True)
    try:
        assert segstore.list_streams(tmp_path) == [made[0], made[2]]
        assert f"folder {made[1]} is not searched" in caplog.text
    finally:
        nobody(False)
        denied.chmod(0o755)
    assert segstore.list_streams(tmp_path) == made


def test_find_names_failed_folders_and_the_streams_found(tmp_path: Path) -> None:
    """A link that leads to itself can't be read."""
    made = [segstore.create(tmp_path / name, SCHEMA).url for name in ("a", "b", "c")]
    loop = tmp_path / "b" / "log" / f"{9:020}"
    loop.symlink_to(loop)
    with pytest.raises(segstore.SegstoreError, match="could not be listed") as caught:
        segstore.list_streams(tmp_path)
    assert caught.value.fields["folders"] == [made[1]]
    assert caught.value.fields["streams"] == [made[0], made[2]]


def test_stream_above_whose_log_may_not_be_listed_is_seen_by_its_hint(
    tmp_path: Path, nobody: Callable[[bool], None]
) -> None:
    """Policies of buckets may allow reads alone."""
    above = segstore.create(tmp_path / "above", SCHEMA)
    let_pass(tmp_path)
    (tmp_path / "above").chmod(0o777)
    (tmp_path / "above" / "log").chmod(0o711)
    nobody(True)
    try:
        with pytest.raises(InvalidInputError, match="inside another stream") as caught:
            segstore.create(tmp_path / "above" / "mine", SCHEMA)
    finally:
        nobody(False)
    assert caught.value.fields["stream"] == above.url


def test_folder_above_that_may_not_be_listed_is_passed_over(
    tmp_path: Path, nobody: Callable[[bool], None]
) -> None:
    """Policies of buckets let their users list a prefix alone."""
    above = tmp_path / "above"
    (above / "log").mkdir(parents=True)
    (above / "log").chmod(0)
    (above / "mine").mkdir()
    (above / "mine").chmod(0o777)
    let_pass(above)
    nobody(True)
    try:
        stream = segstore.create(above / "mine" / "stream", SCHEMA)
        assert stream.append(EVENTS).end == 3
    finally:
        nobody(False)
        (above / "log").chmod(0o755)


def test_empty_folder_is_recognised_with_one_listing(s3_server: S3Server) -> None:
    """One listing also shows that a folder above is no stream, whatever it holds."""
    bucket = s3_server.new_bucket()
    fs = fsspec.filesystem("s3", **s3_server.options)
    for n in range(30):
        fs.pipe_file(f"{bucket}/deep/other/{n}", b"x")
    fs.pipe_file(f"{bucket}/deep/stream/", b"")  # as a console makes a folder
    segstore.create(f"s3://{bucket}/first", SCHEMA, storage_options=s3_server.options)
    url = f"s3://{bucket}/deep/stream"
    sent = s3_server.requests(
        lambda: segstore.create(url, SCHEMA, storage_options=s3_server.options)
    )
    listed = [line for line in sent if "list-type=2" in line]
    here = [line for line in listed if "prefix=deep%2Fstream%2F&" in line]
    above = [line for line in listed if "max-keys=1000" in line]
    assert [("max-keys=2" in line, "delimiter" in line) for line in here] == [(True, True)]
    assert len(above) == 2  # deep/log/ and log/
    assert len(listed) == 4  # and the stream's own log, by its names
    assert len(sent) <= 10


def test_options_of_a_prefix_serve_the_folders_above(s3_server: S3Server) -> None:
    """They cover the stream's own folder alone, and still tell a stream above it."""
    bucket = s3_server.new_bucket()
    options = {f"s3://{bucket}/outer": s3_server.options}
    segstore.create(f"s3://{bucket}/outer", SCHEMA, storage_options=options)
    inner = f"s3://{bucket}/outer/inner"
    with pytest.raises(InvalidInputError, match="can't be inside another stream's folder"):
        segstore.create(inner, SCHEMA, storage_options={inner: s3_server.options})
