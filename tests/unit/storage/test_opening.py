"""Which storage lies behind a location, and what is refused."""

import secrets
import sys

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import register_implementation
from storage_contract import StorageContract

from segstore_ds.errors import InvalidInputError, UnsafeFilesystemError
from segstore_ds.storage import open_storage
from segstore_ds.storage.stores import STORES


class UnknownFileSystem(MemoryFileSystem):
    """A filesystem that segstore has never heard of."""

    protocol = "unknownfs"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.removeprefix("unknownfs://"))


register_implementation("unknownfs", UnknownFileSystem, clobber=True)


class TestSingleWriter(StorageContract):
    """The contract without its races, which this storage does not promise to survive."""

    shared_by_processes = False
    test_threads_that_race_have_one_winner_each = None

    @pytest.fixture
    def storage(self):
        return open_storage(f"unknownfs://test/{secrets.token_hex(6)}/s", single_writer=True)


def test_filesystem_without_exclusive_create_is_refused():
    with pytest.raises(UnsafeFilesystemError, match="UnknownFileSystem") as caught:
        open_storage("unknownfs://test/x")
    assert "single_writer=True" in caught.value.remedy
    assert not caught.value.retryable


@pytest.mark.parametrize(
    ("url", "extra", "module"),
    [
        ("s3://b/x", "s3", "s3fs.core"),
        ("gs://b/x", "gcs", "gcsfs.core"),
        ("abfs://c/x", "azure", "adlfs.spec"),
    ],
)
def test_missing_package_is_named_by_its_extra(url, extra, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InvalidInputError) as caught:
        open_storage(url)
    assert f"pip install 'segstore-ds[{extra}]'" in str(caught.value)


def test_wrong_option_is_refused_without_its_value():
    with pytest.raises(InvalidInputError, match="not accepted") as caught:
        open_storage("s3://b/x", {"key": "k1234", "username": "hidden-name"})
    assert "hidden-name" not in str(caught.value)


def test_account_in_the_url_reaches_the_filesystem():
    pytest.importorskip("adlfs")
    options = {"account_key": "c2VjcmV0LWtleQ=="}
    storage = open_storage("abfss://c@acc.dfs.core.windows.net/x", options)
    assert storage.fs.account_name == "acc"
    assert STORES["abfs"].custom_endpoint(storage.fs) is None
    assert storage._full("a/b") == "c/x/a/b"


@pytest.mark.parametrize(
    ("endpoint", "custom"),
    [
        (None, None),
        ("https://s3.eu-west-1.amazonaws.com", None),
        ("http://127.0.0.1:9000", "http://127.0.0.1:9000"),
        ("https://s3.amazonaws.com.evil.net", "https://s3.amazonaws.com.evil.net:"),
        ("http://s3.amazonaws.com", "http://s3.amazonaws.com:"),
    ],
)
def test_custom_endpoint_is_recognised(endpoint, custom):
    options = {"key": "k1234", "secret": "s1234", "endpoint_url": endpoint}
    storage = open_storage("s3://b/x", options)
    assert STORES["s3"].custom_endpoint(storage.fs) == custom


def test_endpoint_of_the_environment_is_recognised(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9001")
    storage = open_storage("s3://b/x", {"key": "k5678", "secret": "s5678"})
    assert STORES["s3"].custom_endpoint(storage.fs) == "http://127.0.0.1:9001"


def test_no_listing_cache_whatever_the_options_say():
    storage = open_storage("s3://b/x", {"key": "k", "secret": "s", "use_listings_cache": True})
    assert storage.fs.dircache.use_listings_cache is False
