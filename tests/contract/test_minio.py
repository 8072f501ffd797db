"""The storage contract on a real S3 server, MinIO, and a real one that must be refused."""

import pytest
from fixtures_servers import FETCHES
from s3fs.core import S3FileSystem

from segstore_ds.errors import UnsafeFilesystemError
from segstore_ds.storage import Storage, open_storage
from segstore_ds.testing.storage_contract import StorageContract

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
