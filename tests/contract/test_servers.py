"""The storage contract on real servers: MinIO, Azurite, fake-gcs-server; and what is refused."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import boto3
import pyarrow as pa
import pytest
from fault_proxy import Answer, HttpFault, fault_proxy
from fixtures_servers import FETCHES, LARGE_BODIES
from object_servers import Server
from s3fs.core import S3FileSystem
from storage_contract import StorageContract

import segstore_ds as segstore
from segstore_ds.errors import StorageError, UnsafeFilesystemError
from segstore_ds.format import names
from segstore_ds.storage import Storage, open_storage

pytestmark = [*FETCHES, LARGE_BODIES]

# The S3 actions that docs/operate.md names for each permission.
PAGE = (Path(__file__).parents[2] / "segstore_ds/docs/operate.md").read_text()
ACTIONS = {
    name: re.findall(r"`(s3:\w+)`", re.search(rf"^\| {name} \| (.*?) \|", PAGE, re.MULTILINE)[1])
    for name in ("read", "list", "write", "delete")
}
EVENTS = pa.table({"n": range(10)})
SETTLED = segstore.Layout(inline_bytes=0)


class TestMinio(StorageContract):
    copies = True

    @pytest.fixture
    def storage(self, minio, request) -> Storage:
        request.cls.secret = minio.secret
        return open_storage(f"{minio.new_bucket()}/a/stream", minio.options)

    def raw_names(self, storage: Storage) -> list[str]:
        root = storage.url.removeprefix("s3://")
        fs = S3FileSystem(**storage._options, use_listings_cache=False)
        bucket, _, key = root.partition("/")
        # It lists the uploads of one name only.
        staged = {"Bucket": bucket, "Prefix": f"{key}/segments/t/1"}
        assert not fs.call_s3("list_multipart_uploads", **staged).get("Uploads")
        return [name.removeprefix(f"{root}/") for name in fs.find(root)]


class TestAzure(StorageContract):
    @pytest.fixture
    def storage(self, azurite, request) -> Storage:
        request.cls.secret = azurite.secret
        return open_storage(f"{azurite.new_bucket()}/a/stream", azurite.options)

    def raw_names(self, storage: Storage) -> list[str]:
        from adlfs.spec import AzureBlobFileSystem

        root = storage.location.path
        fs = AzureBlobFileSystem(**storage._options, use_listings_cache=False)
        return [name.removeprefix(f"{root}/") for name in fs.find(root)]

    def test_writers_of_one_blob_list_their_own_blocks(self, storage: Storage) -> None:
        """The second to commit finds that its blocks were discarded; never a mix of both."""
        size, part = 11_000_000, 6_000_000
        first, second = (storage.open_scattered("segments/t/1", size, part) for _ in range(2))
        assert first is not None
        assert second is not None
        for start in range(0, size, part):
            first.write_at(start, [b"1" * min(part, size - start)])
            second.write_at(start, [b"2" * min(part, size - start)])
        second.commit()
        with pytest.raises(StorageError):
            first.commit()
        assert storage.get("segments/t/1") == b"2" * size


class TestGcs(StorageContract):
    takes_parts = False

    @pytest.fixture
    def storage(self, fake_gcs) -> Storage:
        return open_storage(f"{fake_gcs.new_bucket()}/a/stream", fake_gcs.options)

    def raw_names(self, storage: Storage) -> list[str]:
        from gcsfs.core import GCSFileSystem

        root = storage.location.path
        fs = GCSFileSystem(**storage._options, use_listings_cache=False)
        return [name.removeprefix(f"{root}/") for name in fs.find(root)]


def test_gateway_that_ignores_conditions_is_refused(versitygw):
    """It answers 200 to both puts of a name; only the probe tells."""
    location = f"{versitygw.new_bucket()}/s"
    storage = open_storage(location, versitygw.options)
    assert [storage.create("x", data) for data in (b"1", b"2")] == [True, True]
    storage.delete("x")
    with pytest.raises(UnsafeFilesystemError, match="conditional puts"):
        storage.ensure_exclusive()
    assert list(storage.temporaries()) == list(storage.list("")) == []
    open_storage(location, versitygw.options, single_writer=True).ensure_exclusive()


@pytest.mark.parametrize("lost", [1, 2])
def test_endpoint_that_loses_an_answer_is_not_refused(minio, lost):
    """The client tries again and finds its own object in the way."""
    busy = Answer(503, b"<Error><Code>SlowDown</Code><Message>made by the tests</Message></Error>")
    with fault_proxy(minio.endpoint) as proxy:
        storage = open_storage(f"{minio.new_bucket()}/s", minio.behind(proxy.endpoint).options)
        proxy.arm(HttpFault("lose", busy, calls=lost, text=".probe-"))
        storage.ensure_exclusive()
        assert len(proxy.struck) == lost
    assert list(minio_names(minio, storage)) == []


def minio_names(minio, storage: Storage) -> list[str]:
    """Return what lies below a place."""
    fs = S3FileSystem(**minio.options, use_listings_cache=False)
    return fs.find(storage.url.removeprefix("s3://"))


@pytest.fixture
def limited(minio: Server) -> Callable[..., dict[str, Any]]:
    """Return storage options that permit no more than what is named."""
    keys = {"aws_access_key_id": minio.key, "aws_secret_access_key": minio.secret}
    sts = boto3.client("sts", endpoint_url=minio.endpoint, region_name="us-east-1", **keys)

    def make(*permissions: str) -> dict[str, Any]:
        actions = [action for name in permissions for action in ACTIONS[name]]
        allow = {"Effect": "Allow", "Action": actions, "Resource": "arn:aws:s3:::*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [allow]})
        role = {"RoleArn": "arn:xxx:xxx:xxx:xxxx", "RoleSessionName": "tests", "Policy": policy}
        made = sts.assume_role(**role)["Credentials"]
        given = {"key": made["AccessKeyId"], "secret": made["SecretAccessKey"]}
        return {**minio.options, **given, "token": made["SessionToken"]}

    return make


def test_named_actions_are_enough_and_fewer_are_not(
    minio: Server, limited: Callable[..., dict[str, Any]]
) -> None:
    url = f"{minio.new_bucket()}/clicks"
    whole = segstore.create(url, EVENTS.schema, storage_options=minio.options)
    whole.append(EVENTS, layout=SETTLED)

    reader = segstore.open(url, storage_options=limited("read", "list"))
    assert reader.read().read_all().num_rows == 10
    reader.verify().check()
    with pytest.raises(StorageError, match="refuses these credentials"):
        reader.append(EVENTS, layout=SETTLED)
    for fewer in ("read", "list"):
        with pytest.raises(StorageError, match="refuses these credentials"):
            segstore.open(url, storage_options=limited(fewer))

    writer = segstore.open(url, storage_options=limited("read", "list", "write"))
    assert writer.append(EVENTS, layout=SETTLED).end == 20
    assert writer.append(EVENTS).end == 30
    with pytest.raises(StorageError, match="refuses these credentials"):
        segstore.drop(url, confirm=url, storage_options=limited("read", "list", "write"))
    segstore.drop(url, confirm=url, storage_options=limited("read", "list", "write", "delete"))


def put_marker(server: Server, bucket: str, folder: str, *, metadata: bool) -> None:
    """Put what shows an empty folder: an empty object `folder/`, or a blob with that metadata."""
    if server.program.scheme == "s3":
        fs = S3FileSystem(**server.options, use_listings_cache=False)
        fs.call_s3("put_object", Bucket=bucket, Key=f"{folder}/")
    elif server.program.scheme == "gcs":
        query = urlencode({"uploadType": "media", "name": f"{folder}/"})
        url = f"{server.endpoint}/upload/storage/v1/b/{bucket}/o?{query}"
        urlopen(Request(url, data=b"", method="POST")).close()  # noqa: S310 - our own server
    else:
        from azure.storage.blob import BlobServiceClient

        client = BlobServiceClient.from_connection_string(server.options["connection_string"])
        blob = client.get_blob_client(bucket, folder if metadata else f"{folder}/")
        given = {"hdi_isfolder": "true"} if metadata else None
        blob.upload_blob(b"", overwrite=True, metadata=given)


@pytest.mark.parametrize(
    ("name", "metadata"),
    [("minio", False), ("azurite", False), ("azurite", True), ("fake_gcs", False)],
)
def test_folder_markers_are_ignored(
    name: str, metadata: bool, request: pytest.FixtureRequest
) -> None:
    """At every level; consoles, some stores and Azure's accounts with folders make them."""
    server = request.getfixturevalue(name)
    parent, options = f"{server.new_bucket()}/all", server.options

    def mark(name: str, *more: str) -> str:
        url = f"{parent}/{name}"
        paths = [info.path.split("/") for info in open_storage(url, options).list("")]
        inner = {"/".join(path[:depth]) for path in paths for depth in range(1, len(path))}
        known = {*names.FOLDERS, *names.TABLE_FOLDERS, names.ASIDE_FOLDER, *more}
        bucket, _, root = url.partition("://")[2].partition("/")
        for folder in (root, *(f"{root}/{folder}" for folder in inner | known)):
            put_marker(server, bucket, folder, metadata=metadata)
        return url

    url, follower, copy, clone, backup = map(mark, ("s", "f", "copy", "clone", "b"))
    schema = pa.schema([("n", pa.int64())])
    stream = segstore.create(url, schema, storage_options=options)
    stream.append({"n": 1}, layout=segstore.Layout(inline_bytes=0, segment_format="parquet"))
    stream.readers.register("billing", start=1)
    for _ in range(2):
        assert [stream.publish(table).lag for table in ("delta", "iceberg")] == [0, 0]
        mark("s", names.READER_HINTS_FOLDER, f"{names.LOG_FOLDER}/{names.build_log_name(90)}")
    stream.followers.add(follower)
    stream.copy_to(copy, copy_id="c", storage_options=options)
    stream.copy_to(clone, copy_id="k", mode="clone")
    stream.back_up(backup, storage_options=options)
    every = {each: mark(each) for each in ("s", "f", "copy", "clone", "b")}
    stream.append({"n": 2})
    stream.back_up(backup, storage_options=options)
    for place in every.values():
        assert not segstore.verify(place, storage_options=options).check().leftovers
    found = segstore.list_streams(parent, storage_options=options)
    assert [place.rpartition("/")[2] for place in found] == sorted(every)
    assert [
        row["error"] for row in segstore.streams(parent, storage_options=options).to_pylist()
    ] == [None] * len(every)
    stream.refresh().compact()
    assert stream.retain(max_bytes=0).head == 1
    assert not [item.path for item in stream.maintain(dry_run=True).kept if item.path[-1] == "/"]
    segstore.drop(clone, confirm=clone, storage_options=options)
    stream.followers.remove(follower)
    assert segstore.drop(url, confirm=url, storage_options=options).kept == ()
    assert segstore.create(url, schema, storage_options=options).tail == 0
