"""The storage contract on Google Cloud Storage's protocol, on fake-gcs-server."""

import pytest
from fixtures_servers import FETCHES, LARGE_BODIES
from storage_contract import StorageContract

from segstore_ds.storage import Storage, open_storage

pytestmark = [*FETCHES, LARGE_BODIES]


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
