"""The storage contract on Azure Blob Storage's protocol, on Azurite."""

import pytest
from fixtures_servers import FETCHES, LARGE_BODIES

from segstore_ds.storage import Storage, open_storage
from segstore_ds.testing.storage_contract import StorageContract

pytestmark = [*FETCHES, LARGE_BODIES]


class TestAzure(StorageContract):
    takes_parts = False

    @pytest.fixture
    def storage(self, azurite, request) -> Storage:
        request.cls.secret = azurite.secret
        return open_storage(f"{azurite.new_bucket()}/a/stream", azurite.options)

    def raw_names(self, storage: Storage) -> list[str]:
        from adlfs.spec import AzureBlobFileSystem

        root = storage.location.path
        fs = AzureBlobFileSystem(**storage._options, use_listings_cache=False)
        return [name.removeprefix(f"{root}/") for name in fs.find(root)]
