"""The storage contract on Azure Blob Storage, against an emulator that the developer runs.

With Azurite: `npx azurite-blob --inMemoryPersistence --skipApiVersionCheck`, then its connection
string in SEGSTORE_TEST_AZURE_CONNECTION.
"""

import os
import re
import secrets

import pytest

from segstore_ds.storage import Storage, open_storage
from segstore_ds.testing.storage_contract import StorageContract

CONNECTION = os.environ.get("SEGSTORE_TEST_AZURE_CONNECTION", "")
pytestmark = [
    pytest.mark.skipif(
        not CONNECTION, reason="SEGSTORE_TEST_AZURE_CONNECTION names no running emulator"
    ),
    # aiohttp says so of every part of a staged object.
    pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning"),
]


class TestAzure(StorageContract):
    @pytest.fixture
    def storage(self, request) -> Storage:
        from adlfs.spec import AzureBlobFileSystem

        request.cls.secret = re.search(r"AccountKey=([^;]+)", CONNECTION)[1]
        options = {"connection_string": CONNECTION}
        container = f"container-{secrets.token_hex(6)}"
        AzureBlobFileSystem(**options).mkdir(container)
        return open_storage(f"az://{container}/a/stream", options)

    def raw_names(self, storage: Storage) -> list[str]:
        root = storage.location.path
        storage.fs.invalidate_cache()
        return [name.removeprefix(f"{root}/") for name in storage.fs.find(root)]
