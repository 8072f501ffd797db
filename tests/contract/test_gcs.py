"""The storage contract on Google Cloud Storage, against an emulator that the developer runs.

With fake-gcs-server: `fake-gcs-server -scheme http -port 4443 -backend memory
-external-url http://127.0.0.1:4443`, then `SEGSTORE_TEST_GCS_ENDPOINT=http://127.0.0.1:4443`.
"""

import os
import secrets

import pytest

from segstore_ds.storage import Storage, open_storage
from segstore_ds.testing.storage_contract import StorageContract

ENDPOINT = os.environ.get("SEGSTORE_TEST_GCS_ENDPOINT", "")
pytestmark = [
    pytest.mark.skipif(not ENDPOINT, reason="SEGSTORE_TEST_GCS_ENDPOINT names no running emulator"),
    # aiohttp says so of every part of a staged object.
    pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning"),
]


class TestGcs(StorageContract):
    @pytest.fixture
    def storage(self) -> Storage:
        from gcsfs.core import GCSFileSystem

        options = {"endpoint_url": ENDPOINT, "token": "anon", "project": "test"}
        bucket = f"bucket-{secrets.token_hex(6)}"
        GCSFileSystem(**options).mkdir(bucket)
        return open_storage(f"gcs://{bucket}/a/stream", options)

    def raw_names(self, storage: Storage) -> list[str]:
        root = storage.location.path
        storage.fs.invalidate_cache()
        return [name.removeprefix(f"{root}/") for name in storage.fs.find(root)]
