"""The storage contract on a real S3 server, MinIO, and a real one that must be refused."""

import pytest
from fault_proxy import Answer, HttpFault, fault_proxy
from fixtures_servers import FETCHES
from s3fs.core import S3FileSystem
from storage_contract import StorageContract

from segstore_ds.errors import UnsafeFilesystemError
from segstore_ds.storage import Storage, open_storage

pytestmark = FETCHES


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
