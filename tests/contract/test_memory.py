"""The storage contract in memory; its races stay within one process, which is all it promises."""

import secrets

import fsspec
import pytest
from storage_contract import StorageContract

from segstore_ds.storage import Storage, open_storage


class TestMemory(StorageContract):
    shared_by_processes = False
    copies = True

    @pytest.fixture
    def storage(self) -> Storage:
        return open_storage(f"memory://test-{secrets.token_hex(6)}/s")


def test_other_users_of_fsspec_see_the_objects():
    root = f"test-{secrets.token_hex(6)}"
    storage = open_storage(f"memory://{root}")
    storage.create("log/1", b"abc")
    assert fsspec.filesystem("memory").cat(f"/{root}/log/1") == b"abc"
    fsspec.filesystem("memory").pipe(f"/{root}/log/2", b"de")
    assert storage.get("log/2") == b"de"
    assert {found.path for found in storage.list("")} == {"log/1", "log/2"}
