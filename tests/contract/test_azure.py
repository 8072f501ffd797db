"""The storage contract on Azure Blob Storage's protocol, on Azurite."""

import pytest
from fixtures_servers import FETCHES, LARGE_BODIES
from storage_contract import StorageContract

from segstore_ds.errors import StorageError
from segstore_ds.storage import Storage, open_storage

pytestmark = [*FETCHES, LARGE_BODIES]


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
